"""``raycomp probe`` as a user runs it: tables printed, rows written, mistakes in one line."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.cli import USER_ERROR, main
from raycomp.config import ScorerConfig, to_dict
from raycomp.data.files import Folder
from raycomp.data.runs import identify, read_finished
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.device import name_device
from raycomp.negatives.config import NegativesConfig
from raycomp.probe import overlap
from raycomp.probe.composition import probe_composition
from raycomp.schema import NEGATIVES_SCHEMA
from tests.corpus import by_cpi
from tests.sealed import seal

PAIRS = {
    "a red cube and a blue ball": "a blue cube and a red ball",
    "a green cone left of a red cube": "a green cone right of a red cube",
    "a small ball and a large cone": "a large ball and a small cone",
    "a yellow cube above a red ball": "a red cube above a yellow ball",
}


def write_negatives(folder: Path, scorer: ScorerConfig, curated: Path | None = None) -> str:
    """Write what ``raycomp negatives`` leaves of four captions: a file's, or those of a curation."""
    rows = [
        {
            "uid": f"{i:032x}",
            "caption": caption,
            "negatives": [{"text": text, "op": "SWAP", "kind": "attribute", "calls": 1, "concepts": []}],
            "status": "ok",
        }
        for i, (caption, text) in enumerate(PAIRS.items())
    ]
    (folder / "negatives").mkdir(parents=True)
    table = pa.Table.from_pylist(rows, schema=NEGATIVES_SCHEMA)
    pq.write_table(table, folder / "negatives" / "00000.parquet")
    config = to_dict(NegativesConfig(input=str(curated or folder / "captions.parquet"), scorer=scorer))
    run = {"kind": "negatives", "status": "finished", "config": config, "versions": {}, "warnings": []}
    behind = identify(json.loads((curated / "run.json").read_text())) if curated else "0"
    run |= {"fingerprint": {"input": behind, "scorer": fingerprint_scorer(scorer)}}
    run |= {"funnel": {"read": 4, "corpus": 4, "kept": 4, "dropped": {}}}
    (folder / "run.json").write_text(json.dumps(run))
    seal(Folder(str(folder)))
    return str(folder)


def write_curation(folder: Path, scorer: ScorerConfig, **columns: list[str]) -> Path:
    """Write what the probe reads of a curation of the four captions, and a fifth of the first image."""
    captions = [*PAIRS, "a cube beside a ball"]
    vectors = np.random.default_rng(len(scorer.weights)).standard_normal((5, 32)).astype(np.float32)
    rows = {
        "uid": [f"{i:032x}" for i in range(5)],
        "caption": captions,
        "image_sha256": ["a", "b", "c", "d", "a"],
        "image_embedding": pa.array(list(vectors), pa.list_(pa.float32(), 32)),
        "shard": ["0.tar"] * 5,
        "status": ["ok"] * 5,
    } | columns
    for name, table in (("scores/00000", pa.table(rows)), ("subset/kept", pa.table(rows))):
        (folder / name).parent.mkdir(parents=True)
        pq.write_table(table, folder / f"{name}.parquet")
    cut = {"count": 5, "bits": None, "uid": None}
    run = {"kind": "curate", "status": "finished", "config": to_dict(by_cpi(scorer=scorer))}
    run |= {
        "fingerprint": {"shards": 1, "scorer": fingerprint_scorer(scorer)},
        "versions": {},
        "warnings": [],
    }
    run |= {"scores": "scores", "funnel": {"read": 5, "corpus": 5, "kept": 5, "dropped": {}}}
    run |= {"gates": {"num_corpus": 5, "align": cut, "attribute": None, "num_scored": None}}
    (folder / "run.json").write_text(json.dumps(run))
    seal(Folder(str(folder)))
    return folder


def write_selection(folder: Path, curated: Path) -> Path:
    """Write what a selection of all of a curation leaves."""
    run = json.loads((curated / "run.json").read_text())
    pointed = {"scores": identify(run), "shards": run["fingerprint"]["shards"]}
    run |= {"kind": "select", "fingerprint": pointed, "scores": str(curated / "scores")}
    (folder / "subset").mkdir(parents=True)
    (folder / "subset/kept.parquet").write_bytes((curated / "subset/kept.parquet").read_bytes())
    (folder / "run.json").write_text(json.dumps(run))
    seal(Folder(str(folder)))
    return folder


def run_probe(out: Path, *options: str) -> dict:
    """Run ``probe composition``; return the rows that it wrote."""
    line = [part for option in options for part in ("--set", option)]
    assert main(["probe", "composition", *line, "--out", str(out)]) == 0
    return json.loads((out / "composition.json").read_text())["rows"]


