"""Bars lose no count, ticks are round and inside, and every colour of the page can be read."""

import importlib.resources
import re

import numpy as np
import pytest

from raycomp.report.charts import MOST_BARS, Layer, bars, histogram, nice_step, rebin, scatter, ticks


@pytest.mark.parametrize("spread", [0.00001, 0.003, 0.04, 0.6])
def test_bars_hold_what_numpy_counts_between_their_edges(spread):
    value_N = np.clip(np.random.default_rng(0).normal(0.07, spread, 5000), -0.99, 0.99)
    fine, edges_F = np.histogram(value_N, np.linspace(-1, 1, 10_001))
    counts, edges = rebin(np.stack([fine, 2 * fine]), -1.0, 0.0002)
    assert counts.shape[1] <= MOST_BARS + 1 and counts[0].sum() == 5000
    np.testing.assert_array_equal(counts[1], 2 * counts[0])
    oracle = np.add.reduceat(fine, np.searchsorted(edges_F, edges[:-1] - 1e-9))
    oracle[-1] = fine.sum() - oracle[:-1].sum()
    np.testing.assert_array_equal(counts[0], oracle)
    assert counts[0, 0] > 0 and counts[0, -1] > 0
    width = edges[1] - edges[0]
    np.testing.assert_allclose(edges / width, np.round(edges / width), atol=1e-6)


def test_bars_of_whole_numbers_stand_on_them():
    counts, edges = rebin(np.bincount([3, 3, 5], minlength=201)[None], -0.5, 1.0)
    assert counts.tolist() == [[2, 0, 1]] and edges.tolist() == [2.5, 3.5, 4.5, 5.5]
    empty, _ = rebin(np.zeros((2, 201), int), -0.5, 1.0)
    assert empty.sum() == 0


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-0.03, 0.071), (12, 90_000), (0.2899, 0.2901)])
def test_ticks_are_round_and_inside(low, high):
    values = ticks(low, high, 6)
    assert 2 <= len(values) <= 7
    assert all(low - 1e-9 <= at <= high + 1e-9 for at, _ in values)
    assert all(
        float(text.replace(",", "").replace("\u2212", "-")) == pytest.approx(at) for at, text in values
    )
    step = nice_step(high - low, 6)
    assert float(f"{step:.0e}"[0]) in (1, 2, 5) and step * 6 >= (high - low) * (1 - 1e-9)


def test_histogram_draws_heights_in_proportion():
    drawn = histogram(
        "t", "x", (Layer("k", "kept"), Layer("d", "dropped")), np.array([[4, 2], [0, 6]]), np.arange(3.0)
    )
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="(?:kept|dropped)"', drawn)]
    assert np.array(heights) / heights[0] == pytest.approx([1, 0.5, 1.5], rel=0.01)
    assert "0 to 1: 4 k, 0 d" in drawn and "1 to 2: 2 k, 6 d" in drawn


def test_scatter_draws_every_point_once():
    x = np.array([0.1, 0.2, 0.3])
    drawn = scatter("t", "x", "y", [(Layer("k", "kept"), x, x), (Layer("d", "dropped"), x[:1], x[:1])])
    assert drawn.count("h0") == 4
    assert scatter("t", "x", "y", [(Layer("k", "kept"), x[:0], x[:0])]).count("h0") == 0
    assert scatter("t", "x", "y", [(Layer("k", "kept"), x[:1], x[:1])]).count("h0") == 1


def test_words_are_escaped_in_charts():
    assert "<b>" not in bars("t", [("<b>x</b>", 1.0, "1 kept"), ("y", -1.0, "2")], "z")


def themes() -> dict[str, dict[str, str]]:
    css = (importlib.resources.files("raycomp.report") / "style.css").read_text("utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", css, re.S)
    read = [dict(re.findall(r"--([\w-]+):\s*([^;]+);", part)) for part in (light, dark)]
    return {"light": read[0], "dark": read[0] | read[1]}


def rgb(text: str) -> np.ndarray:
    if text.startswith("#"):
        return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)], float)
    return np.array([float(part) for part in text.split(",")])


def contrast(a: np.ndarray, b: np.ndarray) -> float:
    """Contrast ratio of WCAG 2.1, 1 to 21."""

    def luminance(colour: np.ndarray) -> float:
        c = colour / 255
        return float(
            np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        )

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_every_ground(theme):
    colours = themes()[theme]
    for text, grounds in {
        "ink": ("page", "surface"),
        "quiet": ("page", "surface", "line"),
        "kept": ("page", "surface"),
        "dropped-ink": ("surface",),
        "alert": ("alert-page",),
    }.items():
        for ground in grounds:
            assert contrast(rgb(colours[text]), rgb(colours[ground])) >= 4.5, (text, ground)
    for shade in ("positive", "negative"):
        full = 0.52 * rgb(colours[shade]) + 0.48 * rgb(colours["surface"])
        assert contrast(rgb(colours["ink"]), full) >= 4.5, shade
    for bar in ("kept", "object", "relation", "predicate", "dropped"):
        assert contrast(rgb(colours[bar]), rgb(colours["page"])) >= 2.5, bar
