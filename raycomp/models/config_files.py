"""The config file next to a checkpoint identifies its model: another model is refused.

Weights also fit a model with another activation, which then scores worse without an error: so a fine-tuned
OpenAI model loses points when it is loaded by its path (open_clip, issue 771).
"""

import json
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.config.json_text import parse_json
from raycomp.models.architecture import HUB_CONFIG

_QUICK, _SUFFIX = "quick_gelu", "-quickgelu"
_PARTS = ("", "vision_cfg", "text_cfg")
# open_clip interpolates positions where these differ.
_STRETCHED = {"image_size", "context_length"}
# open_clip_train's file, in the folder above its checkpoints.
_PARAMS, _CHECKPOINTS = "params.txt", "checkpoints"


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
    for what, value, ours in _find_differences(theirs, own):
        option = config.said_model.partition("=")[0]
        raise ValueError(
            f"{config.said_weights}: was trained with {what}={value} ({path}), {config.said_model} has "
            f"{what}={ours}; set {option}={name or _name_variant(config.model, theirs)}"
        )


def list_config_files(weights: str) -> list[str]:
    """Return paths or uris of the config files that may describe weights."""
    folder, name = posixpath.split(weights)
    stem = posixpath.splitext(name)[0]
    above, last = posixpath.split(folder)
    log = [posixpath.join(above, _PARAMS)] if last == _CHECKPOINTS else []
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
    is_config = isinstance(theirs, dict) and all(isinstance(theirs.get(part), dict) for part in _PARTS[1:])
    if not is_config:
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


def _find_differences(theirs: dict[str, Any], own: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield names and both values of the fields that differ between two configs."""
    theirs, own = ({**config, _QUICK: bool(config.get(_QUICK))} for config in (theirs, own))
    for part in _PARTS:
        one, other = (config[part] if part else config for config in (theirs, own))
        for name in sorted(({*one} & {*other}) - _STRETCHED):
            if isinstance(one[name], int) and isinstance(other[name], int) and one[name] != other[name]:
                yield f"{part}.{name}".strip("."), one[name], other[name]


def _name_variant(model: str, theirs: dict[str, Any]) -> str:
    """Return the name to use: the model with the other activation if open_clip has it, else a json."""
    import open_clip

    is_quick = bool(theirs.get(_QUICK))
    variant = model.replace("/", "-").removesuffix(_SUFFIX) + _SUFFIX * is_quick
    return variant if variant in open_clip.list_models() else "FILE.json, with the config of that model"
