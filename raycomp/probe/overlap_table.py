"""The tables of ``raycomp probe overlap``: what explains negatives, and how far others agree with that."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from raycomp.core.metrics import share_interval
from raycomp.probe.overlap import ANSWERS, PAPER, Overlap, count_calls, sum_rows
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
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#bbbbbb")
LEFT, WIDTH, HEIGHT, TOP = 250, 500, 26, 34


def draw_overlap(rows: Sequence[Overlap]) -> str:
    """Return an SVG file's text: stacked shares, 500 px for all rows; dashes mark the paper's range.

    The thin bar below a split's own, where it has one, is of its paraphrases.
    """
    bottom = TOP + HEIGHT * len(rows)
    size = f'width="{LEFT + WIDTH + 20}" height="{bottom + 10}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts.append("<title>What explains the hard negatives of each split; thin: its paraphrases</title>")
    for i, (answer, colour) in enumerate(zip(ANSWERS, COLOURS, strict=True)):
        x = LEFT + 95 * i
        parts.append(f'<rect class="key" x="{x}" y="8" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="18">{answer}</text>')
    for place, row in enumerate(rows):
        y = TOP + HEIGHT * place
        name = escape(f"{row.benchmark} {row.split} ({row.count})")
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{name}</text>')
        parts += _draw_bar("share", row.explained, y + 3, HEIGHT - 11, name)
        parts += _draw_bar("null", row.paraphrased, y + HEIGHT - 7, 4, f"{name}, paraphrases")
        for share in PAPER.get(row.benchmark, ()):
            at = f'x1="{LEFT + WIDTH * share:.1f}" x2="{LEFT + WIDTH * share:.1f}"'
            parts.append(f'<line {at} y1="{y}" y2="{y + HEIGHT}" stroke="black" stroke-dasharray="3 2"/>')
    return "\n".join([*parts, "</svg>\n"])


def _draw_bar(kind: str, answers: Counter[str], y: int, height: int, name: str) -> list[str]:
    """Return the parts of a stacked bar of the class ``kind``; nothing where there is nothing to show."""
    parts = []
    x = float(LEFT)
    for answer, colour in zip(ANSWERS, COLOURS, strict=True) if answers else ():
        width = WIDTH * answers[answer] / answers.total()
        parts.append(
            f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" '
            f'fill="{colour}"><title>{name}: {answers[answer]} {answer}</title></rect>'
        )
        x += width
    return parts
