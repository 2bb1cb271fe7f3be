"""A model against a reference on the same examples, and the sentences that head the pages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.core.intervals import compare_paired, compute_share
from raycomp.evaluation.results import (
    MEANINGS,
    Line,
    Margin,
    Outcome,
    compute_outcomes,
    join_splits,
    say_margins,
    say_verdict,
    take_examples,
)
from raycomp.table import Cell, Column, Estimate, PValue, Table, group_by, number, write_cell
from raycomp.words import ACCURACY, MACRO, MICRO

NAMES = ("first", "second")
"""The names of the reference and the run where none are given."""
# The columns that identify an example in two tables, for any benchmark.
_SAME = ("split", "id", "image", "positives", "negatives", "direction", "query")


class Compared(NamedTuple):
    """One row of a comparison's table.csv; figures are shares, NaN where not available."""

    benchmark: str
    split: str
    metric: str
    reference: str
    run: str
    """The names of the two evaluations."""
    reference_value: float
    run_value: float
    difference: float
    """The run's value minus the reference's."""
    low: float
    high: float
    """Ends of the difference's 95 % interval, with the examples of one image resampled together."""
    n: int
    """Examples that both have scores for."""
    only_reference: int
    only_run: int
    """Examples that exactly one of the two has right."""
    p: float
    """McNemar's exact test; NaN where images repeat, or for a mean of splits or of classes."""
    p_units: float
    """p of the difference against its standard error over images."""
    detectable: float
    num_all: int
    """All examples, with or without scores."""

    @property
    def side(self) -> int:
        """1 or -1 where the interval of the difference lies above or below 0; else 0."""
        return int(self.low > 0) - int(self.high < 0)


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
    """Margin of the true caption for the reference and for the run, in cosines."""
    names: tuple[str, str] = NAMES


def compare_tables(
    benchmark: str, first: pa.Table, second: pa.Table, names: tuple[str, str] = NAMES
) -> list[Compared]:
    """Return the lines of a benchmark that two evaluations have, the first being the reference.

    Examples that only one of them has scores for are excluded. Raises ValueError where the two tables have
    different rows.
    """
    check_same(benchmark, first, second)
    pairs = list(_pair_outcomes(compute_outcomes(first), compute_outcomes(second)))
    lines = [_make_line(benchmark, one.split, names, one, other) for one, other in pairs]
    if len({one.split for one, _ in pairs}) < 2:
        return lines
    for metric in dict.fromkeys(one.metric for one, _ in pairs):
        every = [pair for pair in pairs if pair[0].metric == metric]
        if not any(len(one.key_N) for one, _ in every):
            continue
        (joined, split_N), (other, _) = (join_splits(some) for some in zip(*every, strict=True))
        lines.append(_make_line(benchmark, MICRO, names, joined, other))
        lines.append(_make_line(benchmark, MACRO, names, joined, other, split_N))
    return lines


def check_same(benchmark: str, first: pa.Table, second: pa.Table) -> None:
    """Raise ValueError unless two tables hold the same examples, with or without scores."""
    names = [name for name in _SAME if name in first.column_names]
    same = len(first) == len(second) and all(first[name].equals(second[name]) for name in names)
    if not same:
        counts = f"{len(first):,} and {len(second):,} rows"
        raise ValueError(f"{benchmark}: the two evaluations have different examples ({counts})")
    if "num_classes" not in first.column_names:
        return
    # The sets of classes must be the same; the names of the classes may differ.
    numbers = [_list_numbers(table, "num_classes") for table in (first, second)]
    labels = zip(first["label"].to_pylist(), second["label"].to_pylist(), strict=True)
    pairs = {(one, other) for one, other in labels if one is not None and other is not None}
    is_renamed = len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})
    if (all(numbers) and numbers[0] != numbers[1]) or not is_renamed:
        counts = " and ".join(", ".join(map(str, own)) for own in numbers)
        raise ValueError(f"{benchmark}: the two evaluations have different classes ({counts})")


def _list_numbers(table: pa.Table, name: str) -> list[int]:
    return sorted(set(table[name].drop_null().to_pylist()))


