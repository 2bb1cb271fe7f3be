"""DIKI: prompts for each task on a frozen model, chosen by the similarity of an image or a text to each task.

R rows of a pass, N rows in all, T texts, L tokens of context, G tasks so far, D dims.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycomp.continual.config import ContinualConfig
from raycomp.continual.methods.tuner import TaskBatch, Tuner
from raycomp.core.losses import Gaussian, fit_gaussian, log_density
from raycomp.models.adapters import PromptChoice, Prompts, add_prompts, find_blocks
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip
from raycomp.training.towers import Made

TOWERS = ("image", "text")


class Diki(Tuner):
    """Tang et al. 2024, arXiv:2407.05342, following the authors' code, with CLIP's loss of the task's pairs.

    Only ``tune.contexts`` keys and values of each of the first ``tune.depth`` layers of both towers are
    trained, at ten times the learning rate. An input takes the prompts of the task whose Gaussian of the
    frozen model's features gives it the highest density p; their residual has the weight sigmoid(log p / D -
    1).

    Differences: a text's task is chosen by the Gaussian of the task's texts, and the text takes its own
    prompts. The authors give all texts the prompts of the query image, which embeds every text anew for every
    task and is undefined where the text is the query. Covariances are shrunk as in ``fit_gaussian``, for
    tasks with few samples. AdamW replaces their SGD, as in all methods here.
    """

    times = 10.0

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError if a tower is not made of plain blocks."""
        super().__init__(clip, spec, config, seed)
        self.model.requires_grad_(False)
        blocks = find_blocks(self.model, "method=diki")
        self.depths = {tower: min(self.config.depth, len(blocks[tower])) for tower in TOWERS}
        self.widths = {tower: blocks[tower][0].attn.embed_dim for tower in TOWERS}
        self.choices = {tower: PromptChoice() for tower in TOWERS}
        for tower in TOWERS:
            add_prompts(blocks[tower], self.depths[tower], self.choices[tower])
        self.gaussians: dict[str, list[Gaussian]] = {tower: [] for tower in TOWERS}

    def open(self) -> None:
        """Add new prompts; fit the Gaussians of the task's images and texts in the frozen model's
        features."""
        assert self.train is not None
        self._cut(self.number)
        features = {"image": self.train.image_ND, "text": self.train.text_TD}
        for tower in TOWERS:
            self._add(tower)
            self.gaussians[tower].append(fit_gaussian(torch.from_numpy(np.array(features[tower]))))

    def _cut(self, num: int) -> None:
        """Keep only the first tasks: a task that is opened again after a resume must not exist twice."""
        for tower in TOWERS:
            del self.choices[tower].sets[num:], self.gaussians[tower][num:]

    def _add(self, tower: str) -> None:
        sets = self.choices[tower].sets
        key = np.random.SeedSequence((self.seed, len(sets), TOWERS.index(tower)))
        generator = torch.Generator().manual_seed(int(key.generate_state(1)[0]))
        made = Prompts(self.depths[tower], self.config.contexts, self.widths[tower], generator)
        sets.append(made.to(self.device))

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Embed the task's rows by the task's prompts, at full weight."""
        for tower in TOWERS:
            self.route(tower)
        return super().embed_batch(batch)

    @property
    def trained(self) -> nn.Module:
        """The prompts of the open task."""
        return nn.ModuleDict({tower: choice.sets[-1] for tower, choice in self.choices.items()})

    def choose(self, tower: str, feature_ND: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the prompt index of each row, int64 (N,), and the weight of its residual, fp32 (N,); nothing
        before the first task, which has no prompts."""
        if not self.gaussians[tower]:
            return ()
        features = torch.from_numpy(np.array(feature_ND))
        log_GN = torch.stack([log_density(features, gaussian) for gaussian in self.gaussians[tower]])
        best_N, set_N = log_GN.max(0)
        return set_N.numpy(), torch.sigmoid(best_N / feature_ND.shape[1] - 1).float().numpy()

    def route(self, tower: str, *chosen_R: Tensor) -> None:
        """Give each row its prompts; without any, the prompts of the open task at full weight."""
        choice = self.choices[tower]
        choice.set_R, choice.share_R = chosen_R or (None, None)

    def learned(self) -> dict[str, Any]:
        """Return the prompts and Gaussians of all tasks."""
        return {
            tower: {
                "prompts": [one.state_dict() for one in self.choices[tower].sets],
                "gaussians": [gaussian._asdict() for gaussian in self.gaussians[tower]],
            }
            for tower in TOWERS
        }

    def relearn(self, learned: dict[str, Any]) -> None:
        """Restore them."""
        self._cut(0)
        for tower in TOWERS:
            for state in learned[tower]["prompts"]:
                self._add(tower)
                self.choices[tower].sets[-1].load_state_dict(state)
            self.gaussians[tower] = [Gaussian(**parts) for parts in learned[tower]["gaussians"]]
