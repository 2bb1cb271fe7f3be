"""The training loop over an objective and batches, the same for one rank and many."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from raycomp.config import UserError
from raycomp.models.faults import say_bad
from raycomp.training.objective import Judged, Objective
from raycomp.training.ranks import add_up, find_rank, share
from raycomp.training.schedule import make_optimizer
from raycomp.training.towers import OF_ALL, Batch, Made, join_parts

MAX_LOGIT_SCALE = math.log(100)
LOSS = "loss"
Goal = TypeVar("Goal", bound=Objective)


class StepReport:
    """The metrics of a step. They are read from the device when they are first asked for, so that the next
    step can be queued before."""

    def __init__(self, step: int, learning_rate: float, read: Callable[[], Mapping[str, float]]):
        """``read`` returns the loss and its parts, or raises UserError where the step was bad."""
        self.step, self.learning_rate = step, learning_rate
        self._read = read

    @cached_property
    def _values(self) -> Mapping[str, float]:
        return self._read()

    @property
    def loss(self) -> float:
        """The loss of the global batch, before the step."""
        return self._values[LOSS]

    @property
    def parts(self) -> dict[str, float]:
        """The loss's summands by name, if it is a sum."""
        return {name: value for name, value in self._values.items() if name != LOSS}


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
        _check_norms(self.trained, self.num_parts, objective.group)
        self.towers = share(objective.towers)
        self.optimizer = make_optimizer(self.trained, self.config)
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
        numbers = add_up(torch.cat([shares, bad_2]))
        step, where = self.step, self.objective.where
        weights = self.objective.said_weights if step == 0 else None
        read = start_copy(numbers)

        def judge() -> Mapping[str, float]:
            *values, num_bad, num = read().tolist()
            self._judge(f"{step}{where}", weights, values[0], int(num_bad), int(num))
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
        _set_training(self.trained)
        self.optimizer.zero_grad()
        judged = self._find_gradients(batch)
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.trained.parameters(), self.config.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            self.clip.logit_scale.clamp_(0, MAX_LOGIT_SCALE)
        return judged

    def _judge(self, step: str, weights: str | None, loss: float, num_bad: int, num: int) -> None:
        """Raise UserError where a step was bad; at the first step the message names the initial
        ``weights``."""
        rate = self.objective.said_rate
        if num_bad and weights:
            raise UserError(say_bad(weights, num_bad, num, "rows of the first step"))
        if not math.isfinite(loss):
            why = f"check {weights} and the loss" if weights else f"{rate} may be too high"
            raise UserError(f"loss={loss} at step {step}: must be finite; {why}")
        if num_bad:
            raise UserError(say_bad(rate, num_bad, num, f"rows of step {step}", "lower it"))

    def _find_gradients(self, batch: Batch) -> Judged:
        """Compute the gradients of all weights; return the loss. With several parts: embed all without
        activations; compute the gradient of the whole batch's loss by each embedding; embed each part again
        and backpropagate it. The gradients equal those of a single part. Gao et al. 2021 (arXiv:2101.06983).
        """
        if self.num_parts == 1:
            judged = self.objective.judge(self._embed(batch), batch)
            self._spread(judged.loss).backward()
            return judged
        parts = batch.split(self.num_parts)
        with torch.no_grad():
            made = [self._embed(part, number) for number, part in enumerate(parts)]
        leaves = {name: value.detach().requires_grad_() for name, value in join_parts(made).items()}
        judged = self.objective.judge(leaves, batch)
        self._spread(judged.loss).backward()
        wanted = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        for number, part in enumerate(parts):
            is_last = number == self.num_parts - 1
            with nullcontext() if is_last else getattr(self.towers, "no_sync", nullcontext)():
                again = self._embed(part, number)
                names = [name for name in wanted if again[name].requires_grad]
                names = [name for name in names if is_last or name not in OF_ALL]
                grads = [_cut(wanted[name], name, made[:number], again) for name in names]
                torch.autograd.backward([again[name] for name in names], grads)
        return judged

    def _spread(self, share: Tensor) -> Tensor:
        """Return the share whose gradients' mean over ranks, which DistributedDataParallel takes, is the
        gradient of the sum of shares."""
        return share * find_rank()[1]

    def _embed(self, batch: Batch, part: int = 0) -> Made:
        """Embed a part of this rank's rows; the model's random draws depend on key, step, rank and part
        alone."""
        key = np.random.SeedSequence((*self.objective.key, self.step, self.rank, part))
        torch.manual_seed(int(key.generate_state(1)[0]))
        device = batch.image_RCHW.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.autocast):
            made: Made = self.towers(batch)
            return made


def start_copy(values: Tensor) -> Callable[[], Tensor]:
    """Start to copy a tensor to the CPU; return what waits for it alone and returns it."""
    if values.device.type != "cuda":
        return values.cpu
    copied = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    copied.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> Tensor:
        done.synchronize()
        return copied

    return wait


def _cut(wanted: Tensor, name: str, before: list[Made], part: Made) -> Tensor:
    """Return the embeddings' gradients of a part, whose rows follow those of the parts ``before``."""
    if name in OF_ALL:
        return wanted
    start = sum(len(made[name]) for made in before)
    return wanted[start : start + len(part[name])]


def _set_training(trained: nn.Module) -> None:
    """Set training mode, except for batch norms with frozen weights, whose statistics stay frozen, too."""
    trained.train()
    for module in trained.modules():
        own = list(module.parameters()) if _is_batch_norm(module) else []
        if own and not any(parameter.requires_grad for parameter in own):
            module.eval()


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _check_norms(trained: nn.Module, num_parts: int, group: str) -> None:
    if num_parts > 1 and any(map(_is_batch_norm, trained.modules())):
        raise UserError(
            f"{group}.accumulate={num_parts}: must be 1 for a model with batch norm (it needs whole batches)"
        )
