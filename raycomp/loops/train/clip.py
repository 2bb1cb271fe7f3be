"""The one training loop: a CLIP model, batches of pairs, a schedule; then a checkpoint on disk.

B pairs, C x H x W pixels, N tokens of context, D embedding dims.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycomp.config import ScorerConfig
from raycomp.core.losses import clip_loss

MAX_LOGIT_SCALE = math.log(100)


@dataclass(frozen=True)
class TrainConfig:
    """AdamW with warmup and cosine, as open_clip trains. Defaults: a tiny model from scratch on two cores."""

    steps: int = 500
    """Optimizer steps, at least 1."""
    batch_size: int = 64
    """Pairs per step, at least 2: each pair's negatives are the others."""
    learning_rate: float = 7e-4
    """The highest one, at the end of the warmup; it then falls to 0 along half a cosine."""
    warmup_steps: int = 50
    """Steps of linear rise, fewer than steps."""
    weight_decay: float = 0.2
    """On matrices only: never on biases, norms or the logit scale."""
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, holds, wanted in (
            ("steps", self.steps >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 2, "at least 2"),
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("warmup_steps", 0 <= self.warmup_steps < self.steps, f"0 to below steps={self.steps}"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("beta1", 0 <= self.beta1 < 1, "0 to below 1"),
            ("beta2", 0 <= self.beta2 < 1, "0 to below 1"),
            ("eps", self.eps > 0, "above 0"),
        ):
            if not holds:
                raise ValueError(f"train.{name}={getattr(self, name)}: must be {wanted}")


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Return the learning rate of ``step`` (from 0): open_clip's linear rise, then half a cosine."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    return config.learning_rate * (1 + math.cos(math.pi * progress)) / 2


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW, with no decay where open_clip has none: vectors, scalars, norms, biases."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_free = parameter.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))
        (free if is_free else decayed).append(parameter)
    return torch.optim.AdamW(
        [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": config.weight_decay}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def draw_batches(num_rows: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield row numbers (B,) without end: each pass over the rows in a new order, its last rest left out."""
    if num_rows < batch_size:
        raise ValueError(f"train.batch_size={batch_size}: must be at most the {num_rows} pairs there are")
    while True:
        order = torch.randperm(num_rows, generator=generator)
        yield from order[: num_rows - num_rows % batch_size].split(batch_size)


def train_clip(
    model: Any,
    batches: Iterable[tuple[Tensor, Tensor]],
    config: TrainConfig,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train ``model`` in place on (image_BCHW, token_BN) batches and return the loss of every step.

    The model is open_clip's: encode_image, encode_text, logit_scale. ``on_step`` hears each step and its
    loss. Ends after config.steps; ValueError where the batches end before, or the loss is not finite.
    """
    model.train()
    optimizer = make_optimizer(model, config)
    losses: list[float] = []
    for step, (image_BCHW, token_BN) in zip(range(config.steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, config)
        image_BD = F.normalize(model.encode_image(image_BCHW), dim=-1)
        text_BD = F.normalize(model.encode_text(token_BN), dim=-1)
        loss = clip_loss(image_BD, text_BD, model.logit_scale.exp())
        if not torch.isfinite(loss):
            raise ValueError(f"loss={loss.item()} at step {step}: train.learning_rate is too high")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, MAX_LOGIT_SCALE)
        losses.append(loss.item())
        if on_step:
            on_step(step, losses[-1])
    if len(losses) < config.steps:
        raise ValueError(f"train.steps={config.steps}: the batches end after {len(losses)}")
    model.eval()
    return losses


def save_checkpoint(model: nn.Module, architecture: dict[str, Any], folder: str | Path) -> ScorerConfig:
    """Write ``model.json`` (open_clip's config) and ``model.safetensors``; return the scorer they make."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config_path, weights_path = folder / "model.json", folder / "model.safetensors"
    config_path.write_text(json.dumps(architecture, indent=2) + "\n")
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(state, weights_path)
    return ScorerConfig(model=str(config_path), weights=str(weights_path))
