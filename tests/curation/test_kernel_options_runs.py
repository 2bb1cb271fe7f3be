"""Whole curations with the options of a GPU that a CPU has too: near the defaults, another run's identity."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.config import ClusterConfig
from raycomp.curation.config import CurateConfig
from tests.corpus import by_cpi, write_world_shards

LOCAL = ClusterConfig(executor="local", gpu=False)
WIDTHS = (16, 32, 64, 160)


@pytest.fixture(scope="module")
def config(tiny_scorer, tmp_path_factory) -> CurateConfig:
    world = write_world_shards(tmp_path_factory.mktemp("kernel_world"), 40, 20)
    return by_cpi(input=world, scorer=tiny_scorer, cluster=LOCAL)


def read_scores(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted((out / "scores").iterdir()))


def test_a_backend_and_widths_change_scores_by_rounding_alone_and_no_run_resumes_with_others(
    config, tmp_path
):
    own = replace(config, scorer=replace(config.scorer, attention="math", text_widths=WIDTHS))
    runs = [raycomp.curate(one, str(tmp_path / name)) for one, name in ((config, "plain"), (own, "own"))]
    plain, other = (read_scores(tmp_path / name) for name in ("plain", "own"))
    for column in ("alignment", "mean_pas"):
        one, two = (table[column].to_numpy() for table in (plain, other))
        assert (np.isnan(one) == np.isnan(two)).all() and np.nanmax(np.abs(one - two)) < 1e-5
    assert runs[0]["fingerprint"]["scorer"] != runs[1]["fingerprint"]["scorer"]
    with pytest.raises(ValueError, match=r"differs in .*scorer\.text_widths"):
        raycomp.curate(replace(own, scorer=replace(own.scorer, text_widths=(64, 160))), str(tmp_path / "own"))
    raycomp.curate(own, str(tmp_path / "own"))  # a list in run.json is the same tuple


def test_a_graph_without_a_gpu_ends_a_run_with_one_line(config, tmp_path):
    with pytest.raises(ValueError, match=r"^scorer\.graph=true: needs a GPU, .*; set it to false\n"):
        raycomp.curate(replace(config, scorer=replace(config.scorer, graph=True)), str(tmp_path / "out"))
