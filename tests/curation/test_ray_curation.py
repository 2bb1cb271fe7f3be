"""An update, scorers of the user's own and an audit on Ray give the bytes of one process."""

from pathlib import Path

import raycomp
from raycomp.config import ClusterConfig
from raycomp.curation.config import read_config
from raycomp.curation.update import update
from raycomp.look.config import AuditConfig
from raycomp.negatives.config import NegativesConfig, WritingConfig
from tests.corpus import by_cpi, scenes, write_world_shards
from tests.curation.test_own_scorers import CODE
from tests.curation.test_update_runs import read, read_record, write_shard


def test_an_update_on_ray_equals_a_local_run_from_scratch(ray_cluster, tmp_path, tiny_scorer):
    samples = scenes(30, seed=5)
    for start, name in enumerate(("a.tar", "c.tar")):
        write_shard(tmp_path / "in", name, samples[start * 12 : start * 12 + 12], start * 12)
    on_ray, local = ClusterConfig(executor="ray", num_cpus=2), ClusterConfig(executor="local", num_cpus=2)
    options = {"input": str(tmp_path / "in"), "scorer": tiny_scorer, "materialize": True}
    raycomp.curate(by_cpi(**options, cluster=on_ray), tmp_path / "run")
    words = NegativesConfig(str(tmp_path / "run"), WritingConfig(rank=False), cluster=on_ray)
    raycomp.negatives(words, tmp_path / "negatives")
    write_shard(tmp_path / "in", "b.tar", samples[24:], 24)
    (tmp_path / "list.txt").write_text(f"{3:032x}")
    assert "kept 14 of 30 rows" in raycomp.update(tmp_path / "run", remove=tmp_path / "list.txt")
    assert "negatives of" in update(str(tmp_path / "negatives"))
    config = read_config(read_record(tmp_path / "run")["config"])
    raycomp.curate(by_cpi(**options, cluster=local, removed=config.removed), tmp_path / "whole")
    assert read(tmp_path / "run") == read(tmp_path / "whole")
    words = NegativesConfig(str(tmp_path / "run"), WritingConfig(rank=False), cluster=local)
    raycomp.negatives(words, tmp_path / "again")
    for path in sorted((tmp_path / "negatives/negatives").glob("*.parquet")):
        assert path.read_bytes() == (tmp_path / "again/negatives" / path.name).read_bytes()


def read_tables(folder: Path) -> dict[str, bytes]:
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
    assert read_tables(tmp_path / "local/scores") == read_tables(tmp_path / "ray/scores") != {}
    assert read_tables(tmp_path / "audit-local/rows") == read_tables(tmp_path / "audit-ray/rows") != {}
