"""``raycomp negatives`` with text-only judges and refinement: against the same work in one memory."""

import hashlib
import random
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raycomp
from raycomp.config import ClusterConfig
from raycomp.core.refine import MOST_LONGER, assign_bins, balance, draw_one, tilt
from raycomp.core.selection import parse_uids, random_scores
from raycomp.language.overlap import bigram_likelihood, count_ngrams, unigram_likelihood
from raycomp.models.language_model import LanguageModel
from raycomp.negatives.captions import NUM_FOLDS, CaptionFile, draw_uid, load_captions
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.negatives.refine import fit, list_pairs
from raycomp.words import BIGRAM, LANGUAGE_MODEL, UNIGRAM
from tests.negatives.llm import write_tiny_model

JUDGED = {"rank": False, "judge": ("ngrams",), "candidates": 8, "coverage": 2.0}


def make_captions(folder: Path, num_files: int = 3, per_file: int = 40) -> str:
    """Write files of captions, two for each image, whose words have habits."""
    folder.mkdir(exist_ok=True)
    rng = random.Random(0)
    people, animals = ("man", "woman", "boy", "girl"), ("dog", "cat", "horse", "cow")
    colours, places = ("red", "blue", "green", "white"), ("car", "table", "bench", "tree")
    every = list(product(people, ("next to", "behind", "in front of"), colours, places, animals))
    weights = [1 + 3 * (colour == "red") + 3 * (animal == "dog") for _, _, colour, _, animal in every]
    for file in range(num_files):
        drawn = rng.choices(every, weights, k=per_file)
        captions = [f"A {who} with a {a} stands {where} a {c} {what}." for who, where, c, what, a in drawn]
        names = [hashlib.md5(f"{file} {i}".encode()).hexdigest() for i in range(per_file)]
        images = [f"{file} {i // 2}" for i in range(per_file)]
        table = pa.table({"uid": names, "caption": captions, "image_sha256": images})
        pq.write_table(table, folder / f"{file}.parquet")
    return str(folder)


