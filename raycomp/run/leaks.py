"""What a test shares with what was learned from, in a line for people and in fields for run.json."""

from typing import Any, NamedTuple

from raycomp.config import UserError
from raycomp.core.leaks import Shared
from raycomp.words import DROP


class Leak(NamedTuple):
    """A test beside a training."""

    test: str
    train: str
    """The training side as a sentence says it: "the training images of a"."""
    shared: Shared

    def describe(self) -> dict[str, Any]:
        """Return what run.json holds."""
        return {"test": self.test, "train": self.train, **self.shared._asdict()}


def warn_leak(leak: Leak, overlap: str) -> list[str]:
    """Return a line where images are shared, none where none are; ``overlap``: warn or drop."""
    if not leak.shared.images:
        return []
    then = "they are left out (overlap=drop)" if overlap == DROP else "overlap=drop leaves them out"
    return [f"{_say(leak)}; {then}"]


def check_left(leak: Leak, overlap: str) -> None:
    """Raise UserError where a test would be left with no image."""
    if overlap == DROP and leak.shared.images and leak.shared.images == leak.shared.num_images:
        raise UserError(
            f"overlap=drop: {_say(leak)}, so none is left; name other images, or set overlap=warn"
        )


def _say(leak: Leak) -> str:
    shared = leak.shared
    counts = f"{shared.images:,} of {shared.num_images:,} test images"
    return f"{leak.test}: {counts} are among {leak.train} ({100 * shared.share:.1f} %)"
