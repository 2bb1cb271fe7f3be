"""No training: the baseline for every method; it forgets nothing by construction."""

from typing import Any

import numpy as np

from raycomp.continual.data import Keys, Split


class Frozen:
    """The unchanged model."""

    def start_task(self, number: int, train: Split) -> None:
        """Does nothing."""

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Does nothing; the loop takes no steps."""
        raise AssertionError("a frozen model takes no step")

    def end(self) -> None:
        """Does nothing."""

    def find_keys(self, split: Split) -> Keys:
        """Return the embeddings unchanged."""
        return Keys(split.image_ND, split.text_TD)

    def state(self) -> dict[str, Any]:
        """No state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """No state to restore."""
