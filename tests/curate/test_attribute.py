"""Phrases with their drops, and mean PAS against a slow loop over the phrases that a picture can show."""

import math

import numpy as np
import pyarrow as pa
import pytest

from raycomp.config import ParserConfig, ScorerConfig
from raycomp.curate.arm import find_arm
from raycomp.curate.attribute import Attribute
from raycomp.curate.config import AttributeConfig, CurateConfig, NonceConfig
from raycomp.curate.measures import read_corpus
from raycomp.curate.parse import parse
from raycomp.curate.rules import PAS
from raycomp.data.arrow import to_fixed_lists
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    HEAD,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    NO_PHRASE,
    NO_SEEN_PHRASE,
    OK,
    PHRASES,
    STATUS,
    UID,
    UNSEEN,
)

CAPTIONS = {
    "a picture of a small red square to the left of a large green donut": OK,
    "a dog chases a cat on a sunny day": OK,
    "a man in a red hat": OK,
    "a view of the background": NO_SEEN_PHRASE,
    "a sunny day": NO_SEEN_PHRASE,
    "it is": NO_PHRASE,
}


@pytest.fixture(scope="module")
def attributed(tiny_scorer: ScorerConfig) -> pa.Table:
    rng = np.random.default_rng(0)
    image_ND = rng.normal(size=(len(CAPTIONS), 32)).astype(np.float32)
    table = pa.table(
        {
            UID: [f"{i:032x}" for i in range(len(CAPTIONS))],
            CAPTION: list(CAPTIONS),
            ALIGNMENT: pa.array(rng.normal(size=len(CAPTIONS)), pa.float32()),
            IMAGE_EMBEDDING: to_fixed_lists(image_ND / np.linalg.norm(image_ND, axis=1, keepdims=True)),
        }
    )
    config = AttributeConfig(nonces=2)
    return Attribute(tiny_scorer)(parse(table, ParserConfig(), NonceConfig(), config, tiny_scorer))


def mean_drop(phrases: list[dict]) -> float:
    drops = [phrase["drop"] for phrase in phrases if phrase["nonces"]]
    return math.fsum(drops) / len(drops) if drops else math.nan


def test_a_caption_of_unseen_targets_alone_has_a_status_of_its_own(attributed):
    assert dict(zip(CAPTIONS, attributed[STATUS].to_pylist(), strict=True)) == CAPTIONS


def test_unseen_targets_have_drops_and_are_out_of_mean_pas(attributed):
    rows = attributed.to_pylist()
    first = rows[0][PHRASES]
    assert [(p["target"], p["target_class"]) for p in first] == [
        ("picture", UNSEEN),
        ("square", HEAD),
        ("donut", HEAD),
    ]
    assert first[2]["text"] == "to the left of a large green donut"
    assert all(len(p["drops"]) == 2 for row in rows for p in row[PHRASES])
    for row in rows:
        want = mean_drop([p for p in row[PHRASES] if p["target_class"] == HEAD])
        assert (row[MEAN_PAS] is None) == math.isnan(want) == (row[STATUS] != OK)
        assert row[MEAN_PAS] is None or row[MEAN_PAS] == np.float32(want) != np.float32(mean_drop(first))


def test_the_dial_takes_unseen_targets_in(attributed):
    config = CurateConfig(attribute=AttributeConfig(unseen=True))
    found = read_corpus(attributed.drop_columns([MEAN_PAS]), find_arm(config)).measures[PAS]
    want = np.array([mean_drop(row[PHRASES]) for row in attributed.to_pylist()], np.float32)
    assert np.array_equal(found, want, equal_nan=True)
    default = read_corpus(attributed.drop_columns([PHRASES]), find_arm(CurateConfig())).measures[PAS]
    differs = ~((found == default) | (np.isnan(found) & np.isnan(default)))
    assert differs.tolist() == [True, True, False, True, True, False]
