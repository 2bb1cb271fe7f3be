"""``raycomp negatives`` with ``negatives.screen``: against a plain loop over photos and captions."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.config import ClusterConfig, ModelConfig, ParserConfig, ScorerConfig
from raycomp.language.concepts import parse_concepts
from raycomp.language.overlap import count_context, count_phrase, get_new_phrase, say_phrase
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.negatives.judges import load_reader
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE
from tests.negatives.written import run

SCREENED = {"screen": 3.0, "per_caption": 99, "candidates": 3}


@pytest.fixture(scope="module")
def curated(curated) -> Path:
    return curated[1]


@pytest.fixture(scope="module")
def screened(curated, tmp_path_factory) -> tuple[Path, list[dict]]:
    out = tmp_path_factory.mktemp("screened") / "out"
    return out, run(curated, out, **SCREENED)


def test_ranks_and_rates_of_a_plain_loop(curated, screened, tiny_scorer):
    _, rows = screened
    reader = load_reader(ParserConfig())
    captions = [row["caption"] for row in rows]
    reader.read(captions)
    context = count_context(reader.parsed[text] for text in captions)
    paths = sorted((curated / "scores").iterdir())
    tables = [pq.read_table(path, columns=["uid", "image_embedding"]).to_pylist() for path in paths]
    known = {one["uid"]: np.array(one["image_embedding"], float) for table in tables for one in table}
    photos = np.stack([known[row["uid"]] for row in rows])
    clip, tokenize, seen = Clip(tiny_scorer), load_tokenizer(tiny_scorer), 0

    @cache
    def encode(text: str) -> np.ndarray:
        return clip.text.embed(tokenize([text]).numpy().astype(np.int32))[0].numpy()[0]

    for row in rows[::3]:
        for one in row["negatives"]:
            reader.read([one["text"]])
            phrase = get_new_phrase(one["op"], one["kind"], one["concepts"], reader.parsed[one["text"]])
            if not phrase:
                assert one["phrase_rank"] is one["phrase_rate"] is one["suspect"] is None
                continue
            seen += 1
            text = encode(say_phrase(phrase))
            own = known[row["uid"]] @ text
            better = photos @ text > own + 1e-6
            assert one["phrase_rank"] == pytest.approx(better.mean(), abs=2 / len(photos))
            assert one["phrase_rate"] == pytest.approx(count_phrase(phrase, context) / len(captions))
            assert one["suspect"] == (one["phrase_rank"] < 3.0 * one["phrase_rate"])
    assert seen > 50


def test_flagged_negatives_are_dropped_only_on_request(curated, screened, tmp_path):
    rows = run(curated, tmp_path / "out", **SCREENED, drop_suspects=True)
    lost = 0
    for row, before in zip(rows, screened[1], strict=True):
        kept = {one["text"] for one in before["negatives"] if not one["suspect"]}
        assert {one["text"] for one in row["negatives"]} == kept
        lost += len(before["negatives"]) - len(kept)
    rejected = json.loads((tmp_path / "out" / "run.json").read_text())["rejected"]
    assert lost and sum(n for why, n in rejected.items() if why.endswith("true_of_photo")) == lost


def test_what_an_edit_brings_in():
    parser, lexicon = load_parser(), load_lexicon()
    for op, kind, concepts, text, phrase in [
        (REPLACE, OBJECT, ("dog", "cat"), "A black cat on a bench", ("cat",)),
        (REPLACE, ATTRIBUTE, ("black", "red"), "A red dog on a bench", ("dog", "red")),
        (ADD, ATTRIBUTE, ("wooden", "-black"), "A dog on a wooden bench", ("bench", "wooden")),
        (ADD, RELATION, ("behind", "tree"), "A dog behind a tree", ("tree",)),
        (REPLACE, RELATION, ("on", "under"), "A dog under a bench", ()),
        ("REPLACE+ADD", "object+object", ("dog", "cat", "hat"), "A cat and a hat", ()),
    ]:
        parsed = parse_concepts(text, parser.tokens([text])[0], lexicon, parser.labels)
        assert get_new_phrase(op, kind, concepts, parsed) == phrase


def test_only_a_curation_by_the_scorer_is_screened(curated, tmp_path):
    for options, said in [
        ({"screen": 3.0, "rank": False}, r"negatives.screen=3.0: must be 0 without rank"),
        ({"drop_suspects": True}, r"negatives.drop_suspects=True: must be false"),
        ({"screen": 3.0}, r"negatives.screen=3.0: needs photos that the scorer embedded"),
    ]:
        with pytest.raises(ValueError, match=said):
            run(curated, tmp_path / "out", ScorerConfig(model="RN50", weights="random:1"), **options)


def test_neighbours_are_exported_and_trained_on(curated, tiny_scorer, tmp_path):
    """The three nearest photos of a file, by the stored embeddings; a training puts them in one batch."""
    run(curated, tmp_path / "out", export=("neighbours",), per_caption=1)
    kept = pq.read_table(curated / "subset" / "kept.parquet", columns=["uid"])["uid"].to_pylist()
    neighbours, seen = tmp_path / "out" / "exports" / "neighbours", []
    for path, scores in zip(
        sorted(neighbours.iterdir()), sorted((curated / "scores").iterdir()), strict=True
    ):
        table = pq.read_table(scores, columns=["uid", "image_embedding"]).to_pylist()
        known = {one["uid"]: np.array(one["image_embedding"]) for one in table if one["uid"] in kept}
        for row in pq.read_table(path).to_pylist():
            others = [uid for uid in known if uid != row["uid"]]
            close = sorted((known[row["uid"]] @ known[uid] for uid in others), reverse=True)[:3]
            found = [known[row["uid"]] @ known[uid] for uid in row["neighbours"]]
            np.testing.assert_allclose(found, close, atol=1e-6)
            seen.append(row["uid"])
    assert len(seen) == len(kept)
    config = TrainConfig(
        input=str(curated),
        hard_images=str(neighbours),
        model=ModelConfig(name=tiny_scorer.model, weights=tiny_scorer.weights),
        train=FitConfig(steps=2, batch_size=6),
        cluster=ClusterConfig(executor="local"),
    )
    record = raycomp.train(config, str(tmp_path / "trained"))
    assert record["status"] == "finished" and record["fingerprint"]["hard_images"]
    assert record["joined"] == {"with_negative_images": 0, "with_neighbours": len(kept)}
    assert "Pairs with neighbours" in (tmp_path / "trained/report.html").read_text()
