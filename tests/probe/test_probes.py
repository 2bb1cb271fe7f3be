"""``raycomp probe`` as a user runs it: tables printed, rows written, mistakes in one line."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.cli import USER_ERROR, main
from raycomp.config import ScorerConfig, to_dict
from raycomp.data.files import Folder
from raycomp.data.runs import identify, read_finished
from raycomp.evaluation.benchmarks.choice import EQUAL, Choice
from raycomp.language.overlap import NONE, TWO_CALLS
from raycomp.models.architecture import fingerprint_scorer
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.negatives.config import NegativesConfig
from raycomp.probe.config import ProbeConfig
from raycomp.probe.overlap import (
    WIDTH,
    count_calls,
    draw_overlap,
    measure_overlap,
    open_probe,
    report_overlap,
)
from raycomp.schema import NEGATIVES_SCHEMA
from raycomp.table import join_text
from raycomp.words import ATTRIBUTE, OBJECT, REPLACE, SWAP
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


def choice(place, positive, negative, op="", kind="", defects=()):
    return Choice("valse", "made", str(place), "1.jpg", (positive,), (negative,), op, kind, defects)


CHOICES = [
    choice(0, "A red ball on a table.", "A blue ball on a table.", REPLACE, ATTRIBUTE),
    choice(1, "A dog chases a cat.", "A cat chases a dog.", SWAP, OBJECT),
    choice(2, "A red ball on a table.", "A red ball on a table.", SWAP, OBJECT, (EQUAL,)),
    choice(3, "A dog sits on a mat.", "Nothing whatever of this is to be seen anywhere near here."),
    choice(4, "A dog on a mat.", "A small dog on a red mat."),
]


def reworded(place, positive, paraphrase, negative, defects=()):
    return Choice("pp", "made", str(place), "1.jpg", (positive, paraphrase), (negative,), defects=defects)


PARAPHRASED = [
    reworded(0, "A red ball on a table.", "A round ball on a table.", "A blue ball on a table."),
    reworded(1, "A dog on a mat.", "A tired dog on a red mat.", "A cat on a mat."),
    reworded(2, "A dog on a mat.", "Lying there, quite at ease, we see somebody's pet.", "A cat on a mat."),
    reworded(3, "A dog on a mat.", "The dogs on the mat!", "A cat on a mat."),
    reworded(4, "A dog on a mat.", "A cat on a mat.", "A dog on a mat.", (EQUAL,)),
]


def test_the_null_stands_next_to_the_negatives_in_table_and_plot():
    """1 and 2 of 4 paraphrases, 4 of 4 negatives, each with its interval; "-" where there are none."""
    rows = measure_overlap([*PARAPHRASED, *CHOICES], load_parser(), None)
    table = join_text(report_overlap(rows))
    assert "75.0 [30.1, 95.4]" in table and "60%-80%" in table
    assert "2/2 100.0 [34.2, 100.0]" in table, "two of four rows name an operation"
    null = next(line for line in table.splitlines() if line.startswith("pp"))
    cells = [cell.strip() for cell in null.split("  ") if cell]
    assert cells[-3:] == ["4", "25.0 [4.6, 69.9]", "50.0 [15.0, 85.0]"]
    lacking = next(line for line in table.splitlines() if line.startswith("valse"))
    assert lacking.split()[-3:] == ["-", "-", "-"]
    assert "valse: no paraphrases" in table and "pp: no paraphrases" not in table
    picture = ElementTree.fromstring(draw_overlap(rows))
    rects = [rect for rect in picture.iter("{http://www.w3.org/2000/svg}rect") if rect.get("class") == "null"]
    assert [float(rect.get("width")) for rect in rects] == [0, WIDTH / 4, 0, WIDTH / 4, WIDTH / 2]


def test_a_benchmark_in_a_store_is_probed_as_on_a_disk(bucket, tmp_path):
    row = {"bbox_x": 0, "bbox_y": 0, "bbox_w": 9, "bbox_h": 9, "image_path": "1.jpg"}
    row |= {"true_caption": "A dog chases a cat.", "false_caption": "A cat chases a dog."}
    for root in (bucket, str(tmp_path)):
        Folder(root).write_json([row, row], "aro", "visual_genome_relation.json")
    config = ProbeConfig(input=bucket, benchmarks=("aro",))
    there, here = (open_probe("overlap", replace(config, input=root)) for root in (bucket, str(tmp_path)))
    assert there.fingerprint() == here.fingerprint()
    found = there.measure()
    assert join_text(found.blocks) == join_text(here.measure().blocks)
    (row,) = found.rows
    assert (row["count"], row["explained"], row["left_out"]) == (1, {SWAP: 1}, 1)


def test_every_sound_row_and_second_true_caption_is_counted_once():
    """Of these one by a REPLACE, one by two calls, one by nothing, one is the same; a defect is out."""
    (row,) = measure_overlap(CHOICES, load_parser(), None)
    assert (row.count, row.left_out, row.regenerated, count_calls(row.explained)) == (4, 1, None, (2, 3))
    assert row.explained == {REPLACE: 1, SWAP: 1, TWO_CALLS: 1, NONE: 1} and not row.paraphrased
    assert (row.named, row.agreed, row.agreed_kind, sum(row.reasons.values())) == (2, 2, 2, 1)
    (row,) = measure_overlap(PARAPHRASED, load_parser(), None)
    assert row.paraphrased == {REPLACE: 1, TWO_CALLS: 1, NONE: 2} and row.explained == {REPLACE: 4}
    assert count_calls(row.paraphrased) == (1, 2)
    (row,) = measure_overlap(CHOICES[1:2], load_parser(), load_lexicon())
    assert (row.same_edit, row.regenerated) == (1, 1), "the rules write a plain swap again"
