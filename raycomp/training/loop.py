"""The training loop, the same for one rank and many: steps, the state that resumes them, the final model.

A state lies in ``checkpoints/STEP/``: tensors as safetensors, and ``state.json``, which comes last: without
it there is no state.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import fields
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from raycomp.config import ModelConfig, UserError
from raycomp.core.batches import ahead
from raycomp.data.files import ARCHITECTURE, CHECKPOINT, WEIGHTS, WORK, Folder, new_path
from raycomp.data.runs import fetch_model
from raycomp.models.architecture import say_bad
from raycomp.models.clip import describe_preprocessing, describe_start, load_start, pack_tokenizer
from raycomp.models.device import start_fetch
from raycomp.models.images import ImageSpec
from raycomp.models.stated import HUB_CONFIG
from raycomp.run.progress import Progress
from raycomp.run.run import Say
from raycomp.training import journal, towers
from raycomp.training.config import TrainConfig
from raycomp.training.evaluations import HeldOutEvaluation, evaluate_model, try_evaluation
from raycomp.training.held_out import write_start
from raycomp.training.losses import get_loss
from raycomp.training.pairs import read_batches
from raycomp.training.towers import (
    Batch,
    Judged,
    Made,
    Objective,
    PairsObjective,
    find_rank,
    is_of_all,
    to_batch,
)

MAX_LOGIT_SCALE = math.log(100)
LOSS = "loss"
Goal = TypeVar("Goal", bound=Objective)
_MODEL, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"


class StepReport:
    """The metrics of a step. They are read from the device when they are first asked for, so that the next
    step can be queued before."""

    def __init__(self, step: int, learning_rate: float, read: Callable[[], Mapping[str, float]]):
        """``read`` returns the loss and its parts, or raises UserError where the step was bad."""
        self.step, self.learning_rate, self._read = step, learning_rate, cache(read)

    @property
    def loss(self) -> float:
        """The loss of the global batch, before the step."""
        return self._read()[LOSS]

    @property
    def parts(self) -> dict[str, float]:
        """The loss's summands by name, if it is a sum."""
        return {name: value for name, value in self._read().items() if name != LOSS}