def warn_other_targets(
    benchmark: str, first: pa.Table, second: pa.Table, names: tuple[str, str] = NAMES
) -> list[str]:
    """Report where one model had fewer targets to choose from than the other, which is easier."""
    if "num_targets" not in first.column_names:
        return []
    numbers = [_list_numbers(table, "num_targets") for table in (first, second)]
    reported = [" and ".join(f"{number:,}" for number in own) or "none" for own in numbers]
    said = f"{benchmark}: {names[0]} chose among {reported[0]} targets, {names[1]} among {reported[1]}"
    return [] if numbers[0] == numbers[1] else [f"{said}; fewer targets are easier"]


def _pair_outcomes(first: Sequence[Outcome], second: Sequence[Outcome]) -> Iterator[tuple[Outcome, Outcome]]:
    """Yield the models' own outcomes of each split and metric, restricted to the examples of both."""
    others = {(o.split, o.metric): o for o in second if not o.control}
    for one in first:
        other = others.get((one.split, one.metric))
        if other is not None and not one.control:
            _, at, other_at = np.intersect1d(one.key_N, other.key_N, return_indices=True)
            yield take_examples(one, at), take_examples(other, other_at)


def _make_line(
    benchmark: str,
    split: str,
    names: tuple[str, str],
    first: Outcome,
    second: Outcome,
    split_N: np.ndarray | None = None,
) -> Compared:
    split_N = first.class_N if split_N is None else split_N
    found = compare_paired(first.right_N, second.right_N, first.unit_N, split_N)
    if split_N is not None:
        found = found._replace(p=float("nan"))
    return Compared(
        benchmark=benchmark,
        split=split,
        metric=first.metric,
        reference=names[0],
        run=names[1],
        reference_value=compute_share(first.right_N, first.unit_N, split_N).value,
        run_value=compute_share(second.right_N, second.unit_N, split_N).value,
        difference=found.difference,
        low=found.low,
        high=found.high,
        n=len(first.key_N),
        only_reference=found.only_first,
        only_run=found.only_second,
        p=found.p,
        p_units=found.p_units,
        detectable=found.detectable,
        num_all=first.num_all,
    )


def find_partings(
    benchmark: str, first: pa.Table, second: pa.Table, count: int, names: tuple[str, str] = NAMES
) -> list[Parting]:
    """Return examples that exactly one model has right, the clearest first, up to ``count`` for each model.

    The clearest example has the largest difference between the models' margins of the true caption.
    """
    if "positive_scores" not in first.column_names:
        return []
    found = [
        parting
        for one, other in zip(first.to_pylist(), second.to_pylist(), strict=True)
        if (parting := _compare_rows(benchmark, one, other, names))
    ]
    found.sort(key=lambda parting: -abs(parting.first - parting.second))
    sides = [[p for p in found if (p.first > 0) == is_first] for is_first in (False, True)]
    return [parting for side in sides for parting in side[:count]]


def _compare_rows(
    benchmark: str, first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]
) -> Parting | None:
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
    return Parting(*place, first["positives"][0], negative, leads[0], leads[1], names)


def report_lines(lines: Sequence[Compared]) -> list[Table]:
    """Return a table for every benchmark, metric and run that is compared to the reference."""
    by_metric = group_by(lines, lambda line: (line.benchmark, line.metric, line.reference, line.run))
    tables = []
    for (benchmark, metric, reference, run), own in by_metric.items():
        columns = (
            "split",
            reference,
            run,
            Column("difference"),
            "n",
            "of",
            f"only {reference} right",
            f"only {run} right",
            Column("p, McNemar"),
            Column("p, over images"),
            Column("detectable", digits=3),
        )
        rows: list[list[Cell]] = [
            [
                line.split,
                line.reference_value,
                line.run_value,
                Estimate(line.difference, line.low, line.high),
                line.n,
                line.num_all,
                line.only_reference,
                line.only_run,
                PValue(line.p),
                PValue(line.p_units),
                line.detectable,
            ]
            for line in own
        ]
        meaning = MEANINGS.get(metric, "")
        title = f"{benchmark}: {metric}, {run} minus {reference}"
        tables.append(Table(title, columns, rows, f"{meaning[:1].upper()}{meaning[1:]}." if meaning else ""))
    return tables


