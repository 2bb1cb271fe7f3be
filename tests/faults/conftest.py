"""What the undisturbed run wrote, once for all tests of faults."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import raycomp
from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder
from tests.conftest import without_ray
from tests.corpus import write_world_shards
from tests.faults.harness import NUM_SHARDS, PER_SHARD, digests, mount


@pytest.fixture(scope="session")
def calm(tiny_scorer, tmp_path_factory) -> tuple[CurateConfig, dict[str, str]]:
    """The config of a curation that nothing disturbed, and the digests of its results."""
    folder = tmp_path_factory.mktemp("calm")
    world = write_world_shards(folder / "in", NUM_SHARDS * PER_SHARD, PER_SHARD)
    config = CurateConfig(input=world, scorer=tiny_scorer)
    with without_ray():  # the bytes are the same
        raycomp.curate(config, str(folder / "out"))
    expected = digests(Folder(str(folder / "out")))
    assert len(expected) > NUM_SHARDS
    return config, expected


@pytest.fixture
def joined(ray_cluster) -> str:
    """The option by which a run joins the tests' own cluster, where a cluster of its own is not the point."""
    return f"cluster.address={ray_cluster}"


@pytest.fixture
def out(tmp_path) -> Folder:
    """Where a disturbed run writes."""
    return Folder(str(tmp_path / "out"))


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of its own, whose size the test sets."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "size=64m")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
