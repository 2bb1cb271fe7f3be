"""Little worlds made, a sweep over them, its results next to the published curve; all of it small."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from lab.sweep.config import WorldsConfig
from lab.sweep.curves import compare_curves
from lab.sweep.worlds import make_worlds, name_worlds
from raycomp.data.runs import read_finished
from raycomp.sweep.command import sweep
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import FitConfig

pytestmark = [pytest.mark.ray, pytest.mark.slow]
SIZES = WorldsConfig(count=2, pairs=64, scorer_pairs=64, scorer_steps=2, batch_size=16, scenes=16)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory) -> str:
    """Two worlds."""
    out = str(tmp_path_factory.mktemp("worlds"))
    make_worlds(SIZES, out, [].append)
    return out


def test_worlds_that_are_made_stay_and_more_can_be_made(worlds, tmp_path):
    before = read_finished(f"{worlds}/0/curated")
    heard: list[str] = []
    make_worlds(SIZES, worlds, heard.append)
    assert len(heard) == 2 and read_finished(f"{worlds}/0/curated") == before
    with pytest.raises(ValueError, match="holds worlds of other options; name another folder"):
        make_worlds(replace(SIZES, pairs=65), worlds)
    with pytest.raises(ValueError, match="little worlds need a local folder"):
        make_worlds(SIZES, "s3://bucket/worlds")
    kept = [read_finished(f"{worlds}/{number}/curated")["config"]["input"] for number in range(2)]
    assert kept == [f"{worlds}/{number}/world/curate" for number in range(2)]


def test_a_sweep_over_worlds_is_compared_with_the_published_curve(worlds, tmp_path):
    config = SweepConfig(
        space="select.rule=align_only attribute.keep=grid(1.0,0.5) train.loss=grid(clip,negclip)",
        metric="world.accuracy",
        seeds=1,
        report_seeds=1,
        train=FitConfig(steps=4, batch_size=8),
        **name_worlds(worlds),
    )
    sweep(config, str(tmp_path / "out"), [].append)
    rows = pq.read_table(tmp_path / "out" / "trials.parquet").to_pylist()
    assert {row["status"] for row in rows} == {"finished"} and len(rows) == 5
    table, note = compare_curves(str(tmp_path / "out"))
    mine = [row["metric"] for row in rows if row["attribute.keep"] == 0.5 and row["split"] == "development"]
    assert f"{100 * sum(mine) / 2:.2f}" in table and "58.34" in table and "compare the shapes" in note
    with pytest.raises(ValueError, match=r"must hold a sweep over attribute\.keep"):
        [*compare_curves(f"{worlds}/0/curated")]
