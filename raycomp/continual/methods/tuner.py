"""Methods that train the model itself: objective, evaluation, resumable state; finetune as it is.

N samples, T texts, R rows of a pass, B rows of a batch, L tokens of context, H x W pixels, D dims; of
hidden states, K blocks, W dims.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.config import UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Pixels, Split
from raycomp.core.compo_realign import Views, contrast_views
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip, encode_text, list_text_states
from raycomp.training import towers
from raycomp.training.config import FitConfig
from raycomp.training.loop import Trainer
from raycomp.training.towers import Batch, Judged, Made, find_rank, gather, slice_own

# Share of a task's steps in which the learning rate rises.
_WARMUP = 0.1
_TEXTS_PER_PASS = 64


@dataclass(frozen=True)
class TaskBatch(Batch):
    """A rank's rows of a task."""

    group_R: Tensor | None = None
    """Caption groups: rows with the same number have the same caption."""
    num_rows: int = 0
    """Of the global batch."""


class Called(nn.Module):
    """The modules that a task trains, and the method's embedding by them, as one call."""

    def __init__(self, trained: nn.Module, embed: Callable[[Any], Made]):
        super().__init__()
        self.trained, self.embed = trained, embed

    def forward(self, batch: TaskBatch) -> Made:
        """Return the method's embeddings of a batch."""
        return self.embed(batch)


