"""The overlap as a picture: one bar per split, cut by what explains its negatives; a thin one is the null."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from raycomp.probe.overlap import ANSWERS, PAPER, Overlap

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
