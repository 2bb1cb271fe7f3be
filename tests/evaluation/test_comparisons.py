"""Comparisons of evaluations: runs by name, blind baselines, the page's answer, tables that were changed."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import raycomp
from raycomp.data.parquet import write_table
from raycomp.evaluation.compare import check_table, list_tails
from raycomp.evaluation.results import (
    answer_evaluation,
    compute_margins,
    compute_outcomes,
    make_lines,
    say_margins,
    say_verdict,
)
from raycomp.schema import CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA, example_schema
from tests.drawn import WORLD
from tests.evaluation.embedded import invent
from tests.evaluation.test_choice_evaluation import make_choices, make_evaluation
from tests.report.html_tree import Element, read_html
from tests.sealed import write_run

SPLITS = ("swap_att", "add_obj")


def make_table(share: float, shorter: float = 0.5, shuffled: float = 0.5, num: int = 200) -> pa.Table:
    """Return scores of a model and two baselines that are right on these shares of each split's examples."""
    evaluation = make_evaluation([choice for split in SPLITS for choice in make_choices(num, split)])
    table = evaluation.grade(*invent(evaluation))
    rows = table.to_pylist()
    for i, row in enumerate(rows):
        place = (i % num + 0.5) / num
        row["image"] = f"{i}.jpg"  # each example is a unit of its own
        row["positive_scores"] = [float(place < share)]
        row["negative_scores"] = [0.5]
        for control, right in (("shorter_caption", shorter), ("shuffled_image", shuffled)):
            if f"{control}_positives" in row:
                row[f"{control}_positives"] = [float(1 - place < right)]
                row[f"{control}_negatives"] = [0.5]
    return pa.Table.from_pylist(rows, table.schema)


def write_evaluation(folder: Path, table: pa.Table) -> str:
    """Write the folder of a finished evaluation."""
    write_table(table, str(folder / "scores/world.parquet"), table.schema)
    (folder / "table.csv").write_text("")
    config = {"model": {"name": "ViT-B-32", "weights": "tuned.pt"}, "benchmarks": [WORLD]}
    config["own"] = {"annotations": str(folder)}
    return write_run(folder, "evaluate", len(table), ("scores", "table.csv"), config=config)


