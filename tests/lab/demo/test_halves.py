"""The demo's headline and the study's figure that stands in its chart."""

import csv
from pathlib import Path

import pytest

from lab.demo.figures import Figures
from lab.demo.halves import (
    ALIGNMENT,
    CHOSEN,
    RANDOM,
    STUDY,
    Half,
    head,
    plot_halves,
    report_halves,
    say_all,
    say_others,
)
from tests.lab.demo.test_demo_figures import make_figure

TABLE = Path(__file__).parents[3] / "bench/results/world_study/table.csv"


def make_halves(gain: float) -> list[Half]:
    recall = make_figure("image-to-text recall@1", 0.4, 0.6)
    figures = Figures([], make_figure("mean of these", 0.7, 0.7 + gain), [recall])
    return [Half(RANDOM, 10, 3, None), Half(ALIGNMENT, 10, 1, figures), Half(CHOSEN, 10, 0, figures)]


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (
            0.1,
            "learns more from raycomp's half of the data than from a random half: accuracy 0.800 and 0.700",
        ),
        (
            -0.1,
            "learns less from raycomp's half of the data than from a random half: accuracy 0.600 and 0.700",
        ),
        (0.01, "shows no significant difference between raycomp's half of the data and a random half"),
    ],
)
def test_the_headline_follows_the_interval(gain, words):
    halves = {half.name: half for half in make_halves(gain)}
    assert words in head(halves)
    three = f"0.700 on a random half, {0.7 + gain:.3f} on the best half by alignment, {0.7 + gain:.3f} on"
    assert say_all(halves) == f"accuracy {three} raycomp's half"
    others = say_others(halves, halves[CHOSEN].figures, "cpi: mean drop of nouns, 1 nonce")
    side = {0.1: "higher", -0.1: "lower", 0.01: "not significantly different"}[gain]
    assert f"accuracy is {side} ({0.7 + gain:.3f} instead of 0.700, difference" in others
    assert "0 faulty pairs instead of 1" in others and "cpi: mean drop of nouns, 1 nonce" in others


def test_every_half_has_its_row_and_the_study_its_own():
    halves = make_halves(0.1)
    rows = report_halves(halves).rows
    mean = halves[1].figures.mean
    assert [row[1:3] for row in rows] == [(10, 3), (10, 1), (10, 0)]
    assert [row[3].value for row in rows] == [mean.reference.value, *[mean.other.value] * 2]
    assert rows[0][4] is None and rows[2][4] == mean.difference
    plot = plot_halves(halves)
    assert len(plot.rows) == 5 and plot.rows[-1][1] is STUDY
    assert plot.rows[0][1].value == pytest.approx(10)


def test_the_study_figure_is_that_of_its_table():
    rows = [row for row in csv.DictReader(TABLE.open()) if row["metric"] == "primary"]
    row = next(row for row in rows if row["what"] == "clip-oracle50 minus clip-random50")
    found = [round(float(row[name]), 2) for name in ("value", "low", "high")]
    assert found == [STUDY.value, STUDY.low, STUDY.high]
