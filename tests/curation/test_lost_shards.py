"""Shards that cannot be read count as shards, not as one row each."""

from dataclasses import replace

import pytest

import raycomp
from raycomp.config import TooMuchBadData
from raycomp.look.audit import audit
from raycomp.look.config import AuditConfig
from tests.corpus import by_cpi, write_world_shards


def test_the_limit_on_bad_data_counts_shards(tiny_scorer, tmp_path):
    write_world_shards(tmp_path / "in", 80, 20, seed=1)
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    first, second = sorted((tmp_path / "in").iterdir())[:2]
    first.write_bytes(pointer)
    second.write_bytes(second.read_bytes()[:-15_000])
    config = by_cpi(input=str(tmp_path / "in"), scorer=tiny_scorer)
    with pytest.raises(TooMuchBadData) as error:
        raycomp.curate(config, str(tmp_path / "out"))
    said = str(error.value)
    assert said.startswith("input: 2 of 4 shards cannot be read to their end (1 truncated_shard, 1 unrea")
    assert f"such as {first.name}, {second.name}; more than max_bad_fraction=0.05" in said
    assert said.endswith(f"; {first.name} is a git-lfs pointer, not the file itself; fetch it: git lfs pull")
    run = raycomp.curate(replace(config, max_bad_fraction=0.5), str(tmp_path / "out-2"))
    assert run["funnel"]["dropped"]["unreadable_shard"] == 1
    assert [one for one in run["warnings"] if one.startswith("input: 1 of the shards is unreadable_shard")]
    config = AuditConfig(input=config.input, scorer=tiny_scorer)
    run = audit(config, str(tmp_path / "audit"))
    assert [one for one in run["warnings"] if f"such as {first.name}" in one]
    with pytest.raises(TooMuchBadData, match=r"^input: 2 of 4 shards cannot be read .*max_bad_fraction=0.4"):
        audit(replace(config, max_bad_fraction=0.4), str(tmp_path / "audit-2"))
