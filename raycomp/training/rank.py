"""One rank's training: its steps, checkpoints, and the final model."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from raycomp.config import ModelConfig, UserError
from raycomp.data.folder import Folder
from raycomp.data.model import fetch_model
from raycomp.data.paths import ARCHITECTURE, CHECKPOINT, WEIGHTS, WORK
from raycomp.models.architecture import HUB_CONFIG
from raycomp.models.clip import describe_preprocessing, describe_start, load_start, pack_tokenizer
from raycomp.training.config import TrainConfig
from raycomp.training.evaluation import evaluate_model, try_evaluation
from raycomp.training.fit import StepReport, Trainer
from raycomp.training.held_out_evaluation import HeldOutEvaluation
from raycomp.training.journal import MetricsLog
from raycomp.training.losses import find_loss
from raycomp.training.objective import PairsObjective
from raycomp.training.state import StateWriter
from raycomp.training.states import keep_states, list_states
from raycomp.training.towers import Batch
from raycomp.training.trackers import Trackers
from raycomp.training.training import STEP, Evaluate


class Writer:
    """Writes, on one rank for all: a line for each step, checkpoints, the model."""

    def __init__(
        self,
        trainer: Trainer[PairsObjective],
        config: TrainConfig,
        folder: Folder,
        report: Callable[[dict[str, Any]], None],
        evaluate: Evaluate | None = None,
        held_out: HeldOutEvaluation | None = None,
        trackers: Trackers | None = None,
    ):
        self.held_out, self.trackers = held_out, trackers or Trackers()
        self.trainer, self.config, self.folder = trainer, config, folder
        self.report, self.evaluate = report, evaluate
        self.journal = MetricsLog(folder, trainer.step)
        self.states = StateWriter(folder, config.train.keep_checkpoints)
        self.started = time.perf_counter()
        self._last: StepReport | None = None

    def take(self, step: StepReport) -> None:
        """Record the step before this one; this one, too, where the model is evaluated after it."""
        self.settle()
        self._last = step
        if self._is_due(step.step + 1):
            self.settle()

    def settle(self) -> None:
        """Record the last step, unless it is recorded; waits until the GPU has finished it."""
        last, self._last = self._last, None
        if last is not None:
            self._record(last)

    def _is_due(self, step: int) -> bool:
        """Return whether the model is evaluated after so many steps."""
        return self._evaluates(step) or (self.held_out is not None and self.held_out.is_due(step))

    def _evaluates(self, step: int) -> bool:
        every = self.config.train.evaluate_steps
        is_due = every is not None and step % every == 0
        return self.evaluate is not None and (is_due or step == self.trainer.num_steps)

    def _record(self, step: StepReport) -> None:
        num_steps = step.step + 1
        spent = time.perf_counter() - self.started
        row: dict[str, Any] = {"step": step.step, "loss": step.loss, "learning_rate": step.learning_rate}
        row |= {**step.parts, "samples_per_s": self.trainer.batch_size / spent}
        if self.evaluate and self._evaluates(num_steps):
            row |= evaluate_model(self.evaluate, self._make_final(), num_steps)
        if self.held_out and self.held_out.is_due(num_steps):
            row |= self.held_out.run(self._make_final(), num_steps, row)
        self.journal.write(row)
        self.trackers.log(row)
        self.report(row)
        self.started = time.perf_counter()

    def try_evaluation(self) -> None:
        """Evaluate once before the first step. Raises UserError where that fails."""
        tried: dict[str, float] = {}
        if self.evaluate and self.trainer.step == 0:
            tried = try_evaluation(self.evaluate, self._make_final())
        if self.held_out and self.trainer.step == 0:
            found = self.held_out.run_before(self._make_final(), Folder(self.folder.at(WORK)), tried)
            self.journal.note_start(found)
            self.trackers.log({STEP: 0, **found})
        self.started = time.perf_counter()

    def _make_final(self) -> Any:
        """Return the model as it would be written now."""
        with torch.inference_mode():
            return make_final(self.trainer, self.config.model)

    def keep(self) -> None:
        """Start to write a checkpoint: all lines so far, then the state to resume from. Training resumes once
        the state is copied. Raises the error of the checkpoint before this one."""
        self.settle()
        self.states.write(self.trainer, self.journal.keep())
        self.started = time.perf_counter()

    def close(self) -> None:
        """Write a checkpoint of the last step, unless it exists, and the model, which is checked before it is
        published."""
        self.settle()
        self.states.wait()
        if self.trainer.step not in list_states(self.folder):
            self.keep()
            self.states.wait()
        # The last start may have been killed while it removed states.
        keep_states(self.folder, self.config.train.keep_checkpoints)
        self.journal.close()
        finish(self.trainer, fetch_model(self.config.model), Folder(self.folder.at(WORK)))


def start_rank(
    config: TrainConfig, num_steps: int, num_kinds: int, device: str, num_threads: int | None
) -> Trainer[PairsObjective]:
    """Return the trainer of a rank at step 0; ``num_threads`` are torch's on CPUs."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    clip = load_start(fetch_model(config.model), find_loss(config.train.loss).bias).to(device)
    size, said = config.train.batch_size, config.model.said_weights
    return Trainer(PairsObjective(clip, config.train, num_steps, size, num_kinds, said), num_steps)


