"""A table that an evaluation wrote passes; one that was changed since is told by what is wrong with it."""

import pyarrow as pa
import pytest

from raycomp.evaluation.compare import check_table
from raycomp.schema import CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA, example_schema

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


def make(*rows: dict) -> pa.Table:
    return pa.Table.from_pylist(list(rows), example_schema(["bigram"]))


@pytest.mark.parametrize("rows", [(), (UNSCORED,), (ROW, UNSCORED)])
def test_what_was_written_passes(rows):
    check_table(make(*rows), "world.parquet")
    for schema in (CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA):
        check_table(pa.Table.from_pylist([PLACED] * len(rows), schema), "flowers.parquet")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"positive_scores": []}, "positive_scores must have a number for each of positives"),
        ({"negative_scores": None}, "negative_scores must have a number for each of negatives"),
        ({"bigram_negatives": [-6.0]}, "bigram_negatives must have a number for each of negatives"),
        ({"negatives": [], "negative_scores": [], "bigram_negatives": []}, "negative_scores must have"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_choices_without_a_score_for_each_caption_are_reported(change, said):
    with pytest.raises(ValueError, match=f"^world.parquet: {said}"):
        check_table(make(ROW, {**ROW, **change}), "world.parquet")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["positive_scores", "negative_scores", "text_scores", "bigram_negatives"])
def test_a_score_that_is_not_finite_is_reported(name, value):
    check_table(make({**ROW, "text_scores": [0.5, 0.5]}, {**UNSCORED, name: [value]}), "world.parquet")
    with pytest.raises(
        ValueError, match=rf"^world\.parquet: {name} must be finite numbers, holds NaN or inf"
    ):
        check_table(make(ROW, {**ROW, name: [0.5, value]}), "world.parquet")


def test_a_margin_that_is_not_finite_is_reported():
    rows = [{**PLACED, "margin": 0.5}, {"status": "no_image", "margin": None}]
    check_table(pa.Table.from_pylist(rows, CLASSIFIED_SCHEMA), "flowers.parquet")
    rows.append({**PLACED, "margin": float("nan")})
    with pytest.raises(ValueError, match=r"^flowers\.parquet: margin must be finite numbers"):
        check_table(pa.Table.from_pylist(rows, CLASSIFIED_SCHEMA), "flowers.parquet")


@pytest.mark.parametrize("schema", [CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA])
def test_a_rank_that_is_null_is_reported(schema):
    table = pa.Table.from_pylist([{**PLACED, "rank": None}], schema)
    with pytest.raises(ValueError, match=r"^a\.parquet: a row with status ok has no rank"):
        check_table(table, "a.parquet")


@pytest.mark.parametrize("name", ["split", "status", "negatives", "negative_scores", "bigram_negatives"])
def test_a_column_that_is_gone_or_of_another_type_is_reported(name):
    table = make(ROW)
    with pytest.raises(ValueError, match=f"has no column {name} of"):
        check_table(table.drop_columns([name]), "world.parquet")
    place = table.column_names.index(name)
    with pytest.raises(ValueError, match=f"has no column {name} of"):
        check_table(table.set_column(place, name, pa.array([1])), "world.parquet")