def run(source: str, out: Path, **options: object) -> list[dict]:
    """Write negatives in this process; return the rows."""
    writing = WritingConfig(**{**JUDGED, **options})
    config = NegativesConfig(input=source, negatives=writing, cluster=ClusterConfig(executor="local"))
    raycomp.negatives(config, str(out))
    return [row for path in sorted((out / "negatives").iterdir()) for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    return make_captions(tmp_path_factory.mktemp("captions"))


@pytest.fixture(scope="module")
def candidates(source, tmp_path_factory) -> list[dict]:
    """Every candidate of every caption, judged."""
    return run(source, tmp_path_factory.mktemp("all") / "out", per_caption=1000)


@pytest.fixture(scope="module")
def refined(source, tmp_path_factory) -> tuple[Path, list[dict]]:
    out = tmp_path_factory.mktemp("refined") / "out"
    return out, run(source, out, refine="balance")


def to_table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist([{name: row[name] for name in ("caption", "negatives")} for row in rows])


def test_ngrams_of_other_images_judge(source, candidates):
    """Against counts of all captions outside the fold of the caption's image."""
    captions = [
        row
        for i in range(3)
        for table in load_captions(CaptionFile(i, f"{source}/{i}.parquet"), 1000)
        for row in table.to_pylist()
    ]
    assert 1 < len({row["fold"] for row in captions}) <= NUM_FOLDS
    for caption, row in list(zip(captions, candidates, strict=True))[::29]:
        counts = count_ngrams(one["caption"] for one in captions if one["fold"] != caption["fold"])
        for one in row["negatives"]:
            for name, judge in ((UNIGRAM, unigram_likelihood), (BIGRAM, bigram_likelihood)):
                want = judge(row["caption"], counts) - judge(one["text"], counts)
                assert one[name] == pytest.approx(want, rel=1e-5, abs=1e-5)


def test_captions_of_one_image_share_a_fold(source):
    rows = [
        row for table in load_captions(CaptionFile(0, f"{source}/0.parquet"), 7) for row in table.to_pylist()
    ]
    assert all(rows[i]["fold"] == rows[i + 1]["fold"] for i in range(0, len(rows), 2))


def test_the_same_rows_stay_as_in_one_memory(candidates, refined):
    """Files, hashes and the search for each bin's rows choose what arrays choose."""
    table = to_table(candidates)
    uids = [row["uid"] for row in candidates]
    keys = [hashlib.blake2b(uid.encode(), digest_size=16).hexdigest() for uid in uids]
    order_N = -random_scores(parse_uids(keys), 0).astype(float)
    wanted: dict[str, set[str]] = {uid: set() for uid in uids}
    for op, pairs in list_pairs(table).items():
        fitted = fit(pairs, 2.0)
        share_T = tilt(
            fitted.features(pairs), pairs.row_T, pairs.prior_T, JUDGED["coverage"], fitted.weight_F
        )
        uniform_N = np.array([draw_uid(uid, f"draw 0 {op}") for uid in uids])
        place_K = np.flatnonzero(draw_one(share_T, pairs.row_T, uniform_N))
        bin_T = assign_bins(fitted.mean_gap(pairs), pairs.longer_T, fitted.grid, MOST_LONGER)
        _, kind_T = np.unique(pairs.kind_T, return_inverse=True)
        stays_K = balance(kind_T[place_K], bin_T[place_K], order_N[pairs.row_T[place_K]])
        for place in place_K[stays_K]:
            row = pairs.row_T[place]
            wanted[uids[row]].add(candidates[row]["negatives"][pairs.candidate_T[place]]["text"])
    found = {row["uid"]: {one["text"] for one in row["negatives"]} for row in refined[1]}
    assert sum(map(len, found.values())) > 30
    assert found == wanted


def test_each_kind_is_symmetric_and_a_caption_has_one_of_each_operation(candidates, refined):
    signs: Counter = Counter()
    given = {row["uid"]: {one["text"] for one in row["negatives"]} for row in candidates}
    for row in refined[1]:
        ops = [one["op"] for one in row["negatives"]]
        assert len(ops) == len(set(ops))
        assert {one["text"] for one in row["negatives"]} <= given[row["uid"]]
        assert row["status"] == ("ok" if ops else "no_negative")
        for one in row["negatives"]:
            signs[one["op"], one["kind"], len(row["caption"].split()) - len(one["text"].split())] += 1
    assert "ADD" not in {op for op, *_ in signs}  # an ADD is longer than its caption
    assert all(count == signs[op, kind, -longer] for (op, kind, longer), count in signs.items())


def test_draw_loses_no_caption(source, candidates, tmp_path):
    rows = run(source, tmp_path / "out", refine="draw")
    for row, full in zip(rows, candidates, strict=True):
        assert {one["op"] for one in row["negatives"]} == {one["op"] for one in full["negatives"]}


def test_a_language_model_judges(source, tmp_path):
    folder = write_tiny_model(tmp_path / "model")
    one = make_captions(tmp_path / "captions", num_files=1, per_file=6)
    rows = run(one, tmp_path / "out", judge=("model",), judge_model=folder)
    model = LanguageModel(folder, "judge", torch.device("cpu"))
    assert any(row["negatives"] for row in rows)
    for row in rows:
        for negative in row["negatives"]:
            own, other = model.compute_likelihoods([row["caption"], negative["text"]])
            assert negative[LANGUAGE_MODEL] == pytest.approx(own - other, abs=1e-4)
            assert negative[UNIGRAM] is None


def test_a_single_image_has_no_ngrams_of_others(tmp_path):
    rows = run(
        make_captions(tmp_path / "captions", num_files=1, per_file=2), tmp_path / "out", refine="balance"
    )
    assert len(rows) == 2
