"""What every method is to the loop over tasks."""

from typing import Any, Protocol

import numpy as np

from raycomp.continual.data import Keys, Split


class Learner(Protocol):
    """A method on its way through the tasks; what it draws, it draws from its seed, the task and the step.

    What it is made of comes from its config, its seed and the stream alone: a new one that is given an old
    one's state goes on bit for bit.
    """

    def start_task(self, number: int, train: Split) -> None:
        """Get ready for task ``number``, from 0; again where a run goes on in the middle of it, before
        ``restore``."""

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Learn from these rows of the task; return what is told of it, ``loss`` at least.

        Raises UserError where the loss is not finite.
        """

    def end(self) -> None:
        """Close the task: keep of it what is kept."""

    def find_keys(self, split: Split) -> Keys:
        """Return a split as the method sees it now, whichever task it is of: it is not told."""

    def state(self) -> dict[str, Any]:
        """Return what it has learned: tensors, numbers, texts, and lists and dicts of them."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
