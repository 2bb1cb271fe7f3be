"""What lies beside weights tells which model they were trained in: another one is refused.

Weights fit a model with another activation just as well, and then score worse without a word: so a fine-tuned
OpenAI model loses points when it is loaded by its path (open_clip, issue 771).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import open_clip
from open_clip.factory import get_model_config

from raycomp.config import ModelConfig, ScorerConfig
from raycomp.models.architecture import HUB_CONFIG

_QUICK, _SUFFIX = "quick_gelu", "-quickgelu"
_PARTS = ("", "vision_cfg", "text_cfg")
# open_clip interpolates positions where these differ.
_STRETCHED = {"image_size", "context_length"}
# Of open_clip_train, in the folder above its checkpoints.
_PARAMS, _CHECKPOINTS = "params.txt", "checkpoints"


def check_beside(config: ModelConfig | ScorerConfig, own: dict[str, Any]) -> None:
    """Raise ValueError where weights lie beside what tells of another model than the one they go into.

    ``own`` is open_clip's config of that one. Asked are a json of the weights' own name, as raycomp writes
    it, open_clip_config.json, and open_clip_train's params.txt in the folder above ``checkpoints/``. What
    only one of the two configs states is no difference, but for the activation.
    """
    weights = Path(config.weights)
    told = _read_json(weights) or _read_params(weights, own)
    if told is None:
        return
    path, theirs, name = told
    for what, value, ours in _find_differences(theirs, own):
        dial = config.said_model.partition("=")[0]
        raise ValueError(
            f"{config.said_weights}: was trained with {what}={value} ({path}), {config.said_model} has "
            f"{what}={ours}; set {dial}={name or _name_variant(config.model, theirs)}"
        )


def _read_json(weights: Path) -> tuple[Path, dict[str, Any], str] | None:
    """Return a json beside the weights, the model that it describes, and what names that model, if known."""
    for path in (weights.with_suffix(".json"), weights.with_name(HUB_CONFIG)):
        try:
            found = json.loads(path.read_text()) if path.is_file() else None
        except (ValueError, RecursionError):
            continue  # nothing of open_clip's
        is_hub = path.name == HUB_CONFIG
        theirs = found.get("model_cfg") if is_hub and isinstance(found, dict) else found
        if isinstance(theirs, dict) and all(isinstance(theirs.get(part), dict) for part in _PARTS[1:]):
            return path, theirs, "" if is_hub else str(path)
    return None


def _read_params(weights: Path, own: dict[str, Any]) -> tuple[Path, dict[str, Any], str] | None:
    """Return the same of open_clip_train's log."""
    path = weights.parent.parent / _PARAMS
    if weights.parent.name != _CHECKPOINTS or not path.is_file():
        return None
    params = dict(line.partition(": ")[::2] for line in path.read_text("utf-8", "replace").splitlines())
    name = params.get("model", "").replace("/", "-")
    if name not in open_clip.list_models():
        return None
    theirs = get_model_config(name)
    if params.get("force_quick_gelu") == "True":
        theirs[_QUICK] = True
    elif params.get("pretrained") == "openai" and not theirs.get(_QUICK):
        # Most versions trained OpenAI's weights with QuickGELU, the last ones without: a json may say so.
        theirs[_QUICK] = own.get(_QUICK, True)
    return path, theirs, name if theirs == get_model_config(name) else ""


def _find_differences(theirs: dict[str, Any], own: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield names and both values of what two configs state differently."""
    theirs, own = ({**config, _QUICK: bool(config.get(_QUICK))} for config in (theirs, own))
    for part in _PARTS:
        one, other = (config[part] if part else config for config in (theirs, own))
        for name in sorted(({*one} & {*other}) - _STRETCHED):
            if isinstance(one[name], int) and isinstance(other[name], int) and one[name] != other[name]:
                yield f"{part}.{name}".strip("."), one[name], other[name]


def _name_variant(model: str, theirs: dict[str, Any]) -> str:
    """Return what to name instead: the model with the other activation if open_clip has it, else a json."""
    is_quick = bool(theirs.get(_QUICK))
    variant = model.replace("/", "-").removesuffix(_SUFFIX) + _SUFFIX * is_quick
    return variant if variant in open_clip.list_models() else "FILE.json, with the config of that model"