class Trainer(Generic[Goal]):
    """Trains an objective: holds the next step and the optimizer.

    The model is behind DistributedDataParallel where there are several ranks.
    """

    def __init__(self, objective: Goal, num_steps: int):
        """Raise UserError where there are more ranks than rows, or the model does not support parts of a
        batch."""
        self.objective, self.num_steps = objective, num_steps
        self.config, self.batch_size = objective.fit, objective.batch_size
        self.rank, num_ranks = find_rank()
        if num_ranks > self.batch_size:
            raise UserError(
                f"{objective.group}.batch_size={self.batch_size}: must be at least the {num_ranks} workers"
            )
        # All ranks have the same number of parts, whatever their number of rows.
        self.num_parts = min(self.config.accumulate, self.batch_size // num_ranks)
        self.clip, self.trained = objective.clip, objective.trained
        if self.num_parts > 1 and any(map(_is_batch_norm, self.trained.modules())):
            raise UserError(
                f"{objective.group}.accumulate={self.num_parts}: must be 1 for a model with batch norm (it "
                f"needs whole batches)"
            )
        self.towers = objective.towers if num_ranks == 1 else DistributedDataParallel(objective.towers)
        self.optimizer = towers.make_optimizer(self.trained, self.config)
        self.step, self.is_settled = 0, False
        self._last: StepReport | None = None

    def run(self, batches: Iterable[Batch]) -> Iterator[StepReport]:
        """Yield the report of each step, up to ``num_steps``; raises as ``take`` and ``check``."""
        for batch in batches:
            if self.step == self.num_steps:
                break
            yield self.take(batch)
        self.check()

    def take(self, batch: Batch) -> StepReport:
        """Take the next step with this rank's rows of its batch.

        Raises UserError where the GPU's memory is too small, or the step before this one was bad. This step
        is judged by its report, by the next step or by ``check``, whichever comes first: until then a GPU
        may still work on it.
        """
        if not self.is_settled:
            self._settle(batch.cut(slice(1)))
        rate, group = self.objective.rate_at(self.step), self.objective.group
        try:
            judged = self._take(batch, rate)
            report = StepReport(self.step, rate, self._send(judged))
        except torch.OutOfMemoryError as error:
            line = " ".join(str(error).split())[:200]
            raise UserError(
                f"step {self.step}{self.objective.where}: needs more memory than the GPU has; lower "
                f"{group}.batch_size, raise {group}.accumulate or use more workers ({line})"
            ) from error
        self.step += 1
        self.check()
        self._last = report
        return report

    def check(self) -> None:
        """Raise UserError where a loss or an embedding of the last step is not finite, or an embedding is not
        of length 1. Then the weights are those after that step, and must not be kept."""
        if self._last is not None:
            _ = self._last.loss

    def _send(self, judged: Judged) -> Callable[[], Mapping[str, float]]:
        """Return what waits for a step's numbers, of all ranks, and judges them."""
        named = {LOSS: judged.loss, **judged.parts}
        shares = torch.stack([value.detach().float() for value in named.values()])
        bad_2 = shares.new_zeros(2) if judged.counts is None else judged.counts.to(shares)
        numbers = towers.add_up(torch.cat([shares, bad_2]))
        step, where = self.step, self.objective.where
        weights = self.objective.said_weights if step == 0 else None
        read = start_fetch(numbers) if numbers.is_cuda else numbers.cpu

        def judge() -> Mapping[str, float]:
            *values, num_bad, num = read().tolist()
            rate = self.objective.said_rate
            if num_bad and weights:
                raise UserError(say_bad(weights, int(num_bad), int(num), "rows of the first step"))
            if not math.isfinite(values[0]):
                why = f"check {weights} and the loss" if weights else f"{rate} may be too high"
                raise UserError(f"loss={values[0]} at step {step}{where}: must be finite; {why}")
            if num_bad:
                raise UserError(
                    say_bad(rate, int(num_bad), int(num), f"rows of step {step}{where}", "lower it")
                )
            return dict(zip(named, values, strict=True))

        return judge

    def _settle(self, batch: Batch) -> None:
        """Run one backward pass from a loss of zero, which does not change the model.

        After its first backward pass DistributedDataParallel rebuilds its buckets and then sums in another
        order. So the first pass of every start, resumed or not, must not be a training step.
        """
        self.trained.eval()
        made = self._embed(batch).values()
        torch.stack([value.sum() * 0 for value in made if value.requires_grad]).sum().backward()
        self.optimizer.zero_grad()
        self.is_settled = True

    def _take(self, batch: Batch, rate: float) -> Judged:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.trained.train()
        for module in filter(_is_batch_norm, self.trained.modules()):
            weights = list(module.parameters())
            if weights and not any(weight.requires_grad for weight in weights):
                module.eval()  # the statistics of a batch norm with frozen weights stay frozen, too
        self.optimizer.zero_grad()
        judged = self._compute_gradients(batch)
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained.parameters(), self.config.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            self.clip.logit_scale.clamp_(0, MAX_LOGIT_SCALE)
        return judged

    def _compute_gradients(self, batch: Batch) -> Judged:
        """Compute the gradients of all weights; return the loss. With several parts: embed all without
        activations; compute the gradient of the whole batch's loss by each embedding; embed each part again
        and backpropagate it. The gradients equal those of a single part. Gao et al. 2021 (arXiv:2101.06983).
        """
        # DistributedDataParallel takes the mean over ranks of gradients; the loss is the sum of their shares.
        num_ranks = find_rank()[1]
        if self.num_parts == 1:
            judged = self.objective.judge(self._embed(batch), batch)
            (judged.loss * num_ranks).backward()
            return judged
        parts = batch.split(self.num_parts)
        with torch.no_grad():
            made = [self._embed(part, number) for number, part in enumerate(parts)]
        of_all = {name for name, value in made[0].items() if is_of_all(name, value)}
        leaves = {
            name: (value if name in of_all else torch.cat([part[name] for part in made])).detach()
            for name, value in made[0].items()
        }
        for leaf in leaves.values():
            leaf.requires_grad_()
        judged = self.objective.judge(leaves, batch)
        (judged.loss * num_ranks).backward()
        wanted = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        for number, part in enumerate(parts):
            is_last = number == self.num_parts - 1
            with nullcontext() if is_last else getattr(self.towers, "no_sync", nullcontext)():
                again = self._embed(part, number)
                names = [name for name in wanted if again[name].requires_grad]
                names = [name for name in names if is_last or name not in of_all]
                grads = []
                for name in names:  # the rows of this part follow those of the parts before
                    start = sum(len(one[name]) for one in made[:number]) if name not in of_all else 0
                    rows = slice(start, start + len(again[name])) if name not in of_all else ...
                    grads.append(wanted[name][rows])
                torch.autograd.backward([again[name] for name in names], grads)
        return judged

    def _embed(self, batch: Batch, part: int = 0) -> Made:
        """Embed a part of this rank's rows; the model's random draws depend on key, step, rank and part
        alone."""
        key = np.random.SeedSequence((*self.objective.key, self.step, self.rank, part))
        torch.manual_seed(int(key.generate_state(1)[0]))
        device = batch.image_RCHW.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.autocast):
            made: Made = self.towers(batch)
            return made


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


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
        # Of the last write; its memory is used again.
        self._copy: State | None = None

    def write(self, trainer: Trainer[PairsObjective], before: Callable[[], None]) -> None:
        """Copy the trainer's state and start to write it, after ``before()``; the oldest states go once it is
        complete.

        Waits for the write before this one, and raises its error.
        """
        self.wait()
        state = self._copy = copy_state(trainer, self._copy)

        def write() -> None:
            before()
            write_state(state, self.out)
            journal.keep_states(self.out, self.num_kept)

        self._last = self._pool.submit(write)

    def wait(self) -> None:
        """Wait for the last write, and raise its error."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def stop(self) -> None:
        """Wait for the last write, whatever its end: another start may write here next."""
        self._pool.shutdown()


def copy_state(trainer: Trainer[PairsObjective], old: State | None = None) -> State:
    """Return a copy of what a trainer needs to resume exactly, in the memory of an ``old`` copy if there is
    one."""
    moments = trainer.optimizer.state_dict()["state"].items()
    flat = {f"{number}.{name}": value for number, entry in moments for name, value in entry.items()}
    copied: dict[str, dict[str, Tensor]] = {}
    for file, tensors in {_MODEL: trainer.clip.state_dict(), _OPTIMIZER: flat}.items():
        used = old.tensors[file] if old else {}
        copied[file] = {}
        for name, value in tensors.items():
            to = used[name] if name in used else torch.empty(value.shape, dtype=value.dtype)
            copied[file][name] = to.copy_(value.detach())
    margins = trainer.objective.loss.margin_S.tolist()
    return State({"step": trainer.step, "margins": margins, "run": _describe_run(trainer)}, copied)


def write_state(state: State, out: Folder) -> None:
    """Write a state's files, ``state.json`` last."""
    place = (journal.CHECKPOINTS, f"{state.facts['step']:08d}")
    for name, tensors in state.tensors.items():
        # safetensors writes a file without Python's lock, unlike bytes in memory.
        with new_path(out.at(*place, name)) as path:
            safetensors.torch.save_file(tensors, path)
    out.write_json(state.facts, *place, journal.STATE)


