"""The engine ``suggest``: against a plain search for the likeliest words of each place."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raycomp
from raycomp.config import ClusterConfig
from raycomp.data.parquet import OTHERS
from raycomp.models.language_model import LanguageModel
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.negatives.write import MOST_PER_PLACE, write_by_rules
from tests.negatives.llm import write_tiny_model

CAPTIONS = (
    "A man in a red hat sits on a wooden bench next to a dog",
    "Two boys play with a blue ball on the beach",
    "A black cat sleeps under the table",
    "Hello",
)


def make_config(model: str, **options: object) -> NegativesConfig:
    writing = WritingConfig(
        **{"engine": "suggest", "candidates": 8, "rank": False, "per_caption": 99} | options
    )
    return NegativesConfig(
        negatives=writing, llm=LlmConfig(model=model), cluster=ClusterConfig(executor="local")
    )


def write_input(folder: Path) -> str:
    rows = {"uid": [f"{i:032x}" for i in range(len(CAPTIONS))], "caption": list(CAPTIONS)}
    pq.write_table(pa.table(rows), folder / "captions.parquet")
    return str(folder / "captions.parquet")


def run(config: NegativesConfig, source: str, out: Path) -> list[dict]:
    raycomp.negatives(replace(config, input=source), str(out))
    return pq.read_table(out / "negatives").to_pylist()


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


def place_of(one: dict) -> tuple:
    return one["op"], one["kind"], one["concepts"][0] if one["op"] == "REPLACE" else None


def test_of_each_place_the_likeliest_words_stay(model, tmp_path):
    config = make_config(model, candidates=24)
    rows = run(config, write_input(tmp_path), tmp_path / "out")
    table = pq.read_table(tmp_path / "captions.parquet")
    none = pa.array([[]] * len(table), pa.list_(pa.string()))
    every = write_by_rules(table.append_column(OTHERS, none), config).to_pylist()
    judge, lost = LanguageModel(model, "llm.model", torch.device("cpu")), 0
    for row, candidates in zip(rows, every, strict=True):
        places: dict[tuple, list] = {}
        for one in candidates["negatives"]:
            gap = -judge.compute_likelihoods([one["text"]])[0]
            places.setdefault(place_of(one), []).append((gap, one["text"]))
        want = {text for found in places.values() for _, text in sorted(found)[:MOST_PER_PLACE]}
        assert {one["text"] for one in row["negatives"]} == want
        assert {one["source"] for one in row["negatives"]} <= {"suggest"}
        lost += len(candidates["negatives"]) - len(want)
    rejected = json.loads((tmp_path / "out" / "run.json").read_text())["rejected"]
    assert lost > 20 and sum(count for why, count in rejected.items() if why.endswith("unlikely")) == lost


def test_additions_keep_their_similarities(model, tmp_path):
    """With a scorer, a judge and a least similarity of ADDs: every kept one is among those without it."""
    source = write_input(tmp_path)
    options = {"rank": True, "context": True, "judge": ("model",), "judge_model": model}
    scorer = raycomp.config.ScorerConfig(model="RN50", weights="random:0")
    plain, near = (
        run(_with(make_config(model, **options, add_similarity=least), scorer), source, tmp_path / str(least))
        for least in (-1.0, 0.9)
    )
    for row, other in zip(plain, near, strict=True):
        kept = {one["text"] for one in other["negatives"]}
        assert kept <= {one["text"] for one in row["negatives"]}
        assert all(one["language_model"] is not None for one in row["negatives"])


def _with(config: NegativesConfig, scorer: object) -> NegativesConfig:
    return replace(config, scorer=scorer)