def train_rank(
    trainer: Trainer[PairsObjective],
    batches: Iterable[Batch],
    checkpoint_steps: int,
    writer: Writer | None = None,
    is_warned: Callable[[], bool] = lambda: False,
) -> None:
    """Take the remaining steps; the rank with the ``writer`` writes a checkpoint every ``checkpoint_steps``.
    It writes one more, and waits for it, when ``is_warned``, which all ranks call after every step, first
    reports that a rank will soon be lost. Before the first step it tries its evaluation."""
    was_warned = False
    with ExitStack() as stack:
        if writer:
            stack.enter_context(writer.trackers)
            stack.callback(writer.states.stop)
            writer.try_evaluation()
        for reported in trainer.run(batches):
            warned = is_warned()
            if writer:
                writer.take(reported)
                if trainer.step % checkpoint_steps == 0 or warned > was_warned:
                    writer.keep()
                if warned > was_warned:
                    writer.states.wait()
            was_warned = warned
        assert trainer.step == trainer.num_steps, (
            f"batches end after {trainer.step} of {trainer.num_steps} steps"
        )
        if writer:
            writer.close()


def finish(trainer: Trainer[PairsObjective], model: ModelConfig, out: Folder) -> None:
    """Write the trained ``model`` to ``checkpoint/`` in ``out``, on one rank. It writes the weights,
    preprocessing and tokenizer, so that open_clip also loads ``local-dir:DIR/checkpoint``, and open_clip's
    config of the model last: without the config the checkpoint does not count. Raises UserError, and writes
    nothing, where a weight is not finite."""
    clip = make_final(trainer, model)
    weights = clip.state_dict()
    for name, value in weights.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UserError(
                f"{name} after step {trainer.step}: must be finite; "
                f"train.learning_rate={trainer.config.learning_rate} may be too high"
            )
    architecture = describe_start(model, trainer.objective.loss.bias)
    hub = {"model_cfg": architecture, "preprocess_cfg": describe_preprocessing(clip)}
    files = {
        WEIGHTS: safetensors.torch.save({name: value.cpu().contiguous() for name, value in weights.items()}),
        **pack_tokenizer(model),
        HUB_CONFIG: _to_json(hub),
        ARCHITECTURE: _to_json(architecture),
    }
    for name, content in files.items():
        out.write_bytes(content, CHECKPOINT, name)


def make_final(trainer: Trainer[PairsObjective], model: ModelConfig) -> Any:
    """Return the trainer's current model: without adapters, interpolated with its initial weights."""
    clip, share = trainer.objective.plain_model(), trainer.config.keep_start
    if not share:
        return clip
    start = load_start(model, trainer.objective.loss.bias)
    weights = interpolate(clip.state_dict(), start.state_dict(), share)
    start.load_state_dict(weights)
    return start.to(trainer.clip.logit_scale.device)


def interpolate(trained: dict[str, Tensor], start: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return (1 - share) * trained + share * start, exactly one of them at 0 and 1.

    Wortsman et al. 2021 (arXiv:2109.01903), whose alpha is 1 - share. Counts stay as trained.
    """
    return {
        name: value.lerp(start[name].to(value), share) if value.is_floating_point() else value
        for name, value in trained.items()
    }


def _to_json(content: dict) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
