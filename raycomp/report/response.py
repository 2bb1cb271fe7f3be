"""The response of a metric to an option: estimates over its values, joined by a line."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from raycomp.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Layer,
    draw_figure,
    draw_grid,
    draw_x_axis,
    span,
    ticks,
)
from raycomp.report.markup import Html, join, tag
from raycomp.table import Estimate, write_cell

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
    shown = [(name, sorted(_finite(points), key=lambda point: point[0])) for name, points in series]
    shown = [(name, points) for name, points in shown if points]
    at = np.array([_place(x, is_log) for _, points in shown for x, _ in points] or [0.0])
    ends = [end for _, points in shown for _, one in points for end in _list_ends(one)]
    xs = span(at, LEFT + 2 * _OFFSET, WIDTH - RIGHT - 2 * _OFFSET)
    ys = span(np.array(ends or [0.0]), HEIGHT - BOTTOM, TOP)
    layers = [Layer(name, STYLES[min(i, len(STYLES) - 1)]) for i, (name, _) in enumerate(shown)]
    drawn = [
        _draw_series(xs, ys, layer, points, is_log, (i - (len(shown) - 1) / 2) * _OFFSET * is_apart)
        for i, (layer, (_, points)) in enumerate(zip(layers, shown, strict=True))
    ]
    frame = [
        draw_grid(ys, ticks(ys.low, ys.high, 5), y_name),
        draw_x_axis(xs, _mark_values(shown, xs, is_log), x_name),
    ]
    said = "; ".join(
        f"{name}: " + ", ".join(f"{write_cell(one, 3)} at {x:g}" for x, one in points)
        for name, points in shown
    )
    return draw_figure(title, said, join([*frame, *drawn]), layers)


def _finite(points: Points) -> list[tuple[float, Estimate]]:
    return [(x, one) for x, one in points if math.isfinite(x) and math.isfinite(one.value)]


def _place(x: float, is_log: bool) -> float:
    return math.log10(x) if is_log else x


def _list_ends(one: Estimate) -> list[float]:
    return [end for end in (one.value, one.low, one.high) if math.isfinite(end)]


def _mark_values(shown: Sequence[tuple[str, Points]], xs: Axis, is_log: bool) -> list[tuple[float, str]]:
    """Return the labels below the axis: the values tried if they are far enough apart, else round ones."""
    tried = sorted({_place(x, is_log): f"{x:g}" for _, points in shown for x, _ in points}.items())
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


def _draw_series(xs: Axis, ys: Axis, layer: Layer, points: Points, is_log: bool, offset: float) -> Html:
    at = [(xs.pixel(_place(x, is_log)) + offset, ys.pixel(one.value)) for x, one in points]
    line = tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at), class_=f"line {layer.style}")
    marks = [_draw_point(ys, layer, x, y, *point) for (x, y), point in zip(at, points, strict=True)]
    return join([line, *marks])


def _draw_point(ys: Axis, layer: Layer, x: float, y: float, value: float, one: Estimate) -> Html:
    parts = [tag("title", f"{layer.name}: {write_cell(one, 4)} at {value:g}")]
    if one.low <= one.high:
        low, high = (f"{ys.pixel(end):.1f}" for end in (one.low, one.high))
        parts.append(tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=low, y2=high, class_=f"line {layer.style}"))
    parts.append(tag("path", d=f"M{x:.1f} {y:.1f}h0", class_=f"dots {layer.style}"))
    return tag("g", *parts)