def count_apart(lines: Sequence[Compared]) -> tuple[int, int]:
    """Return the number of splits whose interval of the accuracy difference excludes 0, and of all splits."""
    own = [line for line in lines if line.metric == ACCURACY and line.split not in (MICRO, MACRO) and line.n]
    return sum(line.low > 0 or line.high < 0 for line in own), len(own)


DIGITS = 3


class Answer(NamedTuple):
    """The answer of a page to its question, for one benchmark."""

    head: str
    """One sentence with the value and its interval."""
    details: Sequence[str] = ()
    """Sentences on splits and baselines."""


def answer_evaluation(name: str, lines: Sequence[Line], margins: Sequence[Margin]) -> list[Answer]:
    """Return an answer for each benchmark of an evaluation; ``name`` is that of the model."""
    answers = []
    for benchmark, own in group_by(lines, lambda line: line.benchmark).items():
        metric = own[0].metric
        main = [line for line in own if not line.control and line.metric == metric]
        best = next((line for line in main if line.split == MACRO), main[0])
        num = sum(line.split not in (MACRO, MICRO) for line in main)
        over = f", mean of {num} splits" if num > 1 else ""
        value = write_cell(Estimate.of(best), DIGITS)
        of_own = [one for one in margins if one.benchmark == benchmark]
        verdict = say_verdict(of_own)
        if not of_own:
            said = ""
        elif verdict == "passes":
            said = f"; it {verdict} its blind baselines"
        else:
            said = f"; it is {verdict}"
        details = [f"Blind baselines: {say_margins(of_own)}."] if of_own else []
        details += [f"Chance is {number(best.chance, DIGITS)}."] if best.chance == best.chance else []
        head = f"{name}: {_name(metric)} {value} on {benchmark}{over}{said}."
        answers.append(Answer(head, details))
    return answers


def answer_comparison(lines: Sequence[Compared], margins: Mapping[str, Sequence[Margin]]) -> list[Answer]:
    """Return an answer for each run and benchmark; ``margins`` by the name of the run, the reference too."""
    answers = []
    for (_, benchmark), own in group_by(lines, lambda line: (line.run, line.benchmark)).items():
        main = [line for line in own if line.metric == own[0].metric]
        best = next((line for line in main if line.split == MACRO), main[0])
        splits = [line for line in main if line.split not in (MACRO, MICRO) and line.n]
        details = [_say_splits(splits)] if len(splits) > 1 else []
        for name in (best.reference, best.run):
            of_own = [one for one in margins.get(name, ()) if one.benchmark == benchmark]
            details += [f"Blind baselines of {name}: {say_margins(of_own)}."] if of_own else []
        answers.append(Answer(_say_difference(best, len(splits)), details))
    return answers


def _say_difference(line: Compared, num_splits: int) -> str:
    values = f"{number(line.run_value, DIGITS)} against {number(line.reference_value, DIGITS)}"
    found = Estimate(line.difference, line.low, line.high)
    over = f" (mean of {num_splits} splits)" if num_splits > 1 else ""
    what = f"{_name(line.metric)}{over} {values}, a difference of {write_cell(found, DIGITS)}"
    if line.side:
        verb = "is better than" if line.side > 0 else "is worse than"
        return f"{line.run} {verb} {line.reference} on {line.benchmark}: {what}."
    return f"{line.run} and {line.reference} do not differ significantly on {line.benchmark}: {what}."


def _say_splits(splits: Sequence[Compared]) -> str:
    """Return the splits by the side of their interval: "Higher in 1 of 3 splits: a. ..."."""
    said = []
    for what, side in (("Higher", 1), ("Lower", -1), ("No significant difference", 0)):
        names = [line.split.replace("_", " ") for line in splits if line.side == side]
        if not side and len(names) == len(splits):
            return f"No significant difference in any of {len(splits)} splits."
        said += [f"{what} in {len(names)} of {len(splits)} splits: {', '.join(names)}."] if names else []
    return " ".join(said)


def _name(metric: str) -> str:
    return metric.replace("_", " ")
