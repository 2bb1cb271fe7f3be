"""Checks of a model's json config before anything of its size is allocated. Imports open_clip on use.

A name that open_clip knows is trusted. A json file, and the ``open_clip_config.json`` of ``local-dir:`` and
``hf-hub:`` models, are untrusted input: numbers have ranges, and the model is first built without memory.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raycomp.config.json_text import parse_json
from raycomp.models.faults import LIBRARIES_FAIL, one_line

# The largest models that open_clip knows have images of 512 pixels, 77 tokens, 56 layers, 901,629 words.
_MOST = {"image_size": 4096, "context_length": 8192, "layers": 1000, "vocab_size": 10_000_000}
_SIZES = (*_MOST, "embed_dim", "width", "heads", "head_width", "patch_size", "mlp_ratio")
_MOST_OF_OTHERS = 1_000_000
_NEEDED = ("embed_dim", "vision_cfg", "text_cfg")
# open_clip's defaults for missing fields, and the allowed fields of two plain transformers.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "vision_cfg": {"layers": 12, "width": 768, "mlp_ratio": 4.0, "patch_size": 16, "image_size": 224},
    "text_cfg": {"layers": 12, "width": 512, "mlp_ratio": 4.0, "context_length": 77, "vocab_size": 49408},
}
_PLAIN = set("embed_dim vision_cfg text_cfg quick_gelu custom_text init_logit_scale init_logit_bias".split())
_BYTES = 4
HUB_CONFIG = "open_clip_config.json"


def register_file(model: str, said: str) -> str:
    """Register a model config given as a json file with open_clip; return its name there.

    ``said`` is the option with its value, as messages print it. Raises ValueError where the file is not a
    model config, or has a size that no model has.
    """
    path = Path(model)
    if not path.is_file():
        raise ValueError(f"{said}: no such file")
    check_config(said, _read_json(path, said))
    from open_clip import add_model_config

    add_model_config(path)
    return path.stem


def find_preprocessing(model: str) -> dict[str, Any] | None:
    """Return the image preprocessing of a model given as a json file, if a file next to it states it.

    That file is ``open_clip_config.json``, which a training writes too; the file of another model is ignored.
    None = open_clip's default. Raises ValueError where the file has another form.
    """
    path = Path(model)
    companion = path.with_name(HUB_CONFIG)
    if path.suffix != ".json" or ":" in model or not companion.is_file():
        return None
    reported, own = (_read_json(file, str(file)) for file in (companion, path))
    if not isinstance(reported, dict) or reported.get("model_cfg") != own:
        return None
    return reported.get("preprocess_cfg")


def _read_json(path: Path, said: str) -> Any:
    try:
        return parse_json(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{said}: cannot be read as JSON ({error})") from error


def check_schema(model: str, said: str) -> None:
    """Check the config of a ``local-dir:`` or ``hf-hub:`` model.

    Raises ValueError where there is none, or it does not describe a model.
    """
    from open_clip.factory import get_model_config

    try:
        place = model.removeprefix("local-dir:")
        if place != model:
            parse_json(Path(place, HUB_CONFIG).read_text("utf-8"))  # open_clip allows repeated keys
        content = get_model_config(model)
    except LIBRARIES_FAIL as error:
        raise ValueError(f"{said}: its config cannot be read ({one_line(error)})") from error
    check_config(said, content)


def check_config(said: str, content: Any) -> None:
    """Raise ValueError unless ``content`` describes a model that this machine can hold."""
    if not isinstance(content, dict) or not {*_NEEDED} <= {*content}:
        raise ValueError(f"{said}: must be a json object with {', '.join(_NEEDED)}")
    for tower in _NEEDED[1:]:
        if not isinstance(content[tower], dict):
            raise ValueError(f"{said}: {tower} must be an object, is {content[tower]!r}")
    for name, value in _find_sizes(content):
        most = _MOST.get(name, _MOST_OF_OTHERS)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= most or (name != "mlp_ratio" and value != int(value)):
            raise ValueError(f"{said}: {name} is {str(value)[:40]!r}, must be a number from 1 to {most:,}")


def _find_sizes(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the sizes that a config and its towers state; for a list, every member."""
    for part in (content, content["vision_cfg"], content["text_cfg"], content.get("multimodal_cfg")):
        for name in _SIZES:
            value = part.get(name) if isinstance(part, dict) else None
            if value is not None:
                for one in value if isinstance(value, list) else [value]:
                    yield name, one


def check_memory(name: str, said: str) -> None:
    """Build the model of a config without memory; raise ValueError where that fails, or it would not fit.

    ``name`` is its name in open_clip. Towers of timm and transformers refer to models of those libraries:
    their sizes are not user input, and not all of them can be built this way.
    """
    import open_clip
    import torch
    from open_clip.factory import get_model_config

    content = get_model_config(name)
    if "timm_model_name" in content["vision_cfg"] or "hf_model_name" in content["text_cfg"]:
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = bound_parameters(content)
    if most is not None and most * _BYTES < there / 10:
        return  # building it without memory imports torch._dynamo, which takes half as long as torch
    try:
        with torch.device("meta"):
            built = open_clip.create_model(name, load_weights=False, pretrained_text=False, device="meta")
    except LIBRARIES_FAIL as error:
        raise ValueError(f"{said}: no model can be built from it ({one_line(error)})") from error
    needed = sum(value.nbytes for value in (*built.parameters(), *built.buffers()))
    if needed > there:
        raise ValueError(
            f"{said}: needs {needed / 1e9:,.1f} GB for its weights, this machine has "
            f"{there / 1e9:,.1f} GB of memory"
        )


def bound_parameters(content: dict[str, Any]) -> int | None:
    """Return an upper bound of the number of values of a model of two plain transformers, buffers included.

    None for other towers: ResNets, a captioning decoder, pooling by attention.
    """
    towers = [{**default, **content[part]} for part, default in _DEFAULTS.items()]
    numbers = [content["embed_dim"], *(tower[name] for tower in towers for name in ("layers", "width"))]
    is_plain = set(content) <= _PLAIN and all(isinstance(number, int) for number in numbers)
    if not is_plain or any(key.startswith(("attn", "attention")) for tower in towers for key in tower):
        return None
    total = 0.0
    for tower in towers:
        width, context = tower["width"], tower.get("context_length", 0)
        rows = tower.get("vocab_size", 0) + 2 * context + 4 * content["embed_dim"] + 16
        if "image_size" in tower:
            patch = tower["patch_size"]
            rows += (max(_sides(tower["image_size"])) // min(_sides(patch)) + 1) ** 2
            rows += 3 * max(_sides(patch)) ** 2
        block = (4 + 2 * tower["mlp_ratio"]) * width**2 + (20 + 2 * tower["mlp_ratio"]) * width
        total += rows * width + tower["layers"] * block + context**2
    return int(total)


def _sides(size: Any) -> list[int]:
    return size if isinstance(size, list) else [size]
