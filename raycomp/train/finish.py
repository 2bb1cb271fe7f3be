"""What a training leaves: a model that open_clip and every command of raycomp load."""

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from raycomp.config import ModelConfig, UserError
from raycomp.data.folder import Folder
from raycomp.data.paths import ARCHITECTURE, CHECKPOINT, WEIGHTS
from raycomp.models.architecture import HUB_CONFIG
from raycomp.models.clip import describe_preprocessing, describe_start, load_start, pack_tokenizer
from raycomp.train.fit import Trainer


def finish(trainer: Trainer, model: ModelConfig, out: Folder) -> None:
    """Write what a trainer has made of ``model`` to ``checkpoint/`` in ``out``; one rank does.

    The weights; open_clip's config of the model, which comes last, as without it there is no checkpoint;
    beside them preprocessing and tokenizer, so that ``local-dir:DIR/checkpoint`` is a model of open_clip,
    too. Raises UserError, and writes nothing, where a weight is not finite.
    """
    clip = make_final(trainer, model)
    weights = clip.state_dict()
    for name, value in weights.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UserError(
                f"{name} after step {trainer.step}: must be finite; "
                f"train.learning_rate={trainer.config.learning_rate} may be too high"
            )
    architecture = describe_start(model, trainer.loss.bias)
    hub = {"model_cfg": architecture, "preprocess_cfg": describe_preprocessing(clip)}
    files = {
        WEIGHTS: safetensors.torch.save({name: value.cpu().contiguous() for name, value in weights.items()}),
        **pack_tokenizer(model),
        HUB_CONFIG: _to_json(hub),
        ARCHITECTURE: _to_json(architecture),
    }
    for name, content in files.items():
        out.write_bytes(content, CHECKPOINT, name)


def make_final(trainer: Trainer, model: ModelConfig) -> Any:
    """Return the model that a trainer would leave now: without adapters, drawn back towards its start."""
    clip, share = trainer.plain_model(), trainer.config.keep_start
    if not share:
        return clip
    start = load_start(model, trainer.loss.bias)
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
