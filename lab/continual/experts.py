"""One head per task, none of which forgets; an image's embedding selects its head.

N samples, T texts, E experts, D dims.
"""

from typing import Any

import numpy as np

from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Split, Stream
from raycomp.continual.methods.head import HeadLearner


class Experts:
    """Independent heads. An image takes the head of the task with the nearest mean image."""

    def __init__(self, config: ContinualConfig, stream: Stream, seed: int):
        self.heads = [HeadLearner(config, stream, seed) for _ in stream.tasks]
        self.centre_ED: list[np.ndarray] = []

    def start_task(self, number: int, train: Split) -> None:
        """Open the next head."""
        self.number, self.train = number, train
        self.heads[number].start_task(number, train)

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Take a step of the task's head."""
        return self.heads[self.number].step(step, row_B)

    def end(self) -> None:
        """Store the task's mean image."""
        self.centre_ED.append(self.train.image_ND.astype(np.float64).mean(0))

    def find_keys(self, split: Split) -> Keys:
        """Return the split with the compositions of all heads; before the first task, those of the first
        head."""
        if not self.centre_ED:
            return self.heads[0].find_keys(split)
        composed_ETD = np.stack([head.compose(split) for head in self.heads[: len(self.centre_ED)]])
        away_NE = [np.linalg.norm(split.image_ND - centre_D, axis=1) for centre_D in self.centre_ED]
        return Keys(split.image_ND, split.text_TD, composed_ETD, np.argmin(away_NE, axis=0))

    def state(self) -> dict[str, Any]:
        """Return all heads, and the mean images."""
        heads = [head.state() for head in self.heads[: self.number + 1]]
        return {"heads": heads, "centres": [centre_D.tolist() for centre_D in self.centre_ED]}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from this state."""
        for head, own in zip(self.heads, state["heads"], strict=False):
            head.restore(own)
        self.centre_ED = [np.array(centre) for centre in state["centres"]]