def test_composition_probes_the_scorer_that_ranked(tiny_scorer, tmp_path, capsys):
    source = write_negatives(tmp_path / "negatives", tiny_scorer)
    assert main(["probe", "composition", "--set", f"input={source}", "--out", str(tmp_path / "out")]) == 0
    assert "SWAP" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "composition.json").read_text())["rows"]
    swap = next(row for row in rows["operations"] if row["op"] == "SWAP")
    assert swap["num_uids"] == 4 and swap["distance"] > 0
    # Two of the captions join two objects: their conjuncts in the other order are the paraphrases.
    assert rows["num_paraphrased"] == 2 and not rows["has_images"]


def test_another_model_brings_its_own_images(tiny_scorer, tmp_path, capsys):
    """As before and after training: its images, its text encoder, the same negatives and draws."""
    trained = replace(tiny_scorer, weights="random:10")
    before = write_curation(tmp_path / "before", tiny_scorer)
    after = write_curation(tmp_path / "after", trained)
    source = f"input={write_negatives(tmp_path / 'negatives', tiny_scorer, before)}"
    one = run_probe(tmp_path / "one", source)
    assert one["has_images"] and "ranked by the probed model" in capsys.readouterr().out
    two = run_probe(tmp_path / "two", source, f"images={after}")
    assert "ranked by another model" in capsys.readouterr().out
    named = [f"scorer.model={trained.model}", f"scorer.weights={trained.weights}"]
    three = run_probe(tmp_path / "three", source, f"images={after}", *named)
    assert repr(three) == repr(two)
    assert not run_probe(tmp_path / "four", source, *named)["has_images"]
    assert repr(run_probe(tmp_path / "five", source, f"images={before}")) == repr(one)
    lines = [next(row for row in each["operations"] if row["op"] == "SWAP") for each in (one, two)]
    assert lines[0]["num_pairs"] == lines[1]["num_pairs"] == 4
    assert lines[0]["distance"] != lines[1]["distance"]
    assert lines[0]["image_drop"] != lines[1]["image_drop"]


def test_a_selection_has_the_images_of_its_curation(tiny_scorer, tmp_path):
    before = write_curation(tmp_path / "before", tiny_scorer)
    after = write_curation(tmp_path / "after", replace(tiny_scorer, weights="random:10"))
    source = write_negatives(tmp_path / "negatives", tiny_scorer, before)
    one = run_probe(tmp_path / "one", f"input={source}", f"images={after}")
    (write_selection(tmp_path / "chosen", after)).rename(tmp_path / "moved")
    two = run_probe(tmp_path / "two", f"input={source}", f"images={tmp_path / 'moved'}")
    assert one["has_images"] and repr(one) == repr(two)
    chosen = write_selection(tmp_path / "chosen", before)
    of_chosen = write_negatives(tmp_path / "more", tiny_scorer, chosen)
    assert run_probe(tmp_path / "three", f"input={of_chosen}")["has_images"]


def test_another_caption_of_the_image_is_no_paraphrase(tiny_scorer, tmp_path):
    curated = write_curation(tmp_path / "curated", tiny_scorer)
    source = write_negatives(tmp_path / "negatives", tiny_scorer, curated)
    rows = run_probe(tmp_path / "out", f"input={source}")
    assert (rows["num_paraphrased"], rows["num_with_other"]) == (2, 1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"caption": ["a dog", *list(PAIRS)[1:], "a cat"]}, "1 of 4 are missing"),
        ({"uid": [f"{i + 1:032x}" for i in range(5)]}, "4 of 4 are missing"),
        ({"image_sha256": ["a", "b", "x", "d", "a"]}, "1 of 4 differ"),
    ],
)
def test_images_must_be_those_of_the_negatives(columns, message, tiny_scorer, tmp_path, capsys):
    before = write_curation(tmp_path / "before", tiny_scorer)
    source = write_negatives(tmp_path / "negatives", tiny_scorer, before)
    after = write_curation(tmp_path / "after", replace(tiny_scorer, weights="random:1"), **columns)
    line = ["probe", "composition", "--set", f"input={source}", "--set", f"images={after}"]
    assert main([*line, "--out", str(tmp_path / "out")]) == USER_ERROR
    said = capsys.readouterr().err
    assert f"images='{after}'" in said and message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (["a", "b", "c", "d", "a"], ["a", "b", "c", "d", "a"], None),
        (["a", None, "c", "d", "a"], ["a", "x", "c", "", "a"], "For 2 of 4 captions"),
        ([None] * 5, ["x"] * 5, "For 4 of 4 captions"),
        (None, ["x"] * 5, "For 4 of 4 captions"),
    ],
)
def test_pictures_that_cannot_be_compared_are_counted(ours, theirs, message, tiny_scorer, tmp_path, capsys):
    """``ours`` none: the curation behind the negatives is gone."""
    hashes = {} if ours is None else {"image_sha256": pa.array(ours, pa.string())}
    before = write_curation(tmp_path / "before", tiny_scorer, **hashes)
    source = write_negatives(tmp_path / "negatives", tiny_scorer, before)
    if ours is None:
        before.rename(tmp_path / "moved")
    trained = replace(tiny_scorer, weights="random:10")
    after = write_curation(tmp_path / "after", trained, image_sha256=pa.array(theirs, pa.string()))
    run_probe(tmp_path / "out", f"input={source}", f"images={after}")
    said = capsys.readouterr().out
    assert message in said if message else "could not be compared" not in said


