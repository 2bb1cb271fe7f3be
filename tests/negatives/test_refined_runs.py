"""Text-only judges, refinement, counts of a corpus, ``suggest``: against the same work in one memory."""

import hashlib
import json
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.refine import MOST_LONGER, assign_bins, balance, draw_one, tilt
from raycomp.core.selection import parse_uids, random_scores
from raycomp.language.overlap import (
    TABLES,
    bigram_likelihood,
    count_context,
    count_ngrams,
    unigram_likelihood,
)
from raycomp.language.prompts import apply_calls
from raycomp.models.language_model import LanguageModel
from raycomp.negatives.captions import NUM_FOLDS, draw_uid
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.negatives.judges import load_context, load_reader
from raycomp.negatives.refine import fit, list_pairs
from raycomp.negatives.write import MOST_PER_PLACE, write_by_rules
from raycomp.words import BIGRAM, LANGUAGE_MODEL, UNIGRAM
from tests.negatives.llm import write_tiny_model
from tests.negatives.written import make_captions, make_table, read_captions, run, write_captions

JUDGED = {"rank": False, "judge": ("ngrams",), "candidates": 8, "coverage": 2.0}
COUNTED = {"context": True, "rank": False, "candidates": 24, "per_caption": 1000}
SUGGESTED = [
    "A man in a red hat sits on a wooden bench next to a dog",
    "A black cat sleeps under the table",
    "Hello",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    return make_captions(tmp_path_factory.mktemp("captions"), per_file=24)


@pytest.fixture(scope="module")
def candidates(source, tmp_path_factory) -> list[dict]:
    """Every candidate of every caption, judged."""
    return run(source, tmp_path_factory.mktemp("all") / "out", **JUDGED, per_caption=1000)


@pytest.fixture(scope="module")
def refined(source, tmp_path_factory) -> list[dict]:
    return run(source, tmp_path_factory.mktemp("refined") / "out", **JUDGED, refine="balance")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


def test_ngrams_of_other_images_judge(source, candidates):
    """Against counts of all captions outside the fold of the caption's image."""
    captions = read_captions(source, 3)
    folds = [row["fold"] for row in captions]
    assert folds[::2] == folds[1::2] and 1 < len({*folds}) <= NUM_FOLDS, "two captions of an image share one"
    for caption, row in list(zip(captions, candidates, strict=True))[::17]:
        counts = count_ngrams(one["caption"] for one in captions if one["fold"] != caption["fold"])
        for one in row["negatives"]:
            for name, judge in ((UNIGRAM, unigram_likelihood), (BIGRAM, bigram_likelihood)):
                want = judge(row["caption"], counts) - judge(one["text"], counts)
                assert one[name] == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_the_same_rows_stay_as_in_one_memory(candidates, refined):
    """Files, hashes and the search for each bin's rows choose what arrays choose."""
    names = ("caption", "negatives")
    table = pa.Table.from_pylist([{name: row[name] for name in names} for row in candidates])
    uids = [row["uid"] for row in candidates]
    keys = [hashlib.blake2b(uid.encode(), digest_size=16).hexdigest() for uid in uids]
    order_N = -random_scores(parse_uids(keys), 0).astype(float)
    wanted: dict[str, set[str]] = {uid: set() for uid in uids}
    for op, pairs in list_pairs(table).items():
        fitted, coverage = fit(pairs, 2.0), JUDGED["coverage"]
        share_T = tilt(fitted.features(pairs), pairs.row_T, pairs.prior_T, coverage, fitted.weight_F)
        uniform_N = np.array([draw_uid(uid, f"draw 0 {op}") for uid in uids])
        place_K = np.flatnonzero(draw_one(share_T, pairs.row_T, uniform_N))
        bin_T = assign_bins(fitted.mean_gap(pairs), pairs.longer_T, fitted.grid, MOST_LONGER)
        _, kind_T = np.unique(pairs.kind_T, return_inverse=True)
        stays_K = balance(kind_T[place_K], bin_T[place_K], order_N[pairs.row_T[place_K]])
        for place in place_K[stays_K]:
            row = pairs.row_T[place]
            wanted[uids[row]].add(candidates[row]["negatives"][pairs.candidate_T[place]]["text"])
    found = {row["uid"]: {one["text"] for one in row["negatives"]} for row in refined}
    assert sum(map(len, found.values())) > 30
    assert found == wanted


def test_each_kind_is_symmetric_and_a_caption_has_one_of_each_operation(refined):
    signs: Counter = Counter()
    for row in refined:
        ops = [one["op"] for one in row["negatives"]]
        assert len(ops) == len(set(ops)) and row["status"] == ("ok" if ops else "no_negative")
        for one in row["negatives"]:
            signs[one["op"], one["kind"], len(row["caption"].split()) - len(one["text"].split())] += 1
    assert "ADD" not in {op for op, *_ in signs}  # an ADD is longer than its caption
    assert all(count == signs[op, kind, -longer] for (op, kind, longer), count in signs.items())


def test_draw_loses_no_caption_and_a_single_image_has_no_ngrams_of_others(source, candidates, tmp_path):
    rows = run(source, tmp_path / "out", **JUDGED, refine="draw")
    for row, full in zip(rows, candidates, strict=True):
        assert {one["op"] for one in row["negatives"]} == {one["op"] for one in full["negatives"]}
    one = make_captions(tmp_path / "captions", num_files=1, per_file=2)
    assert len(run(one, tmp_path / "single", **JUDGED, refine="balance")) == 2


def test_a_language_model_judges(model, tmp_path):
    one = make_captions(tmp_path / "captions", num_files=1, per_file=4)
    rows = run(one, tmp_path / "out", **JUDGED | {"judge": ("model",)}, judge_model=model)
    judge = LanguageModel(model, "judge", torch.device("cpu"))
    assert any(row["negatives"] for row in rows)
    for row in rows:
        for negative in row["negatives"]:
            own, other = judge.compute_likelihoods([row["caption"], negative["text"]])
            assert negative[LANGUAGE_MODEL] == pytest.approx(own - other, abs=1e-4)
            assert negative[UNIGRAM] is None


def test_edits_are_drawn_by_counts_of_all_captions(source, tmp_path):
    rows, reader = run(source, tmp_path / "out", **COUNTED), load_reader(ParserConfig())
    captions = [row["caption"] for row in rows]
    reader.read(captions)
    want = count_context(reader.parsed[text] for text in captions)
    context = load_context(str(tmp_path / "out" / "context.parquet"))
    assert context.tables == want.tables and all(want.tables[name] for name in TABLES)
    for row in rows[::8]:
        parsed = reader.parsed[row["caption"]]
        for op in ("SWAP", "REPLACE", "ADD"):
            chains = apply_calls(parsed, [op], reader.lexicon, 0, row["uid"], 24, context)
            texts = [chain[-1].text for chain in chains]
            found = [one["text"] for one in row["negatives"] if one["op"] == op]
            assert set(found) <= set(texts) and len(found) >= 0.6 * len(texts)
            assert found or op == "SWAP"


def test_an_add_as_long_as_its_caption_is_refined(tmp_path):
    """Of two things one has a colour: a negative gives one to the other in its place."""
    rng, captions = random.Random(0), []
    for _ in range(90):
        first, second = rng.sample(["dog", "cat", "horse", "cow"], 2)
        colour, place = rng.choice(["black", "white", "brown"]), rng.randrange(2)
        said = [f"a {colour} {first}", f"a {second}"] if place else [f"a {first}", f"a {colour} {second}"]
        captions.append(f"There is {said[0]} behind {said[1]}.")
    table = make_table(captions).select(["uid", "caption"])
    images = pa.array(map(str, range(90)))
    pq.write_table(table.append_column("image_sha256", images), tmp_path / "0.parquet")
    options = {"operations": ("ADD",), "judge": ("ngrams",), "refine": "balance", "coverage": 4.0}
    rows = run(tmp_path / "0.parquet", tmp_path / "out", **COUNTED | options)
    added = [(row, one) for row in rows for one in row["negatives"]]
    longer = [len(one["text"].split()) - len(row["caption"].split()) for row, one in added]
    assert len(added) > 3 and sum(longer) == 0 and set(longer) <= {-1, 0, 1}
    assert all(any(word.startswith("-") for word in one["concepts"]) for _, one in added)


def test_of_each_place_the_likeliest_suggestions_stay(model, tmp_path):
    """With a scorer, a judge and a least similarity of ADDs: every kept one is among those without it."""
    source = write_captions(tmp_path / "captions.parquet", SUGGESTED)
    llm = LlmConfig(model=model)
    options = {"engine": "suggest", "candidates": 24, "rank": False, "per_caption": 99}
    rows = run(source, tmp_path / "out", llm=llm, **options)
    config = NegativesConfig(negatives=WritingConfig(**options), llm=llm)
    every = write_by_rules(make_table(SUGGESTED), config).to_pylist()
    judge, lost = LanguageModel(model, "llm.model", torch.device("cpu")), 0
    for row, given in zip(rows, every, strict=True):
        places: dict[tuple, list] = {}
        for one in given["negatives"]:
            place = one["op"], one["kind"], one["concepts"][0] if one["op"] == "REPLACE" else None
            gap = -judge.compute_likelihoods([one["text"]])[0]
            places.setdefault(place, []).append((gap, one["text"]))
        want = {text for found in places.values() for _, text in sorted(found)[:MOST_PER_PLACE]}
        assert {one["text"] for one in row["negatives"]} == want
        assert {one["source"] for one in row["negatives"]} <= {"suggest"}
        lost += len(given["negatives"]) - len(want)
    rejected = json.loads((tmp_path / "out" / "run.json").read_text())["rejected"]
    assert lost > 20 and sum(count for why, count in rejected.items() if why.endswith("unlikely")) == lost


def test_suggestions_are_ranked_and_judged(model, tiny_scorer: ScorerConfig, tmp_path):
    """Every ADD that is near enough is among those without the condition."""
    source = write_captions(tmp_path / "captions.parquet", SUGGESTED)
    options = {"engine": "suggest", "candidates": 8, "context": True, "judge": ("model",)}
    options |= {"judge_model": model, "per_caption": 99}
    plain, near = (
        run(
            source,
            tmp_path / str(least),
            tiny_scorer,
            LlmConfig(model=model),
            add_similarity=least,
            **options,
        )
        for least in (-1.0, 0.9)
    )
    for row, other in zip(plain, near, strict=True):
        assert {one["text"] for one in other["negatives"]} <= {one["text"] for one in row["negatives"]}
        assert all(one["language_model"] is not None for one in row["negatives"])
