"""The description of a scorer for other stages; a process that only prepares inputs needs no torch for it.
A model's json config, checked before anything of its size is allocated or its weights are read.

A name that open_clip knows is trusted. A json file, and the ``open_clip_config.json`` of ``local-dir:`` and
``hf-hub:`` models, are untrusted input: numbers have ranges, and the model is first built without memory.

Weights also fit a model with another activation, which then scores worse without an error: so a fine-tuned
OpenAI model loses points when it is loaded by its path (open_clip, issue 771).
"""

import json
import os
import posixpath
import struct
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.config.change import parse_json
from raycomp.models.images import ImageSpec

ClipConfig = ModelConfig | ScorerConfig


@dataclass(frozen=True)
class ScorerSpec:
    """The facts on a model that the other stages need, without loading it."""

    image: ImageSpec
    context_length: int
    embedding_dim: int
    shares_prefixes: bool
    """Whether its text tower encodes a caption and its counterfactuals together; else each by itself."""


LIBRARIES_FAIL = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SafetensorError,
    StopIteration,
    TypeError,
    UnpicklingError,
    ValueError,
    struct.error,
)
"""What open_clip, torch, timm, transformers and spaCy raise over files that they cannot read."""
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
HUB_CONFIG = "open_clip_config.json"
_QUICK, _SUFFIX = "quick_gelu", "-quickgelu"
# open_clip interpolates positions where these differ.
_STRETCHED = {"image_size", "context_length"}
# open_clip_train's file, in the folder above its checkpoints.
_PARAMS = "params.txt"


def one_line(error: BaseException) -> str:
    """Return the start of an error's message, without line breaks; its type where the message is empty."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= 200 else f"{said[:200].rpartition(' ')[0] or said[:200]} ..."


def say_bad(said: str, num_bad: int, num: int, noun: str, remedy: str = "name other weights") -> str:
    """Return the error message for a number of bad embeddings; ``said``: an option and its value."""
    bad = f"gives embeddings that are not finite or not of length 1 ({num_bad:,} of {num:,} {noun})"
    return f"{said}: {bad}; {remedy}"


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


def read_preprocessing(model: str) -> dict[str, Any] | None:
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
    """Raise ValueError unless ``content`` describes a model, of sizes that models have."""
    if not isinstance(content, dict) or not {*_NEEDED} <= {*content}:
        raise ValueError(f"{said}: must be a json object with {', '.join(_NEEDED)}")
    for tower in _NEEDED[1:]:
        if not isinstance(content[tower], dict):
            raise ValueError(f"{said}: {tower} must be an object, is {content[tower]!r}")
    parts = (content, content["vision_cfg"], content["text_cfg"], content.get("multimodal_cfg"))
    stated = [(name, part.get(name)) for part in parts if isinstance(part, dict) for name in _SIZES]
    for name, value in [(name, value) for name, size in stated if size is not None for value in _sides(size)]:
        most = _MOST.get(name, _MOST_OF_OTHERS)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= most or (name != "mlp_ratio" and value != int(value)):
            raise ValueError(f"{said}: {name} is {str(value)[:40]!r}, must be a number from 1 to {most:,}")


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
    if most is not None and most * 4 < there / 10:
        return  # building it without memory imports torch._dynamo, which takes half as long as torch
    try:
        with torch.device("meta"):
            built = open_clip.create_model(name, load_weights=False, pretrained_text=False, device="meta")
    except LIBRARIES_FAIL as error:
        raise ValueError(f"{said}: no model can be built from it ({one_line(error)})") from error
    needed = sum(value.nbytes for value in (*built.parameters(), *built.buffers()))
    if needed > there:
        memory = f"this machine has {there / 1e9:,.1f} GB of memory"
        raise ValueError(f"{said}: needs {needed / 1e9:,.1f} GB for its weights, {memory}")


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


def check_config_files(config: ModelConfig | ScorerConfig, own: dict[str, Any]) -> None:
    """Raise ValueError where a config next to the weights names another model than the one to load.

    ``own`` is open_clip's config of the model to load. These files are read: a json with the weights' name,
    as raycomp writes it, open_clip_config.json, and open_clip_train's params.txt in the folder above
    ``checkpoints/``. A field in only one of the two configs is not compared, except for the activation.
    """
    found = [Path(path) for path in list_config_files(config.weights) if Path(path).is_file()]
    reported = next(filter(None, (_read(path, own) for path in found)), None)
    if reported is None:
        return
    path, theirs, name = reported
    theirs, own = ({**one, _QUICK: bool(one.get(_QUICK))} for one in (theirs, own))
    for part in ("", *_NEEDED[1:]):
        one, other = (whole[part] if part else whole for whole in (theirs, own))
        for field in sorted(({*one} & {*other}) - _STRETCHED):
            value, ours = one[field], other[field]
            if isinstance(value, int) and isinstance(ours, int) and value != ours:
                what, option = f"{part}.{field}".strip("."), config.said_model.partition("=")[0]
                raise ValueError(
                    f"{config.said_weights}: was trained with {what}={value} ({path}), {config.said_model} "
                    f"has {what}={ours}; set {option}={name or _name_variant(config.model, theirs[_QUICK])}"
                )


def list_config_files(weights: str) -> list[str]:
    """Return paths or uris of the config files that may describe weights."""
    folder, name = posixpath.split(weights)
    stem = posixpath.splitext(name)[0]
    above, last = posixpath.split(folder)
    log = [posixpath.join(above, _PARAMS)] if last == "checkpoints" else []
    return [posixpath.join(folder, f"{stem}.json"), posixpath.join(folder, HUB_CONFIG), *log]


def _read(path: Path, own: dict[str, Any]) -> tuple[Path, dict[str, Any], str] | None:
    """Return the file, its config, and the model's name in it, if any; None if there is no config."""
    if path.name == _PARAMS:
        return _read_params(path, own)
    text = path.read_text()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None  # not a file of open_clip's
    is_hub = path.name == HUB_CONFIG
    theirs: Any = found.get("model_cfg") if is_hub and isinstance(found, dict) else found
    if not isinstance(theirs, dict) or not all(isinstance(theirs.get(part), dict) for part in _NEEDED[1:]):
        return None
    try:
        parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; write it once") from error
    return path, theirs, "" if is_hub else str(path)


def _read_params(path: Path, own: dict[str, Any]) -> tuple[Path, dict[str, Any], str] | None:
    import open_clip
    from open_clip.factory import get_model_config

    params = dict(line.partition(": ")[::2] for line in path.read_text("utf-8", "replace").splitlines())
    name = params.get("model", "").replace("/", "-")
    if name not in open_clip.list_models():
        return None
    theirs = get_model_config(name)
    if params.get("force_quick_gelu") == "True":
        theirs[_QUICK] = True
    elif params.get("pretrained") == "openai" and not theirs.get(_QUICK):
        # Most versions trained OpenAI's weights with QuickGELU, the last ones without: a json may state it.
        theirs[_QUICK] = own.get(_QUICK, True)
    return path, theirs, name if theirs == get_model_config(name) else ""


def _name_variant(model: str, is_quick: bool) -> str:
    """Return the name to use: the model with the other activation if open_clip has it, else a json."""
    import open_clip

    variant = model.replace("/", "-").removesuffix(_SUFFIX) + _SUFFIX * is_quick
    return variant if variant in open_clip.list_models() else "FILE.json, with the config of that model"
