"""The demo's figures: what is said follows the intervals, and every figure stands where it belongs."""

from dataclasses import replace

from lab.demo.figures import Figures, Paired, describe_limits, report_accuracies, report_others
from raycomp.table import Estimate

NAN = float("nan")


def make_figure(name: str, before: float, after: float, half: float = 0.02) -> Paired:
    """Return a figure whose intervals are ``half`` as wide on each side."""
    first, second = (Estimate(value, value - half, value + half, 0.5) for value in (before, after))
    moved = after - before
    return Paired(name, 1000, first, second, Estimate(moved, moved - half, moved + half), 0.5, 0.515)


FIGURES = Figures(
    kinds=[make_figure("swap object", 0.6, 0.7), make_figure("add object", 0.8, 0.79)],
    mean=make_figure("mean of these", 0.7, 0.745),
    others=[make_figure("brittleness", 0.2, 0.1)],
)


def test_what_is_reported_follows_the_intervals():
    reported = describe_limits(FIGURES)["Results"]
    assert reported == (
        "The mean accuracy changed by 0.045 [0.025, 0.065]. Improved: swap object, brittleness. "
        "No significant change: add object."
    )
    assert "shorter caption" not in describe_limits(FIGURES)["Limits"]
    by_length = replace(FIGURES, kinds=[replace(one, shorter=1.0) for one in FIGURES.kinds[:1]])
    assert "shorter caption, without the image, solves swap object." in describe_limits(by_length)["Limits"]
    same = Figures([make_figure("swap object", 0.6, 0.6, NAN)], FIGURES.mean, [])
    assert describe_limits(same)["Results"].endswith("No significant change: swap object."), "no interval"


def test_every_figure_stands_in_its_row():
    kinds, others = report_accuracies(FIGURES), report_others(FIGURES)
    assert [row[0] for row in kinds.rows] == ["swap object", "add object", "mean of these"]
    swap = FIGURES.kinds[0]
    assert kinds.rows[0][1:] == (1000, swap.reference, swap.other, swap.difference, 0.5, 0.515)
    assert all(len(row) == len(table.columns) for table in (kinds, others) for row in table.rows)
