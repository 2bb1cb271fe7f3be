"""What is written of a model: its config, and the files next to weights that state what they were trained as.

One reader for all commands. The files are a json with the weights' name, as raycomp writes it, open_clip's
``open_clip_config.json``, and ``params.txt`` of open_clip_train in the folder above ``checkpoints/``. They
state architecture, image size, context length, logit bias and preprocessing together. A stated value is
taken; an option that contradicts one is refused. This module imports neither torch nor open_clip.
"""

import importlib.util
import json
import math
import os
import posixpath
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.config.commands import parse_json

ClipConfig = ModelConfig | ScorerConfig
HUB_CONFIG = "open_clip_config.json"
# open_clip_train's initial values for its siglip loss; Zhai et al. 2023 (arXiv:2303.15343).
SIGLIP = {"init_logit_scale": math.log(10), "init_logit_bias": -10.0}
# The largest models that open_clip knows have images of 512 pixels, 77 tokens, 56 layers, 901,629 words.
_MOST = {"image_size": 4096, "context_length": 8192, "layers": 1000, "vocab_size": 10_000_000}
SIZES = (*_MOST, "embed_dim", "width", "heads", "head_width", "patch_size", "mlp_ratio")
_MOST_OF_OTHERS = 1_000_000
NEEDED = ("embed_dim", "vision_cfg", "text_cfg")
_QUICK, _SUFFIX = "quick_gelu", "-quickgelu"
# Sizes that open_clip_train sets for a known model.
_FORCED = ("image_size", "context_length")
# open_clip_train's file, in the folder above its checkpoints.
_PARAMS = "params.txt"
_PREPROCESSING = ("mean", "std", "interpolation", "resize_mode", "fill_color", "mode", "size")
# The files that open_clip prefers in a folder, in this order.
_PREFERRED = """open_clip_model.safetensors open_clip_pytorch_model.safetensors open_clip_pytorch_model.bin
open_clip_pytorch_model.pth model.safetensors pytorch_model.bin pytorch_model.pth model.pth""".split()


class Model(NamedTuple):
    """What open_clip builds. A tag, a hub and random weights have no ``file``; a hub and unknown names no
    ``architecture``. Without ``preprocessing`` it is the tag's, or open_clip's default. ``tokenizer`` is the
    folder of its own, ``run`` the name of open_clip_train's run, if its params.txt stated the model."""

    name: str
    architecture: dict[str, Any] | None
    preprocessing: dict[str, Any] | None
    file: str | None
    tokenizer: str | None = None
    run: str = ""


class Stated(NamedTuple):
    """What the file ``path`` next to weights states. ``name``: of the model, for options; may be empty.
    ``tag``: name and tag of the weights that the run started from, whose preprocessing it kept."""

    path: Path
    name: str
    architecture: dict[str, Any]
    preprocessing: dict[str, Any] | None = None
    tag: tuple[str, str] | None = None
    run: str = ""


def resolve(config: ClipConfig) -> Model:
    """Return what open_clip builds, from the options and the files next to the weights.

    Raises ValueError with a user message where these contradict each other, or are no such files.
    """
    schema, _, place = config.model.partition(":")
    own, how = read_model(config.model, config.said_model)
    is_random = config.weights.startswith("random:")
    file = config.weights if not is_random and Path(config.weights).is_file() else None
    option = config.said_model.partition("=")[0]
    if schema == "local-dir":
        inside = find_checkpoint(place)
        is_same = config.weights == "openai" or (file and inside and os.path.samefile(file, inside))
        if not is_random and not is_same:
            said = f"{config.said_model} has weights of its own, {inside}; set {option}={place}/{HUB_CONFIG}"
            raise ValueError(f"{config.said_weights}: {said}")
        if not inside and not is_random:
            raise ValueError(f"{config.said_model}: holds no weights, such as {_PREFERRED[0]}")
        return Model(Path(place).name, own, how, None if is_random else inside, _find_tokenizer(Path(place)))
    name, model = config.model.replace("/", "-"), Path(config.model)
    is_own = model.suffix == ".json"
    tokenizer = _find_tokenizer(model.parent) if is_own and how is not None else None
    found = Model(model.stem if is_own else name, own, how, file, tokenizer)
    stated = read_stated(file, own) if own is not None and file else None
    if own is None or stated is None:
        return found._replace(preprocessing=_read_tags(name)) if own and file and not is_own else found
    # Of a model that open_clip does not know, params.txt states what was changed in the user's own file.
    is_base = stated.path.name == _PARAMS and stated.tag is None
    if differs := _find_difference(own, stated, is_own and not is_base):
        what, value, ours = differs
        wanted = stated.name or "FILE.json, with the config of that model"
        raise ValueError(
            f"{config.said_weights}: was trained with {what}={value} ({stated.path}), {config.said_model} "
            f"has {what}={ours}; set {option}={wanted}"
        )
    check_config(str(stated.path), stated.architecture)
    how = stated.preprocessing or how
    if stated.tag is not None:
        how = (_read_tags(*stated.tag) or {}) | (stated.preprocessing or {})
    towers = {one: {**own[one], **stated.architecture[one]} for one in NEEDED[1:]}
    tokenizer = _find_tokenizer(stated.path.parent) or tokenizer
    return Model(found.name, {**own, **stated.architecture, **towers}, how, file, tokenizer, stated.run)