def load_state(trainer: Trainer[PairsObjective], out: Folder, step: int) -> None:
    """Load the state of ``step`` into a new trainer of the same config.

    Raises UserError, one line, where the state is damaged or of another model or run.
    """
    place = (journal.CHECKPOINTS, f"{step:08d}")
    where = out.at(*place)
    try:
        state = out.read_json(*place, journal.STATE)
        for name, value in _describe_run(trainer).items():
            if state["run"][name] != value:
                raise ValueError(f"its run has {name}={state['run'][name]!r}, not {value!r}")
        weights, flat = (
            safetensors.torch.load(out.read_bytes(*place, name)) for name in (_MODEL, _OPTIMIZER)
        )
        trainer.clip.load_state_dict(weights)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in flat.items():
            number, _, kind = name.partition(".")
            moments.setdefault(int(number), {})[kind] = value
        known = trainer.optimizer.state_dict()
        trainer.optimizer.load_state_dict({**known, "state": moments})
        margin_S = torch.tensor(state["margins"], dtype=trainer.objective.loss.margin_S.dtype)
        if margin_S.shape != trainer.objective.loss.margin_S.shape or state["step"] != step:
            raise ValueError("it has another step or other kinds of negatives")
    except torch.OutOfMemoryError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError, FileNotFoundError) as error:
        line = " ".join(str(error).split())[:200]
        is_damaged = isinstance(
            error, SafetensorError | FileNotFoundError | json.JSONDecodeError | UnicodeError
        )
        what = "is damaged or cut off" if is_damaged else "belongs to another training"
        raise UserError(f"{where}: {what} ({line}); remove it to resume from an earlier step") from error
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


