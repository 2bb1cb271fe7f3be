"""The overlap between a test set and training data: a warning line, and fields for run.json."""

from typing import Any, NamedTuple

from raycomp.config import UserError
from raycomp.core.leaks import Shared
from raycomp.words import DROP


class Leak(NamedTuple):
    """The overlap between one test set and one training set."""

    test: str
    train: str
    """The training set as a sentence names it: "the training images of a"."""
    shared: Shared

    def describe(self) -> dict[str, Any]:
        """Return the fields for run.json."""
        return {"test": self.test, "train": self.train, **self.shared._asdict()}


def warn_leak(leak: Leak, overlap: str) -> list[str]:
    """Return a line where images are shared, else no line; ``overlap``: warn or drop."""
    if not leak.shared.images:
        return []
    then = "they are left out (overlap=drop)" if overlap == DROP else "overlap=drop leaves them out"
    return [f"{_say(leak)}; {then}"]


def check_left(leak: Leak, overlap: str) -> None:
    """Raise UserError where the test set would have no image left."""
    if overlap == DROP and leak.shared.images and leak.shared.images == leak.shared.num_images:
        raise UserError(
            f"overlap=drop: {_say(leak)}, which empties the test set; name other images, or set overlap=warn"
        )


def _say(leak: Leak) -> str:
    shared = leak.shared
    counts = f"{shared.images:,} of {shared.num_images:,} test images"
    return f"{leak.test}: {counts} are among {leak.train} ({100 * shared.share:.1f} %)"
