"""Phrases with their drops, and mean PAS against a slow loop over the phrases that a picture can show."""

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycomp import words
from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.attribution import drop_per_displacement
from raycomp.curation.config import PAS, NonceConfig, make_selection
from raycomp.curation.score.prepare import parse
from raycomp.curation.score.scorers import Attribute
from raycomp.curation.select.measures import read_corpus
from raycomp.data.parquet import to_fixed_lists
from tests.corpus import by_cpi, mean_drop

CAPTIONS = {
    "a picture of a small red square to the left of a large green donut": words.OK,
    "a dog chases a cat on a sunny day": words.OK,
    "a man in a red hat": words.OK,
    "a view of the background": words.NO_SEEN_PHRASE,
    "a sunny day": words.NO_SEEN_PHRASE,
    "it is": words.NO_PHRASE,
}


@pytest.fixture(scope="module")
def aligned() -> pa.Table:
    rng = np.random.default_rng(0)
    image_ND = rng.normal(size=(len(CAPTIONS), 32)).astype(np.float32)
    return pa.table(
        {
            words.UID: [f"{i:032x}" for i in range(len(CAPTIONS))],
            words.CAPTION: list(CAPTIONS),
            words.ALIGNMENT: pa.array(rng.normal(size=len(CAPTIONS)), pa.float32()),
            words.IMAGE_EMBEDDING: to_fixed_lists(image_ND / np.linalg.norm(image_ND, axis=1, keepdims=True)),
        }
    )


def attribute(table: pa.Table, scorer: ScorerConfig, **how: Any) -> pa.Table:
    config = mean_drop(**{"nonces": 2, **how})
    return Attribute(scorer)(parse(table, ParserConfig(), NonceConfig(), config, scorer))


@pytest.fixture(scope="module")
def attributed(aligned, tiny_scorer: ScorerConfig) -> pa.Table:
    return attribute(aligned, tiny_scorer)


@pytest.fixture(scope="module")
def with_content(aligned, tiny_scorer: ScorerConfig) -> pa.Table:
    return attribute(aligned, tiny_scorer, targets="content")


def mean_of(phrases: list[dict]) -> float:
    drops = [phrase["drop"] for phrase in phrases if phrase["nonces"]]
    return math.fsum(drops) / len(drops) if drops else math.nan


def test_unseen_targets_have_drops_and_are_out_of_mean_pas(attributed):
    assert dict(zip(CAPTIONS, attributed[words.STATUS].to_pylist(), strict=True)) == CAPTIONS
    rows = attributed.to_pylist()
    first = rows[0][words.PHRASES]
    assert [(p["target"], p["target_class"]) for p in first] == [
        ("picture", words.UNSEEN),
        ("square", words.HEAD),
        ("donut", words.HEAD),
    ]
    assert first[2]["text"] == "to the left of a large green donut"
    assert all(len(p["drops"]) == 2 for row in rows for p in row[words.PHRASES])
    for row in rows:
        want = mean_of([p for p in row[words.PHRASES] if p["target_class"] == words.HEAD])
        assert (row[words.MEAN_PAS] is None) == math.isnan(want) == (row[words.STATUS] != words.OK)
        assert row[words.MEAN_PAS] is None or row[words.MEAN_PAS] == np.float32(want) != np.float32(
            mean_of(first)
        )


def test_content_words_are_measured_next_to_the_phrases_and_change_nothing_else(attributed, with_content):
    same = [name for name in attributed.column_names if name != words.CONTENT_WORDS]
    assert with_content.select(same).equals(attributed.select(same))
    assert all(not row for row in attributed[words.CONTENT_WORDS].to_pylist())
    first, second, third = with_content[words.CONTENT_WORDS].to_pylist()[:3]
    assert [(p["target"], p["kind"]) for p in first] == [
        ("small", "attribute"),
        ("red", "attribute"),
        ("to the left of", "relation"),
        ("large", "attribute"),
        ("green", "attribute"),
    ]
    assert [p["target"] for p in second] == ["chases", "on", "sunny"] and third[-1]["target"] == "red"
    assert all(p["target_class"] == words.CONTENT and len(p["drops"]) == 2 for p in [*first, *second, *third])


def test_every_reading_is_that_of_a_loop_over_its_targets(with_content):
    table = with_content.drop_columns([words.MEAN_PAS])
    for targets, unit, how in itertools.product(words.TARGETS, words.UNITS, ["mean", "min"]):
        config = by_cpi(attribute=mean_drop(targets=targets, unit=unit, aggregate=how))
        found, want = read_corpus(table, make_selection(config)).measures[PAS], []
        for row in table.to_pylist():
            phrases = [*row[words.PHRASES], *(row[words.CONTENT_WORDS] if targets == "content" else [])]
            values = [
                p["drop"] / (math.sqrt(2 * p["displacement"]) if unit == "per_displacement" else 1)
                for p in phrases
                if p["drop"] is not None and (targets != "showable" or p["target_class"] == words.HEAD)
            ]
            want.append({"mean": np.mean, "min": min}[how](values) if values else math.nan)
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_of_one_nonce_a_drop_per_displacement_is_a_cosine_of_the_image_and_what_the_word_changed():
    drawn = np.random.default_rng(1).normal(size=(3, 9, 8))
    image, text, other = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
    drop_P = ((text - other) * image).sum(1)
    found_P = drop_per_displacement(drop_P, 1 - (text * other).sum(1))
    step = (text - other) / np.linalg.norm(text - other, axis=1, keepdims=True)
    np.testing.assert_allclose(found_P, (step * image).sum(1), rtol=1e-6)
    nothing = drop_per_displacement(np.array([0.0, 1e-7, np.nan]), np.array([0.0, 1e-7, 0.5]))
    assert np.isnan(nothing).all(), "nothing was moved, or there is no drop"
