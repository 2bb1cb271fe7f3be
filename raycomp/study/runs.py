"""The trainings of the study: methods, selection rules and runs, in their order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raycomp.config.check import check_choice
from raycomp.negatives.config import WritingConfig
from raycomp.study.config import StudyConfig
from raycomp.words import OPERATIONS


@dataclass(frozen=True)
class Method:
    """A loss and the negatives of a caption in a batch."""

    loss: str
    num_negatives: int = 1
    calls: int = 1
    """2: half of the negatives in the pool have two edits. The number in a batch is unchanged."""


PER_CAPTION = 4
"""Negatives of one edit that a caption has, and of two."""
METHODS = {
    "clip": Method("clip"),
    "negclip": Method("negclip", 2),
    "negclip_mc": Method("negclip", 2, calls=2),
    "ceclip": Method("ceclip", 4),
    # Our own addition: the paper of multi-call negatives (arXiv 2510.26302) has NegCLIP and TripletCLIP.
    "ceclip_mc": Method("ceclip", 4, calls=2),
    "triplet": Method("triplet", 1),
    "triplet_mc": Method("triplet", 1, calls=2),
}
FULL, CPI, ALIGN, DRAWN_IN_POOL, RANDOM, ORACLE = (
    "full",
    "cpi50",
    "align50",
    "align70_random50",
    "random50",
    "oracle50",
)
# Of the primary contrasts first.
HALVES = (CPI, ALIGN, DRAWN_IN_POOL, ORACLE, RANDOM)


@dataclass(frozen=True)
class StudyRun:
    """One training and its evaluation."""

    method: str
    subset: str
    seed: int
    operation: str | None = None
    """The only operation of its negatives; none = all."""

    @property
    def group(self) -> str:
        """The run without its seed, as ``--set runs`` names it."""
        return "-".join([self.method, self.subset, *([self.operation.lower()] if self.operation else [])])

    @property
    def name(self) -> str:
        return f"{self.group}-{self.seed:02d}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as they are written; the subset is written as ``arm``."""
        return {"arm" if name == "subset" else name: value for name, value in vars(self).items()}

    @property
    def writing(self) -> WritingConfig:
        """Format of its negatives, if it has any."""
        operations = (self.operation,) if self.operation else OPERATIONS
        return WritingConfig(operations=operations, calls=METHODS[self.method].calls, per_caption=PER_CAPTION)


def list_runs(config: StudyConfig) -> list[StudyRun]:
    """Return the runs in their order: an interrupted study has all selection rules for the same number of
    seeds.

    Raises ValueError if the config names an unknown run.
    """
    runs = list(_list_all(config))
    groups = tuple(dict.fromkeys(one_run.group for one_run in runs))
    for group in config.runs:
        check_choice("runs", group, groups)
    return [one_run for one_run in runs if not config.runs or one_run.group in config.runs]


def _list_all(config: StudyConfig) -> Iterator[StudyRun]:
    for seed in range(config.seeds):
        for subset in HALVES:
            yield StudyRun("clip", subset, seed)
    for seed in range(config.other_seeds):
        for method in METHODS:
            yield StudyRun(method, FULL, seed)
        for subset in HALVES:
            yield StudyRun("negclip", subset, seed)
        for operation in OPERATIONS:
            yield StudyRun("negclip", FULL, seed, operation)
