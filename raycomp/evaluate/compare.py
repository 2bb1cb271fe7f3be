"""Two models on the same examples: accuracy per split, and the examples on which they disagree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.core.intervals import compare_paired, find_share
from raycomp.evaluate.outcomes import Outcome, find_outcomes, join_splits, take_examples
from raycomp.evaluate.table import MEANINGS
from raycomp.table import Cell, Column, Estimate, Table, group_by
from raycomp.words import ACCURACY, MACRO, MICRO

# The columns that identify an example in two tables, for any benchmark.
_SAME = ("split", "id", "image", "positives", "negatives", "direction", "query")


class Line(NamedTuple):
    """One row of a comparison's table.csv; figures are shares, NaN where not available."""

    benchmark: str
    split: str
    metric: str
    first: float
    second: float
    difference: float
    """The second minus the first."""
    low: float
    high: float
    """Ends of the difference's 95 % interval, with the examples of one image resampled together."""
    n: int
    """Examples that both models have scores for."""
    only_first: int
    only_second: int
    p: float
    """McNemar's exact test; NaN where images repeat, or for a mean of splits or of classes."""
    p_units: float
    """p of the difference against its standard error over images."""
    detectable: float
    num_all: int
    """All examples, with or without scores."""


@dataclass(frozen=True)
class Parting:
    """An example that exactly one of the two models has right."""

    benchmark: str
    split: str
    id: str
    image: str
    positive: str
    negative: str
    """The false caption with the highest score, by the model that is wrong."""
    first: float
    second: float
    """Margin of the true caption for each model, in cosines."""


def compare_tables(benchmark: str, first: pa.Table, second: pa.Table) -> list[Line]:
    """Return the lines of a benchmark that both models were evaluated on.

    Examples that only one model has scores for are excluded. Raises ValueError where the two tables have
    different rows.
    """
    check_same(benchmark, first, second)
    pairs = list(_pair_outcomes(find_outcomes(first), find_outcomes(second)))
    lines = [_make_line(benchmark, one.split, one, other) for one, other in pairs]
    if len({one.split for one, _ in pairs}) < 2:
        return lines
    for metric in dict.fromkeys(one.metric for one, _ in pairs):
        every = [pair for pair in pairs if pair[0].metric == metric]
        if not any(len(one.key_N) for one, _ in every):
            continue
        (joined, split_N), (other, _) = (join_splits(some) for some in zip(*every, strict=True))
        lines.append(_make_line(benchmark, MICRO, joined, other))
        lines.append(_make_line(benchmark, MACRO, joined, other, split_N))
    return lines


def check_same(benchmark: str, first: pa.Table, second: pa.Table) -> None:
    """Raise ValueError unless two tables hold the same examples, with or without scores."""
    names = [name for name in _SAME if name in first.column_names]
    same = len(first) == len(second) and all(first[name].equals(second[name]) for name in names)
    if not same:
        counts = f"{len(first):,} and {len(second):,} rows"
        raise ValueError(f"{benchmark}: the two evaluations are not of the same examples ({counts})")
    if "num_classes" in first.column_names:
        _check_classes(benchmark, first, second)


def _check_classes(benchmark: str, first: pa.Table, second: pa.Table) -> None:
    """Raise ValueError where the sets of classes differ; the names of the classes may differ."""
    numbers = [_list_numbers(table, "num_classes") for table in (first, second)]
    labels = zip(first["label"].to_pylist(), second["label"].to_pylist(), strict=True)
    pairs = {(one, other) for one, other in labels if one is not None and other is not None}
    is_renamed = len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})
    if (all(numbers) and numbers[0] != numbers[1]) or not is_renamed:
        counts = " and ".join(", ".join(map(str, own)) for own in numbers)
        raise ValueError(f"{benchmark}: the two evaluations are not of the same classes ({counts} of them)")


def _list_numbers(table: pa.Table, name: str) -> list[int]:
    return sorted(set(table[name].drop_null().to_pylist()))


