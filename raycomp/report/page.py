"""A page: its markup, its charts as inline SVG, and its frame and table of contents from jinja2 templates.

Charts have axes, units, legends, and a title and a description for screen readers. What is escaped, where, is
said at ``escape``, ``tag`` and ``render_page``.
"""

import base64
import html
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raycomp.config import as_setting, flatten
from raycomp.table import Estimate, Numeral, Plot, as_columns, is_number, number, percent, write_cell

if TYPE_CHECKING:
    from jinja2 import Environment


VOID_TAGS = frozenset({"path", "line", "rect", "circle"})
# Characters that XML and HTML forbid: controls except tab and new line, lone surrogates, non-characters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Text that is already markup."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the text; templates do not escape it."""
        return self


def replace_forbidden(text: str) -> str:
    """Return a text with U+FFFD for every character that HTML forbids."""
    return _FORBIDDEN.sub("\ufffd", text)


def escape(value: object) -> Html:
    """Return ``value`` as markup: ``Html`` unchanged, all else escaped, forbidden characters as U+FFFD."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(replace_forbidden(str(value)), quote=True))


def join(children: Iterable[object], separator: str = "") -> Html:
    """Return the children, escaped and joined; None is skipped."""
    return Html(separator.join(escape(child) for child in children if child is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return one element. ``class_`` writes class, ``data_x`` writes data-x; None omits an attribute.

    Names come from the code and are not escaped; values and children are.
    """
    given = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    written = "".join(f' {key}="{escape(value)}"' for key, value in given if value is not None)
    if name in VOID_TAGS and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


WIDTH, HEIGHT = 560, 300
TALL, LOW = 410, 170
"""Heights of a chart in a row of three, and of the other two."""
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 30, 50
# Least width of the names of rows, the height of a row, and the width of a letter.
NAMES, ROW, LETTER = 250, 24, 6.7
"""Space for the names of rows, and for a row."""
MOST_BARS = 50
MOST_DOTS = 40
"""A curve with more points is drawn without markers."""
_ALONE = (
    "text{fill:#59616b}text.word,text.mark{fill:#1d2126}.axis{stroke:#59616b}.grid{stroke:#e4e4df}"
    "line.mark{stroke:#1d2126;stroke-width:1.5;stroke-dasharray:4 3}"
    ".interval{stroke:#1f66b0;stroke-width:2}.estimate{fill:#1f66b0}"
    ".line{fill:none;stroke-width:2}.dots{fill:none;stroke-width:7;stroke-linecap:round}"
    ".line.kept,.dots.kept{stroke:#1f66b0}.line.dropped,.dots.dropped{stroke:#a39d92}"
    ".kind-relation{stroke:#c77d1e}.kind-predicate{stroke:#2f8f6b}.further{stroke:#8250b4}"
)
"""Colours of a chart without a page around it."""


@dataclass(frozen=True)
class Layer:
    """One named series; ``style`` is the class that colours it."""

    name: str
    style: str


@dataclass(frozen=True)
class Mark:
    """An upright line at ``at`` on the x axis, named unless its name is empty."""

    at: float
    name: str = ""


@dataclass(frozen=True)
class Axis:
    """A linear axis from value ``low`` to ``high`` over pixels ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def pixel(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def nice_step(span: float, most: int) -> float:
    """Return the smallest of 1, 2, 5 x 10^n that divides ``span`` > 0 into at most ``most`` pieces."""
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 5, 10, 20) if power * m >= rough * (1 - 1e-9))


def ticks(low: float, high: float, most: int = 6) -> list[tuple[float, str]]:
    """Return round values from ``low`` to ``high`` with their labels; no label reads "-0"."""
    step = nice_step(high - low, most)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(i * step, number(i * step if i else 0.0, digits)) for i in range(first, last + 1)]


def rebin(counts_LF: np.ndarray, low: float, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Merge fine bins into at most ``MOST_BARS`` bars of a round width over the non-empty range.

    ``counts_LF`` holds L layers over F bins of ``width`` from ``low``. Returns counts [L, B], edges [B + 1].
    No count is lost.
    """
    used = np.flatnonzero(counts_LF.sum(0))
    if not len(used):
        return counts_LF[:, :1], np.array([low, low + width])
    first, last = int(used[0]), int(used[-1]) + 1
    joined = max(1, round(nice_step(last - first, MOST_BARS)))
    offset = round(low / width)  # a bar's edge falls on 0
    bar_F = (np.arange(first, last) + offset) // joined
    bars = bar_F - bar_F[0]
    counts_LB = np.stack([np.bincount(bars, weights=row[first:last]) for row in counts_LF])
    start = int(bar_F[0]) * joined - offset
    return counts_LB.astype(np.int64), low + width * (start + joined * np.arange(counts_LB.shape[1] + 1))