def _read_tags(name: str, tag: str | None = None) -> dict[str, Any] | None:
    """Return the preprocessing of a tag, or else of all tags of a name; None where it is the default, or they
    differ. Own weights of a SigLIP without any file next to them are prepared as SigLIP's are."""
    from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model  # which imports torch
    from open_clip.transform import PreprocessCfg

    tags = list_pretrained_tags_by_model(name) if tag is None else [tag]
    all_known = [get_pretrained_cfg(name, one) for one in tags]
    found = [{one: known[one] for one in _PREPROCESSING[:5] if one in known} for known in all_known]
    is_plain = not found or all(
        _plain(x) == _plain(getattr(PreprocessCfg, one)) for one, x in found[0].items()
    )
    return None if is_plain or found.count(found[0]) < len(found) else found[0]


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def follow(name: str, default: str, weights: str) -> tuple[str, str]:
    """Return a model's name and weights: the weights of a folder that has ``open_clip_config.json``, and the
    model that is stated next to the weights, where the name is the default, which stands for any."""
    is_own = Path(weights, "model.json").is_file()  # a training's, which its record describes
    if "/" in weights and Path(weights, HUB_CONFIG).is_file() and not is_own:
        weights = find_checkpoint(weights) or weights
    stated = read_stated(weights) if name == default and Path(weights).is_file() else None
    is_other = stated is not None and _find_difference(read_config(name) or {}, stated, False)
    return (stated.name or name if stated and is_other else name), weights


def find_checkpoint(folder: str) -> str | None:
    """Return the file that open_clip loads from a model's folder."""
    found = [path for end in ("safetensors", "bin", "pth") for path in sorted(Path(folder).glob(f"*.{end}"))]
    known = [Path(folder, name) for name in _PREFERRED if Path(folder, name) in found]
    return next((str(path) for path in (*known, *found)), None)


def _find_tokenizer(folder: Path) -> str | None:
    names = (HUB_CONFIG, "tokenizer_config.json")
    return str(folder) if all((folder / name).is_file() for name in names) else None


