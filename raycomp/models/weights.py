"""Weights from files, read without running code of theirs. Positions are not interpolated."""

import re
import zipfile
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from open_clip import factory
from safetensors import SafetensorError
from safetensors.torch import load_file as load_safetensors
from torch.serialization import safe_globals

from raycomp.config import UserError

# Where trainings keep a state dict.
_STATES = ("state_dict", "model", "model_state_dict")
_POSITIONS = ("visual.positional_embedding", "positional_embedding", "text.positional_embedding")
_POSITION_IDS = "text.transformer.embeddings.position_ids"
_CUT = "is cut off or damaged; copy it again"
# Files that are no weights, by their start.
_KINDS = {
    b"version https://git-lfs": "is a pointer of Git LFS, not the weights; fetch them: git lfs pull",
    b"<": "is a web page, not weights; download the file itself",
    b"\x1f\x8b": "is compressed by gzip; unpack it",
    b"{": "is a text of JSON, not weights; give one file that has them all",
}


def load_file(model: Any, path: str, run: str = "") -> None:
    """Load a model's weights as open_clip does. ``run``: the name of its training's run, if known.

    Raises UserError, whose line lacks the option, where the file is of another kind or another model's, and
    what open_clip and torch raise.
    """
    if Path(path).suffix in (".npz", ".npy"):
        factory.load_checkpoint(model, path)
        return
    content = _read(path)
    if isinstance(content, Mapping) and run not in ("", content.get("name", run)):
        said = f"is of the run {content['name']!r}, params.txt above it of {run!r}"
        raise UserError(f"{said}; move the file that is not its own away")
    state = factory.convert_state_dict(model, _find_state(content))
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = factory.convert_to_custom_text_state_dict(state)
    own, place = model.state_dict(), "in the model's config, a FILE.json"
    if "logit_bias" not in own and "logit_bias" in state:
        raise UserError(f"has a logit_bias, as SigLIP's, the model has none; set init_logit_bias=-10 {place}")
    if "logit_bias" in own:
        state.setdefault("logit_bias", torch.zeros_like(own["logit_bias"]))
    for name in ("logit_scale", "logit_bias"):
        if name in own and name in state:
            state[name] = state[name].reshape(own[name].shape)
    if _POSITION_IDS not in own:
        state.pop(_POSITION_IDS, None)
    for name in (name for name in _POSITIONS if name in own and name in state):
        theirs, is_alike = len(state[name]), state[name].shape[1:] == own[name].shape[1:]
        if is_alike and theirs != len(own[name]):
            side = isqrt(theirs) * own["visual.conv1.weight"].shape[-1] if "visual" in name else 0
            wanted = f"image_size={side}" if side else f"context_length={theirs}"
            said = f"has {theirs} positions in {name}, the model {len(own[name])}"
            raise UserError(f"{said}; set {wanted} {place}")
    model.load_state_dict(state)


def _find_state(content: Any) -> dict[str, Any]:
    """Return the tensors by the model's own names, without what wrappers put before each."""
    state = content
    if isinstance(content, Mapping):
        state = next((content[name] for name in _STATES if name in content), content)
    names = [*map(str, state)] if isinstance(state, Mapping) else []
    if not names or not all(map(torch.is_tensor, state.values())):
        raise UserError(f"holds no state dict (only {', '.join(names[:4]) or state!r:.40}); save it alone")
    if theirs := [name for name in names if name.startswith(("vision_model.", "text_model."))]:
        said = f"has the names of Hugging Face's transformers ({theirs[0]})"
        raise UserError(f"{said}; give the model's weights in open_clip's form, such as a tag of open_clip")
    names = [name.replace("_orig_mod.", "") for name in names]
    prefix = next((name for name in names if name.endswith(".logit_scale")), "").removesuffix("logit_scale")
    prefix *= all(name.startswith(prefix) for name in names)
    return {name.removeprefix(prefix): value for name, value in zip(names, state.values(), strict=True)}


def _read(path: str) -> Any:
    """Return the content of a file: tensors, plain containers, and numpy's numbers."""
    is_safe = path.endswith(".safetensors")
    with open(path, "rb") as file:
        start = file.read(64)
    for begin, said in _KINDS.items():
        if start.lstrip().startswith(begin) and start[8:9] != b"{":
            raise UserError(said)
    if (start[:2] == b"PK" and is_safe) or (start[8:9] == b"{" and not is_safe):
        raise UserError("has the name of another format; name torch's FILE.pt, the other FILE.safetensors")
    # Old optimizers hold numbers of numpy, under its names before and since version 2; they run no code.
    scalar: Any = np.float64(0).__reduce__()[0]
    known = [(scalar, f"numpy.{core}.multiarray.scalar") for core in ("_core", "core")]
    try:
        if is_safe:
            return load_safetensors(path)
        parts = zipfile.ZipFile(path).namelist() if zipfile.is_zipfile(path) else []
        if any(name.endswith("/constants.pkl") for name in parts):
            given = "its weights alone, torch.save(torch.jit.load(FILE).state_dict(), NEW)"
            raise UserError(f"is a TorchScript archive; give a tag of open_clip, or {given}")
        with safe_globals([*known, np.dtype, *(type(np.dtype(code)) for code in "?bBhHiIlLqQefdg")]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        why = " ".join(str(error).split())
        if not why or re.search("EOF|central directory|incomplete metadata|too small|invalid header", why):
            raise UserError(_CUT) from error
        if code := re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", why):
            raise UserError(f"holds {code[1]}, which is code; save the state dict alone") from error
        raise
