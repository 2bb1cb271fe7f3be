"""A user's own evaluation during training: tried before the first step; results are converted to floats."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from raycomp.config import UserError
from raycomp.training.training import OWN_COLUMNS, Evaluate


def evaluate_model(evaluate: Evaluate, clip: Any, step: int) -> dict[str, float]:
    """Return the results of an evaluation. Python's, NumPy's and torch's random states are restored.

    Raises UserError as ``read_results``, and whatever ``evaluate`` raises.
    """
    with _keep_random_states(clip.logit_scale.device), torch.inference_mode():
        found = evaluate(clip.eval(), step)
        return read_results(found)


def try_evaluation(evaluate: Evaluate, clip: Any) -> dict[str, float]:
    """Evaluate the model before its first step, as step 0; return the results, which are not stored.

    Raises UserError, one line, where ``evaluate`` fails, returns an invalid result, or changes the model.
    """
    before = {name: value.clone() for name, value in clip.state_dict().items()}
    trained = [parameter.requires_grad for parameter in clip.parameters()]
    try:
        found = evaluate_model(evaluate, clip, 0)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"evaluate: {line}; the call before the first step, with step 0, failed") from error
    after = clip.state_dict()
    changed = [name for name, value in before.items() if not _is_same(value, after.get(name))]
    if not changed and trained != [parameter.requires_grad for parameter in clip.parameters()]:
        changed = ["requires_grad"]
    if changed:
        raise UserError(
            f"evaluate: changes {changed[0]} of the model that is trained; work on copy.deepcopy(model)"
        )
    return found


def _is_same(one: torch.Tensor, other: Any) -> bool:
    """Whether two tensors have the same type, place and values."""
    if other is None or (one.dtype, one.device, one.shape) != (other.dtype, other.device, other.shape):
        return False
    return torch.equal(one, other)


@contextmanager
def _keep_random_states(device: torch.device) -> Iterator[None]:
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def read_results(found: Any) -> dict[str, float]:
    """Return an evaluation's results as floats by name. A value is any single number: of Python, NumPy or
    torch, a Decimal, a bool (0 or 1); NaN and infinities too. Raises UserError, one line, for anything else,
    and for a name of ``OWN_COLUMNS``.
    """
    if not isinstance(found, Mapping):
        raise UserError(f"evaluate: returned {type(found).__name__}; return a dict of numbers by name")
    results = {}
    for name, value in found.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UserError(f"evaluate: returned the name {name!r}; a name must be printable text")
        if name in OWN_COLUMNS:
            own = ", ".join(OWN_COLUMNS)
            raise UserError(
                f"evaluate: returned {name!r}, a column of every step; use a name other than {own}"
            )
        results[str(name)] = _to_float(name, value)
    return results


def _to_float(name: str, value: Any) -> float:
    is_text, num_axes = isinstance(value, (str, bytes)), getattr(value, "ndim", 0)
    try:
        if is_text or num_axes != 0:
            raise TypeError(f"{num_axes} axes")
        return float(getattr(value, "detach", lambda: value)())
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        kind = f"{type(value).__name__} of shape {tuple(value.shape)}" if num_axes else type(value).__name__
        raise UserError(f"evaluate: returned {name!r} as {kind}; it must be one number") from error
