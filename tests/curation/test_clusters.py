"""Caps per cluster of image embeddings, against a plain loop."""

from pathlib import Path

import numpy as np
import pytest

import raycomp
from raycomp.curation.config import NearConfig
from raycomp.curation.select.near import cap_clusters
from raycomp.words import ALIGNMENT, CLUSTER, CLUSTER_FULL, IMAGE_EMBEDDING, MARK, UID
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
        takes_part = row[ALIGNMENT] is not None and row[MARK] is None
        assert (found[row[UID]][CLUSTER] is not None) == takes_part
        if takes_part:
            by_cluster.setdefault(found[row[UID]][CLUSTER], []).append(row)
        else:
            assert found[row[UID]][MARK] == row[MARK]
    assert len(by_cluster) == facts["clusters"] == 6
    lost = 0
    for own in by_cluster.values():
        own.sort(key=lambda one: (-one[ALIGNMENT] if prefer == "best" else 0, one[UID]))
        assert [found[one[UID]][MARK] for one in own[:9]] == [None] * len(own[:9])
        assert [found[one[UID]][MARK] for one in own[9:]] == [CLUSTER_FULL] * len(own[9:])
        lost += len(own[9:])
    assert facts["dropped"] == lost > 0


def test_a_row_is_in_the_cluster_of_its_nearest_mean(tmp_path, local):
    """Three directions far apart: k-means finds them, whatever the noise of each row."""
    rng, rows = np.random.default_rng(0), draw_rows(5)
    kind = {row[UID]: int(rng.integers(3)) for row in rows}
    for row in rows:
        vector = np.eye(8)[kind[row[UID]]] + 0.02 * rng.normal(size=8)
        row[IMAGE_EMBEDDING] = (vector / np.linalg.norm(vector)).tolist()
    found, _ = cap(rows, tmp_path / "a", [], NearConfig(clusters=3))
    pairs = {(kind[uid], row[CLUSTER]) for uid, row in found.items() if row[CLUSTER] is not None}
    assert len(pairs) == 3
    assert all(row[MARK] != CLUSTER_FULL for row in found.values()), "without a cap all stay"


@pytest.mark.parametrize("sizes", [[1, 100, 3], [50] * 3])
def test_clusters_depend_on_the_set_of_rows_alone(sizes, tmp_path, local):
    rows, config = draw_rows(6), NearConfig(clusters=5, cap=4)
    plain = cap(rows, tmp_path / "plain", [10], config)
    order = np.random.default_rng(0).permutation(NUM)
    assert cap([rows[i] for i in order], tmp_path / "other", sizes, config) == plain


def test_more_clusters_than_rows_and_no_row_at_all(tmp_path, local):
    rows = [row for row in draw_rows(7) if row[ALIGNMENT] is not None and row[MARK] is None][:3]
    found, facts = cap(rows, tmp_path / "few", [], NearConfig(clusters=100, cap=1))
    assert facts["clusters"] == 3 and len(found) == 3
    gone = [{**row, MARK: "filtered"} for row in rows]
    found, facts = cap(gone, tmp_path / "none", [], NearConfig(clusters=2, cap=1))
    assert facts == {"clusters": 0, "dropped": 0} and {row[CLUSTER] for row in found.values()} == {None}


def test_a_cap_is_a_step_of_the_funnel_and_select_repeats_it(tmp_path, tiny_scorer):
    write_world_shards(tmp_path / "in", 40, 16)
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer, attribute=mean_drop(pool=1.0))
    capped = {"near.clusters": 4, "near.cap": 5}
    run = raycomp.curate(raycomp.override_all(config, capped), tmp_path / "out")
    assert run["funnel"]["dropped"][CLUSTER_FULL] == run["clusters"]["dropped"] > 0
    assert run["funnel"]["corpus"] <= 20
    assert "are within the cap of their cluster (the corpus)" in (tmp_path / "out/report.html").read_text()
    raycomp.curate(config, tmp_path / "plain")
    chosen = raycomp.select(tmp_path / "plain", capped, tmp_path / "chosen")
    assert chosen["funnel"] == run["funnel"]
    flagged = raycomp.select(tmp_path / "plain", {**capped, "near.action": "flag"}, tmp_path / "flagged")
    assert CLUSTER_FULL not in flagged["funnel"]["dropped"]


def test_options_out_of_range():
    for options, said in [
        ({"cap": 3}, "near.cap=3: must be none without near.clusters"),
        ({"clusters": 0}, "near.clusters=0"),
        ({"clusters": 2, "cap": 0}, "near.cap=0"),
    ]:
        with pytest.raises(ValueError, match=said):
            NearConfig(**options)
