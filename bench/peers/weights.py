"""One random ViT-B/32 written twice: as open_clip's state dict, and as the folder transformers loads.

Both are the same numbers: transformers keeps q, k, v apart and its projections transposed.
"""

import json
import math
from pathlib import Path

import open_clip
import torch
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch import Tensor

START, END = "<|startoftext|>", "<|endoftext|>"
WHOLE_NAMES = {
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
}
TRANSPOSED = {"text_projection": "text_projection.weight", "visual.proj": "visual_projection.weight"}
PARTS = (
    ("visual.transformer.resblocks.", "vision_model.encoder.layers."),
    ("transformer.resblocks.", "text_model.encoder.layers."),
    ("visual.ln_pre.", "vision_model.pre_layrnorm."),
    ("visual.ln_post.", "vision_model.post_layernorm."),
    ("ln_final.", "text_model.final_layer_norm."),
    (".ln_1.", ".layer_norm1."),
    (".ln_2.", ".layer_norm2."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
    (".attn.", ".self_attn."),
)
# Run by the python of the environment that has transformers: weights folder as the argument.
COMPARE = """
import sys, torch, transformers
want = torch.load(sys.argv[1] + "/want.pt")
clip = transformers.CLIPModel.from_pretrained(sys.argv[1] + "/clip").eval()
with torch.inference_mode():
    image = clip.get_image_features(want["pixels"]) - want["image"]
    text = clip.get_text_features(want["tokens"]) - want["text"]
difference = max(image.abs().max().item(), text.abs().max().item())
assert difference < 1e-4, f"embeddings of the converted weights differ by {difference}"
"""


def write_weights(folder: Path, name: str) -> None:
    """Write weights.pt, clip/ and want.pt, the embeddings that COMPARE asks for, into ``folder``.

    The temperature is 100 as in trained models: Data-Juicer divides logits by 100 to get cosines.
    """
    (folder / "clip").mkdir(parents=True)
    torch.manual_seed(0)
    model = open_clip.create_model(name, load_weights=False).eval()
    model.logit_scale.data.fill_(math.log(100))
    torch.save(model.state_dict(), folder / "weights.pt")
    save_file(convert(model.state_dict()), folder / "clip/model.safetensors", metadata={"format": "pt"})
    write_configs(folder / "clip", open_clip.get_model_config(name))
    write_tokenizer(folder / "clip")
    pixels = torch.randn(4, 3, *model.visual.image_size)
    tokens = open_clip.get_tokenizer(name)(["a dog", "two red cups on a table", "!", ""])
    with torch.inference_mode():
        want = {"image": model.encode_image(pixels), "text": model.encode_text(tokens)}
    torch.save({"pixels": pixels, "tokens": tokens, **want}, folder / "want.pt")


def convert(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return open_clip's tensors under the names, and in the layout, of transformers' CLIPModel."""
    out = {}
    for name, tensor in state.items():
        if name in TRANSPOSED:
            out[TRANSPOSED[name]] = tensor.T
            continue
        new = WHOLE_NAMES.get(name, name)
        for old_part, new_part in PARTS:
            new = new.replace(old_part, new_part)
        if ".in_proj_" in new:
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                out[new.replace("in_proj_", f"{letter}_proj.")] = part
        else:
            out[new] = tensor
    return {name: tensor.contiguous().clone() for name, tensor in out.items()}


def write_configs(folder: Path, config: dict) -> None:
    """Write the model's config, and preprocessing as OpenAI's folders have it."""
    vision, text, dim = config["vision_cfg"], config["text_cfg"], config["embed_dim"]
    model = {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": dim,
        "vision_config": {
            **_tower(vision["width"], vision["layers"], vision["width"] // 64, dim),
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
        },
        "text_config": {
            **_tower(text["width"], text["layers"], text["heads"], dim),
            "vocab_size": text["vocab_size"],
            "max_position_embeddings": text["context_length"],
            "bos_token_id": text["vocab_size"] - 2,
            "eos_token_id": text["vocab_size"] - 1,
        },
    }
    preprocessing = {
        "processor_class": "CLIPProcessor",
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": vision["image_size"]},
        "crop_size": {"height": vision["image_size"], "width": vision["image_size"]},
        "resample": 3,
        "image_mean": OPENAI_DATASET_MEAN,
        "image_std": OPENAI_DATASET_STD,
    }
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessing))


def _tower(width: int, layers: int, heads: int, dim: int) -> dict:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "projection_dim": dim,
        "hidden_act": "gelu",
    }


def write_tokenizer(folder: Path) -> None:
    """Write open_clip's byte-pair vocabulary as CLIPTokenizer reads it."""
    tokenizer = SimpleTokenizer()
    names = {"<start_of_text>": START, "<end_of_text>": END}
    vocabulary = {names.get(token, token): i for token, i in tokenizer.encoder.items()}
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__)
    tokens = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": tokenizer.context_length, **tokens}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
