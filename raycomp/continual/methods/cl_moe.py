"""CL-MoE adapted: low-rank experts in both towers, two routers, and a momentum for each expert.

R rows of a pass, N rows in all, L tokens of context (of counts: layers with experts), E experts, G tasks so
far, D dims.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Split
from raycomp.continual.methods.tuner import Tuner
from raycomp.core.losses import expert_momentum
from raycomp.models.adapters import ExpertLinear, Routes, add_experts, find_blocks
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip
from raycomp.training.towers import add_up

TOWERS = ("image", "text")


class ClMoe(Tuner):
    """After CL-MoE (arXiv:2503.00413), whose model writes answers, for a CLIP that ranks them as texts.

    Kept: LoRA experts in the MLP of every block, each of rank ``tune.rank``. An instance router, a softmax at
    every position; training uses this router alone. A task router, the frequency with which experts were
    among a task's best two; both routers have equal weight when something is embedded. The task is then the
    one whose mean of the frozen model's features is nearest. Momentum of the experts after each task
    (``expert_momentum``), layer by layer. Experts and routers have ten times the learning rate of whole
    models.

    Left out or changed: the language model, its prompt and its token loss, replaced by CLIP's loss of the
    task's pairs; one mean per task replaces several cluster centres of its questions and images; images and
    texts have separate experts, and their task is chosen separately. Routers stay as the last task left them,
    as in the paper.
    """

    times = 10.0

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError if a tower is not made of plain blocks."""
        super().__init__(clip, spec, config, seed)
        self.model.requires_grad_(False)
        blocks = find_blocks(self.model, "method=cl-moe")
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        self.routes = {tower: Routes() for tower in TOWERS}
        self.layers: list[ExpertLinear] = []
        for tower in TOWERS:
            sizes = (self.config.experts, self.config.rank)
            self.layers += add_experts(blocks[tower], *sizes, self.routes[tower], generator)
        self.model.to(self.device)
        self.shares: list[list[Tensor]] = []
        """For every closed task, how often each layer's experts were chosen, (E,)."""
        self.centres: dict[str, list[Tensor]] = {tower: [] for tower in TOWERS}
        """Mean feature (D,) of every task, the open one included."""
        self.before: list[list[Tensor]] = []
        """Each layer's experts at the start of the open task."""

    def open(self) -> None:
        """Reset the counts; store the experts and the task's mean feature of the frozen model."""
        assert self.train is not None
        for layer in self.layers:
            layer.count_E.zero_()
        self.before = [[value.detach().clone() for value in (layer.down, layer.up)] for layer in self.layers]
        features = {"image": self.train.image_ND, "text": self.train.text_TD}
        for tower, centres in self.centres.items():
            del centres[self.number :]
            centres.append(torch.from_numpy(features[tower].mean(0)))

    def after(self, step: int) -> None:
        """Count the experts chosen by the positions of all ranks."""
        count_LE = add_up(torch.stack([layer.take_count() for layer in self.layers]))
        for layer, count_E in zip(self.layers, count_LE, strict=True):
            layer.count_E += count_E

    @torch.no_grad()
    def close(self) -> None:
        """Average experts with their weights before the task, by how specific each is to this task."""
        self.shares.append([layer.share() for layer in self.layers])
        for number, (layer, before) in enumerate(zip(self.layers, self.before, strict=True)):
            keep_E = expert_momentum(torch.stack([shares[number] for shares in self.shares]))
            keep_E11 = keep_E[:, None, None].to(self.device)
            for value, old in zip((layer.down, layer.up), before, strict=True):
                value.copy_(keep_E11 * old + (1 - keep_E11) * value)
        self.before = []

    def find_keys(self, split: Split) -> Keys:
        """Embed all pixels and tokens; each row is routed as a row of the task with the nearest mean."""
        shares = [*self.shares]
        if self.train is not None:
            shares.append([layer.share() for layer in self.layers])
        for number, layer in enumerate(self.layers if shares else ()):
            layer.task_GE = torch.stack([one[number] for one in shares])
        try:
            return super().find_keys(split)
        finally:
            for tower in TOWERS:
                self.route(tower)

    def choose(self, tower: str, feature_ND: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the index of the task with the nearest mean for each row, int64 (N,); nothing before the
        first task."""
        if not self.centres[tower]:
            return ()
        centre_GD = torch.stack(self.centres[tower])
        return (torch.cdist(torch.from_numpy(np.array(feature_ND)), centre_GD).argmin(1).numpy(),)

    def route(self, tower: str, *chosen_R: Tensor) -> None:
        """Set the task of each row; none: the instance router alone."""
        (self.routes[tower].task_R,) = chosen_R or (None,)

    def learned(self) -> dict[str, Any]:
        """Return experts, routers and counts of all layers, and the tasks' statistics."""
        layers = [
            {"down": layer.down, "up": layer.up, "router": layer.router, "count_E": layer.count_E}
            for layer in self.layers
        ]
        return {"layers": layers, "shares": self.shares, "centres": self.centres, "before": self.before}

    @torch.no_grad()
    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore what ``learned`` returned."""
        for layer, values in zip(self.layers, learned["layers"], strict=True):
            for name, value in values.items():
                getattr(layer, name).copy_(value)
        self.shares, self.before = (
            [[value.to(self.device) for value in values] for values in learned[part]]
            for part in ("shares", "before")
        )
        self.centres = learned["centres"]