def histogram(
    title: str,
    x_name: str,
    layers: Sequence[Layer],
    counts_LB: np.ndarray,
    edges: np.ndarray,
    marks: Sequence[Mark] = (),
    y_name: str = "pairs",
    whole: bool = False,
) -> Html:
    """Draw stacked bars, the first layer at the bottom; every bar has its numbers as a tooltip.

    ``whole``: the values are whole numbers, in the middle of their bins.
    """
    xs = Axis(float(edges[0]), float(edges[-1]), LEFT, WIDTH - RIGHT)
    top = max(1, int(counts_LB.sum(0).max()))
    ys = Axis(0, top * 1.05, HEIGHT - BOTTOM, TOP)
    digits = max(0, -math.floor(math.log10(edges[1] - edges[0]) + 1e-9))
    bars = []
    for b in range(counts_LB.shape[1]):
        low, high = float(edges[b]), float(edges[b + 1])
        if whole:
            first, last = round(low + 0.5), round(high - 0.5)
            name = number(first) if first == last else f"{number(first)} to {number(last)}"
        else:
            name = f"{number(low, digits)} to {number(high, digits)}"
        name = f"{name}: {_describe(layers, counts_LB[:, b])}"
        left, right = xs.pixel(edges[b]), xs.pixel(edges[b + 1])
        under, parts = 0, []
        for layer, count in zip(layers, counts_LB[:, b], strict=True):
            if count:
                y, base = ys.pixel(under + count), ys.pixel(under)
                parts.append(_rect(left, y, max(right - left - 1, 0.5), base - y, layer.style))
            under += int(count)
        if parts:
            bars.append(tag("g", tag("title", name), *parts))
    shown = [(at, name) for at, name in ticks(xs.low, xs.high) if not whole or at == int(at)]
    counts = [(at, name) for at, name in ticks(0, ys.high, 5) if at == int(at)]
    drawn = join([draw_grid(ys, counts, y_name), draw_x_axis(xs, shown, x_name), *bars])
    lines = join(_mark(xs, mark) for mark in marks if xs.low <= mark.at <= xs.high)
    return draw_figure(title, _describe(layers, counts_LB.sum(1)), join([drawn, lines]), layers)


def scatter(
    title: str, x_name: str, y_name: str, points: Sequence[tuple[Layer, np.ndarray, np.ndarray]]
) -> Html:
    """Draw one dot per (x, y), one path per layer; the axes span the finite values."""
    shown = [p for p in points if len(p[1])]
    x_all = np.concatenate([x for _, x, _ in shown]) if shown else np.zeros(1)
    y_all = np.concatenate([y for _, _, y in shown]) if shown else np.zeros(1)
    xs, ys = span(x_all, LEFT, WIDTH - RIGHT), span(y_all, HEIGHT - BOTTOM, TOP)
    drawn = [
        draw_grid(ys, ticks(ys.low, ys.high, 5), y_name),
        draw_x_axis(xs, ticks(xs.low, xs.high), x_name),
    ]
    for layer, x, y in reversed(shown):
        at = "".join(f"M{xs.pixel(a):.1f} {ys.pixel(b):.1f}h0" for a, b in zip(x, y, strict=True))
        drawn.append(tag("path", d=at, class_=f"dots {layer.style}"))
    said = f"{sum(len(x) for _, x, _ in points):,} points"
    return draw_figure(title, said, join(drawn), [layer for layer, _, _ in points])


