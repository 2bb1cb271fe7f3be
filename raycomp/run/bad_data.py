"""The limits on bad input and the warning per status; the overlap of test sets and training data.

Rows are counted by status, as words.py lists them. These are not bad: a duplicate, a removed row, a test
sample that is left out because a model was trained on it, a caption without a primitive. Rows that a subset
leaves out are not counted.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from raycomp.config import TooMuchBadData, UserError, exact_share
from raycomp.core.leaks import Shared
from raycomp.words import (
    ALIGNED_STATUSES,
    CONTAMINATED,
    CONTINUAL_STATUSES,
    DROP,
    DUPLICATE_UID,
    HELD_OUT,
    MISSING_STATUSES,
    NO_PRIMITIVE,
    NOT_IN_SUBSET,
    PICTURE_STATUSES,
    REMOVED,
    STATUSES,
    UID_CONFLICT,
)

# Sound samples that cannot be used.
_UNUSED = (CONTAMINATED, NO_PRIMITIVE)
_MEANINGS = {**STATUSES, **CONTINUAL_STATUSES, **PICTURE_STATUSES}


class Leak(NamedTuple):
    """The overlap between one test set and one training set."""

    test: str
    train: str
    """The training set as a sentence names it: "the training images of a"."""
    shared: Shared

    def __str__(self) -> str:
        num, num_images = self.shared.images, self.shared.num_images
        share = f"{100 * self.shared.share:.1f} %"
        return f"{self.test}: {num:,} of {num_images:,} test images are among {self.train} ({share})"

    def describe(self) -> dict[str, Any]:
        """Return the fields for run.json."""
        return {"test": self.test, "train": self.train, **self.shared._asdict()}


def warn_leak(leak: Leak, overlap: str) -> list[str]:
    """Return a line where images are shared, else no line; ``overlap``: warn or drop."""
    if not leak.shared.images:
        return []
    then = "they are left out (overlap=drop)" if overlap == DROP else "overlap=drop leaves them out"
    return [f"{leak}; {then}"]


def check_left(leak: Leak, overlap: str) -> None:
    """Raise UserError where the test set would have no image left."""
    if overlap == DROP and leak.shared.images and leak.shared.images == leak.shared.num_images:
        raise UserError(
            f"overlap=drop: {leak}, which empties the test set; name other images, or set overlap=warn"
        )


def list_counts(counts: Mapping[str, int]) -> str:
    """Return counts by status as words: "2 corrupt_image, 1 no_image"."""
    return ", ".join(f"{count:,} {status}" for status, count in counts.items())


def check_bad_rows(said: str, counts: Mapping[str, int], most_bad: float, what: str = "rows") -> None:
    """Raise UserError where all rows are bad, TooMuchBadData where the bad share exceeds ``most_bad``.

    ``said``: the input, as errors name it.
    """
    num_rows, bad = _count_rows(counts), _count_bad(counts)
    sound = {status: counts[status] for status in _UNUSED if counts.get(status)}
    if sum(bad.values()) == num_rows - sum(sound.values()):
        reasons = list_counts(bad | sound) or "no rows"
        raise UserError(f"{said}: none of {num_rows:,} {what} can be used ({reasons})")
    _refuse(said, bad, num_rows, what, "max_bad_fraction", most_bad)


def check_bad_pictures(
    said: str, counts: Mapping[str, int], most_bad: float, most_missing: float, what: str = "images"
) -> None:
    """Raise TooMuchBadData where more than the share ``most_missing`` of the pictures is missing, or more
    than the share ``most_bad`` of the present ones is bad."""
    missing = {status: counts[status] for status in MISSING_STATUSES if counts.get(status)}
    there = {status: count for status, count in counts.items() if status not in MISSING_STATUSES}
    _refuse(said, missing, sum(counts.values()), what, "max_missing_fraction", most_missing)
    what = f"present {what}"
    _refuse(said, _count_bad(there), sum(there.values()), what, "max_bad_fraction", most_bad)


def describe_dropped(
    said: str, counts: Mapping[str, int], what: str = "rows", examples: Mapping[str, str] | None = None
) -> list[str]:
    """Return a warning for every status whose rows are left out, duplicates included.

    ``examples``: for each status the name of one such row. Values that are no status, such as the reason of a
    gate, get no line.
    """
    num_rows, lines = _count_rows(counts), []
    for status, count in sorted(counts.items()):
        if not count or status in ALIGNED_STATUSES or status not in _MEANINGS:
            continue
        verb = "is" if count == 1 else "are"
        example = f", such as {examples[status]}" if examples else ""
        reported = f"{count:,} of {num_rows:,} {what} {verb} {status} ({_MEANINGS[status]}){example}"
        lines.append(f"{said}: {reported}; left out")
    return lines


def _count_rows(counts: Mapping[str, int]) -> int:
    return sum(counts.values()) - counts.get(NOT_IN_SUBSET, 0)


def _count_bad(counts: Mapping[str, int]) -> dict[str, int]:
    sound = (*ALIGNED_STATUSES, DUPLICATE_UID, REMOVED, NOT_IN_SUBSET, HELD_OUT, *_UNUSED)
    return {status: count for status, count in sorted(counts.items()) if count and status not in sound}


def _refuse(said: str, bad: Mapping[str, int], num_rows: int, what: str, option: str, most: float) -> None:
    """Raise TooMuchBadData where the share of bad rows exceeds what the option allows."""
    num_bad = sum(bad.values())
    if num_bad > exact_share(most, num_rows):
        hint = f"; {UID_CONFLICT}: {STATUSES[UID_CONFLICT]}" if UID_CONFLICT in bad else ""
        raise TooMuchBadData(
            f"{said}: {num_bad / num_rows:.1%} of {num_rows:,} {what} cannot be used ({list_counts(bad)}), "
            f"more than {option}={most}; repair them, or set a higher limit{hint}"
        )
