"""A training's state in a folder or bucket: written completely or not at all, without pickles.

A state lies in ``checkpoints/STEP/``: tensors as safetensors, and ``state.json``, which comes last: without
it there is no state.
"""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from raycomp.config import UserError
from raycomp.data.files import new_path
from raycomp.data.folder import Folder
from raycomp.training.fit import Trainer
from raycomp.training.objective import PairsObjective
from raycomp.training.states import CHECKPOINTS, STATE, keep_states

_MODEL, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"


class State(NamedTuple):
    """A copy of what a trainer needs to resume exactly, in the CPU's memory."""

    facts: dict[str, Any]
    """The content of ``state.json``."""
    tensors: dict[str, dict[str, Tensor]]
    """By the name of their file."""


class StateWriter:
    """Writes states in a thread, one at a time, so that training does not wait for the disk or the store."""

    def __init__(self, out: Folder, num_kept: int):
        self.out, self.num_kept = out, num_kept
        self._pool = ThreadPoolExecutor(1, "states")
        self._last: Future[None] | None = None
        self._copy: State | None = None
        """Of the last write; its memory is used again."""

    def write(self, trainer: Trainer[PairsObjective], before: Callable[[], None]) -> None:
        """Copy the trainer's state and start to write it, after ``before()``; the oldest states go once it is
        complete.

        Waits for the write before this one, and raises its error.
        """
        self.wait()
        self._copy = copy_state(trainer, self._copy)
        self._last = self._pool.submit(self._write, self._copy, before)

    def wait(self) -> None:
        """Wait for the last write, and raise its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def stop(self) -> None:
        """Wait for the last write, whatever its end: another start may write here next."""
        self._pool.shutdown()

    def _write(self, state: State, before: Callable[[], None]) -> None:
        before()
        write_state(state, self.out)
        keep_states(self.out, self.num_kept)


def copy_state(trainer: Trainer[PairsObjective], old: State | None = None) -> State:
    """Return a copy of what a trainer needs to resume exactly, in the memory of an ``old`` copy if there is
    one."""
    used = old.tensors if old else {}
    return State(
        {
            "step": trainer.step,
            "margins": trainer.objective.loss.margin_S.tolist(),
            "run": _describe_run(trainer),
        },
        {
            _MODEL: _copy(trainer.clip.state_dict(), used.get(_MODEL, {})),
            _OPTIMIZER: _copy(_flatten(trainer.optimizer.state_dict()["state"]), used.get(_OPTIMIZER, {})),
        },
    )


def write_state(state: State, out: Folder) -> None:
    """Write a state's files, ``state.json`` last."""
    place = (CHECKPOINTS, f"{state.facts['step']:08d}")
    for name, tensors in state.tensors.items():
        # safetensors writes a file without Python's lock, unlike bytes in memory.
        with new_path(out.at(*place, name)) as path:
            safetensors.torch.save_file(tensors, path)
    out.write_json(state.facts, *place, STATE)


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


def _copy(tensors: dict[str, Tensor], used: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, value in tensors.items():
        to = used[name] if name in used else torch.empty(value.shape, dtype=value.dtype)
        found[name] = to.copy_(value.detach())
    return found


def _flatten(state: dict[int, dict[str, Any]]) -> dict[str, Tensor]:
    return {f"{number}.{name}": value for number, entry in state.items() for name, value in entry.items()}


def _nest(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, kind = name.partition(".")
        state.setdefault(int(number), {})[kind] = value
    return state
