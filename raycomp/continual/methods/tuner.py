"""What all methods that train the model itself share: a step, a look, and a state to go on from.

N samples, T texts, R rows of a pass, B rows of a batch, L tokens of context, H x W pixels, D dims.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.config import UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Pixels, Split
from raycomp.core.realign import Views, contrast_views
from raycomp.models.clip import Clip
from raycomp.models.short_text import encode_text
from raycomp.models.spec import ScorerSpec
from raycomp.train.config import FitConfig
from raycomp.train.fit import MAX_LOGIT_SCALE
from raycomp.train.schedule import make_optimizer
from raycomp.train.towers import Batch, to_batch, to_image

# Share of a task's steps in which the learning rate rises.
_WARMUP = 0.1
TEXTS_PER_PASS = 64


class Tuner:
    """A ``Learner`` of a copy of the model; the one given stays as it is.

    AdamW begins anew with every task. Its learning rate rises over the first tenth of ``tune.steps`` and then
    stays, the same for all methods: so no step need know how many there are, and a mean of weights over
    steps, as zscl takes it, is one of equals.
    """

    times = 1.0
    """What the learning rate is multiplied by."""

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError where the model is not held in fp32, in which alone it is trained."""
        if clip.dtype != torch.float32:
            raise UserError(f"model.precision={config.model.precision!r}: must be fp32 or tf32 to be trained")
        self.spec, self.config, self.seed = spec, config.tune, seed
        self.device, self.images_per_pass = clip.device.place, clip.images_per_pass
        self.model: Any = copy.deepcopy(clip.model)
        if getattr(self.model, "logit_bias", None) is not None:
            # Added to all logits alike it changes nothing that is picked.
            self.model.logit_bias.requires_grad_(False)
        self.number = 0
        self.train: Split | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        """Of the task that is open; none between tasks."""

    def begin(self, number: int, train: Split) -> None:
        """Get ready for a task, with a new optimiser."""
        assert train.pixels is not None and train.token_TL is not None, "a tuner needs pixels and tokens"
        self.number, self.train = number, train
        self.open()
        self.optimizer = make_optimizer(self.trained(), self._fit())

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Learn from these rows; return the loss and its parts."""
        assert self.optimizer is not None, "no task is open"
        key = np.random.SeedSequence((self.seed, self.number, step))
        torch.manual_seed(int(key.generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate_at(step)
        self.trained().train()
        self.optimizer.zero_grad()
        parts = self.losses(step, row_B)
        loss = torch.stack(list(parts.values())).sum()
        if not math.isfinite(loss.item()):
            raise UserError(
                f"loss={loss.item()} at step {step} of task {self.number}: must be finite; "
                f"tune.learning_rate={self.config.learning_rate} may be too high"
            )
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.running_model().logit_scale.clamp_(0, MAX_LOGIT_SCALE)
        self.after(step)
        return {"loss": loss.item(), **{name: part.item() for name, part in parts.items()}}

    def end(self) -> None:
        """Close the task."""
        self.close()
        self.train, self.optimizer = None, None

    def look(self, split: Split) -> Keys:
        """Embed all pixels and tokens of a split by the model as it is now."""
        assert split.pixels is not None and split.token_TL is not None, "a tuner needs pixels and tokens"
        model = self.seen_model().eval()
        return Keys(
            self.embed_images(model, split.pixels),
            self.embed_texts(model, split.token_TL),
        )

    def state(self) -> dict[str, Any]:
        """Return what was learned and, within a task, what the optimiser carries along; on the CPU."""
        state: dict[str, Any] = {"number": self.number, "learned": self.learned()}
        if self.optimizer is not None:
            state["optimizer"] = self.optimizer.state_dict()
        return _to_cpu(state)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there: in the middle of a task, or between tasks."""
        state = copy.deepcopy(state)
        self.relearn(state["learned"])
        if self.train is None:
            self.number = state["number"]
        elif "optimizer" in state:
            self.optimizer = make_optimizer(self.trained(), self._fit())
            self.optimizer.load_state_dict(state["optimizer"])
        else:  # of the end of the task before: this one begins with what was learned there
            self.begin(self.number, self.train)

    def losses(self, step: int, row_B: np.ndarray) -> dict[str, Tensor]:
        """Return what is to become small, by its name; the loss is their sum."""
        raise NotImplementedError

    def open(self) -> None:
        """Make what a task needs of its own."""

    def after(self, step: int) -> None:
        """Do what is due after a step."""

    def close(self) -> None:
        """Keep of a task what is kept."""

    def trained(self) -> nn.Module:
        """Return the module that holds all weights that a task trains."""
        return self.model

    def running_model(self) -> Any:
        """Return the model that the steps of a task run through."""
        return self.model

    def seen_model(self) -> Any:
        """Return the model that a look embeds with."""
        return self.model

    def learned(self) -> dict[str, Any]:
        """Return what a method has learned, and carries along within a task."""
        return {"model": self.model.state_dict()}

    def relearn(self, learned: dict[str, Any]) -> None:
        """Take it back."""
        self.model.load_state_dict(learned["model"])

    def batch(self, row_B: np.ndarray) -> Batch:
        """Return rows of the task, ready for the model."""
        train = self.train
        assert train is not None and train.pixels is not None and train.token_TL is not None
        arrays = {
            "image": train.pixels[row_B],
            "token": np.asarray(train.token_TL)[train.own_N[row_B]],
        }
        return to_batch(arrays, self.device, self.spec.image)

    def group(self, row_B: np.ndarray) -> Tensor:
        """Return whose caption is whose: rows with the same number have the same one."""
        assert self.train is not None
        return torch.from_numpy(self.train.own_N[row_B]).to(self.device)

    def embed_images(self, model: Any, pixels: Pixels) -> np.ndarray:
        """Return (N, D) of length 1."""

        def encode(pixel_RHWC: Tensor) -> Tensor:
            return model.encode_image(to_image(pixel_RHWC, self.spec.image))

        return self.embed(encode, self.images_per_pass, pixels)

    def embed_texts(self, model: Any, token_TL: np.ndarray) -> np.ndarray:
        """Return (T, D) of length 1."""
        return self.embed(lambda token_RL: model.encode_text(token_RL.long()), TEXTS_PER_PASS, token_TL)

    @torch.inference_mode()
    def embed(self, encode: Callable[..., Tensor], size: int, *arrays: np.ndarray | Pixels) -> np.ndarray:
        """Return what ``encode`` makes of rows of these arrays, in passes of one size, of length 1."""
        found = [np.zeros((0, self.spec.embedding_dim), np.float32)]
        for start in range(0, len(arrays[0]), size):
            parts = [np.array(array[start : start + size]) for array in arrays]
            num = len(parts[0])
            padded = [
                np.concatenate([part, np.zeros((size - num, *part.shape[1:]), part.dtype)]) for part in parts
            ]
            made = encode(*(torch.from_numpy(part).to(self.device) for part in padded))
            found.append(F.normalize(made.float(), dim=-1)[:num].cpu().numpy())
        return np.concatenate(found)

    def _fit(self) -> FitConfig:
        rate = self.config.learning_rate * self.times
        return FitConfig(learning_rate=rate, weight_decay=self.config.weight_decay)

    def _rate_at(self, step: int) -> float:
        warmup = max(1, round(_WARMUP * self.config.steps))
        return self.config.learning_rate * self.times * min(1.0, (step + 1) / warmup)


def encode(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return images and texts of a batch in fp32, as long as the towers make them."""
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
    """Return a copy of a tree of tensors and plain values that shares nothing with it."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping):
        return {key: _to_cpu(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_to_cpu(entry) for entry in value]
    return value
