"""Bars lose no count, ticks are round, response curves show every estimate, every colour can be read."""

import importlib.resources
import math
import re

import numpy as np
import pytest

from raycomp.report import charts
from raycomp.report.charts import Layer, rebin, response
from raycomp.table import Estimate

NAN = float("nan")
KEPT, DROPPED = Layer("k", "kept"), Layer("d", "dropped")


def test_bars_hold_what_numpy_counts_between_their_edges():
    for spread in (0.00001, 0.003, 0.04, 0.6):
        value_N = np.clip(np.random.default_rng(0).normal(0.07, spread, 5000), -0.99, 0.99)
        fine, edges_F = np.histogram(value_N, np.linspace(-1, 1, 10_001))
        counts, edges = rebin(np.stack([fine, 2 * fine]), -1.0, 0.0002)
        assert counts.shape[1] <= charts.MOST_BARS + 1 and counts[0, 0] > 0 and counts[0, -1] > 0
        oracle = np.add.reduceat(fine, np.searchsorted(edges_F, edges[:-1] - 1e-9))
        oracle[-1] = fine.sum() - oracle[:-1].sum()
        np.testing.assert_array_equal(counts, [oracle, 2 * oracle])
        width = edges[1] - edges[0]
        np.testing.assert_allclose(edges / width, np.round(edges / width), atol=1e-6)
    counts, edges = rebin(np.bincount([3, 3, 5], minlength=201)[None], -0.5, 1.0)
    assert counts.tolist() == [[2, 0, 1]] and edges.tolist() == [2.5, 3.5, 4.5, 5.5], "whole numbers"
    assert rebin(np.zeros((2, 201), int), -0.5, 1.0)[0].sum() == 0


def test_ticks_are_round_and_inside():
    for low, high in ((0, 1), (-0.03, 0.071), (12, 90_000), (0.2899, 0.2901)):
        values = charts.ticks(low, high, 6)
        assert 2 <= len(values) <= 7 and all(low - 1e-9 <= at <= high + 1e-9 for at, _ in values)
        for at, text in values:
            assert float(text.replace(",", "").replace("\u2212", "-")) == pytest.approx(at)
        step = charts.nice_step(high - low, 6)
        assert float(f"{step:.0e}"[0]) in (1, 2, 5) and step * 6 >= (high - low) * (1 - 1e-9)


def test_every_bar_and_point_is_drawn_and_text_is_escaped():
    drawn = charts.histogram("t", "x", (KEPT, DROPPED), np.array([[4, 2], [0, 6]]), np.arange(3.0))
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="(?:kept|dropped)"', drawn)]
    assert np.array(heights) / heights[0] == pytest.approx([1, 0.5, 1.5], rel=0.01)
    assert "0 to 1: 4 k, 0 d" in drawn and "1 to 2: 2 k, 6 d" in drawn
    x = np.array([0.1, 0.2, 0.3])
    for layers, count in (([(KEPT, x), (DROPPED, x[:1])], 4), ([(KEPT, x[:0])], 0), ([(KEPT, x[:1])], 1)):
        assert charts.scatter("t", "x", "y", [(layer, x, x) for layer, x in layers]).count("h0") == count
    assert "<b>" not in charts.bars("t", [("<b>x</b>", 1.0, "1 kept"), ("y", -1.0, "2")], "z")


def contrast(*colours: np.ndarray) -> float:
    """Contrast ratio of WCAG 2.1, 1 to 21."""
    c = np.stack(colours) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_on_every_ground():
    css = (importlib.resources.files("raycomp.report") / "style.css").read_text("utf-8")
    light, dark = (
        {
            name: np.array([int(value[i : i + 2], 16) for i in (1, 3, 5)], float)
            if value.startswith("#")
            else np.array([float(one) for one in value.split(",")])
            for name, value in re.findall(r"--([\w-]+):\s*(#\w{6}|\d+, *\d+, *\d+);", part)
        }
        for part in re.findall(r":root \{(.*?)\}", css, re.S)
    )
    texts = {"ink": ("page", "surface"), "quiet": ("page", "surface", "line"), "kept": ("page", "surface")}
    texts |= {"dropped-ink": ("surface",), "alert": ("alert-page",)}
    for colours in (light, light | dark):
        for text, grounds in texts.items():
            assert all(contrast(colours[text], colours[ground]) >= 4.5 for ground in grounds), text
        for shade in ("positive", "negative"):
            full = 0.52 * colours[shade] + 0.48 * colours["surface"]
            assert contrast(colours["ink"], full) >= 4.5, shade
        for bar in ("kept", "object", "relation", "predicate", "dropped"):
            assert contrast(colours[bar], colours["page"]) >= 2.5, bar


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


def test_what_is_not_known_is_left_out_and_series_stand_next_to_one_another():
    points = [(0.5, Estimate(NAN, NAN, NAN)), (1.0, Estimate(0.8, NAN, NAN))]
    assert len(read_dots(response("t", "x", "y", [("a", points), ("b", [])]))) == 1
    one = [(0.5, Estimate(0.6, 0.5, 0.7))]
    drawn = response("t", "x", "y", [("first", one), ("second", one)])
    (a, _), (b, _) = read_dots(drawn)
    assert b - a == pytest.approx(5) and "first" in drawn and "second" in drawn
