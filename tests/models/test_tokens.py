"""Tokens without open_clip are open_clip's, and a process that makes them imports little."""

import json
import subprocess
import sys

from raycomp.config import ModelConfig
from raycomp.models.architecture import load_tokens
from raycomp.models.clip import load_tokenizer

TEXTS = ["a photo", "", "Zwei Hunde &amp; ein Kind, it's 12!", "caf\u00e9 \U0001f408 " * 60, "<end_of_text>"]


def write_model(folder, **text) -> str:
    path = folder / "model.json"
    text = {"context_length": 16, "width": 64, "heads": 1, "layers": 1, **text}
    vision = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}
    path.write_text(json.dumps({"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}))
    return str(path)


def test_tokens_are_open_clips(tmp_path_factory):
    for name in ["ViT-B-32", "ViT-B/32", "RN50", "file"]:
        tmp_path = tmp_path_factory.mktemp("case")
        config = ModelConfig(name=write_model(tmp_path) if name == "file" else name, weights="random:0")
        assert load_tokens(config)(TEXTS).tolist() == load_tokenizer(config)(TEXTS).tolist(), name


def test_another_tokenizer_is_left_to_open_clip(tmp_path):
    config = ModelConfig(
        name=write_model(tmp_path, tokenizer_kwargs={"clean": "whitespace"}), weights="random:0"
    )
    assert load_tokens(config)(["A Photo"]).tolist() == load_tokenizer(config)(["A Photo"]).tolist()
    assert (
        load_tokens(config)(["A Photo"]).tolist() != load_tokens(ModelConfig())(["A Photo"])[:, :16].tolist()
    )


def test_what_makes_batches_does_not_import_open_clip():
    lines = (
        "import sys",
        "from raycomp.config import ModelConfig",
        "from raycomp.training import feed, ray_feed",
        "feed.load_tokens(ModelConfig())(['a'])",
        "print(sorted({'open_clip', 'torchvision', 'transformers', 'timm'} & set(sys.modules)))",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
