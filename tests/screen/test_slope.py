"""The cost of faulty pairs: what is drawn, slopes with a known answer, the command on small worlds."""

import csv

import numpy as np
import pytest

from raycomp.cli import main
from raycomp.config import ClusterConfig
from raycomp.screen.config import SlopeConfig
from raycomp.screen.slope import CATEGORIES, SlopeRun, draw_test, draw_training, fit_slope
from raycomp.screen.slope_command import list_gains, list_slopes, slope
from raycomp.words import FAULT_KINDS
from raycomp.worlds.crowds import MISSING_STAMP, WRONG_OBJECT, Crowd, swap_colours
from raycomp.worlds.faults import NO_FAULT
from raycomp.worlds.scenes import Thing

CONFIG = SlopeConfig(
    worlds=2,
    kinds=(WRONG_OBJECT,),
    shares=(0.0, 0.5),
    pairs=32,
    steps=2,
    batch_size=16,
    scenes=20,
    cluster=ClusterConfig(executor="local"),
)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_trainings_of_a_run_differ_in_faulty_pictures_alone(kind):
    drawn = {share: list(draw_training(SlopeRun(3, kind), share, CONFIG)) for share in (0.0, 0.25, 0.33, 0.5)}
    faulty = {
        share: {i for i, p in enumerate(pairs) if p.fault != NO_FAULT} for share, pairs in drawn.items()
    }
    assert {share: len(some) for share, some in faulty.items()} == {0.0: 0, 0.25: 8, 0.33: 10, 0.5: 16}
    assert faulty[0.25] <= faulty[0.33] <= faulty[0.5]
    sound = drawn[0.0]
    for share, pairs in drawn.items():
        assert [p.caption for p in pairs] == [p.caption for p in sound]
        for i, pair in enumerate(pairs):
            assert (pair.shown == sound[i].shown) == (i not in faulty[share])


def test_negatives_of_a_test_scene_differ_from_its_caption():
    for kind in (WRONG_OBJECT, MISSING_STAMP):
        for pair, negatives in draw_test(SlopeRun(1, kind), CONFIG):
            assert tuple(negatives) == CATEGORIES and pair.shown == pair.said
            assert pair.caption not in negatives.values()
            assert sorted(pair.caption.split()) == sorted(negatives["swap_attribute"].split())
            assert ("stamp" in pair.caption) == (kind == MISSING_STAMP)


def test_colours_are_exchanged_where_another_scene_comes_of_it():
    star, donut, moon = (Thing(None, *words.split()) for words in ("red star", "blue donut", "green moon"))
    swapped = swap_colours(Crowd((star, donut, moon), "above"))
    assert [str(t.colour) for t in swapped.things] == ["blue", "red", "green"]
    same_shape, blue_star = Thing(None, "blue", "star"), Thing(None, "blue", "star")
    for crowd in (
        Crowd((star, same_shape), "above"),
        Crowd((star, Thing(None, "red", "donut")), "above"),
        Crowd((star, donut, blue_star), "above"),
    ):
        assert swap_colours(crowd) == crowd


def test_slopes_with_a_known_answer():
    share_D = np.array([0.0, 0.1, 0.2, 0.5])
    assert fit_slope(share_D, 80 - 0.3 * 100 * share_D) == pytest.approx(-0.3)
    rows = [{"share": share, "composition": 80 - max(0.0, share - 0.2) * 100} for share in share_D]
    found = [{"world": 0, "kind": WRONG_OBJECT, "rows": rows}]
    assert list_slopes(found, WRONG_OBJECT, most=0.2) == pytest.approx([0.0])
    assert list_slopes(found, WRONG_OBJECT)[0] < -0.5
    assert list_gains(found, WRONG_OBJECT, 0.5) == pytest.approx([-30.0])
    assert list_slopes(found, MISSING_STAMP) == []


def test_the_command_writes_a_row_for_each_training_and_leaves_a_finished_run(tmp_path):
    out = tmp_path / "out"
    record = slope(CONFIG, str(out))
    assert record["funnel"]["kept"] == 2
    with (out / "slopes.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["world"], row["share"]) for row in rows] == [
        (world, share) for world in ("100", "101") for share in ("0.0", "0.5")
    ]
    for row in rows:
        mean = np.mean([float(row[name]) for name in CATEGORIES])
        assert (
            float(row["composition"]) == pytest.approx(mean, abs=0.002) and 0 <= float(row["recall"]) <= 100
        )
    page = (out / "report.html").read_text()
    assert "Change of accuracy per percentage point of faulty pairs" in page and not (out / "work").exists()
    before = (out / "slopes.csv").stat().st_mtime_ns
    slope(CONFIG, str(out))
    assert (out / "slopes.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--set", "kinds=typo"], "kinds='typo': must be one of wrong_object"),
        (["--set", "shares=0.1,1.5"], "shares=1.5: must be between 0 and 1"),
        (["--set", "shares=0.1"], "at least two different ones"),
        (["--set", "pairs=10"], "pairs=10: must be at least 64, a batch"),
    ],
)
def test_refusals_are_a_line(settings, message, tmp_path, capsys):
    assert main(["slope", *settings, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
