"""No training: what every method has to be better than, and forgets nothing by construction."""

from typing import Any

import numpy as np

from raycomp.continual.data import Keys, Split


class Frozen:
    """The model as it was given."""

    def start_task(self, number: int, train: Split) -> None:
        """Nothing is learned of a task."""

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Nor of a step; the loop asks for none."""
        raise AssertionError("a frozen model takes no step")

    def end(self) -> None:
        """Nothing is kept."""

    def find_keys(self, split: Split) -> Keys:
        """Return the embeddings as they are."""
        return Keys(split.image_ND, split.text_TD)

    def state(self) -> dict[str, Any]:
        """Return nothing: there is none."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """There is nothing to go on from."""
