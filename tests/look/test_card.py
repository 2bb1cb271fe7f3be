"""The data card and the Croissant file: what they state is what the run's files hold."""

import hashlib
import io
import json
import re
import shutil
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from raycomp.cli import USER_ERROR, main
from raycomp.look.card import TODO
from raycomp.schema import KEPT_SCHEMA


@pytest.fixture(scope="module")
def source(curation, tmp_path_factory) -> Path:
    """A copy of a curation of 40 scenes with shards; its card lies next to them."""
    folder = tmp_path_factory.mktemp("carded") / "out"
    shutil.copytree(curation, folder)
    assert main(["card", str(folder), "--out", str(folder)]) == 0
    return folder


def test_the_card_names_what_there_is_with_its_counts_and_command(source):
    text, run = (source / "README.md").read_text(), json.loads((source / "run.json").read_text())
    head = yaml.safe_load(re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)[1])
    assert head["size_categories"] == ["n<1K"] and head["language"] == ["en"]
    (one,) = head["configs"]  # Hugging Face reads all configs by the loader of the first
    assert one["config_name"] == "shards" and [*source.glob(one["data_files"][0]["path"])]
    assert 'data_files="subset/kept.parquet"' in text
    kept = pq.read_table(source / "subset/kept.parquet")
    assert f"{len(kept)} image-text pairs of 40" in text
    assert f"| read | {run['funnel']['read']} |" in text and f"| kept | {run['funnel']['kept']} |" in text
    assert run["commands"]["Rerun"] in text and run["fingerprint"]["scorer"] in text
    assert text.count(TODO) >= 5


def test_croissant_has_the_files_and_their_sha256(source):
    said = json.loads((source / "croissant.json").read_text())
    files = [one for one in said["distribution"] if one["@type"] == "cr:FileObject"]
    assert {one["contentUrl"] for one in files} == {
        "subset/kept.parquet",
        *(str(path.relative_to(source)) for path in (source / "shards").glob("*.tar")),
    }
    for one in files:
        assert hashlib.sha256((source / one["contentUrl"]).read_bytes()).hexdigest() == one["sha256"]
    rows = next(one for one in said["recordSet"] if one["@id"] == "rows")
    assert [field["name"] for field in rows["field"]] == KEPT_SCHEMA.names
    defined = {one["@id"] for one in (*said["distribution"], *said["recordSet"])}
    defined |= {field["@id"] for one in said["recordSet"] for field in one["field"]}
    parts = json.dumps({name: said[name] for name in ("distribution", "recordSet")})
    assert {*re.findall(r'"@id": "([^":]+)"', parts)} == defined
    images = next(one for one in said["recordSet"] if one["@id"] == "images")
    pattern = images["field"][0]["source"]["transform"]["regex"]
    uids = {*pq.read_table(source / "subset/kept.parquet")["uid"].to_pylist()}
    for path in (source / "shards").glob("*.tar"):
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
            names = [name for name in tar.getnames() if not name.endswith((".txt", ".json"))]
        assert names and all(re.match(pattern, name)[1].split("-")[0] in uids for name in names)


def test_refusals(source, tmp_path, capsys):
    assert main(["card", str(source), "--out", str(source)]) == USER_ERROR
    assert "has README.md already" in capsys.readouterr().err
    assert main(["card", str(source), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    (source / "subset/kept.parquet").rename(source / "subset/gone.parquet")
    try:
        assert main(["card", str(source), "--out", str(tmp_path / "out")]) == USER_ERROR
    finally:
        (source / "subset/gone.parquet").rename(source / "subset/kept.parquet")
    assert "kept.parquet" in capsys.readouterr().err