def test_a_moved_curation_is_known_again_as_images(tiny_scorer, tmp_path, capsys):
    before = write_curation(tmp_path / "before", tiny_scorer)
    source = write_negatives(tmp_path / "negatives", tiny_scorer, before)
    one = run_probe(tmp_path / "one", f"input={source}")
    before.rename(tmp_path / "moved")
    two = run_probe(tmp_path / "two", f"input={source}", f"images={tmp_path / 'moved'}")
    assert two["num_with_other"] == 1 and repr(two) == repr(one)
    assert "could not be compared" not in capsys.readouterr().out


def test_images_must_be_by_the_scorer(tiny_scorer, tmp_path, capsys):
    before = write_curation(tmp_path / "before", tiny_scorer)
    source = write_negatives(tmp_path / "negatives", tiny_scorer, before)
    line = ["probe", "composition", "--set", f"input={source}", "--out", str(tmp_path / "out")]
    named = ["--set", f"scorer.model={tiny_scorer.model}", "--set", "scorer.weights=random:1"]
    for images, message in ((before, "was not scored by"), (source, "holds negatives, must hold a curation")):
        assert main([*line, "--set", f"images={images}", *named]) == USER_ERROR
        assert message in capsys.readouterr().err


def test_sugarcrepe_pp_brings_its_own_paraphrases(shared, tiny_scorer, tmp_path, capsys):
    options = [f"input={shared / 'data' / 'benchmarks'}", "benchmarks=sugarcrepe_pp", "sample=4"]
    options += [f"scorer.model={tiny_scorer.model}", "scorer.weights=random:0", "pairs=10"]
    rows = run_probe(tmp_path / "out", *options)
    assert "0 defective rows were left out" in capsys.readouterr().out
    lines = {row["op"]: row for row in rows["operations"]}
    assert [lines[op]["num_pairs"] for op in ("paraphrase", "SWAP", "REPLACE")] == [20, 8, 12]
    assert rows["num_compared"] == 10 and lines["REPLACE"]["a_distance"] is not None
    assert lines["SWAP"]["a_distance"] is None  # 8 pairs are fewer than the 10 of the others
    assert lines["SWAP"]["relative"] > 0 and 0 <= lines["REPLACE"]["farther"] <= 1
    assert not rows["has_images"]


def test_only_what_the_run_wrote_is_counted(tiny_scorer, tmp_path, capsys):
    source = write_negatives(tmp_path / "negatives", tiny_scorer)
    table = (tmp_path / "negatives/negatives/00000.parquet").read_bytes()
    for name in ("00000 (copy).parquet", ".00000.parquet.0123456789abcdef0123456789abcdef.tmp", ".DS_Store"):
        (tmp_path / "negatives/negatives" / name).write_bytes(table)
    line = ["probe", "composition", "--set", f"input={source}", "--out", str(tmp_path / "out")]
    assert main(line) == 0
    rows = json.loads((tmp_path / "out" / "composition.json").read_text())["rows"]
    assert next(row for row in rows["operations"] if row["op"] == "SWAP")["num_uids"] == 4
    (tmp_path / "negatives/negatives/00000.parquet").unlink()
    capsys.readouterr()
    assert main([*line[:-1], str(tmp_path / "again")]) == USER_ERROR
    assert "00000.parquet: is missing; the run wrote it" in capsys.readouterr().err