class Writer:
    """Writes, on one rank for all: a line for each step, checkpoints, the model."""

    def __init__(
        self,
        trainer: Trainer[PairsObjective],
        training: journal.Training,
        report: Callable[[dict[str, Any]], None],
        openers: journal.Openers = journal.OPENERS,
    ):
        """``report`` is called with each line."""
        self.trainer, self.config, self.folder = trainer, training.config, Folder(training.out)
        self.report, self.evaluate = report, training.evaluate
        held = training.held_out
        self.held_out = HeldOutEvaluation(training, held) if held else None
        self.trackers = journal.open_trackers(training, openers)
        self.journal = journal.MetricsLog(self.folder, trainer.step)
        self.states = StateWriter(self.folder, self.config.train.keep_checkpoints)
        self.started = time.perf_counter()
        self._last: StepReport | None = None

    def take(self, step: StepReport) -> None:
        """Record the step before this one; this one, too, where the model is evaluated after it."""
        self.settle()
        self._last = step
        if any(self._list_due(step.step + 1)):
            self.settle()

    def settle(self) -> None:
        """Record the last step, unless it is recorded; waits until the GPU has finished it."""
        step, self._last = self._last, None
        if step is None:
            return
        num_steps = step.step + 1
        spent = time.perf_counter() - self.started
        row: dict[str, Any] = {"step": step.step, "loss": step.loss, "learning_rate": step.learning_rate}
        row |= {**step.parts, "samples_per_s": self.trainer.batch_size / spent}
        own, held_out = self._list_due(num_steps)
        if own:
            row |= evaluate_model(own, self._make_final(), num_steps)
        if held_out:
            row |= held_out.run(self._make_final(), num_steps, row)
        self.journal.write(row)
        self.trackers.log(row)
        self.report(row)
        self.started = time.perf_counter()

    def _list_due(self, step: int) -> tuple[journal.Evaluate | None, HeldOutEvaluation | None]:
        """Return the user's evaluation and that of held-out pairs, each if it is due after so many steps."""
        every, held_out = self.config.train.evaluate_steps, self.held_out
        is_due = (every is not None and step % every == 0) or step == self.trainer.num_steps
        return self.evaluate if is_due else None, held_out if held_out and held_out.is_due(step) else None

    def try_evaluation(self) -> None:
        """Evaluate once before the first step. Raises UserError where that fails."""
        tried: dict[str, float] = {}
        if self.evaluate and self.trainer.step == 0:
            tried = try_evaluation(self.evaluate, self._make_final())
        if self.held_out and self.trainer.step == 0:
            found = self.held_out.run(self._make_final(), 0, tried)
            write_start(found, Folder(self.folder.at(WORK)))
            for draw in (self.journal.draw, self.trackers.log):  # no line: these are no step's values
                draw({journal.STEP: 0, **found})
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
        if self.trainer.step not in journal.list_states(self.folder):
            self.keep()
            self.states.wait()
        # The last start may have been killed while it removed states.
        journal.keep_states(self.folder, self.config.train.keep_checkpoints)
        self.journal.close()
        finish(self.trainer, fetch_model(self.config.model), Folder(self.folder.at(WORK)))


