"""``raycomp probe`` as a user runs it: tables printed, rows written, mistakes in one line."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.cli import USER_ERROR, main
from raycomp.config import NegativesConfig, ScorerConfig, to_dict
from raycomp.schema import NEGATIVES_SCHEMA


def write_negatives(folder: Path, scorer: ScorerConfig) -> str:
    """Write what ``raycomp negatives`` leaves of four captions."""
    pairs = {
        "a red cube and a blue ball": "a blue cube and a red ball",
        "a green cone left of a red cube": "a green cone right of a red cube",
        "a small ball and a large cone": "a large ball and a small cone",
        "a yellow cube above a red ball": "a red cube above a yellow ball",
    }
    rows = [
        {
            "uid": f"{i:032x}",
            "caption": caption,
            "negatives": [{"text": text, "op": "SWAP", "kind": "attribute", "calls": 1, "concepts": []}],
            "status": "ok",
        }
        for i, (caption, text) in enumerate(pairs.items())
    ]
    (folder / "negatives").mkdir(parents=True)
    table = pa.Table.from_pylist(rows, schema=NEGATIVES_SCHEMA)
    pq.write_table(table, folder / "negatives" / "00000.parquet")
    config = to_dict(NegativesConfig(input=str(folder / "captions.parquet"), scorer=scorer))
    run = {"kind": "negatives", "status": "finished", "config": config, "versions": {}, "warnings": []}
    run |= {"fingerprint": {"input": "0"}, "funnel": {"read": 4, "corpus": 4, "kept": 4, "dropped": {}}}
    (folder / "run.json").write_text(json.dumps(run))
    return str(folder)


def test_composition_probes_the_scorer_that_ranked(tiny_scorer, tmp_path, capsys):
    source = write_negatives(tmp_path / "negatives", tiny_scorer)
    assert main(["probe", "composition", "--set", f"input={source}", "--out", str(tmp_path / "out")]) == 0
    assert "SWAP" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "composition.json").read_text())["rows"]
    swap = next(row for row in rows["operations"] if row["op"] == "SWAP")
    assert swap["num_uids"] == 4 and swap["distance"] > 0
    # Two of the captions join two objects: their conjuncts in the other order are the paraphrases.
    assert rows["num_paraphrased"] == 2 and not rows["has_images"]


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
    assert main(line) == USER_ERROR
    assert "holds 0 rows, the run wrote 4" in capsys.readouterr().err


def test_overlap_reads_benchmarks_and_draws(shared, tmp_path, capsys):
    line = ["probe", "overlap", "--set", f"input={shared / 'data' / 'benchmarks'}"]
    line += ["--set", "benchmarks=sugarcrepe,valse", "--set", "sample=5", "--out", str(tmp_path)]
    assert main(line) == 0
    assert "swap_att" in capsys.readouterr().out
    rows = json.loads((tmp_path / "overlap.json").read_text())["rows"]
    assert len(rows) == 7 + 11 and all(row["count"] <= 5 for row in rows)
    assert (tmp_path / "overlap.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["overlap", "--set", "input=/nowhere"], "/nowhere"),
        (["overlap", "--set", "benchmarks=sugar"], "sugar"),
        (["composition", "--set", "input=/nowhere"], "/nowhere: holds no finished run"),
        (["theory", "--set", "seeds=0"], "seeds=0: must be between 1 and 100"),
    ],
)
def test_mistakes_are_one_line(line, told, tmp_path, capsys):
    assert main(["probe", *line, "--out", str(tmp_path / "out")]) == USER_ERROR
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
