"""The overlap as a picture: one bar per split, cut by what explains its negatives."""

from collections.abc import Sequence
from html import escape

from raycomp.loops.overlap import ANSWERS, PAPER, Overlap

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#bbbbbb")
LEFT, WIDTH, HEIGHT, TOP = 250, 500, 22, 34


def draw_overlap(rows: Sequence[Overlap]) -> str:
    """Return an SVG file's text: stacked shares, 500 px for all rows; dashes mark the paper's range."""
    bottom = TOP + HEIGHT * len(rows)
    size = f'width="{LEFT + WIDTH + 20}" height="{bottom + 10}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts.append("<title>What explains the hard negatives of each split</title>")
    for i, (answer, colour) in enumerate(zip(ANSWERS, COLOURS, strict=True)):
        x = LEFT + 95 * i
        parts.append(f'<rect class="key" x="{x}" y="8" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="18">{answer}</text>')
    for place, row in enumerate(rows):
        y = TOP + HEIGHT * place
        name = escape(f"{row.benchmark} {row.split} ({row.count})")
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{name}</text>')
        x = float(LEFT)
        for answer, colour in zip(ANSWERS, COLOURS, strict=True):
            width = WIDTH * row.explained[answer] / max(row.count, 1)
            parts.append(
                f'<rect class="share" x="{x:.2f}" y="{y + 3}" width="{width:.2f}" height="{HEIGHT - 6}" '
                f'fill="{colour}"><title>{name}: {row.explained[answer]} {answer}</title></rect>'
            )
            x += width
        for share in PAPER.get(row.benchmark, ()):
            at = f'x1="{LEFT + WIDTH * share:.1f}" x2="{LEFT + WIDTH * share:.1f}"'
            parts.append(f'<line {at} y1="{y}" y2="{y + HEIGHT}" stroke="black" stroke-dasharray="3 2"/>')
    return "\n".join([*parts, "</svg>\n"])
