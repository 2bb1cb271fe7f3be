"""Whether a model exceeds its blind baselines: the shorter caption and a shuffled image."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from raycomp.core.intervals import compare_paired, find_share
from raycomp.evaluation.outcomes import Outcome, join_splits
from raycomp.table import Cell, Column, Columns, Estimate, Table, group_by, write_cell
from raycomp.words import MACRO, SHORTER_CAPTION, SHUFFLED_IMAGE

BLIND = {SHORTER_CAPTION: "the shorter caption", SHUFFLED_IMAGE: "a shuffled image"}
"""The baselines that decide, and their names in sentences."""


class Margin(NamedTuple):
    """A model minus one baseline, in the main metric of one split; shares."""

    benchmark: str
    split: str
    metric: str
    control: str
    model: Estimate
    baseline: Estimate
    margin: Estimate
    """The model minus the baseline, with its 95 % interval over images."""

    @property
    def is_above(self) -> bool:
        """Whether the interval of the margin is above 0."""
        return self.margin.low > 0


def find_margins(benchmark: str, outcomes: Sequence[Outcome]) -> list[Margin]:
    """Return the margins of every split, and of the mean over several splits; empty without a blind baseline.

    The main metric is the first one: accuracy, or the text score of items of two images.
    """
    metric = next((one.metric for one in outcomes if not one.control), "")
    own = {one.split: one for one in outcomes if (one.metric, one.control) == (metric, "")}
    margins = []
    for control in BLIND:
        pairs = [
            (own[one.split], one)
            for one in outcomes
            if (one.metric, one.control) == (metric, control) and len(one.key_N)
        ]
        margins += [_measure(benchmark, first.split, first, second) for first, second in pairs]
        if len(pairs) > 1:
            (first, split_N), (second, _) = (join_splits(some) for some in zip(*pairs, strict=True))
            margins.append(_measure(benchmark, MACRO, first, second, split_N))
    return margins


def _measure(
    benchmark: str, split: str, own: Outcome, other: Outcome, split_N: np.ndarray | None = None
) -> Margin:
    model, baseline = (
        Estimate.of(find_share(one.right_N, one.unit_N, split_N), own.chance) for one in (own, other)
    )
    found = compare_paired(other.right_N, own.right_N, own.unit_N, split_N)
    margin = Estimate(found.difference, found.low, found.high)
    return Margin(benchmark, split, own.metric, other.control, model, baseline, margin)


def choose_summary(margins: Sequence[Margin]) -> list[Margin]:
    """Return the margins of the mean over splits, or of a benchmark's only split."""
    with_mean = {one.benchmark for one in margins if one.split == MACRO}
    return [one for one in margins if one.split == MACRO or one.benchmark not in with_mean]


def say_verdict(margins: Sequence[Margin]) -> str:
    """Return the verdict on one benchmark: "passes", or the baselines that the model is not above."""
    below = [BLIND[one.control] for one in choose_summary(margins) if not one.is_above]
    if not margins:
        return "no blind baseline"
    return f"not above {' or '.join(below)}" if below else "passes"


def say_margins(margins: Sequence[Margin]) -> str:
    """Return the verdict on one benchmark with each margin, and the splits without a significant margin."""
    if not margins:
        return say_verdict(margins)
    reported = [f"{write_cell(one.margin, 3)} above {BLIND[one.control]}" for one in choose_summary(margins)]
    said = f"{say_verdict(margins)} ({', '.join(reported)})"
    for control, own in group_by(margins, lambda one: one.control).items():
        splits = [one for one in own if one.split != MACRO]
        below = [one.split.replace("_", " ") for one in splits if not one.is_above]
        if below and len(splits) > 1:
            said += (
                f"; in {len(below)} of {len(splits)} splits not above {BLIND[control]}: {', '.join(below)}"
            )
    return said


def report_margins(by_run: Mapping[str, Sequence[Margin]]) -> Table:
    """Return the table of all margins: runs, benchmarks and splits, with the verdict."""
    rows: list[tuple[Cell, ...]] = []
    for name, margins in by_run.items():
        for (benchmark, split), own in group_by(margins, lambda one: (one.benchmark, one.split)).items():
            found = {one.control: one for one in own}
            cells: list[Cell] = []
            for control in BLIND:
                one = found.get(control)
                cells += [one.baseline.value, one.margin] if one else [None, None]
            below = [BLIND[one.control] for one in own if not one.is_above]
            verdict = f"not above {' or '.join(below)}" if below else "passes"
            rows.append((name, f"{benchmark}: {split}", verdict, own[0].model.value, *cells))
    heads = [control.replace("_", " ") for control in BLIND]
    pairs = [(Column(head, digits=3), Column(f"minus {head}", digits=3)) for head in heads]
    columns: Columns = (
        "run",
        "split",
        "verdict",
        Column("model", digits=3),
        *(column for pair in pairs for column in pair),
    )
    note = (
        "A margin is the model minus a baseline on the same examples, with its 95 % interval over "
        "images. A model passes where the intervals of both margins are above 0: it then uses the image, and "
        "not only the length of the caption."
    )
    return Table("Blind baselines", columns, rows, note)
