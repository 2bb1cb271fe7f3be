"""``raycomp probe pas`` as a user runs it: on what a curation left, however it was moved."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.cli import USER_ERROR, main
from raycomp.config import ParserConfig, ScorerConfig, to_dict
from raycomp.core.alignment import pair_cosine
from raycomp.curation.config import NonceConfig
from raycomp.curation.score.prepare import parse
from raycomp.curation.score.scorers import Attribute
from raycomp.data.files import Folder
from raycomp.data.parquet import to_fixed_lists, write_table
from raycomp.look.show import explain
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.device import name_device
from raycomp.probe import pas
from raycomp.probe.pas import measure_pas
from raycomp.schema import aligned_schema, scores_schema
from tests.corpus import by_cpi, mean_drop, scenes
from tests.sealed import seal

NUM_SCENES = 24


def write_curation(folder: Path, scorer: ScorerConfig) -> str:
    """Write what ``raycomp curate`` leaves of scenes in two shards: scores and run.json."""
    captions = [members["txt"].decode() for members in scenes(NUM_SCENES, seed=5)]
    clip, tokenize = Clip(scorer), load_tokenizer(scorer)
    pixels = np.random.default_rng(0).integers(0, 256, (NUM_SCENES, 32, 32, 3), dtype=np.uint8)
    image_ND = clip.embed_pixels(pixels)
    text_ND, _ = clip.text.embed(tokenize(captions).numpy().astype(np.int32))
    empty = aligned_schema(image_ND.shape[1], "float32").empty_table()
    columns = {name: pa.nulls(NUM_SCENES, empty.schema.field(name).type) for name in empty.column_names}
    columns |= {
        "uid": pa.array([f"{i:032x}" for i in range(NUM_SCENES)]),
        "shard": pa.array(["0.tar", "1.tar"] * (NUM_SCENES // 2)),
        "caption": pa.array(captions),
        "status": pa.array(["ok"] * NUM_SCENES),
        "alignment": pa.array(pair_cosine(image_ND, text_ND).numpy()),
        "image_embedding": to_fixed_lists(image_ND.numpy()),
    }
    config = by_cpi(scorer=scorer, attribute=mean_drop(nonces=2), nonce=NonceConfig(seed=3))
    parsed = parse(pa.table(columns), ParserConfig(), config.nonce, config.attribute, scorer)
    table = Attribute(scorer)(parsed)
    schema = scores_schema(empty.schema)
    (folder / "scores").mkdir(parents=True)
    for i in range(2):
        rows = table.filter(pa.array([j % 2 == i for j in range(NUM_SCENES)])).select(schema.names)
        write_table(rows, str(folder / f"scores/{i:05d}.parquet"), schema)
    gates = {"num_corpus": NUM_SCENES, "align": {"count": 24, "bits": 0, "uid": None}}
    run = {"kind": "curate", "status": "finished", "config": to_dict(config), "versions": {}, "warnings": []}
    gates |= {"attribute": None, "num_scored": None}
    run |= {"funnel": {"read": NUM_SCENES, "corpus": NUM_SCENES, "kept": 0, "dropped": {}}, "gates": gates}
    scored = {"scorer": fingerprint_scorer(scorer), "lexicon": "l", "shards": 2}
    run |= {"fingerprint": scored, "scores": "/elsewhere"}
    (folder / "run.json").write_text(json.dumps(run))
    seal(Folder(str(folder)))
    return str(folder)


def read_phrases(folder: Path) -> dict[tuple[str, int], dict]:
    tables = [pq.read_table(path, columns=["uid", "phrases"]) for path in (folder / "scores").iterdir()]
    rows = pa.concat_tables(tables).to_pylist()
    return {(row["uid"], one["target_start"]): one for row in rows for one in row["phrases"]}


def test_pas_needs_the_scorer_and_the_scores_of_the_curation(tiny_scorer, tmp_path, monkeypatch, capsys):
    """A scorer may be exchanged while it is measured."""
    model = tmp_path / "tiny.json"
    model.write_bytes(Path(tiny_scorer.model).read_bytes())
    source = write_curation(tmp_path / "curated", replace(tiny_scorer, model=str(model)))
    line = ["probe", "pas", "--set", f"input={source}", "--set", "sample=3", "--out", str(tmp_path / "out")]

    def refuse(*options: str) -> str:
        assert main([*line, *options]) == USER_ERROR
        return capsys.readouterr().err

    other = ["--set", f"scorer.model={model}", "--set", "scorer.weights=random:1"]
    assert "must be the scoring model of" in refuse(*other)
    content = model.read_text()
    monkeypatch.setattr(
        pas, "measure_pas", lambda *args: model.write_text(f"{content} ") and measure_pas(*args)
    )
    assert "must be the scoring model of" in refuse()
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert (record["status"], record["device"]) == ("failed", name_device())
    model.write_text(content)
    (tmp_path / "curated/scores/00001.parquet").unlink()
    assert "00001.parquet: is missing" in refuse()
    run = json.loads((tmp_path / "curated/run.json").read_text())
    (tmp_path / "curated/run.json").write_text(json.dumps(run | {"kind": "negatives"}))
    assert "holds negatives, must hold a curation" in refuse()


def test_pas_measures_the_drops_that_curated_and_draws_by_the_seed(tiny_scorer, tmp_path, capsys):
    """In a folder that was moved, as its run.json says: the scorer's own embeddings, the same nonces."""
    line = ["probe", "pas", "--set", f"input={write_curation(tmp_path / 'curated', tiny_scorer)}"]
    assert main([*line, "--out", str(tmp_path / "out")]) == 0
    reported = capsys.readouterr().out
    assert "0.0227" in reported and (tmp_path / "out/pas.txt").read_text() in reported
    page = (tmp_path / "out/report.html").read_text()
    assert "<h1>Random weights (random:0): " in page and page.count("is noise.") == 1
    assert reported.count("  noise\n") == 7 and "Trust PAS" not in reported, "no verdict by random weights"
    rows = json.loads((tmp_path / "out/pas.json").read_text())["rows"]
    phrases = read_phrases(tmp_path / "curated")
    lowest, highest = (sum(one[end] for one in rows["extremes"]) for end in ("lowest", "highest"))
    assert rows["criteria"] == [] and 10 < lowest == highest <= NUM_SCENES
    assert rows["num_targets"] == len(phrases) and rows["num_samples"] == NUM_SCENES
    assert len(phrases) - sum(rows["left_out"].values()) == len(rows["targets"]) > 10
    for row in rows["targets"]:
        stored = phrases[row["uid"], row["target_start"]]
        assert row["nonces"] == stored["nonces"] and len(stored["nonces"]) == 2
        assert row["nonce"] == pytest.approx(np.mean(stored["drops"]), abs=1e-6)
    uid = rows["targets"][0]["uid"]
    reported = explain(str(tmp_path / "out"), uid).splitlines()
    assert len(reported) == 1 + sum(row["uid"] == uid for row in rows["targets"])
    assert ", ".join(rows["targets"][0]["nonces"]) in reported[1]
    assert [line["count"] for line in rows["retest"]] == [1, 2, 4]
    drawn = []
    for seed in (0, 1):
        out = tmp_path / f"out{seed}"
        assert main([*line, "--set", "sample=9", "--set", f"seed={seed}", "--out", str(out)]) == 0
        rows = json.loads((out / "pas.json").read_text())["rows"]
        assert rows["num_samples"] == 9
        drawn.append({row["uid"] for row in rows["targets"]})
    assert drawn[0] != drawn[1]
