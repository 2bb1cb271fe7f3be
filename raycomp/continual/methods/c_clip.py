"""C-CLIP: low-rank adapters in both towers, merged in part after each task, with a contrastive consolidation
loss.

B rows of a batch, D dims.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycomp.continual.config import ContinualConfig
from raycomp.continual.methods.tuner import TaskBatch, Tuner, encode
from raycomp.core.losses import consolidate
from raycomp.models.adapters import add_adapters, find_blocks, merge_adapters
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip
from raycomp.training.towers import Made, gather


class CClip(Tuner):
    """Liu et al., ICLR 2025: CLIP's loss, and ``consolidate`` of the model with the model before the task.

    Each task trains new adapters (raycomp.models.adapters) and the logit scale. ``tune.merge`` of the change
    is added to the weights at the end; evaluations within a task use this sum, too. The text leaves one
    detail open; chosen here: the projector of the new features, one for images and texts, is a matrix that
    starts each task at the identity, so that both models agree at the start. Left out: dropout in the
    adapters, and separate learning rates for the towers.
    """

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError if a tower has no attention that takes adapters."""
        super().__init__(clip, spec, config, seed)
        find_blocks(self.model, "method=c-clip")
        self.adapted: Any = None
        """The model of an open task, with its adapters; ``model`` stays as it was before."""
        self.task = nn.ModuleDict()
        """Parameters that the task trains: adapters and projector."""

    def open(self) -> None:
        """Put new adapters on a copy of the model."""
        self.adapted = copy.deepcopy(self.model)
        key = np.random.SeedSequence((self.seed, self.number)).generate_state(1)[0]
        adapters = add_adapters(self.adapted, self.config.rank, int(key))
        projector = nn.Linear(self.spec.embedding_dim, self.spec.embedding_dim, bias=False)
        nn.init.eye_(projector.weight)
        self.task = nn.ModuleDict({"adapters": adapters, "projector": projector}).to(self.device)
        self.model.eval()

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Add the projected features of both towers, and the features of the model before the task."""
        made, project = super().embed_batch(batch), self.task["projector"]
        with torch.no_grad():
            old = encode(self.model, batch)
        new = project(made["image"]).float(), project(made["text"]).float()
        return {**made, "new_image": new[0], "new_text": new[1], "old_image": old[0], "old_text": old[1]}

    def losses(self, made: Made, batch: TaskBatch) -> dict[str, Tensor]:
        """Return CLIP's loss and the consolidation loss."""
        new, old = (
            (gather(made[f"{age}_image"], batch.num_rows), gather(made[f"{age}_text"], batch.num_rows))
            for age in ("new", "old")
        )
        return {**super().losses(made, batch), "consolidation": consolidate(new, old)}

    def close(self) -> None:
        """Merge a share of the adapters into the weights."""
        self.model = self.seen_model()
        self.adapted, self.task = None, nn.ModuleDict()

    @property
    def trained(self) -> nn.Module:
        """Adapters and projector."""
        return self.task

    @property
    def clip(self) -> Any:
        """The model with its adapters."""
        return self.adapted

    def seen_model(self) -> Any:
        """Return the model with a share of the adapters' current change merged."""
        if self.adapted is None:
            return self.model
        mixed = copy.deepcopy(self.model)
        whole = merge_adapters(self.task["adapters"]).state_dict()
        mixed.load_state_dict(mix_weights(self.model.state_dict(), whole, self.config.merge))
        return mixed

    def learned(self) -> dict[str, Any]:
        """Return the weights before the task, and the parameters that the task trains."""
        named = self.task.named_parameters()
        task = {name: value for name, value in named if value.requires_grad}
        return {**super().learned(), "task": task}

    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore what ``learned`` returned; the adapters are created again, as they belong to its
        weights."""
        super().relearn(learned)
        if self.train is None or not learned["task"]:
            return
        self.open()
        with torch.no_grad():
            for name, value in self.task.named_parameters():
                if value.requires_grad:
                    value.copy_(learned["task"][name])


def mix_weights(old: Mapping[str, Tensor], new: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return weights interpolated between old ones, 0, and new ones, 1; non-float entries keep the old
    value."""
    return {
        name: value + share * (new[name] - value) if value.is_floating_point() else value
        for name, value in old.items()
    }
