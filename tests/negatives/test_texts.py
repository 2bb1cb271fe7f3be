"""``raycomp.negatives_of``: the negatives that the command writes, without a folder."""

import pytest

import raycomp
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.words import ADD, CAPTION, NEGATIVES, REPLACE, STATUS, SWAP
from tests.negatives.written import read_negatives, write_captions

CAPTIONS = [
    "a black cat sleeps on a red sofa",
    "two dogs run behind a white horse on the beach",
    "a red cube is to the left of a blue ball",
    "  ",
    "\U0001f600 \U0001f680",
    "a man in a blue shirt holds a small umbrella",
]
UIDS = [f"{i:032x}" for i in range(len(CAPTIONS))]


def test_negatives_are_those_of_the_command(tiny_scorer, tmp_path):
    write_captions(tmp_path / "in.parquet", CAPTIONS)
    fields = ("op", "kind", "concepts", "calls", "similarity")
    for i, writing in enumerate(
        (WritingConfig(rank=False, calls=2, seed=5), WritingConfig(add_similarity=0.0, candidates=4))
    ):
        place = {"input": str(tmp_path / "in.parquet"), "max_bad_fraction": 1}
        config = NegativesConfig(negatives=writing, scorer=tiny_scorer, **place)
        raycomp.negatives(config, tmp_path / f"out{i}")
        found = raycomp.negatives_of(CAPTIONS, config=config, uids=UIDS).to_pylist()
        for at, row in enumerate(read_negatives(tmp_path / f"out{i}")):
            own = [one for one in found if one["index"] == at]
            assert {(one[CAPTION], one[STATUS]) for one in own} == {(CAPTIONS[at], row[STATUS])}, writing
            expected = [(one["text"], *(one[name] for name in fields)) for one in row[NEGATIVES]]
            expected = expected or [(None,) * (1 + len(fields))]
            assert [(one["negative"], *(one[name] for name in fields)) for one in own] == expected
            assert all(one["reasons"] is None for one in own) == bool(row[NEGATIVES])
        assert {SWAP, REPLACE, ADD} <= {op for one in found for op in (one["op"] or "").split("+")}


def test_the_model_may_be_named_and_no_caption_is_no_row(tiny_scorer):
    scorer = {"model": tiny_scorer.model, "weights": tiny_scorer.weights}
    named = raycomp.negatives_of(CAPTIONS[:2], **scorer)
    assert named.equals(raycomp.negatives_of(CAPTIONS[:2], config=NegativesConfig(scorer=tiny_scorer)))
    # A caption's own uid is made of its text: the others do not matter.
    alone = raycomp.negatives_of(CAPTIONS[1:2], **scorer)
    several = [row for row in named.to_pylist() if row["index"] == 1]
    assert [row | {"index": 1} for row in alone.to_pylist()] == several
    empty = raycomp.negatives_of([], **scorer)
    assert len(empty) == 0 and empty.schema == named.schema
    config = NegativesConfig(negatives=WritingConfig(rank=False))
    found = raycomp.negatives_of([None, "half \ud800", "a dog"], config=config).to_pylist()
    assert [row[STATUS] for row in found[:3]] == ["no_caption", "bad_encoding", "ok"]
    assert found[0]["negative"] is found[1]["negative"] is None


def test_what_cannot_be_written_is_refused():
    for arguments, said in [
        ({"captions": "a dog"}, "captions: must be a list, is str; put one value in brackets"),
        ({"captions": [1]}, "captions[0]: must be a str or None, is int"),
        ({"captions": ["a"], "uids": []}, "captions and uids: must have equal lengths, have 1 and 0"),
        (
            {"captions": [], "config": NegativesConfig(negatives=WritingConfig(engine="vllm"))},
            "negatives.engine='vllm': must be rules",
        ),
        (
            {"captions": [], "config": NegativesConfig(negatives=WritingConfig(rank=False)), "model": "RN50"},
            "model='RN50': must be none with negatives.rank=false",
        ),
    ]:
        with pytest.raises(ValueError) as error:
            raycomp.negatives_of(**arguments)
        assert said in str(error.value)