def compare(tmp_path: Path, **shares: float) -> tuple[Element, list[dict[str, str]]]:
    runs = [write_evaluation(tmp_path / name, make_table(share)) for name, share in shares.items()]
    raycomp.compare(*runs, out=tmp_path / "out")
    with (tmp_path / "out/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    return read_html((tmp_path / "out/report.html").read_text()), rows


def test_the_first_of_three_runs_is_the_reference(tmp_path, capsys):
    page, rows = compare(tmp_path, base=0.6, better=0.9, same=0.6)
    assert {(row["reference"], row["run"]) for row in rows} == {("base", "better"), ("base", "same")}
    found = {(row["run"], row["split"]): float(row["difference"]) for row in rows}
    assert found["better", "macro"] == pytest.approx(0.3) and found["same", "macro"] == 0
    said = capsys.readouterr().out
    assert "better is better than base on world: accuracy (mean of 2 splits) 0.900 against 0.600" in said
    assert "same and base do not differ significantly" in said
    assert all(f"Baselines of {name}: passes" in said for name in ("base", "better", "same"))
    assert said.index("better is better") < said.index("same and base")
    (title,) = page.all("h1")
    assert "a difference of 0.300 [0.2" in title.text and "first" not in title.text
    assert "Higher in 2 of 2 splits: swap att, add obj." in page.text
    heads = {head.text for head in page.all("th")}
    assert {"base", "better", "same"} <= heads and not {"first", "second"} & heads


def test_a_model_passes_where_it_is_above_its_blind_baselines():
    for share, shorter, verdict in (
        (0.9, 0.5, "passes"),
        (0.5, 0.5, "not above the shorter caption"),
        (0.4, 0.9, "not above"),
    ):
        outcomes = compute_outcomes(make_table(share, shorter))
        margins = compute_margins("made", outcomes)
        assert say_verdict(margins).startswith(verdict)
        mean = next(one for one in margins if (one.split, one.control) == ("macro", "shorter_caption"))
        assert mean.margin.value == pytest.approx(share - shorter, abs=0.01)
        assert f"{mean.margin.value:z.3f}".replace("-", "\u2212") in say_margins(margins)
        (answer,) = answer_evaluation("tuned", make_lines("made", outcomes), margins)
        assert answer.head.startswith(f"tuned: accuracy {share:.3f} [") and verdict in answer.head
    own = [one for one in outcomes if not one.control]
    assert compute_margins("made", own) == [] and say_verdict([]) == "no blind baseline"
    (answer,) = answer_evaluation("x", make_lines("made", own), [])
    assert "baseline" not in answer.head and answer.details == ["Chance is 0.500."]


def test_names_of_runs_are_the_shortest_that_differ(tmp_path):
    assert list_tails(["/a/clip", "/a/negclip"]) == ["clip", "negclip"]
    assert list_tails(["/a/clip/x", "/a/negclip/x"]) == ["clip/x", "negclip/x"]
    assert list_tails([]) == []
    one, other = (write_evaluation(tmp_path / name / "x", make_table(0.6)) for name in "ab")
    run = raycomp.compare(one, f"my run={other}", out=tmp_path / "out")
    assert run["config"]["names"] == ["x", "my run"]
    assert f"'my run={other}'" in run["commands"]["Rerun"]
    with pytest.raises(ValueError, match="'same' names two runs"):
        raycomp.compare(f"same={one}", f"same={other}", out=tmp_path / "again")
    with pytest.raises(ValueError, match="two evaluations or more, are 1"):
        raycomp.compare(one, out=tmp_path / "again")


def test_margins_are_paired():
    """A baseline that is right where the model is: the margin of equal answers is 0 without an interval."""
    table = make_table(0.7)
    for side in ("positives", "negatives"):
        place = table.column_names.index(f"shorter_caption_{side}")
        table = table.set_column(place, f"shorter_caption_{side}", table[f"{side[:-1]}_scores"])
    margins = compute_margins("made", compute_outcomes(table))
    own = [one for one in margins if one.control == "shorter_caption"]
    assert [one.margin.value for one in own] == [0, 0, 0] and all(np.isnan(one.margin.low) for one in own)
    assert not any(one.is_above for one in own)


ROW = {
    "status": "ok",
    "positives": ["a red cube"],
    "negatives": ["a blue cube", "a red ball"],
    "positive_scores": [0.3],
    "negative_scores": [0.2, 0.1],
    "bigram_positives": [-5.0],
    "bigram_negatives": [-6.0, -7.0],
}
UNSCORED = {"status": "no_image", "positives": ["a red cube"], "negatives": ["a red ball"]}
PLACED = {"status": "ok", "rank": 1, "ties": 0, "num_own": 1, "num_targets": 5, "num_classes": 5}
CHOICES = example_schema(["bigram"])


def check(schema: pa.Schema, *rows: dict, without: str = "") -> None:
    table = pa.Table.from_pylist(list(rows), schema)
    check_table(table.drop_columns([without]) if without else table, "world.parquet")


def refuse(said: str, schema: pa.Schema, *rows: dict, without: str = "") -> None:
    with pytest.raises(ValueError, match=rf"^world\.parquet: {said}"):
        check(schema, *rows, without=without)


def test_what_was_written_passes_and_what_was_changed_is_refused():
    check(CHOICES)
    check(CHOICES, {**ROW, "text_scores": [0.5, 0.5]}, UNSCORED)
    for change, said in (
        ({"positive_scores": []}, "positive_scores must have a number for each of positives"),
        ({"negative_scores": None}, "negative_scores must have a number for each of negatives"),
        ({"bigram_negatives": [-6.0]}, "bigram_negatives must have a number for each of negatives"),
        ({"negatives": [], "negative_scores": [], "bigram_negatives": []}, "negative_scores must have"),
    ):
        refuse(said, CHOICES, ROW, {**ROW, **change})
    for name in ("positive_scores", "text_scores", "bigram_negatives"):
        for value in (float("nan"), -float("inf")):
            check(CHOICES, ROW, {**UNSCORED, name: [value]})
            refuse(f"{name} must be finite numbers, holds NaN", CHOICES, {**ROW, name: [0.5, value]})
    for name in ("split", "status", "negative_scores", "bigram_negatives"):
        refuse(f"has no column {name} of", CHOICES, ROW, without=name)
    check(CLASSIFIED_SCHEMA, {**PLACED, "margin": 0.5}, {"status": "no_image", "margin": None})
    refuse("margin must be finite numbers", CLASSIFIED_SCHEMA, {**PLACED, "margin": float("nan")})
    for schema in (CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA):
        check(schema, PLACED)
        refuse("a row with status ok has no rank", schema, {**PLACED, "rank": None})
