"""The interface between every method and the loop over tasks."""

from typing import Any, Protocol

import numpy as np

from raycomp.continual.data import Keys, Split


class Learner(Protocol):
    """A method during its training on tasks; its draws depend on its seed, the task and the step.

    It is constructed from its config, its seed and the stream alone: a new one that is given an old one's
    state continues bit for bit.
    """

    def start_task(self, number: int, train: Split) -> None:
        """Prepare for task ``number``, from 0; called again, before ``restore``, when a run resumes within
        it."""

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Learn from these rows of the task; return step metrics, ``loss`` at least.

        Raises UserError if the loss is not finite.
        """

    def end(self) -> None:
        """Close the task: update the memory."""

    def find_keys(self, split: Split) -> Keys:
        """Return a split as embedded by the method now; the split's task is not given."""

    def state(self) -> dict[str, Any]:
        """Return the learned state: tensors, numbers, texts, and lists and dicts of them."""

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from this state."""
