"""Scorers of the user's own, and an audit, on Ray: the same bytes as in one process."""

from pathlib import Path

import raycomp
from raycomp.config import ClusterConfig
from raycomp.look.config import AuditConfig
from tests.corpus import by_cpi, write_world_shards
from tests.curation.test_own_scorers import CODE


def read(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def test_the_columns_are_the_same_to_the_byte(ray_cluster, tiny_scorer, tmp_path):
    (tmp_path / "own.py").write_text(CODE)
    shards = write_world_shards(tmp_path / "in", 40, 20)
    names = (f"{tmp_path}/own.py:Cosine", f"{tmp_path}/own.py:Look")
    for executor in ("local", "ray"):
        cluster = ClusterConfig(executor=executor)
        config = by_cpi(input=shards, scorer=tiny_scorer, scorers=names, cluster=cluster, materialize=False)
        raycomp.curate(config, tmp_path / executor)
        audit = AuditConfig(input=shards, scorer=tiny_scorer, cluster=cluster)
        raycomp.audit(audit, tmp_path / f"audit-{executor}")
    assert read(tmp_path / "local/scores") == read(tmp_path / "ray/scores") != {}
    assert read(tmp_path / "audit-local/rows") == read(tmp_path / "audit-ray/rows") != {}
