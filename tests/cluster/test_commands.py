"""The command on S3."""

import hashlib
from pathlib import Path

import pytest

import raycomp
from raycomp.cli import main
from raycomp.config import CurateConfig
from raycomp.shards.folder import Folder

pytestmark = pytest.mark.ray


def command(config: CurateConfig, out: str, *more: str) -> list[str]:
    sets = [f"input={config.input}", f"scorer.model={config.scorer.model}", "scorer.weights=random:0", *more]
    return ["curate", *(f"--set={text}" for text in sets), "--out", out]


def digests(folder: Folder) -> dict[str, str]:
    names = [(part, name) for part in ("scores", "subset", "shards") for name in folder.list_names(part)]
    return {"/".join(name): hashlib.sha256(folder.read_bytes(*name)).hexdigest() for name in names}


def test_s3_in_and_out_gives_the_bytes_of_the_disk(curated, bucket):
    config, expected, _ = curated
    remote = Folder(f"{bucket}/curated")
    for path in Path(config.input).glob("*.tar"):
        Folder(f"{bucket}/world").write_bytes(path.read_bytes(), path.name)
    on_s3 = raycomp.override(config, "input", f"{bucket}/world")
    more = (f"attribute.pool={config.attribute.pool}", "materialize=true")
    assert main(command(on_s3, remote.uri, *more)) == 0
    assert digests(remote) == digests(Folder(str(expected)))
    assert remote.exists("report.html") and not remote.exists("work")
    for name in ("run.json", "report.html"):
        assert b"testing-secret" not in remote.read_bytes(name)