def test_overlap_reads_benchmarks_and_draws(shared, tmp_path, capsys):
    line = ["probe", "overlap", "--set", f"input={shared / 'data' / 'benchmarks'}"]
    line += ["--set", "benchmarks=sugarcrepe,valse", "--set", "sample=5", "--out", str(tmp_path)]
    assert main(line) == 0
    assert "swap_att" in capsys.readouterr().out
    rows = json.loads((tmp_path / "overlap.json").read_text())["rows"]
    assert len(rows) == 7 + 11 and all(row["count"] <= 5 for row in rows)
    assert (tmp_path / "overlap.svg").read_text().startswith("<svg")
    run = read_finished(str(tmp_path))
    assert run["kind"] == "probe overlap" and run["funnel"]["kept"] == sum(row["count"] for row in rows)
    assert {"input", "parser", "lexicon"} <= set(run["fingerprint"])
    page = (tmp_path / "report.html").read_text()
    assert page.count("<table>") == 2 and "<svg" in page and "swap_att" in page
    table = list(csv.DictReader((tmp_path / "tables/overlap-1.csv").open()))
    assert len(table) == len(rows) + 2 and float(table[0]["one call, % low"]) <= float(
        table[0]["one call, %"]
    )
    assert main(["show", str(tmp_path)]) == 0
    assert f"{run['funnel']['kept']}  kept" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_reported_before_anything_is_read(tmp_path, monkeypatch, capsys):
    def refuse(name, config):
        raise AssertionError("read first")

    monkeypatch.setattr(overlap, "open_probe", refuse)
    (tmp_path / "file").touch()
    assert main(["probe", "pas", "--out", str(tmp_path / "file" / "out")]) == USER_ERROR
    assert "cannot be written" in capsys.readouterr().err


def test_the_record_names_whole_paths_and_the_scorers_device(tiny_scorer, tmp_path, monkeypatch):
    write_negatives(tmp_path / "negatives", tiny_scorer)
    (tmp_path / "tiny.json").write_bytes(Path(tiny_scorer.model).read_bytes())
    monkeypatch.chdir(tmp_path)
    run_probe(tmp_path / "out", "input=negatives", "scorer.model=tiny.json", "scorer.weights=random:0")
    run = read_finished("out")
    assert run["config"]["input"] == str(tmp_path / "negatives") and run["device"] == name_device()
    assert run["config"]["scorer"]["model"] == str(tmp_path / "tiny.json")


def test_weights_that_were_exchanged_meanwhile_are_seen(tiny_scorer, tmp_path, monkeypatch, capsys):
    model = tmp_path / "tiny.json"
    model.write_bytes(Path(tiny_scorer.model).read_bytes())
    scorer = replace(tiny_scorer, model=str(model))
    source = write_negatives(tmp_path / "negatives", scorer)

    def exchange(*args):
        model.write_text(model.read_text() + " ")
        return probe_composition(*args)

    monkeypatch.setattr(overlap, "probe_composition", exchange)
    line = ["probe", "composition", "--set", f"input={source}", "--out", str(tmp_path / "out")]
    assert main(line) == USER_ERROR
    assert "scorer: changed during the run" in capsys.readouterr().err


def test_every_caption_that_was_read_is_in_the_funnel(tiny_scorer, tmp_path):
    source = write_negatives(tmp_path / "negatives", tiny_scorer)
    run_probe(tmp_path / "out", f"input={source}", "sample=3")
    funnel = read_finished(str(tmp_path / "out"))["funnel"]
    assert funnel == {"read": 4, "corpus": 4, "kept": 3, "dropped": {"not_drawn": 1}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["overlap", "--set", "input=/nowhere"], "/nowhere"),
        (["overlap"], "input: must name a folder"),
        (["overlap", "--set", "input=/nowhere", "--set", "benchmarks=sugar"], "sugar"),
        (["composition"], "input: must name the folder of a finished run"),
        (["pas"], "input: must name the folder of a finished run"),
        (["composition", "--set", "input=/nowhere"], "/nowhere: holds no finished run"),
        (["pas", "--set", "input=/nowhere"], "/nowhere: holds no finished run"),
        (["composition", "--set", "input=/nowhere", "--set", "benchmarks=sugarcrepe_pp"], "/nowhere"),
        (["composition", "--set", "benchmarks=sugarcrepe_pp", "--set", "images=a"], "must be none with"),
        (["composition", "--set", "pairs=9"], "pairs=9: must be at least 10"),
        (["overlap", "--set", "input=/nowhere", "--set", "images=a"], "images=/"),
        (["pas", "--set", "pairs=10"], "pairs=10: not an option of probe pas; remove it"),
    ],
)
def test_mistakes_are_one_line(line, message, tmp_path, capsys):
    assert main(["probe", *line, "--out", str(tmp_path / "out")]) == USER_ERROR
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
