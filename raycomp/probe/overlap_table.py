"""The tables of ``raycomp probe overlap``: what explains negatives, and how far others agree with that."""

from collections.abc import Sequence

from raycomp.core.metrics import share_interval
from raycomp.probe.overlap import ANSWERS, PAPER, Overlap, count_calls, sum_rows
from raycomp.report.page import render_page
from raycomp.table import Cell, Column, Columns, Estimate, Numeral, Table, write_cell

_NULLS = {"sugarcrepe": "those of sugarcrepe_pp are of its captions"}
_HINT = "those of another benchmark, of other captions, are a hint at most"


def tell_overlap(rows: Sequence[Overlap]) -> list[Table | str]:
    """Return the rows and each benchmark's total as two tables, in percent with 95 % intervals by Wilson.

    First what explains the negatives, and beside it the second true captions; then how far this agrees with
    the benchmark and with the rules.
    """
    totals = sum_rows(rows)
    shown = [*rows, *totals]
    shares = [Column(name, "%", 1) for name in (*ANSWERS, "one call", "one or two")]
    null = [Column(name, "%", 1) for name in ("theirs, one call", "theirs, one or two")]
    columns: Columns = (
        "benchmark",
        "split",
        "rows",
        "left out",
        *shares,
        "paper",
        "paraphrases",
        *null,
    )
    agreed = ("benchmark", "split", "its op", "its op and kind", "rules: same edit", "rules: word for word")
    return [
        Table("What explains the negatives", columns, list(map(_tell_explained, shown)), _tell_null(totals)),
        Table("Who agrees", agreed, list(map(_tell_agreed, shown)), _tell_reasons(totals)),
    ]


def _tell_explained(row: Overlap) -> list[Cell]:
    paper = Numeral("{:.0%}-{:.0%}".format(*PAPER[row.benchmark])) if row.benchmark in PAPER else None
    shares: list[Cell] = [
        100 * row.explained[answer] / row.count if row.count else None for answer in ANSWERS
    ]
    calls = [_estimate(part, row.count) for part in count_calls(row.explained)]
    reworded = row.paraphrased.total()
    null = [_estimate(part, reworded) for part in count_calls(row.paraphrased)]
    counts: list[Cell] = [row.benchmark, row.split, row.count, row.left_out]
    return [*counts, *shares, *calls, paper, reworded or None, *null]


def _tell_agreed(row: Overlap) -> list[Cell]:
    parts = ((row.agreed, row.named), (row.agreed_kind, row.named))
    repeats = ((row.same_edit, row.count), (row.regenerated, row.count))
    return [row.benchmark, row.split, *(_of(*pair) for pair in (*parts, *repeats))]


def _tell_null(totals: Sequence[Overlap]) -> str:
    """Say what the paraphrases are for, and whose to read where a benchmark has none."""
    told = "Paraphrases: second true captions, explained in the same way: the null of the negatives' shares."
    lacking = [row.benchmark for row in totals if not row.paraphrased]
    return " ".join([told, *(f"{name}: no paraphrases; {_NULLS.get(name, _HINT)}." for name in lacking)])


def _tell_reasons(totals: Sequence[Overlap]) -> str:
    counts = [(t.benchmark, ", ".join(f"{why} {n}" for why, n in t.reasons.most_common())) for t in totals]
    return " ".join(f"{name}: none because of {said}." for name, said in counts if said)


def _estimate(part: int, whole: int) -> Estimate | None:
    """Return a share in percent with its interval, none of nothing."""
    return Estimate(part / whole, *share_interval(part, whole)).times(100) if whole else None


def _of(part: int | None, whole: int) -> Numeral | None:
    """Return a share with what it is a share of: "3/4 75.0 [30.1, 95.4]"."""
    if part is None or not whole:
        return None
    return Numeral(f"{part}/{whole} {write_cell(_estimate(part, whole), 1)}")


# Answers of one call first, so that the end of the third part is their share.
_COLOURS = dict(zip(ANSWERS, ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#bbbbbb"), strict=True))
LEFT, WIDTH = 250, 500


def draw_overlap(rows: Sequence[Overlap]) -> str:
    """Return an SVG file's text: stacked shares, 500 px for all rows; dashes mark the paper's range."""
    values = {"rows": rows, "colours": _COLOURS, "paper": PAPER, "left": LEFT, "width": WIDTH}
    return render_page("probe/overlap.svg.jinja", **values) + "\n"