def read_model(name: str, said: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the config of a model and its preprocessing, each None where nothing states it.

    ``said``: the option with its value, for messages. Raises ValueError where a file has another form.
    """
    schema, _, place = name.partition(":")
    path = Path(place, HUB_CONFIG) if schema == "local-dir" else Path(name)
    if schema != "local-dir" and (path.suffix != ".json" or ":" in name):
        return read_config(name), None
    if not path.is_file():
        raise ValueError(f"{said}: no such file" + f" as {path}" * (schema == "local-dir"))
    found = _read_json(path, said)
    companion = path.with_name(HUB_CONFIG)
    if not isinstance(found, dict) or "model_cfg" not in found:
        check_config(said, found)
        whole = _read_json(companion, str(companion)) if companion.is_file() else None
        if not isinstance(whole, dict) or whole.get("model_cfg") != found:
            return found, None  # the file of another model
        found = whole
    check_config(said, found["model_cfg"])
    how = found.get("preprocess_cfg") or {}
    unknown = sorted({*how} - {*_PREPROCESSING}) if isinstance(how, dict) else [how]
    if unknown:
        known = ", ".join(_PREPROCESSING)
        raise ValueError(f"{companion}: preprocess_cfg has {unknown[0]!r}, must be an object of {known}")
    # The size is the architecture's.
    return found["model_cfg"], {one: x for one, x in how.items() if one != "size" and x is not None} or None


def _read_json(path: Path, said: str) -> Any:
    try:
        return parse_json(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{said}: cannot be read as JSON ({error})") from error


def check_config(said: str, content: Any) -> None:
    """Raise ValueError unless ``content`` describes a model, of sizes that models have."""
    if not isinstance(content, dict) or not {*NEEDED} <= {*content}:
        raise ValueError(f"{said}: must be a json object with {', '.join(NEEDED)}")
    for tower in NEEDED[1:]:
        if not isinstance(content[tower], dict):
            raise ValueError(f"{said}: {tower} must be an object, is {content[tower]!r}")
    parts = (content, content["vision_cfg"], content["text_cfg"], content.get("multimodal_cfg"))
    stated = [(name, part.get(name)) for part in parts if isinstance(part, dict) for name in SIZES]
    for name, value in [(name, value) for name, size in stated if size is not None for value in sides(size)]:
        most = _MOST.get(name, _MOST_OF_OTHERS)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= most or (name != "mlp_ratio" and value != int(value)):
            raise ValueError(f"{said}: {name} is {str(value)[:40]!r}, must be a number from 1 to {most:,}")


def sides(size: Any) -> list[int]:
    """Return a size, or the sizes of both sides, as a list."""
    return size if isinstance(size, list) else [size]


def _find_difference(own: dict[str, Any], stated: Stated, with_sizes: bool) -> tuple[str, Any, Any] | None:
    """Return the first field, by name, in which two configs are of other models, and both values.

    A field in only one of them is not compared, except for the activation.
    """
    theirs, own = ({**one, _QUICK: bool(one.get(_QUICK))} for one in (stated.architecture, own))
    for part in ("", *NEEDED[1:]):
        one, other = (whole.get(part, {}) if part else whole for whole in (theirs, own))
        for field in sorted(({*one} & {*other}) - {*SIGLIP, *(() if with_sizes else _FORCED)}):
            value, ours = one[field], other[field]
            if not all(isinstance(x, int | str | list) for x in (value, ours)) or field.startswith("hf_"):
                continue
            if value != ours and len({*map(str, (*sides(value), *sides(ours)))}) > 1:
                return f"{part}.{field}".strip("."), value, ours
    return None


def list_config_files(weights: str) -> list[str]:
    """Return paths or uris of the config files that may describe weights; after those next to a link, those
    next to its file."""
    found = []
    for place in (weights, *([os.path.realpath(weights)] if os.path.islink(weights) else [])):
        folder = posixpath.dirname(place)
        above, last = posixpath.split(folder)
        found += [f"{posixpath.splitext(place)[0]}.json", posixpath.join(folder, HUB_CONFIG)]
        found += [posixpath.join(above, _PARAMS)] if last == "checkpoints" else []
    return found


def read_stated(weights: str, own: dict[str, Any] | None = None) -> Stated | None:
    """Return what the files next to weights state; None without such files.

    The first that has a config counts: the json with their name, whose preprocessing is in an
    ``open_clip_config.json`` of the same model, that file alone, ``params.txt``. ``own``: the config of the
    model to load.
    """
    for path in (Path(one) for one in list_config_files(weights) if os.path.isfile(one)):
        if path.name == _PARAMS:
            return _read_params(path, own)
        if path.name != HUB_CONFIG:
            try:
                found = json.loads(path.read_text("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue  # any file of this name
            if not isinstance(found, dict) or not all(isinstance(found.get(one), dict) for one in NEEDED[1:]):
                continue
        theirs, how = read_model(str(path), str(path))
        if theirs is not None:
            return Stated(path, str(path), theirs, how)
    return None


def _read_params(path: Path, own: dict[str, Any] | None) -> Stated | None:
    """Return what open_clip_train's options state; of a model that open_clip does not know, the changes."""
    params = dict(line.partition(": ")[::2] for line in path.read_text("utf-8", "replace").splitlines())
    name, tag = params.get("model", "").replace("/", "-"), params.get("pretrained", "")
    known = read_config(name) if name else None
    theirs = deepcopy(known or own)
    if "model" not in params or theirs is None:
        return None

    def read(key: str) -> Any:
        text = params.get(key, "None")
        with suppress(ValueError):
            return json.loads(text)
        return {"None": None, "False": None}.get(text, text)

    for tower, field in zip(NEEDED[1:], _FORCED, strict=True):
        if size := read(f"force_{field}"):
            theirs[tower][field] = size[0] if isinstance(size, list) and len(size) == 1 else size
    if read("force_custom_text"):
        theirs["custom_text"] = True
    if read("siglip"):
        theirs |= SIGLIP
    if read("force_quick_gelu"):
        theirs[_QUICK] = True
    elif tag == "openai" and known and not theirs.get(_QUICK):
        # Most versions trained OpenAI's weights with QuickGELU, the last ones without: a json may state it.
        theirs[_QUICK] = (own or {}).get(_QUICK, True)
    named = name + _SUFFIX * (bool(theirs.get(_QUICK)) and not name.endswith(_SUFFIX))
    how = {field: x for field in _PREPROCESSING[:4] if (x := read(f"image_{field}"))}
    start = (name, tag) if known else None
    return Stated(
        path, named if read_config(named) else "", theirs, how or None, start, params.get("name", "")
    )


def read_config(name: str) -> dict[str, Any] | None:
    """Return open_clip's config of one of its models; None for other names."""
    path = find_file("model_configs") / f"{name.replace('/', '-')}.json"
    return parse_json(path.read_text("utf-8")) if ":" not in name and path.is_file() else None


def find_file(name: str) -> Path:
    """Return the path of a file in open_clip's package, which is not imported."""
    spec = importlib.util.find_spec("open_clip")
    assert spec and spec.origin
    return Path(spec.origin).parent / name
