"""Caps per cluster of image embeddings, against a plain loop."""

from pathlib import Path

import numpy as np
import pytest

import raycomp
from raycomp import words
from raycomp.curation.config import NearConfig
from raycomp.curation.select.near import cap_clusters
from tests.corpus import by_cpi, mean_drop, write_world_shards
from tests.curation.test_near import NUM, draw_rows, read_marks, write_files


def cap(rows: list[dict], folder: Path, sizes: list[int], config: NearConfig) -> tuple[dict, dict]:
    files = write_files(rows, folder, sizes)
    facts = cap_clusters(files, config)
    return read_marks(files), facts


@pytest.mark.parametrize("prefer", ["best", "first"])
def test_each_cluster_keeps_its_first_rows(prefer, tmp_path, local):
    rows, config = draw_rows(4), NearConfig(clusters=6, cap=9, prefer=prefer)
    found, facts = cap(rows, tmp_path / "a", [50, 0, 30], config)
    by_cluster: dict[int, list[dict]] = {}
    for row in rows:
        takes_part = row[words.ALIGNMENT] is not None and row[words.MARK] is None
        assert (found[row[words.UID]][words.CLUSTER] is not None) == takes_part
        if takes_part:
            by_cluster.setdefault(found[row[words.UID]][words.CLUSTER], []).append(row)
        else:
            assert found[row[words.UID]][words.MARK] == row[words.MARK]
    assert len(by_cluster) == facts["clusters"] == 6
    lost = 0
    for own in by_cluster.values():
        own.sort(key=lambda one: (-one[words.ALIGNMENT] if prefer == "best" else 0, one[words.UID]))
        assert [found[one[words.UID]][words.MARK] for one in own[:9]] == [None] * len(own[:9])
        assert [found[one[words.UID]][words.MARK] for one in own[9:]] == [words.CLUSTER_FULL] * len(own[9:])
        lost += len(own[9:])
    assert facts["dropped"] == lost > 0


def test_clusters_depend_on_the_set_of_rows_alone(tmp_path, local):
    rows, config = draw_rows(6), NearConfig(clusters=5, cap=4)
    plain = cap(rows, tmp_path / "plain", [10], config)
    order = np.random.default_rng(0).permutation(NUM)
    assert cap([rows[i] for i in order], tmp_path / "other", [1, 100, 3], config) == plain


def test_more_clusters_than_rows_and_no_row_at_all(tmp_path, local):
    rows = [row for row in draw_rows(7) if row[words.ALIGNMENT] is not None and row[words.MARK] is None][:3]
    found, facts = cap(rows, tmp_path / "few", [], NearConfig(clusters=100, cap=1))
    assert facts["clusters"] == 3 and len(found) == 3
    found, facts = cap(rows, tmp_path / "all", [], NearConfig(clusters=2))
    assert {row[words.MARK] for row in found.values()} == {None} and facts["dropped"] == 0
    gone = [{**row, words.MARK: "filtered"} for row in rows]
    found, facts = cap(gone, tmp_path / "none", [], NearConfig(clusters=2, cap=1))
    assert facts == {"clusters": 0, "dropped": 0} and {row[words.CLUSTER] for row in found.values()} == {None}


def test_a_cap_is_a_step_of_the_funnel_and_select_repeats_it(tmp_path, tiny_scorer):
    write_world_shards(tmp_path / "in", 40, 16)
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    capped = {"near.clusters": 4, "near.cap": 5}
    run = raycomp.curate(raycomp.override_all(config, capped), tmp_path / "out")
    assert run["funnel"]["dropped"][words.CLUSTER_FULL] == run["clusters"]["dropped"] > 0
    assert run["funnel"]["corpus"] <= 20
    assert "are within the cap of their cluster (the corpus)" in (tmp_path / "out/report.html").read_text()
    raycomp.curate(config, tmp_path / "plain")
    chosen = raycomp.select(tmp_path / "plain", capped, tmp_path / "chosen")
    assert chosen["funnel"] == run["funnel"]
    flagged = raycomp.select(tmp_path / "plain", {**capped, "near.action": "flag"}, tmp_path / "flagged")
    assert words.CLUSTER_FULL not in flagged["funnel"]["dropped"]
