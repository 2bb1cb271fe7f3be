"""One folder of ten photos with captions is the input of every command that takes pairs."""

import json
from pathlib import Path

import pytest

import raycomp
from raycomp.config import override_all
from raycomp.config.shared import ColumnsConfig, ModelConfig
from raycomp.continual.streams.sources import read_stream
from raycomp.evaluation.config import EvaluateConfig, RetrievalConfig
from raycomp.evaluation.retrieval import open_retrieval
from tests.corpus import by_cpi
from tests.evaluation.embedded import embed
from tests.training.pairs import check_all, list_uids, make_config

NUM = 10


@pytest.fixture(scope="module")
def photos(shared: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "photos"
    folder.mkdir()
    root = shared / "data/flickr8k_800"
    rows = [json.loads(line) for line in (root / "captions.jsonl").read_text().splitlines()[:NUM]]
    for row in rows:
        (folder / row["image"]).write_bytes((root / "images" / row["image"]).read_bytes())
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_every_command_reads_one_folder(photos, tmp_path, tiny_scorer, local):
    run = raycomp.curate(by_cpi(input=str(photos), scorer=tiny_scorer), tmp_path / "curated")
    assert run["funnel"]["read"] == NUM
    scored = set(raycomp.open(tmp_path / "curated").table("scores")["uid"].to_pylist())
    _, indices, reasons = check_all(make_config(input=str(photos)))
    assert reasons == {"ok": NUM} and set(list_uids(indices)) == scored
    assert [len(captions) for table in indices for captions in table["captions"].to_pylist()] == [5] * NUM
    config = override_all(
        EvaluateConfig(model=ModelConfig(tiny_scorer.model, tiny_scorer.weights)),
        {"benchmarks": ("retrieval",), "retrieval.input": str(photos)},
    )
    assert raycomp.evaluate(config, tmp_path / "evaluated")["kind"] == "evaluate"
    (tmp_path / "stream.json").write_text(
        json.dumps({"tasks": [{"name": "a", "train": str(photos), "test": str(photos)}]})
    )
    source = read_stream(str(tmp_path / "stream.json"))
    assert [len(half.samples) for half in source.halves] == [5 * NUM, NUM]


def test_rows_of_one_image_are_one_image_of_retrieval(photos, tmp_path, tiny_scorer):
    rows = [json.loads(line) for line in (photos / "captions.jsonl").read_text().splitlines()]
    for row in rows:
        (tmp_path / row["image"]).write_bytes((photos / row["image"]).read_bytes())
    lines = [json.dumps({"photo": row["image"], "said": text}) for row in rows for text in row["captions"]]
    (tmp_path / "rows.ndjson").write_text("\n".join(lines))
    columns = ColumnsConfig(image="photo", caption="said")
    evaluation = open_retrieval(RetrievalConfig(str(tmp_path)), columns=columns)
    pictures, texts = embed(evaluation, tiny_scorer)
    files = open_retrieval(RetrievalConfig(str(photos)))
    table, expected = evaluation.grade(pictures, texts), files.grade(*embed(files, tiny_scorer))
    for name in ("query", "rank", "ties", "num_targets", "status", "direction"):
        own = [text.rpartition("/")[2] for text in table[name].to_pylist()] if name == "query" else None
        assert (own or table[name].to_pylist()) == expected[name].to_pylist()


def test_a_task_of_a_stream_names_its_columns(photos, tmp_path):
    rows = [json.loads(line) for line in (photos / "captions.jsonl").read_text().splitlines()]
    lines = [json.dumps({"photo": row["image"], "said": row["captions"]}) for row in rows]
    (tmp_path / "a.ndjson").write_text("\n".join(lines))
    task = {"name": "a", "train": "a.ndjson", "test": "a.ndjson"}
    columns = {"image": "photo", "caption": "said", "root": str(photos)}
    (tmp_path / "s.json").write_text(json.dumps({"tasks": [{**task, "columns": columns}]}))
    source = read_stream(str(tmp_path / "s.json"))
    assert all(shard.columns == ColumnsConfig(**columns) for shard in source.shards)
    for bad, said in (
        ({"captions": "some"}, "columns.captions"),
        ({"imag": "a"}, "imag"),
        ({"image": 3}, "image"),
    ):
        (tmp_path / "s.json").write_text(json.dumps({"tasks": [{**task, "columns": bad}]}))
        with pytest.raises(ValueError, match=said):
            read_stream(str(tmp_path / "s.json"))