def curves(
    title: str,
    x_name: str,
    y_name: str,
    lines: Sequence[tuple[Layer, np.ndarray, np.ndarray]],
    marks: Sequence[Mark] = (),
    marked: Layer | None = None,
    height: float = HEIGHT,
) -> Html:
    """Draw lines through (x, y), x whole and rising, all finite and each with a point; the last one on top.

    ``y_name`` is empty if the title contains it. ``marked`` is the legend text of the marks.
    """
    x_all, y_all = (np.concatenate([line[i] for line in lines]) for i in (1, 2))
    low, high = float(x_all.min()), float(x_all.max())
    xs = Axis(low, max(high, low + 1), LEFT, WIDTH - RIGHT)
    ys = span(y_all, height - BOTTOM, TOP)
    steps = [(at, number(int(at))) for at, _ in ticks(xs.low, xs.high, 5) if at == int(at)]
    heights = ticks(ys.low, ys.high, 4 if height == LOW else 6)
    frame = [draw_grid(ys, heights, y_name), draw_x_axis(xs, steps, x_name, height - BOTTOM)]
    upright = [_mark(xs, mark, height - BOTTOM) for mark in marks if xs.low <= mark.at <= xs.high]
    drawn: list[Html] = []
    for layer, x, y in lines:
        at = [f"{xs.pixel(a):.1f} {ys.pixel(b):.1f}" for a, b in zip(x, y, strict=True)]
        drawn.append(tag("path", d="M" + "L".join(at), class_=f"line {layer.style}"))
        if len(at) <= MOST_DOTS:
            dots = "".join(f"M{place}h0" for place in at)
            drawn.append(tag("path", d=dots, class_=f"dots {layer.style}"))
    _, x, y = lines[-1]
    said = f"{number(float(y[0]))} at {number(int(x[0]))}, {number(float(y[-1]))} at {number(int(x[-1]))}"
    said += f", from {number(float(y_all.min()))} to {number(float(y_all.max()))} in all"
    layers = [layer for layer, _, _ in lines] + ([marked] if marked and upright else [])
    return draw_figure(title, said, join([*frame, *upright, *drawn]), layers, height)


def bars(title: str, rows: Sequence[tuple[str, float, str]], x_name: str) -> Html:
    """Draw named values as bars to the left and right of zero; a row is (name, value, text by the bar)."""
    height = 24
    reach = max((abs(value) for _, value, _ in rows), default=1.0) or 1.0
    xs = Axis(-reach * 1.02, reach * 1.02, 130, WIDTH - RIGHT)
    top, bottom = 4, 4 + height * len(rows)
    parts = []
    for i, (name, value, label) in enumerate(rows):
        y, zero, end = top + i * height, xs.pixel(0), xs.pixel(value)
        short = name if len(name) <= 16 else name[:15] + "\u2026"
        style, anchor, away = ("kept", "end", -8) if value > 0 else ("dropped", "start", 8)
        bar = _rect(min(zero, end), y + 4, max(abs(end - zero), 0.5), height - 8, style)
        parts += [
            tag("g", tag("title", f"{name}: {number(value, 2)}; {label}"), bar),
            draw_text(short, 120, y + 16, "end", "word"),
            draw_text(label, zero + away, y + 16, anchor),
        ]
    axis = draw_x_axis(xs, ticks(xs.low, xs.high), x_name, bottom)
    middle = tag("line", x1=f"{xs.pixel(0):.1f}", x2=f"{xs.pixel(0):.1f}", y1=top, y2=bottom, class_="axis")
    said = "; ".join(f"{name} {number(value, 2)}, {label}" for name, value, label in rows)
    layers = (Layer("kept more often", "kept"), Layer("dropped more often", "dropped"))
    return draw_figure(title, said, join([axis, *parts, middle]), layers, bottom + BOTTOM)


def span(values: np.ndarray, start: float, end: float) -> Axis:
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or max(abs(high), 1e-3) * 0.1
    return Axis(low - margin, high + margin, start, end)


def _rect(x: float, y: float, width: float, height: float, style: str) -> Html:
    return tag("rect", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{width:.1f}", height=f"{height:.1f}", class_=style)


def draw_text(text: str, x: float, y: float, anchor: str, style: str | None = None) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=style)


