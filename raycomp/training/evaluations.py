"""Evaluations during a training: of held-out pairs, and by a function of the user's own.

E evaluated pairs, N tokens of context, H x W x C pixels, D embedding dims.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raycomp.config import UserError
from raycomp.core.losses import clip_loss
from raycomp.data.parquet import read_columns, readable
from raycomp.data.runs import fetch_model
from raycomp.models.architecture import load_tokens
from raycomp.models.images import ImageFault, prepare_image
from raycomp.training.held_out import OPTION, HeldOut
from raycomp.training.journal import OWN_COLUMNS, Evaluate, Training
from raycomp.training.towers import Towers, to_batch
from raycomp.words import CAPTION, HELD_OUT_MEASURES, IMAGE, UID

_EVALUATIONS = 10
_ROWS = 64


def evaluate_model(evaluate: Evaluate, clip: Any, step: int) -> dict[str, float]:
    """Return the results of an evaluation. Python's, NumPy's and torch's random states are restored.

    Raises UserError as ``read_results``, and whatever ``evaluate`` raises.
    """
    device, of_python, of_numpy = clip.logit_scale.device, random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.inference_mode():
            return read_results(evaluate(clip.eval(), step))
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


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
    after, changed = clip.state_dict(), []
    for name, value in before.items():
        other = after.get(name, torch.empty(0, device="meta"))
        is_alike = (value.dtype, value.device, value.shape) == (other.dtype, other.device, other.shape)
        changed += [] if is_alike and torch.equal(value, other) else [name]
    if not changed and trained != [parameter.requires_grad for parameter in clip.parameters()]:
        changed = ["requires_grad"]
    if changed:
        raise UserError(
            f"evaluate: changes {changed[0]} of the model that is trained; work on copy.deepcopy(model)"
        )
    return found


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
        num_axes = getattr(value, "ndim", 0)
        try:
            if isinstance(value, (str, bytes)) or num_axes != 0:
                raise TypeError(f"{num_axes} axes")
            results[str(name)] = float(getattr(value, "detach", lambda value=value: value)())
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            kind = type(value).__name__ + (f" of shape {tuple(value.shape)}" if num_axes else "")
            raise UserError(f"evaluate: returned {name!r} as {kind}; it must be one number") from error
    return results


class HeldOutEvaluation:
    """Holds the evaluated pairs as pixels and tokens in memory: 150 MB for 1,000 images of 224 x 224."""

    def __init__(self, training: Training, held: HeldOut):
        """Raise UserError where an image does not decode to pixels of the model."""
        self.spec, self.num_steps = training.image, training.num_steps
        # None = ten evaluations.
        self.interval = training.config.train.evaluate_steps or -(-self.num_steps // _EVALUATIONS)
        pixels, texts = [], []
        for uri in held.uris:
            for row in read_columns(uri, [UID, IMAGE, CAPTION]).to_pylist():
                try:
                    pixels.append(prepare_image(row[IMAGE], self.spec, held.max_pixels)[0])
                except ImageFault as fault:
                    raise UserError(
                        f"{OPTION}: the image of uid {row[UID]} cannot be evaluated: {fault.status} ({fault})"
                    ) from fault
                texts.append(readable(row[CAPTION]))
        self.pixels_EHWC = np.stack(pixels)
        self.token_EN = load_tokens(fetch_model(training.config.model))(texts)

    def is_due(self, step: int) -> bool:
        """Return whether the model is evaluated after so many steps."""
        return step % self.interval == 0 or step == self.num_steps

    def run(self, clip: Any, step: int, row: Mapping[str, float]) -> dict[str, float]:
        """Return the figures after ``step`` steps; the model and all random states stay as they are.

        Raises UserError where ``row``, the step's other metrics, has one of their names.
        """
        for name in HELD_OUT_MEASURES:
            if name in row:
                raise UserError(f"evaluate: returned {name!r}, a measure of {OPTION}; use another name")
        return evaluate_model(self, clip, step)

    def __call__(self, clip: Any, step: int) -> dict[str, float]:
        """Return the figures of a model in evaluation mode."""
        towers, device = Towers(clip), clip.logit_scale.device
        parts = []
        for start in range(0, len(self.token_EN), _ROWS):
            rows = slice(start, start + _ROWS)
            batch = {"image": self.pixels_EHWC[rows], "token": self.token_EN[rows]}
            parts.append(towers(to_batch(batch, device, self.spec)))
        image_ED, text_ED = (torch.cat([part[name] for part in parts]) for name in ("image", "text"))
        return measure(image_ED, text_ED, parts[0]["scale"])


def measure(image_ED: Tensor, text_ED: Tensor, scale: Tensor | float) -> dict[str, float]:
    """Return the contrastive loss among all pairs, log E at chance, and recall@1, 0 to 1, both ways: the
    share of queries whose own target scores strictly above all others, so ties are wrong."""
    found = [float(clip_loss(image_ED, text_ED, scale))]
    for score_EE in (image_ED @ text_ED.T, text_ED @ image_ED.T):
        own_E = score_EE.diagonal().clone()
        score_EE.fill_diagonal_(-torch.inf)
        found.append(float((own_E > score_EE.amax(dim=1)).float().mean()))
    return dict(zip(HELD_OUT_MEASURES, found, strict=True))
