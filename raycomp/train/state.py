"""A training's state in a folder or bucket: written completely or not at all, without pickles.

A state lies in ``checkpoints/STEP/``: tensors as safetensors, and ``state.json``, which comes last: without
it there is no state.
"""

import json
from dataclasses import fields
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from raycomp.config import UserError
from raycomp.data.folder import Folder
from raycomp.train.fit import Trainer
from raycomp.train.objective import PairsObjective
from raycomp.train.states import CHECKPOINTS, STATE

_MODEL, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"


def save_state(trainer: Trainer[PairsObjective], out: Folder) -> None:
    """Write what a trainer needs to resume exactly."""
    place = (CHECKPOINTS, f"{trainer.step:08d}")
    out.write_bytes(_pack(trainer.clip.state_dict()), *place, _MODEL)
    out.write_bytes(_pack(_flatten(trainer.optimizer.state_dict()["state"])), *place, _OPTIMIZER)
    margins = trainer.objective.loss.margin_S.tolist()
    state = {"step": trainer.step, "margins": margins, "run": _describe_run(trainer)}
    out.write_json(state, *place, STATE)


def load_state(trainer: Trainer[PairsObjective], out: Folder, step: int) -> None:
    """Load the state of ``step`` into a new trainer of the same config.

    Raises UserError, one line, where the state is damaged or of another model or run.
    """
    place = (CHECKPOINTS, f"{step:08d}")
    where = out.at(*place)
    try:
        state = out.read_json(*place, STATE)
        _check_run(state["run"], _describe_run(trainer))
        weights, moments = (
            safetensors.torch.load(out.read_bytes(*place, name)) for name in (_MODEL, _OPTIMIZER)
        )
        trainer.clip.load_state_dict(weights)
        known = trainer.optimizer.state_dict()
        trainer.optimizer.load_state_dict({**known, "state": _nest(moments)})
        margin_S = torch.tensor(state["margins"], dtype=trainer.objective.loss.margin_S.dtype)
        if margin_S.shape != trainer.objective.loss.margin_S.shape or state["step"] != step:
            raise ValueError("it has another step or other kinds of negatives")
    except torch.OutOfMemoryError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError, FileNotFoundError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(
            f"{where}: belongs to another training ({line}); remove it to resume from an earlier step"
        ) from error
    trainer.objective.loss.margin_S, trainer.step = margin_S, step


def _describe_run(trainer: Trainer[PairsObjective]) -> dict[str, Any]:
    """Return, as JSON values, what the remaining steps depend on in addition to data and weights."""
    options = {
        f"train.{field.name}": getattr(trainer.config, field.name)
        for field in fields(trainer.config)
        if not field.metadata.get("free")
    }
    sizes = {"train.batch_size": trainer.batch_size, "train.steps": trainer.num_steps, "train.epochs": None}
    return json.loads(json.dumps({**options, **sizes}))


def _check_run(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if found[name] != value:
            raise ValueError(f"its run has {name}={found[name]!r}, not {value!r}")


def _pack(tensors: dict[str, Tensor]) -> bytes:
    return safetensors.torch.save(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    )


def _flatten(state: dict[int, dict[str, Any]]) -> dict[str, Tensor]:
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def _nest(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, kind = name.partition(".")
        state.setdefault(int(number), {})[kind] = value
    return state
