"""``raycomp probe`` as a user runs it: tables printed, rows written, mistakes in one line."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.cli import USER_ERROR, main
from raycomp.config import ScorerConfig, to_dict
from raycomp.data.files import Folder
from raycomp.data.runs import identify, read_finished
from raycomp.models.architecture import fingerprint_scorer
from raycomp.negatives.config import NegativesConfig
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
    kinds = {"op": "SWAP", "kind": "attribute", "calls": 1, "concepts": []}
    rows = [
        {"uid": f"{i:032x}", "caption": caption, "negatives": [{"text": text, **kinds}], "status": "ok"}
        for i, (caption, text) in enumerate(PAIRS.items())
    ]
    (folder / "negatives").mkdir(parents=True)
    table = pa.Table.from_pylist(rows, schema=NEGATIVES_SCHEMA)
    pq.write_table(table, folder / "negatives" / "00000.parquet")
    config = to_dict(NegativesConfig(input=str(curated or folder / "captions.parquet"), scorer=scorer))
    behind = identify(json.loads((curated / "run.json").read_text())) if curated else "0"
    fingerprint = {"input": behind, "scorer": fingerprint_scorer(scorer)}
    funnel = {"read": 4, "corpus": 4, "kept": 4, "dropped": {}}
    return str(write_run(folder, kind="negatives", config=config, fingerprint=fingerprint, funnel=funnel))


def write_curation(folder: Path, scorer: ScorerConfig, **columns: list[str]) -> Path:
    """Write what the probe reads of a curation of the four captions, and a fifth of the first image."""
    vectors = np.random.default_rng(len(scorer.weights)).standard_normal((5, 32)).astype(np.float32)
    rows = {
        "uid": [f"{i:032x}" for i in range(5)],
        "caption": [*PAIRS, "a cube beside a ball"],
        "image_sha256": ["a", "b", "c", "d", "a"],
        "image_embedding": pa.array(list(vectors), pa.list_(pa.float32(), 32)),
        "shard": ["0.tar"] * 5,
        "status": ["ok"] * 5,
    }
    for name in ("scores/00000", "subset/kept"):
        (folder / name).parent.mkdir(parents=True)
        pq.write_table(pa.table(rows | columns), folder / f"{name}.parquet")
    cut = {"count": 5, "bits": None, "uid": None}
    return write_run(
        folder,
        kind="curate",
        config=to_dict(by_cpi(scorer=scorer)),
        fingerprint={"shards": 1, "scorer": fingerprint_scorer(scorer)},
        scores="scores",
        funnel={"read": 5, "corpus": 5, "kept": 5, "dropped": {}},
        gates={"num_corpus": 5, "align": cut, "attribute": None, "num_scored": None},
    )


def write_selection(folder: Path, curated: Path) -> Path:
    """Write what a selection of all of a curation leaves."""
    run = json.loads((curated / "run.json").read_text())
    pointed = {"scores": identify(run), "shards": run["fingerprint"]["shards"]}
    (folder / "subset").mkdir(parents=True)
    (folder / "subset/kept.parquet").write_bytes((curated / "subset/kept.parquet").read_bytes())
    return write_run(
        folder, **run | {"kind": "select", "fingerprint": pointed, "scores": str(curated / "scores")}
    )


def run_probe(out: Path, *options: str) -> dict:
    """Run ``probe composition``; return the rows that it wrote."""
    line = [part for option in options for part in ("--set", option)]
    assert main(["probe", "composition", *line, "--out", str(out)]) == 0
    return json.loads((out / "composition.json").read_text())["rows"]


def test_another_model_brings_its_own_images(tiny_scorer, tmp_path, capsys):
    """As before and after training: its images, its text encoder, the same negatives and draws."""
    trained = replace(tiny_scorer, weights="random:10")
    before = write_curation(tmp_path / "before", tiny_scorer)
    after = write_curation(tmp_path / "after", trained)
    source = f"input={write_negatives(tmp_path / 'negatives', tiny_scorer, before)}"
    one = run_probe(tmp_path / "one", source)
    assert one["has_images"] and "ranked by the probed model" in capsys.readouterr().out
    # Two of the captions join two objects: their conjuncts in the other order are the paraphrases.
    assert (one["num_paraphrased"], one["num_with_other"], one["num_uids"]) == (2, 1, 4)
    run_probe(tmp_path / "sampled", source, "sample=3")
    funnel = read_finished(str(tmp_path / "sampled"))["funnel"]
    assert funnel == {"read": 4, "corpus": 4, "kept": 3, "dropped": {"not_drawn": 1}}
    named = [f"scorer.model={trained.model}", f"scorer.weights={trained.weights}"]
    assert not run_probe(tmp_path / "four", source, *named)["has_images"]
    capsys.readouterr()
    two = run_probe(tmp_path / "two", source, f"images={after}")
    assert "ranked by another model" in capsys.readouterr().out
    lines = [next(row for row in each["operations"] if row["op"] == "SWAP") for each in (one, two)]
    assert lines[0]["num_pairs"] == lines[1]["num_pairs"] == 4
    assert all(lines[0][name] != lines[1][name] for name in ("distance", "image_drop"))
    # A selection of the curation has its images, and a curation that was moved is known again.
    (write_selection(tmp_path / "chosen", after)).rename(tmp_path / "moved")
    assert repr(run_probe(tmp_path / "three", source, f"images={tmp_path / 'moved'}", *named)) == repr(two)
    chosen = write_selection(tmp_path / "chosen", before)
    of_chosen = write_negatives(tmp_path / "more", tiny_scorer, chosen)
    assert run_probe(tmp_path / "five", f"input={of_chosen}")["has_images"]
    capsys.readouterr()
    before.rename(tmp_path / "away")
    again = run_probe(tmp_path / "six", source, f"images={tmp_path / 'away'}")
    assert repr(again) == repr(one) and "could not be compared" not in capsys.readouterr().out


def test_images_must_be_those_of_the_negatives_by_the_scorer(tiny_scorer, tmp_path, capsys):
    before = write_curation(tmp_path / "before", tiny_scorer)
    source = write_negatives(tmp_path / "negatives", tiny_scorer, before)
    other = replace(tiny_scorer, weights="random:1")
    cases = [(before, "was not scored by"), (source, "holds negatives, must hold a curation")]
    for i, (columns, message) in enumerate(
        [
            ({"caption": ["a dog", *list(PAIRS)[1:], "a cat"]}, "1 of 4 are missing"),
            ({"uid": [f"{i + 1:032x}" for i in range(5)]}, "4 of 4 are missing"),
            ({"image_sha256": ["a", "b", "x", "d", "a"]}, "1 of 4 differ"),
        ]
    ):
        cases.append((write_curation(tmp_path / f"after{i}", other, **columns), message))
    named = ["--set", f"scorer.model={other.model}", "--set", f"scorer.weights={other.weights}"]
    for images, message in cases:
        line = ["probe", "composition", "--set", f"input={source}", "--set", f"images={images}", *named]
        assert main([*line, "--out", str(tmp_path / "out")]) == USER_ERROR
        said = capsys.readouterr().err
        assert f"images='{images}'" in said and message in said and said.count("\n") == 1


def test_pictures_that_cannot_be_compared_are_counted(tiny_scorer, tmp_path, capsys):
    """By the hashes that the curation behind the negatives has, if it is there, and that of the images."""
    trained = replace(tiny_scorer, weights="random:10")
    for i, (ours, theirs, message) in enumerate(
        [
            (["a", None, "c", "d", "a"], ["a", "x", "c", "", "a"], "For 2 of 4 captions"),
            (None, ["x"] * 5, "For 4 of 4 captions"),
        ]
    ):
        hashes = {} if ours is None else {"image_sha256": pa.array(ours, pa.string())}
        before = write_curation(tmp_path / f"before{i}", tiny_scorer, **hashes)
        source = write_negatives(tmp_path / f"negatives{i}", tiny_scorer, before)
        if ours is None:
            before.rename(tmp_path / "moved")
        hashes = {"image_sha256": pa.array(theirs, pa.string())}
        after = write_curation(tmp_path / f"after{i}", trained, **hashes)
        run_probe(tmp_path / f"out{i}", f"input={source}", f"images={after}")
        assert message in capsys.readouterr().out


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
    assert len(table) == len(rows) + 2
    assert float(table[0]["one call, % low"]) <= float(table[0]["one call, %"])
    assert main(["show", str(tmp_path)]) == 0
    assert f"{run['funnel']['kept']}  kept" in capsys.readouterr().out


def test_mistakes_are_one_line(tmp_path, capsys):
    for line, message in [
        (["overlap"], "input: must name a folder"),
        (["overlap", "--set", "input=/nowhere", "--set", "benchmarks=sugar"], "sugar"),
        (["overlap", "--set", "input=/nowhere", "--set", "benchmarks="], "benchmarks: name at least one"),
        (["composition"], "input: must name the folder of a finished run"),
        (["pas", "--set", "input=/nowhere"], "/nowhere: holds no finished run"),
        (["composition", "--set", "benchmarks=sugarcrepe_pp", "--set", "images=a"], "must be none with"),
        (["pas", "--set", "pairs=10"], "pairs=10: not an option of probe pas; remove it"),
    ]:
        assert main(["probe", *line, "--out", str(tmp_path / "out")]) == USER_ERROR
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1, line


def write_run(folder: Path, **fields) -> Path:
    run = {"status": "finished", "versions": {}, "warnings": []} | fields
    (folder / "run.json").write_text(json.dumps(run))
    seal(Folder(str(folder)))
    return folder
