"""The training loop: a model, a loss, batches of the plan; the same whether one rank has a batch or many."""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raycomp.config import UserError
from raycomp.core.epochs import slice_of
from raycomp.models.adapters import add_adapters, freeze, merge_adapters
from raycomp.models.faults import say_bad
from raycomp.train.config import FitConfig
from raycomp.train.losses import compute_loss, find_loss
from raycomp.train.ranks import gather
from raycomp.train.schedule import learning_rate_at, make_optimizer
from raycomp.train.towers import OF_ROWS, Batch, Embedded, Made, Towers, embed_batch, join_parts
from raycomp.train.training import Told

MAX_LOGIT_SCALE = math.log(100)


class Trainer:
    """A model on its way: the step that comes next, the optimiser, and what the loss carries along.

    ``wrap`` puts the model behind DistributedDataParallel where there are several ranks.
    """

    def __init__(
        self,
        clip: Any,
        config: FitConfig,
        num_steps: int,
        batch_size: int,
        num_kinds: int = 0,
        wrap: Any = lambda towers: towers,
        said_weights: str = "model.weights",
    ):
        """Raise UserError where the model cannot be trained as the config says.

        ``said_weights``: what the model began with, as a message says it.
        """
        self.clip, self.config, self.num_steps, self.batch_size = clip, config, num_steps, batch_size
        self.said_weights = said_weights
        is_one = not dist.is_initialized()
        self.rank, num_ranks = (0, 1) if is_one else (dist.get_rank(), dist.get_world_size())
        if num_ranks > batch_size:
            raise UserError(f"train.batch_size={batch_size}: must be at least the {num_ranks} workers")
        # All ranks have as many parts, whatever each one's rows.
        self.num_parts = min(config.accumulate, batch_size // num_ranks)
        _check_norms(clip, self.num_parts)
        self.loss = find_loss(config.loss)(torch.zeros(num_kinds))
        if not self.loss.bias and getattr(clip, "logit_bias", None) is not None:
            # Added to all logits alike, as open_clip's loss does, it changes nothing that is picked.
            clip.logit_bias.requires_grad_(False)
        freeze(clip, config.freeze)
        self.adapters = add_adapters(clip, config.lora_rank, config.seed) if config.lora_rank else None
        self.towers = wrap(Towers(clip))
        self.optimizer = make_optimizer(clip, config)
        self.step, self.is_settled = 0, False

    def plain_model(self) -> Any:
        """Return the model as it is now, without adapters: itself, or a copy with what they learned."""
        return merge_adapters(self.adapters) if self.adapters else self.clip

    def run(self, batches: Iterable[Batch]) -> Iterator[Told]:
        """Yield what each step tells, up to ``num_steps``.

        Raises UserError where a loss or an embedding is not finite, an embedding is not of length 1, or the
        GPU's memory is too small.
        """
        for batch in batches:
            if self.step == self.num_steps:
                return
            if not self.is_settled:
                self._settle(batch.cut(slice(1)))
            rate = learning_rate_at(self.step, self.num_steps, self.config)
            try:
                loss = self._take(batch, rate)
            except torch.OutOfMemoryError as error:
                line = " ".join(str(error).split())[:200]
                raise UserError(
                    f"step {self.step}: needs more memory than the GPU has; lower train.batch_size, raise "
                    f"train.accumulate or take more workers ({line})"
                ) from error
            self.step += 1
            yield Told(self.step - 1, loss, rate)

    def _settle(self, batch: Batch) -> None:
        """Go back once from a loss of zero, which leaves no trace in the model.

        After the first backward pass DistributedDataParallel lays its buckets out anew, and then adds up in
        another order: no start, the first or any later one, may be a step.
        """
        self.clip.eval()
        made = self._embed(batch).values()
        torch.stack([value.sum() * 0 for value in made if value.requires_grad]).sum().backward()
        self.optimizer.zero_grad()
        self.is_settled = True

    def _take(self, batch: Batch, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        _set_training(self.clip)
        self.optimizer.zero_grad()
        # A GPU is waited for only once its work up to here is laid out.
        found, counts = self._find_gradients(batch)
        loss = found.item()
        self._check(loss, *counts.tolist())
        if self.config.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.clip.parameters(), self.config.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            self.clip.logit_scale.clamp_(0, MAX_LOGIT_SCALE)
        return loss

    def _check(self, loss: float, num_bad: int, num: int) -> None:
        """Raise UserError where a step cannot be taken: before the first one the weights are to blame."""
        if num_bad and not self.step:
            raise UserError(say_bad(self.said_weights, num_bad, num, "rows of the first step"))
        rate = f"train.learning_rate={self.config.learning_rate}"
        if not math.isfinite(loss) and not self.step:
            raise UserError(f"loss={loss} at step 0: must be finite; is it {self.said_weights} or the loss?")
        if not math.isfinite(loss):
            raise UserError(f"loss={loss} at step {self.step}: must be finite; {rate} may be too high")
        if num_bad:
            raise UserError(say_bad(rate, num_bad, num, f"rows of step {self.step}", "lower it"))

    def _find_gradients(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Give all weights their gradients; return the loss, and ``Embedded.count_bad``.

        In parts: embed all of them and keep no activations; find what the loss of the whole batch wants of
        each embedding; embed part after part again and pass that on. The gradients are those of one part.
        Gao et al. 2021 (arXiv:2101.06983).
        """
        if self.num_parts == 1:
            loss, counts = self._judge(self._embed(batch), batch)
            loss.backward()
            return loss, counts
        slices = [slice_of(part, self.num_parts, len(batch.token_RN)) for part in range(self.num_parts)]
        parts = [batch.cut(rows) for rows in slices]
        with torch.no_grad():
            made = join_parts([self._embed(part, number) for number, part in enumerate(parts)])
        leaves = {name: value.detach().requires_grad_() for name, value in made.items()}
        loss, counts = self._judge(leaves, batch)
        loss.backward()
        wanted = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
        for number, (part, rows) in enumerate(zip(parts, slices, strict=True)):
            is_last = number == self.num_parts - 1
            with nullcontext() if is_last else getattr(self.towers, "no_sync", nullcontext)():
                again = self._embed(part, number)
                names = [name for name in wanted if again[name].requires_grad]
                names = [name for name in names if is_last or name in OF_ROWS]
                grads = [wanted[name][rows] if name in OF_ROWS else wanted[name] for name in names]
                torch.autograd.backward([again[name] for name in names], grads)
        return loss, counts

    def _embed(self, batch: Batch, part: int = 0) -> Made:
        """Embed a part of this rank's rows; the model draws from seed, step, rank and part alone."""
        key = np.random.SeedSequence((self.config.seed, self.step, self.rank, part))
        torch.manual_seed(int(key.generate_state(1)[0]))
        device = batch.image_RCHW.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.autocast):
            return embed_batch(self.towers, batch)

    def _judge(self, made: Made, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of the global batch, and how many of its rows are bad, the same on all ranks."""
        embedded = Embedded(
            image_ND=self._gather(made["image"]),
            text_ND=self._gather(made["text"]),
            scale=made["scale"],
            bias=made.get("bias"),
            negative_NKD=self._gather(made.get("negative")),
            valid_NK=self._gather(batch.valid_RK),
            kind_NK=self._gather(batch.kind_RK),
            negative_image_ND=self._gather(made.get("negative_image")),
        )
        return compute_loss(self.loss, embedded, self.config), embedded.count_bad()

    def _gather(self, rows: Any) -> Any:
        return None if rows is None else gather(rows, self.batch_size)


def _set_training(clip: nn.Module) -> None:
    """Set the mode of training, but for batch norms whose weights are frozen: so are their statistics."""
    clip.train()
    for module in clip.modules():
        own = list(module.parameters()) if _is_batch_norm(module) else []
        if own and not any(parameter.requires_grad for parameter in own):
            module.eval()


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def _check_norms(clip: nn.Module, num_parts: int) -> None:
    if num_parts > 1 and any(map(_is_batch_norm, clip.modules())):
        raise UserError(
            f"train.accumulate={num_parts}: must be 1 for a model with batch norms: they would see parts"
        )
