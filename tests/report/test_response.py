"""Response curves show every estimate with its interval, on a linear or a log axis."""

import math
import re

import pytest

from raycomp.report.charts import response
from raycomp.table import Estimate

NAN = float("nan")


def read_dots(drawn: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'd="M([\d.]+) ([\d.]+)h0"', drawn)]


def test_every_estimate_is_drawn_and_said_with_its_interval():
    points = [(0.5, Estimate(0.6, 0.5, 0.7)), (1.0, Estimate(0.8, 0.7, 0.9)), (0.7, Estimate(0.7, NAN, NAN))]
    drawn = response("t", "x", "y", [("a", points)])
    dots = read_dots(drawn)
    assert len(dots) == 3 and drawn.count("<line") - drawn.count('class="grid"') - drawn.count('"axis"') == 2
    xs, ys = zip(*dots, strict=True)
    assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx(0.4, abs=0.01)
    assert ys[0] > ys[1] > ys[2] and "0.800 [0.700, 0.900] at 1" in drawn


def test_a_log_axis_sets_powers_equally_apart():
    points = [(10.0**-power, Estimate(0.5, 0.4, 0.6)) for power in (1, 2, 3)]
    (a, _), (b, _), (c, _) = read_dots(response("t", "x", "y", [("a", points)], is_log=True))
    assert b - a == pytest.approx(c - b, abs=0.2)
    many = [(1e-5 * 1.3**i, Estimate(0.1 * math.sin(i), NAN, NAN)) for i in range(30)]
    drawn = response("t", "x", "y", [("a", many)], is_log=True)
    assert (
        all(f">{label}</text>" in drawn for label in ("0.0001", "0.001", "0.01")) and ">0.002<" not in drawn
    )


def test_what_is_not_known_is_left_out():
    points = [(0.5, Estimate(NAN, NAN, NAN)), (1.0, Estimate(0.8, NAN, NAN))]
    assert len(read_dots(response("t", "x", "y", [("a", points), ("b", [])]))) == 1
    assert response("t", "x", "y", [("a", [])]).count("h0") == 0


def test_series_stand_next_to_one_another_and_are_named():
    one = [(0.5, Estimate(0.6, 0.5, 0.7))]
    drawn = response("t", "x", "y", [("first", one), ("second", one)])
    (a, _), (b, _) = read_dots(drawn)
    assert b - a == pytest.approx(5) and "first" in drawn and "second" in drawn