def draw_x_axis(xs: Axis, values: list[tuple[float, str]], name: str, base: float = HEIGHT - BOTTOM) -> Html:
    labels = [draw_text(text, xs.pixel(value), base + 18, "middle") for value, text in values]
    places = [f"{xs.pixel(value):.1f}" for value, _ in values]
    feet = [tag("line", x1=x, x2=x, y1=base, y2=base + 4, class_="axis") for x in places]
    line = tag("line", x1=xs.start, x2=xs.end, y1=base, y2=base, class_="axis")
    return join([line, *feet, *labels, draw_text(name, (xs.start + xs.end) / 2, base + 40, "middle", "name")])


def draw_grid(ys: Axis, values: list[tuple[float, str]], name: str) -> Html:
    parts = []
    for value, text in values:
        y = f"{ys.pixel(value):.1f}"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(draw_text(text, LEFT - 8, ys.pixel(value) + 4, "end"))
    return join([*parts, draw_text(name, 0, 12, "start", "name") if name else None])


def _mark(xs: Axis, mark: Mark, base: float = HEIGHT - BOTTOM) -> Html:
    x = xs.pixel(mark.at)
    right = x < (xs.start + xs.end) / 2
    line = tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP - 10, y2=base, class_="mark")
    if not mark.name:
        return line
    name = draw_text(mark.name, x + (6 if right else -6), TOP - 2, "start" if right else "end", "mark")
    return join([line, name])


def _describe(layers: Sequence[Layer], count_L: np.ndarray) -> str:
    return ", ".join(f"{number(int(n))} {layer.name}" for n, layer in zip(count_L, layers, strict=True))


def draw_figure(title: str, said: str, drawn: Html, layers: Sequence[Layer], height: float = HEIGHT) -> Html:
    names = (tag("span", tag("i", class_=layer.style), layer.name) for layer in layers)
    legend, parts = tag("p", *names, class_="legend"), (tag("title", title), tag("desc", said), drawn)
    box, label = f"0 0 {WIDTH} {height:.0f}", f"{title}: {said}"
    svg = tag("svg", *parts, viewBox=box, role="img", aria_label=label)
    return tag("figure", tag("figcaption", title), legend if len(layers) > 1 else None, svg, class_="chart")


def intervals(plot: Plot) -> Html:
    """Draw named estimates with their intervals, each in a row of its own."""
    ends = [end for _, one in plot.rows for end in (one.value, one.low, one.high) if end == end]
    longest = max((len(name) for name, _ in plot.rows), default=0)
    start = min(max(NAMES, 12 + LETTER * longest), 0.7 * WIDTH)
    xs = span(np.array([*ends, *([] if plot.mark is None else [plot.mark])] or [0.0]), start, WIDTH - RIGHT)
    bottom = TOP + ROW * len(plot.rows)
    parts = []
    for i, (name, one) in enumerate(plot.rows):
        y = TOP + ROW * i + ROW / 2
        title = tag("title", f"{name}: {write_cell(one, 2)}")
        row = [title, draw_text(name, xs.start - 12, y + 4, "end", "word")]
        if one.low <= one.high:
            low, high = (f"{xs.pixel(end):.1f}" for end in (one.low, one.high))
            row.append(tag("line", x1=low, x2=high, y1=y, y2=y, class_="interval"))
        if one.value == one.value:
            row.append(tag("circle", cx=f"{xs.pixel(one.value):.1f}", cy=y, r=3.5, class_="estimate"))
        parts.append(tag("g", *row))
    said = "; ".join(f"{name} {write_cell(one, 2)}" for name, one in plot.rows)
    upright = None if plot.mark is None else _mark(xs, Mark(plot.mark), bottom)
    axis = draw_x_axis(xs, ticks(xs.low, xs.high), plot.unit, bottom)
    return draw_figure(plot.title, said, join([axis, upright, *parts]), (), bottom + BOTTOM)


def cut_out(figure: Html) -> str:
    """Return a chart as the text of a self-contained SVG file."""
    start, end = figure.index("<svg"), figure.index("</svg>")
    head, _, drawn = figure[start:end].partition(">")
    space = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"'
    return f"{head.replace('<svg', f'<svg {space}', 1)}><style>{_ALONE}</style>{drawn}</svg>\n"


