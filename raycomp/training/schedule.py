"""The learning rate of every step, and the weights that decay."""

import math

import torch
from torch import nn

from raycomp.training.config import FitConfig


def learning_rate_at(step: int, num_steps: int, config: FitConfig) -> float:
    """Return the learning rate of ``step`` (from 0): open_clip's linear rise, then half a cosine."""
    warmup = round(config.warmup * num_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    return config.learning_rate * (1 + math.cos(math.pi * progress)) / 2


def make_optimizer(clip: nn.Module, config: FitConfig) -> torch.optim.AdamW:
    """Return AdamW over the trained weights, without decay where open_clip has none: vectors, scalars,
    norms."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in clip.named_parameters():
        if parameter.requires_grad:
            is_free = parameter.ndim < 2 or any(part in name for part in ("bn", "ln", "bias", "logit_scale"))
            (free if is_free else decayed).append(parameter)
    return torch.optim.AdamW(
        [{"params": free, "weight_decay": 0.0}, {"params": decayed, "weight_decay": config.weight_decay}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )
