"""The command in a process of its own, on S3."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

import raycomp
from raycomp.config import CurateConfig
from raycomp.shards.folder import Folder
from tests.cluster.corpus import write_world_shards

pytestmark = pytest.mark.ray
NUM, PER_SHARD = 80, 20


def command(config: CurateConfig, out: str, *more: str) -> list[str]:
    sets = [f"input={config.input}", f"scorer.model={config.scorer.model}", "scorer.weights=random:0", *more]
    return [sys.executable, "-m", "raycomp", "curate", *(f"--set={text}" for text in sets), "--out", out]


def digests(folder: Folder) -> dict[str, str]:
    names = [(part, name) for part in ("scores", "subset", "shards") for name in folder.list_names(part)]
    return {"/".join(name): hashlib.sha256(folder.read_bytes(*name)).hexdigest() for name in names}


@pytest.fixture(scope="module")
def local(tiny_scorer, tmp_path_factory, ray_cluster) -> tuple[CurateConfig, Folder]:
    folder = tmp_path_factory.mktemp("local")
    config = CurateConfig(input=write_world_shards(folder / "in", NUM, PER_SHARD), scorer=tiny_scorer)
    raycomp.curate(config, str(folder / "out"))
    return config, Folder(str(folder / "out"))


def test_s3_in_and_out_gives_the_bytes_of_the_disk(local, bucket):
    config, expected = local
    remote = Folder(f"{bucket}/curated")
    for path in Path(config.input).glob("*.tar"):
        Folder(f"{bucket}/world").write_bytes(path.read_bytes(), path.name)
    on_s3 = raycomp.override(config, "input", f"{bucket}/world")
    done = subprocess.run(command(on_s3, remote.uri, "materialize=true"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert digests(remote) == digests(expected)
    assert remote.exists("report.html") and not remote.exists("work")
    for name in ("run.json", "report.html"):
        assert b"testing-secret" not in remote.read_bytes(name)