Points = Sequence[tuple[float, Estimate]]
STYLES = ("kept", "kind-relation", "kind-predicate", "further", "dropped")
"""Classes that colour series, in their order; further series have the colour of the last."""
# Horizontal distance in pixels of series at one value.
_OFFSET = 5.0
# Space for a label below the axis, and the maximum number of labels.
_APART, _MOST_LABELS = 40.0, 9


def response(
    title: str,
    x_name: str,
    y_name: str,
    series: Sequence[tuple[str, Points]],
    is_log: bool = False,
    is_apart: bool = True,
) -> Html:
    """Draw named series of (value of the option, estimate), each with its intervals and a line through it.

    Values that are not finite are left out. ``is_log``: log axis of the option, whose values must be above 0;
    ``is_apart``: whether series at one value are drawn at a small horizontal distance.
    """
    shown = []
    for name, points in series:
        finite = [(x, one) for x, one in points if math.isfinite(x) and math.isfinite(one.value)]
        if finite:
            shown.append((name, sorted(finite, key=lambda point: point[0])))
    place: Callable[[float], float] = math.log10 if is_log else float
    tried = sorted({place(x): f"{x:g}" for _, points in shown for x, _ in points}.items())
    at = np.array([x for x, _ in tried] or [0.0])
    estimates = [one for _, points in shown for _, one in points]
    ends = [end for one in estimates for end in (one.value, one.low, one.high) if math.isfinite(end)]
    xs = span(at, LEFT + 2 * _OFFSET, WIDTH - RIGHT - 2 * _OFFSET)
    ys = span(np.array(ends or [0.0]), HEIGHT - BOTTOM, TOP)
    layers = [Layer(name, STYLES[min(i, len(STYLES) - 1)]) for i, (name, _) in enumerate(shown)]
    drawn: list[Html] = []
    for i, (layer, (_, points)) in enumerate(zip(layers, shown, strict=True)):
        offset = (i - (len(shown) - 1) / 2) * _OFFSET * is_apart
        places = [(xs.pixel(place(x)) + offset, ys.pixel(one.value)) for x, one in points]
        line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        drawn.append(tag("path", d=line, class_=f"line {layer.style}"))
        for (x, y), (value, one) in zip(places, points, strict=True):
            parts = [tag("title", f"{layer.name}: {write_cell(one, 4)} at {value:g}")]
            if one.low <= one.high:
                low, high = (f"{ys.pixel(end):.1f}" for end in (one.low, one.high))
                corners = {"x1": f"{x:.1f}", "x2": f"{x:.1f}", "y1": low, "y2": high}
                parts.append(tag("line", **corners, class_=f"line {layer.style}"))
            parts.append(tag("path", d=f"M{x:.1f} {y:.1f}h0", class_=f"dots {layer.style}"))
            drawn.append(tag("g", *parts))
    grid = draw_grid(ys, ticks(ys.low, ys.high, 5), y_name)
    axis = draw_x_axis(xs, _mark_values(tried, xs, is_log), x_name)
    values = (", ".join(f"{write_cell(one, 3)} at {x:g}" for x, one in points) for _, points in shown)
    said = "; ".join(f"{name}: {found}" for (name, _), found in zip(shown, values, strict=True))
    return draw_figure(title, said, join([grid, axis, *drawn]), layers)


def _mark_values(tried: list[tuple[float, str]], xs: Axis, is_log: bool) -> list[tuple[float, str]]:
    """Return the labels below the axis: the values tried if they are far enough apart, else round ones."""
    gaps = (xs.pixel(right) - xs.pixel(left) for (left, _), (right, _) in pairwise(tried))
    if all(gap >= _APART for gap in gaps):
        return tried
    if not is_log:
        return ticks(xs.low, xs.high)
    powers = range(math.floor(xs.low), math.ceil(xs.high) + 1)
    rounds = [(math.log10(m) + power, f"{m * 10.0**power:g}") for power in powers for m in (1, 2, 5)]
    within = [(at, text) for at, text in rounds if xs.low <= at <= xs.high]
    whole = [(at, text) for at, text in within if text.lstrip("0.").startswith("1")]
    return whole if len(within) > _MOST_LABELS else within