def warn_other_targets(benchmark: str, first: pa.Table, second: pa.Table) -> list[str]:
    """Report where one model had fewer targets to choose from than the other, which is easier."""
    if "num_targets" not in first.column_names:
        return []
    numbers = [_list_numbers(table, "num_targets") for table in (first, second)]
    reported = [" and ".join(f"{number:,}" for number in own) or "none" for own in numbers]
    said = f"{benchmark}: the first looked among {reported[0]} targets, the second among {reported[1]}"
    return [] if numbers[0] == numbers[1] else [f"{said}: fewer are easier"]


def _pair_outcomes(first: Sequence[Outcome], second: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Yield the models' own outcomes of each split and metric, restricted to the examples of both."""
    others = {(o.split, o.metric): o for o in second if not o.control}
    for one in first:
        other = others.get((one.split, one.metric))
        if other is not None and not one.control:
            _, at, other_at = np.intersect1d(one.key_N, other.key_N, return_indices=True)
            yield take_examples(one, at), take_examples(other, other_at)


def _make_line(
    benchmark: str, split: str, first: Outcome, second: Outcome, split_N: np.ndarray | None = None
) -> Line:
    split_N = first.class_N if split_N is None else split_N
    found = compare_paired(first.right_N, second.right_N, first.unit_N, split_N)
    if split_N is not None:
        found = found._replace(p=float("nan"))
    return Line(
        benchmark=benchmark,
        split=split,
        metric=first.metric,
        first=find_share(first.right_N, first.unit_N, split_N).value,
        second=find_share(second.right_N, second.unit_N, split_N).value,
        n=len(first.key_N),
        num_all=first.num_all,
        **found._asdict(),
    )


def find_partings(benchmark: str, first: pa.Table, second: pa.Table, count: int) -> list[Parting]:
    """Return examples that exactly one model has right, the clearest first, up to ``count`` for each model.

    The clearest example has the largest difference between the models' margins of the true caption.
    """
    if "positive_scores" not in first.column_names:
        return []
    found = [
        parting
        for one, other in zip(first.to_pylist(), second.to_pylist(), strict=True)
        if (parting := _compare_rows(benchmark, one, other))
    ]
    found.sort(key=lambda parting: -abs(parting.first - parting.second))
    sides = [[p for p in found if (p.first > 0) == is_first] for is_first in (False, True)]
    return [parting for side in sides for parting in side[:count]]


def _compare_rows(benchmark: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Parting | None:
    """Return the example where exactly one model scores the first true caption above all false ones."""
    rows = first, second
    if not all(row["positive_scores"] for row in rows):
        return None
    leads = [row["positive_scores"][0] - max(row["negative_scores"]) for row in rows]
    if (leads[0] > 0) == (leads[1] > 0):
        return None
    wrong = rows[int(leads[0] > 0)]["negative_scores"]
    negative = first["negatives"][wrong.index(max(wrong))]
    place = benchmark, first["split"], first["id"], first["image"]
    return Parting(*place, first["positives"][0], negative, *leads)


def report_lines(lines: Sequence[Line]) -> list[Table]:
    """Return a table for every benchmark and metric."""
    by_metric = group_by(lines, lambda line: (line.benchmark, line.metric))
    columns = (
        "split",
        "first",
        "second",
        Column("difference"),
        "n",
        "of",
        "only first",
        "only second",
        Column("McNemar p"),
        Column("p over images"),
        Column("detectable", digits=3),
    )
    tables = []
    for (benchmark, metric), own in by_metric.items():
        rows: list[list[Cell]] = [
            [
                line.split,
                line.first,
                line.second,
                Estimate(line.difference, line.low, line.high),
                line.n,
                line.num_all,
                line.only_first,
                line.only_second,
                line.p,
                line.p_units,
                line.detectable,
            ]
            for line in own
        ]
        meaning = MEANINGS.get(metric, "")
        tables.append(Table(f"{benchmark}: {metric}", columns, rows, meaning[:1].upper() + meaning[1:]))
    return tables


def count_apart(lines: Sequence[Line]) -> tuple[int, int]:
    """Return the number of splits whose interval of the accuracy difference excludes 0, and of all splits."""
    own = [line for line in lines if line.metric == ACCURACY and line.split not in (MICRO, MACRO) and line.n]
    return sum(line.low > 0 or line.high < 0 for line in own), len(own)
