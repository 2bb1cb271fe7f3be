"""Similarity of candidates to captions, and of ADDs to their inputs, against texts encoded one by one."""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import torch

from raycomp.config import ScorerConfig
from raycomp.data.parquet import COUNTERFACTUALS, FAULTS, add_columns, to_fixed_lists
from raycomp.models.architecture import list_cut
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.ranking import Rank
from raycomp.negatives.write import (
    ADDITIONS,
    CUT,
    Caption,
    Reader,
    choose_negatives,
    drop_unfit,
    propose_by_rules,
    write_by_rules,
)
from raycomp.words import (
    ADD,
    CAPTION,
    IMAGE_EMBEDDING,
    NEGATIVES,
    UID,
)
from tests.negatives.written import make_table

CAPTIONS = [
    "A red car is parked next to a blue truck.",
    "A dog on the left of a cat",
    "",
    "Two women in black coats walk behind a horse",
]
LOW = f"{ADD}: low_similarity"


def make_config(scorer: ScorerConfig, **options: object) -> NegativesConfig:
    return NegativesConfig(negatives=WritingConfig(**{"per_caption": 1000, **options}), scorer=scorer)


def choose(table: pa.Table, config: NegativesConfig) -> list[dict]:
    return choose_negatives(drop_unfit(table, config.negatives), config.negatives).to_pylist()


def test_the_condition_equals_a_slow_loop_over_chains(tiny_scorer):
    calls = 2
    clip, tokenize = Clip(tiny_scorer), load_tokenizer(tiny_scorer)
    reader = Reader(load_parser(), load_lexicon())

    @cache
    def encode(text: str) -> torch.Tensor:
        return clip.text.embed(tokenize([text]).numpy().astype(np.int32))[0][0]

    def is_near(chain: list, caption: str, least: float) -> bool:
        texts = [caption, *(edit.text for edit in chain)]
        return all(
            edit.op != ADD or float(encode(texts[i]) @ encode(texts[i + 1])) >= least
            for i, edit in enumerate(chain)
        )

    free = make_config(tiny_scorer, calls=calls)
    everything = choose(Rank(free)(write_by_rules(make_table(CAPTIONS), free)), free)
    added = [one["similarity"] for row in everything for one in row[NEGATIVES] if one["op"] == ADD]
    least = float(np.median(added)) + 1e-4
    bound = make_config(tiny_scorer, calls=calls, add_similarity=least)
    found = choose(Rank(bound)(write_by_rules(make_table(CAPTIONS), bound)), bound)
    num_rejected = 0
    for caption, row, before in zip(CAPTIONS, found, everything, strict=True):
        reader.read([caption])
        read = Caption(row[UID], caption, [], reader)
        chains = propose_by_rules(read, free.negatives)[0] if caption else []
        near = {
            (chain[-1].text, "+".join(edit.op for edit in chain))
            for chain in chains
            if is_near(chain, caption, least)
        }
        kept = {(negative["text"], negative["op"]) for negative in row[NEGATIVES]}
        assert kept <= near
        for negative in before[NEGATIVES]:
            assert ((negative["text"], negative["op"]) in near) == (negative in row[NEGATIVES])
        num_rejected += row[FAULTS].count(LOW)
    assert num_rejected > 3
    assert any(ADD in one["op"] for row in found for one in row[NEGATIVES])


def test_without_the_condition_nothing_more_is_encoded(tiny_scorer):
    free, bound = (make_config(tiny_scorer, calls=2, add_similarity=least) for least in (None, -1.0))
    plain, more = (write_by_rules(make_table(CAPTIONS), config) for config in (free, bound))
    assert ADDITIONS in more.column_names and ADDITIONS not in plain.column_names
    for few, many in zip(plain[COUNTERFACTUALS].to_pylist(), more[COUNTERFACTUALS].to_pylist(), strict=True):
        assert many[: len(few)] == few
    ranker = Rank(bound)
    rows, same = choose(ranker(plain), free), choose(ranker(more), bound)
    assert [row[NEGATIVES] for row in rows] == [row[NEGATIVES] for row in same]


def test_what_differs_behind_the_context_only_is_no_negative(tiny_scorer):
    long = "The number " + "1234567890" * 8 + " is next to a dog on a red car"
    config = make_config(tiny_scorer)
    written = write_by_rules(make_table([long, "A dog on a red car"]), config)
    whole, other = Rank(config)(written).to_pylist()
    assert len(written[NEGATIVES][0]) > 0 == len(whole[NEGATIVES])
    assert sum(fault.endswith(": same_tokens") for fault in whole[FAULTS]) == len(written[NEGATIVES][0])
    assert whole[FAULTS].count(CUT) == 1 and CUT not in other[FAULTS]
    assert len(other[NEGATIVES]) == len(written[NEGATIVES][1]) > 0
    assert choose(Rank(config)(written), config)[0]["status"] == "no_negative"


def test_texts_that_the_context_cuts_are_those_whose_next_token_is_not_read(tiny_scorer):
    texts = ["1 " * 75, "1 " * 76, "a", "", "\u732b" * 25, "a" * 90]
    assert list_cut(tiny_scorer, texts) == [
        text for text in texts if len(load_tokenizer(tiny_scorer).encode(text)) > 75
    ]


def test_the_drop_at_the_image_equals_a_slow_loop(tiny_scorer, dtype=np.float16):
    """s(I, T) - s(I, T~), where the images come along; they end here and change nothing else."""
    config = make_config(tiny_scorer, calls=2, add_similarity=0.5)
    image_ND = np.random.default_rng(0).standard_normal((len(CAPTIONS), 32)).astype(dtype)
    written = write_by_rules(make_table(CAPTIONS), config)
    ranked = Rank(config)(add_columns(written, {IMAGE_EMBEDDING: to_fixed_lists(image_ND)}))
    assert IMAGE_EMBEDDING not in ranked.column_names
    without = choose(Rank(config)(written), config)
    clip, tokenize = Clip(tiny_scorer), load_tokenizer(tiny_scorer)

    @cache
    def encode(text: str) -> np.ndarray:
        return clip.text.embed(tokenize([text]).numpy().astype(np.int32))[0][0].numpy()

    def cosine(image: np.ndarray, text: str) -> float:
        vector = encode(text)
        return float(np.float32(image) @ vector / np.linalg.norm(np.float32(image)) / np.linalg.norm(vector))

    for image, row, text_only in zip(image_ND, choose(ranked, config), without, strict=True):
        for negative in row[NEGATIVES]:
            want = cosine(image, row[CAPTION]) - cosine(image, negative["text"])
            assert negative["image_drop"] == pytest.approx(want, abs=1e-6)
        assert [{**negative, "image_drop": None} for negative in row[NEGATIVES]] == text_only[NEGATIVES]
