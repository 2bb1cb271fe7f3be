"""What raycomp defers is there when it is used, with the same bits, and is not imported before."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TINY = {
    "embed_dim": 8,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
EMBED = """
import numpy as np
from raycomp.config import ScorerConfig
from raycomp.models.clip import Clip
clip = Clip(ScorerConfig(model="tiny.json", weights="random:0"), num_threads=1)
pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
tokens = np.arange(2 * 77).reshape(2, 77).astype(np.int32)
tokens[:, 0], tokens[:, 9], tokens[:, 10:] = 49406, 49407, 0
print(clip.embed_pixels(pixels).numpy().tobytes().hex(), clip.text.embed(tokens)[0].numpy().tobytes().hex())
"""
SLOW = "import sys; print(sorted({'torch', 'torch._dynamo', 'transformers', 'timm'} & set(sys.modules)))"


def run(lines: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", lines], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("deferred")
    (folder / "tiny.json").write_text(json.dumps(TINY))
    roberta = {"model_type": "roberta", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"intermediate_size": 16, "vocab_size": 64, "max_position_embeddings": 40, "pad_token_id": 1}
    (folder / "roberta").mkdir()
    (folder / "roberta/config.json").write_text(json.dumps({**roberta, **sizes}))
    return folder


def test_a_scorer_has_the_same_bits_and_loads_only_torch(folder):
    bits, loaded = run(f"import raycomp\n{EMBED}\n{SLOW}", folder).splitlines()
    assert run(f"import open_clip\n{EMBED}", folder) == bits
    assert loaded == "['torch']"


def test_training_uses_torch_dynamo(folder):
    lines = """
    import os, raycomp, open_clip, sys, torch
    assert "torch._dynamo" not in sys.modules
    model = torch.nn.Linear(2, 1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters())
    before = model.weight.clone()
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    from torchvision.ops.roi_align import roi_align
    print(roi_align(torch.ones(1, 1, 4, 4), [torch.tensor([[0.0, 0, 2, 2]])], 1).item())
    import torch._dynamo
    assert sys.modules["torch._dynamo"] is torch._dynamo and torch._dynamo.__file__
    """
    assert run("\n".join(line.strip() for line in lines.splitlines()), folder) == "1.0"


def test_towers_of_transformers_and_timm_are_built(folder):
    lines = """
    import raycomp, open_clip, sys, torch
    from open_clip.hf_model import HFTextEncoder
    from open_clip.timm_model import TimmModel
    assert not {"transformers", "timm"} & set(sys.modules)
    text = HFTextEncoder("roberta", 8, pooler_type="mean_pooler", proj_type="linear", pretrained=False)
    image = TimmModel("resnet10t", embed_dim=8, image_size=32)
    assert {"transformers", "timm"} <= set(sys.modules)
    import transformers
    assert isinstance(text.config, transformers.PretrainedConfig)
    print(*text(torch.arange(2, 10)[None]).shape, *image(torch.zeros(2, 3, 32, 32)).shape)
    """
    assert run("\n".join(line.strip() for line in lines.splitlines()), folder) == "1 8 2 8"


def test_parts_of_packages_are_the_real_ones_when_they_are_read(folder):
    lines = """
    import gc, raycomp, open_clip, sys, torchvision
    assert gc.isenabled() and not gc.get_freeze_count()
    parts = ["torchvision.models", "torchvision.datasets", "open_clip.push_to_hf_hub"]
    assert not {*parts, "ftfy", "huggingface_hub.hf_api"} & set(sys.modules)
    assert not {"models", "datasets", "push_to_hf_hub"} & {*vars(torchvision), *vars(open_clip)}
    from torchvision import datasets
    import torchvision.models
    assert datasets is sys.modules[parts[1]] and torchvision.models is sys.modules[parts[0]]
    names = "push_to_hf_hub", "push_pretrained_to_hf_hub"
    functions = [getattr(open_clip, name) for name in names]
    assert functions == [getattr(sys.modules[parts[2]], name) for name in names]
    try:
        open_clip.nothing
    except AttributeError as error:
        print(error, "|", *open_clip.tokenize("a &amp;amp; b")[0, :4].tolist())
    """
    reported = run("\n".join(line[4:] for line in lines.splitlines()), folder)
    assert reported == "module 'open_clip' has no attribute 'nothing' | 49406 320 261 321"


def test_captioning_models_write(folder):
    lines = """
    import raycomp, open_clip, torch
    decoder = {"context_length": 76, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1}
    config = {**TINY, "embed_dim": 64, "multimodal_cfg": {**decoder, "attn_pooler_heads": 2}}
    config["vision_cfg"] |= {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    config["text_cfg"] |= {"context_length": 76, "embed_cls": True, "output_tokens": True}
    model = open_clip.CoCa(**config).eval()
    print(*model.generate(torch.zeros(1, 3, 32, 32), generation_type="top_k", seq_len=9, max_seq_len=9).shape)
    """
    reported = run("\n".join(line.strip() for line in [f"TINY = {TINY}", *lines.splitlines()]), folder)
    assert reported.startswith("1 ")


def test_the_packaged_parser_does_without_torch_and_others_have_it(folder):
    lines = """
    import raycomp, sys
    from raycomp.models.parser import load_parser
    print(len(load_parser().parse(["A dog runs on the grass."])[0]), "torch" in sys.modules)
    from thinc.api import PyTorchWrapper
    from thinc.compat import has_torch
    import numpy, torch
    wrapped = PyTorchWrapper(torch.nn.Linear(2, 1)).initialize()
    print(has_torch, wrapped.predict(numpy.ones((1, 2), "f")).shape)
    """
    reported = run("\n".join(line.strip() for line in lines.splitlines()), folder).splitlines()
    assert reported == ["2 False", "True (1, 1)"]
