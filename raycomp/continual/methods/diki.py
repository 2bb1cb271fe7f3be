"""DIKI: prompts of each task beside a frozen model, chosen by what an image or a text resembles.

R rows of a pass, N rows in all, T texts, L tokens of context, G tasks so far, D dims.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Split
from raycomp.continual.methods.tuner import TEXTS_PER_PASS, TaskBatch, Tuner
from raycomp.core.gaussian import Gaussian, fit_gaussian, log_density
from raycomp.models.blocks import find_blocks
from raycomp.models.clip import Clip
from raycomp.models.prompts import PromptChoice, Prompts, add_prompts
from raycomp.models.spec import ScorerSpec
from raycomp.train.towers import Made, to_image

TOWERS = ("image", "text")


class Diki(Tuner):
    """Tang et al. 2024, arXiv:2407.05342, as the authors' code has it, by CLIP's loss of the task's pairs.

    ``tune.contexts`` keys and values of each of the first ``tune.depth`` layers of both towers are trained,
    nothing else, and ten times as fast. What is embedded takes the prompts of the task whose Gaussian of the
    frozen model's features gives it most density p; their residual counts sigmoid(log p / D - 1).

    Where this differs: a text is known by the Gaussian of the task's texts, and takes its own prompts; the
    authors give all texts those of the image that is asked about, which embeds every text anew for every
    task, and has no answer where a text is the question. Covariances shrink as ``fit_gaussian`` has it, for
    tasks of few samples. AdamW for their SGD, as in all methods here.
    """

    times = 10.0

    def __init__(self, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int):
        """Raise UserError where a tower is not made of plain blocks."""
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
        """Add new prompts, and learn what the task's images and texts look like to the frozen model."""
        assert self.train is not None
        self._cut(self.number)
        features = {"image": self.train.image_ND, "text": self.train.text_TD}
        for tower in TOWERS:
            self._add(tower)
            self.gaussians[tower].append(fit_gaussian(torch.from_numpy(np.array(features[tower]))))

    def _cut(self, num: int) -> None:
        """Forget all but the first tasks: what is opened again, where a run goes on, is there once."""
        for tower in TOWERS:
            del self.choices[tower].sets[num:], self.gaussians[tower][num:]

    def _add(self, tower: str) -> None:
        sets = self.choices[tower].sets
        key = np.random.SeedSequence((self.seed, len(sets), TOWERS.index(tower)))
        generator = torch.Generator().manual_seed(int(key.generate_state(1)[0]))
        made = Prompts(self.depths[tower], self.config.contexts, self.widths[tower], generator)
        sets.append(made.to(self.device))

    def embed_batch(self, batch: TaskBatch) -> Made:
        """Embed the task's rows by the task's prompts, in full."""
        for choice in self.choices.values():
            choice.set_R, choice.share_R = None, None
        return super().embed_batch(batch)

    @property
    def trained(self) -> nn.Module:
        """The prompts of the open task."""
        return nn.ModuleDict({tower: choice.sets[-1] for tower, choice in self.choices.items()})

    def choose(self, tower: str, feature_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whose prompts each row takes, int64 (N,), and what their residual counts, fp32 (N,)."""
        features = torch.from_numpy(np.array(feature_ND))
        log_GN = torch.stack([log_density(features, gaussian) for gaussian in self.gaussians[tower]])
        best_N, set_N = log_GN.max(0)
        return set_N.numpy(), torch.sigmoid(best_N / feature_ND.shape[1] - 1).float().numpy()

    def find_keys(self, split: Split) -> Keys:
        """Embed all pixels and tokens, each by the prompts of its choice; before the first task by none."""
        if not self.gaussians["image"]:
            return super().find_keys(split)
        assert split.pixels is not None and split.token_TL is not None
        self.model.eval()

        def encode_image(pixel_RHWC: Tensor, set_R: Tensor, share_R: Tensor) -> Tensor:
            self.choices["image"].set_R, self.choices["image"].share_R = set_R, share_R
            return self.model.encode_image(to_image(pixel_RHWC, self.spec.image))

        def encode_text(token_RL: Tensor, set_R: Tensor, share_R: Tensor) -> Tensor:
            self.choices["text"].set_R, self.choices["text"].share_R = set_R, share_R
            return self.model.encode_text(token_RL.long())

        images = (split.pixels, *self.choose("image", split.image_ND))
        texts = (split.token_TL, *self.choose("text", split.text_TD))
        return Keys(
            self.embed(encode_image, self.images_per_pass, *images),
            self.embed(encode_text, TEXTS_PER_PASS, *texts),
        )

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
        """Take them back."""
        self._cut(0)
        for tower in TOWERS:
            for state in learned[tower]["prompts"]:
                self._add(tower)
                self.choices[tower].sets[-1].load_state_dict(state)
            self.gaussians[tower] = [Gaussian(**parts) for parts in learned[tower]["gaussians"]]