class Tuner:
    """A ``Learner`` of a copy of the model; the one given stays as it is.

    Each task is an ``Objective`` of its own: ``raycomp train``'s ``Trainer`` takes its steps, on one rank or
    on many. AdamW is reset at every task. Its learning rate rises over the first tenth of ``tune.steps`` and
    then stays constant, for all methods: no step depends on the number of steps, and a mean of weights over
    steps, as in zscl, is a mean of steps with the same rate.
    """

    group = "tune"
    times = 1.0
    """Factor on the learning rate."""

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError if the model is not in fp32; training needs fp32."""
        if clip.dtype != torch.float32:
            raise UserError(f"model.precision={config.model.precision!r}: must be fp32 or tf32 to be trained")
        self.spec, self.config, self.seed = spec, config.tune, seed
        tune = self.config
        self.fit = FitConfig(
            batch_size=tune.batch_size,
            learning_rate=tune.learning_rate * self.times,
            weight_decay=tune.weight_decay,
            autocast=tune.autocast,
            accumulate=tune.accumulate,
        )
        self.device, self.images_per_pass = clip.device.place, clip.images_per_pass
        self.model: Any = copy.deepcopy(clip.model)
        if getattr(self.model, "logit_bias", None) is not None:
            # An offset that is added to all logits alike does not change the ranking.
            self.model.logit_bias.requires_grad_(False)
        self.said_rate = f"tune.learning_rate={tune.learning_rate}"
        self.number = 0
        self.train: Split | None = None
        self.trainer: Trainer[Tuner] | None = None
        """Of the open task; none between tasks."""
        self.batch_size, self.key, self.where = tune.batch_size, (seed, 0), ""
        self.said_weights: str | None = None

    @property
    def clip(self) -> Any:
        """The module that the task's steps call."""
        return self.model

    @property
    def trained(self) -> nn.Module:
        """The module that holds all weights that a task trains."""
        return self.model

    @property
    def towers(self) -> nn.Module:
        """The result of ``embed_batch`` for a batch, as one call."""
        return Called(self.trained, self.embed_batch)

    def start_task(self, number: int, train: Split) -> None:
        """Prepare for a task, with a new optimizer.

        Raises UserError if the task has fewer samples than there are workers.
        """
        assert train.pixels is not None and train.token_TL is not None, "a tuner needs pixels and tokens"
        self.number, self.train, self.key = number, train, (self.seed, number)
        # The whole task is a batch if it has fewer rows.
        self.batch_size = min(self.config.batch_size, len(train))
        self.where, self.said_weights = f" of task {number}", "model.weights" if number == 0 else None
        num_ranks = find_rank()[1]
        if len(train) < num_ranks:
            raise UserError(
                f"tune.workers={num_ranks}: must be at most {len(train)}, the samples of task {number}"
            )
        self.open()
        self.trainer = Trainer(self, self.config.steps)

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Learn from these rows of the task; return the loss and its parts."""
        assert self.trainer is not None, "no task is open"
        self.trainer.step = step
        reported = self.trainer.take(self.batch(step, row_B))
        self.after(step)
        return {"loss": reported.loss, **reported.parts}

    def end(self) -> None:
        """Close the task."""
        self.close()
        self.train, self.trainer = None, None

    def find_keys(self, split: Split) -> Keys:
        """Embed all pixels and tokens of a split by the current model, each as ``choose`` routes it."""
        assert split.pixels is not None and split.token_TL is not None, "a tuner needs pixels and tokens"
        model = self.seen_model().eval()
        return Keys(
            self.embed(model, "image", split.pixels, *self.choose("image", split.image_ND)),
            self.embed(model, "text", split.token_TL, *self.choose("text", split.text_TD)),
        )

    def list_states(self, token_TL: np.ndarray, text_TD: np.ndarray) -> np.ndarray | None:
        """Return the states of a few texts after each block of the text tower, (K, T, W), by the model that
        an evaluation embeds with; see ``list_text_states``. ``text_TD``: their embeddings by the frozen
        model, which ``choose`` routes by. Each rank computes all of them, in one pass."""
        model, chosen = self.seen_model().eval(), self.choose("text", text_TD)
        self.route("text", *(torch.from_numpy(array).to(self.device) for array in chosen))
        state_KTW = list_text_states(model, torch.from_numpy(token_TL).to(self.device).long())
        self.route("text")
        return None if state_KTW is None else state_KTW.cpu().numpy()

    def state(self) -> dict[str, Any]:
        """Return the learned weights and, within a task, the optimizer's state; on the CPU."""
        state: dict[str, Any] = {"number": self.number, "learned": self.learned()}
        if self.trainer is not None:
            state["optimizer"] = self.trainer.optimizer.state_dict()
        return _to_cpu(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from this state, within a task or between tasks."""
        state = copy.deepcopy(state)
        self.relearn(state["learned"])
        if self.train is None:
            self.number = state["number"]
        elif "optimizer" in state:
            self.trainer = Trainer(self, self.config.steps)
            self.trainer.optimizer.load_state_dict(state["optimizer"])
        else:  # from the end of the previous task: this task started from its weights
            self.start_task(self.number, self.train)

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Return the loss inputs of this rank's rows: images and texts, not normalized, and the logit scale;
        a subclass adds to them."""
        image_RD, text_RD = encode(self.clip, batch)
        return {"image": image_RD, "text": text_RD, "scale": self.clip.logit_scale}

    def judge(self, made: Made, batch: Batch) -> Judged:
        """Return this rank's share of the loss of the global batch, the sum of ``losses``, which all ranks
        compute."""
        assert isinstance(batch, TaskBatch)
        parts = {name: towers.share_of(part) for name, part in self.losses(made, batch).items()}
        return Judged(torch.stack(list(parts.values())).sum(), parts)

    def losses(self, made: Made, batch: TaskBatch) -> dict[str, Tensor]:
        """Return the losses to minimize, by name: CLIP's loss; a subclass adds to it."""
        assert batch.group_R is not None
        num = batch.num_rows
        image_BD, text_BD, group_B = (
            gather(rows, num) for rows in (made["image"], made["text"], batch.group_R)
        )
        return {"clip": contrast_batch(image_BD, text_BD, group_B, made["scale"])}

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step: it rises, then stays constant."""
        warmup = max(1, round(_WARMUP * self.config.steps))
        return self.fit.learning_rate * min(1.0, (step + 1) / warmup)

    def open(self) -> None:
        """Create the task's own modules."""

    def after(self, step: int) -> None:
        """Update after a step, where the method has an update."""

    def close(self) -> None:
        """Update the method's memory after a task."""

    def seen_model(self) -> Any:
        """Return the model that an evaluation embeds with."""
        return self.model

    def learned(self) -> dict[str, Any]:
        """Return the method's learned state, and its state within a task."""
        return {"model": self.model.state_dict()}

    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore it."""
        self.model.load_state_dict(learned["model"])

    def batch(self, step: int, row_B: np.ndarray) -> TaskBatch:
        """Return this rank's rows of a batch of the task, as model inputs."""
        train = self.train
        assert train is not None and train.pixels is not None and train.token_TL is not None
        row_R = row_B[slice_own(len(row_B))]
        arrays = {"image": train.pixels[row_R], "token": np.asarray(train.token_TL)[train.own_N[row_R]]}
        plain = towers.to_batch(arrays, self.device, self.spec.image)
        group_R = torch.from_numpy(train.own_N[row_R]).to(self.device)
        return TaskBatch(plain.image_RCHW, plain.token_RN, group_R=group_R, num_rows=len(row_B))

    def choose(self, tower: str, feature_ND: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return what a method with routes chooses for rows by the frozen model's features, (N,) each."""
        return ()

    def route(self, tower: str, *chosen_R: Tensor) -> None:
        """Set a tower's routes for the rows of a pass."""

    @torch.inference_mode()
    def embed(self, model: Any, tower: str, rows: np.ndarray | Pixels, *chosen_N: np.ndarray) -> np.ndarray:
        """Return images (N, D) or texts (T, D) of length 1, by the tower "image" or "text", in passes of one
        size; ``chosen_N``: what ``choose`` returned for these rows.

        Ranks share the passes, and each returns the rows of all.
        """
        size = self.images_per_pass if tower == "image" else _TEXTS_PER_PASS
        rank, num_ranks = find_rank()
        found_ND = torch.zeros(len(rows), self.spec.embedding_dim)
        for start in range(rank * size, len(rows), num_ranks * size):
            parts = [np.array(array[start : start + size]) for array in (rows, *chosen_N)]
            num = len(parts[0])
            blanks = [np.zeros((size - num, *part.shape[1:]), part.dtype) for part in parts]
            padded = [np.concatenate(pair) for pair in zip(parts, blanks, strict=True)]
            row_R, *chosen_R = (torch.from_numpy(part).to(self.device) for part in padded)
            self.route(tower, *chosen_R)
            if tower == "image":
                made = model.encode_image(towers.to_image(row_R, self.spec.image))
            else:
                made = model.encode_text(row_R.long())
            found_ND[start : start + num] = F.normalize(made.float(), dim=-1)[:num].cpu()
        return found_ND.numpy() if num_ranks == 1 else towers.add_up(found_ND.to(self.device)).cpu().numpy()


def encode(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return images and texts of a batch in fp32, not normalized."""
    return model.encode_image(batch.image_RCHW).float(), encode_text(model, batch.token_RN).float()


def contrast_batch(image_BD: Tensor, text_BD: Tensor, group_B: Tensor, logit_scale: Tensor) -> Tensor:
    """Return the CLIP loss of a batch, whatever the embeddings' lengths.

    Radford et al. 2021 (arXiv:2103.00020). Rows with the same caption are neither positive nor negative for
    each other.
    """
    own_B = torch.arange(len(image_BD), device=image_BD.device)
    views = Views(F.normalize(text_BD, dim=-1), own_B)
    return contrast_views(F.normalize(image_BD, dim=-1), views, group_B, logit_scale.exp()).total


def _to_cpu(value: Any) -> Any:
    """Return a copy of a tree of tensors and plain values that shares no memory with it."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: _to_cpu(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_to_cpu(entry) for entry in value]
    return value


class Finetune(Tuner):
    """CLIP's loss of each task's own rows, all weights trained; on all tasks at once it is joint training."""