def start_rank(
    config: TrainConfig, num_steps: int, num_kinds: int, device: str, num_threads: int | None
) -> Trainer[PairsObjective]:
    """Return the trainer of a rank at step 0; ``num_threads`` are torch's on CPUs."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    clip = load_start(fetch_model(config.model), get_loss(config.train.loss).bias).to(device)
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
        HUB_CONFIG: f"{json.dumps(hub, indent=2)}\n".encode(),
        ARCHITECTURE: f"{json.dumps(architecture, indent=2)}\n".encode(),
    }
    for name, content in files.items():
        out.write_bytes(content, CHECKPOINT, name)


def make_final(trainer: Trainer[PairsObjective], model: ModelConfig) -> Any:
    """Return the trainer's current model: without adapters, interpolated with its initial weights."""
    clip, share = trainer.objective.plain_model(), trainer.config.keep_start
    if not share:
        return clip
    start = load_start(model, trainer.objective.loss.bias)
    start.load_state_dict(interpolate(clip.state_dict(), start.state_dict(), share))
    return start.to(trainer.clip.logit_scale.device)


def interpolate(trained: dict[str, Tensor], start: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return (1 - share) * trained + share * start, exactly one of them at 0 and 1.

    Wortsman et al. 2021 (arXiv:2109.01903), whose alpha is 1 - share. Counts stay as trained.
    """
    return {
        name: value.lerp(start[name].to(value), share) if value.is_floating_point() else value
        for name, value in trained.items()
    }


def prefetch(
    arrays: Iterable[Mapping[str, np.ndarray]], device: torch.device, spec: ImageSpec
) -> Iterator[Batch]:
    """Yield ``to_batch`` of each, one made ahead by a thread. On a CPU nothing is pinned."""
    if device.type != "cuda":
        yield from ahead((to_batch(one, device, spec) for one in arrays), 1)
        return
    stream = torch.cuda.Stream(device)

    def copy() -> Iterator[tuple[Batch, torch.cuda.Event]]:
        for one in arrays:
            pinned = {
                name: torch.from_numpy(np.array(value)).pin_memory().numpy() for name, value in one.items()
            }
            copied = torch.cuda.Event()
            with torch.cuda.stream(stream):
                batch = to_batch(pinned, device, spec)
                copied.record(stream)
            # The pinned arrays must live until they are copied; this thread has time to wait.
            copied.synchronize()
            yield batch, copied

    for batch, copied in ahead(copy(), 1):
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        for value in (getattr(batch, one.name) for one in fields(batch)):
            if isinstance(value, Tensor) and value.is_cuda:
                value.record_stream(current)  # its memory is free again once this stream has used it
        yield batch


# Batches that a thread makes in advance, here and on a GPU.
_AHEAD = 2
_CHECK_S = 10.0


def fit_here(training: journal.Training, check: Callable[[], None], say: Say) -> journal.TrainingStatus:
    """Train to the end, from the last checkpoint if there is one; return what was reported.

    ``check`` raises LeaseLost where the folder is another run's. The batches and the weights are those of one
    rank of Ray Train.
    """
    config, folder, tracker = training.config, Folder(training.out), journal.StatusTracker()
    trainer = start_rank(config, training.num_steps, training.num_kinds, "cpu", training.threads)
    for step in journal.list_states(folder)[-1:]:
        load_state(trainer, folder, step)
    tracker.start(trainer.step)
    status = tracker.status()
    journal.say_start(status.starts[0], say)
    with Progress("train", training.num_steps, unit="step") as progress:
        progress.start_at(trainer.step)
        checked_at = time.monotonic()

        def report(row: dict[str, Any]) -> None:
            nonlocal checked_at
            tracker.report(row)
            progress.reach(status.step, config.train.batch_size)
            if time.monotonic() - checked_at > _CHECK_S:
                check()
                checked_at = time.monotonic()

        writer = Writer(trainer, training, report, journal.OPENERS)
        plan, draw, left = training.course.plan, training.course.draw, training.num_steps - trainer.step
        made = read_batches(training.pairs, plan, draw, trainer.step, left)
        batches = (to_batch(arrays, "cpu", training.image) for arrays in ahead(made, _AHEAD))
        train_rank(trainer, batches, config.train.checkpoint_steps, writer)
    return status