SCRIPT = Html("""
for (const pre of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  button.type = "button"; button.className = "copy"; button.textContent = "Copy";
  button.onclick = () => {
    const range = document.createRange();
    range.selectNodeContents(pre);
    const chosen = getSelection();
    chosen.removeAllRanges(); chosen.addRange(range);
    button.textContent = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
  };
  pre.before(button);
}
""")
"""The only script of a page. The policy names its hash, so no other script runs."""
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "script-src 'sha256-ZNHjMARbnTCJ8OsH/3tMLsVo4qtDAJ53YxQqXhJTg/A='"
)
INDEX = "index.html"
INDEX_MARK = "<!-- index -->"
_HEADING = re.compile(r"<h2>(.*?)</h2>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def add_contents(content: str) -> tuple[Html, Html]:
    """Return the markup of a page with an anchor at every h2, and its table of contents."""
    seen: Counter[str] = Counter()
    links: list[Html] = []

    def anchor(match: re.Match[str]) -> str:
        text = Html(_TAG.sub("", match[1]).strip())
        name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "section"
        seen[name] += 1
        place = name if seen[name] == 1 else f"{name}-{seen[name]}"
        links.append(tag("a", text, href=f"#{place}"))
        return f'<h2 id="{place}">{match[1]}</h2>'

    marked = Html(_HEADING.sub(anchor, content))
    return marked, tag("nav", Html(INDEX_MARK), join(links), class_="toc", aria_label="Contents")


def link_index(page: str, place: str) -> str:
    """Return a page with a link to the index of its sibling runs at ``place``, a relative address."""
    return page.replace(INDEX_MARK, f'<a class="home" href="{escape(place)}">All runs</a>', 1)


SIDE = 240
"""Pixels of a thumbnail's longer side."""
MOST_PIXELS = 100_000_000
MOST_ROWS = 20
"""A table with more rows is folded."""


def render_page(template: str | Path, **values: Any) -> str:
    """Return a page as text to be written as UTF-8.

    ``template``: a path inside the package raycomp, or the Path of a file of your own, which may extend and
    import those of the package. All values are escaped except charts, which are ``Html``.
    """
    templates = load_templates()
    if isinstance(template, Path):
        page = templates.from_string(template.read_text("utf-8"))
    else:
        page = templates.get_template(template)
    return replace_forbidden(page.render(values))


@cache
def load_templates() -> "Environment":
    """Return the environment that reads the package's templates, with the functions that they call."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("raycomp", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = (number, percent, Numeral, write_cell, is_number, as_columns, as_setting, flatten, add_contents)
    templates.globals |= {function.__name__: function for function in (*shared, draw_growth, make_thumbnail)}
    templates.globals |= {"POLICY": POLICY, "SCRIPT": SCRIPT, "MOST_ROWS": MOST_ROWS}
    return templates


def make_thumbnail(data: bytes) -> str | None:
    """Return a small JPEG as a data URI; None if the bytes are not a readable image."""
    small = shrink_photo(data, SIDE)
    return None if small is None else f"data:image/jpeg;base64,{base64.b64encode(small).decode()}"


def shrink_photo(data: bytes, side: int) -> bytes | None:
    """Return a JPEG of at most ``side`` px; None if the bytes are not a readable image."""
    from raycomp.models.images import ImageFault, decode_image  # PIL

    try:
        image = decode_image(data, MOST_PIXELS)
    except ImageFault:
        return None
    image.thumbnail((side, side))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=80)
    return written.getvalue()


def draw_growth(phase: Mapping[str, Any]) -> Html:
    """Draw the number of scorers over the phase's time: a step line."""
    since_S, scorers_S, _ = np.array(phase["growth"], float).T
    x = np.append(np.repeat(since_S, 2)[1:], phase["wall_s"]).round()
    title = f"Scorers of {phase['phase']} over time"
    return curves(title, "seconds", "scorers", [(Layer("scorers", "kept"), x, np.repeat(scorers_S, 2))])
