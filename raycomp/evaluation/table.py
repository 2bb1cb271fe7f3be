"""The table of an evaluation: every benchmark, split, metric and baseline, with intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from raycomp.core.intervals import find_share
from raycomp.evaluation.outcomes import CUTS, ITT, Outcome, join_splits
from raycomp.table import Cell, Column, Estimate, Table, group_by
from raycomp.words import (
    ACC1,
    ACC5,
    ACCURACY,
    AUGMENTED_ACCURACY,
    BRITTLENESS,
    CONTROLS,
    GROUP_SCORE,
    IMAGE_SCORE,
    IMAGE_TO_TEXT,
    MACRO,
    MEAN_PER_CLASS_RECALL,
    MICRO,
    RECALLS,
    TEXT_SCORE,
    TEXT_TO_IMAGE,
    TOT,
)

_FOUND = {IMAGE_TO_TEXT: "one of the image's captions", TEXT_TO_IMAGE: "the caption's image"}
MEANINGS = {
    ACCURACY: "the caption is nearer to the image than every negative; a tie is wrong",
    AUGMENTED_ACCURACY: "the caption and every paraphrase are nearer to the image than every negative",
    ITT: "both captions are nearer to the image than the negative",
    BRITTLENESS: "the negative is scored between caption and paraphrase; lower is better",
    TOT: "without the image: true captions are nearer to one another than to the negative",
    TEXT_SCORE: "for both images of an item, the own caption is scored higher",
    IMAGE_SCORE: "for both captions of an item, the own image is scored higher",
    GROUP_SCORE: "text score and image score are both right",
    ACC1: "the image is nearest to its own class; a tie is wrong",
    ACC5: "fewer than five other classes are as near to the image; a tie is wrong",
    MEAN_PER_CLASS_RECALL: "the mean over classes of each class's acc1",
    **{
        f"{RECALLS[direction]}@{k}": f"{what} is among the first {k}; a tie is wrong"
        for direction, what in _FOUND.items()
        for k in CUTS
    },
}


class Line(NamedTuple):
    """One row of table.csv. Figures are shares, 0 to 1; NaN, an empty cell, where not available."""

    benchmark: str
    split: str
    """``micro``: equal weight for all examples; ``macro``: the mean of the splits."""
    metric: str
    value: float
    n: int
    """Examples that were evaluated."""
    chance: float
    ties: int
    """Examples that are ties of equal scores."""
    low: float
    high: float
    """Ends of the 95 % interval, with the examples of one image resampled together."""
    detectable: float
    """See ``core.intervals.Share``; NaN for baselines."""
    control: str
    """The baseline of these scores; "" for the model's own."""
    num_all: int
    """All examples: ``n``, and those left out because an image or a caption is missing."""


def make_lines(benchmark: str, outcomes: Sequence[Outcome]) -> list[Line]:
    """Return the lines of a benchmark: its splits in order, and for several splits their means."""
    splits = list(dict.fromkeys(outcome.split for outcome in outcomes))
    lines = [_make_line(benchmark, outcome.split, outcome) for outcome in outcomes]
    if len(splits) < 2:
        return lines
    for metric, control in dict.fromkeys((outcome.metric, outcome.control) for outcome in outcomes):
        every = [o for o in outcomes if (o.metric, o.control) == (metric, control)]
        if not any(len(outcome.key_N) for outcome in every):
            continue
        joined, split_N = join_splits(every)
        lines.append(_make_line(benchmark, MICRO, joined))
        chance = float(np.mean([o.chance for o in every if len(o.key_N)]))
        lines.append(_make_line(benchmark, MACRO, joined._replace(chance=chance), split_N))
    return lines


def _make_line(benchmark: str, split: str, outcome: Outcome, split_N: np.ndarray | None = None) -> Line:
    part_N = outcome.class_N if split_N is None else split_N
    share = find_share(outcome.right_N, outcome.unit_N, part_N)
    return Line(
        benchmark,
        split,
        outcome.metric,
        share.value,
        len(outcome.key_N),
        outcome.chance,
        int(outcome.tie_N.sum()),
        share.low,
        share.high,
        share.detectable if not outcome.control else float("nan"),
        outcome.control,
        outcome.num_all,
    )


def choose_main(lines: Sequence[Line]) -> list[Line]:
    """Return the model's own means, and for benchmarks with one split that split's lines."""
    with_means = {line.benchmark for line in lines if line.split == MACRO}
    return [
        line
        for line in lines
        if not line.control and (line.split in (MICRO, MACRO) or line.benchmark not in with_means)
    ]


def report_lines(lines: Sequence[Line]) -> list[Table]:
    """Return a table for every benchmark and metric: model and baselines, split by split."""
    by_metric = group_by(lines, lambda line: (line.benchmark, line.metric))
    return [_report_metric(*place, own) for place, own in by_metric.items()]


def _report_metric(benchmark: str, metric: str, lines: Sequence[Line]) -> Table:
    controls = [name for name in CONTROLS if any(line.control == name for line in lines)]
    baselines = {(line.split, line.control): line.value for line in lines}
    rows: list[list[Cell]] = [
        [
            line.split,
            Estimate.of(line, line.chance),
            line.n,
            line.num_all,
            line.ties,
            line.detectable,
            *(baselines.get((line.split, name), float("nan")) for name in controls),
        ]
        for line in lines
        if not line.control
    ]
    columns = ("split", Column(metric), "n", "of", "ties", Column("detectable", digits=3))
    names = [Column(name.replace("_", " "), digits=3) for name in controls]
    chances = sorted(
        {round(line.chance, 3) for line in lines if not line.control and line.chance == line.chance}
    )
    chance = f" Chance: {', '.join(f'{value:g}' for value in chances)}." if chances else ""
    note = f"{MEANINGS.get(metric, '')}.{chance}".lstrip(".").strip()
    return Table(f"{benchmark}: {metric}", (*columns, *names), rows, note[:1].upper() + note[1:])
