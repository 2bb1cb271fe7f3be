"""The options of vLLM's engines: what they become, and what is refused before anything is started."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from raycomp.config import override_all
from raycomp.language.prompts import MAX_REPLY, SCHEMAS
from raycomp.negatives import vllm as engine
from raycomp.negatives.ask import ASKED_SCHEMA
from raycomp.negatives.config import LlmConfig, NegativesConfig
from raycomp.negatives.vllm import AskEngine, check_engine, engine_settings, plan_pool
from raycomp.run.local import Session
from tests.negatives.llm import write_tiny_tokenizer

ON_CPU = Session(1, {"num_cpus": 2, "label_selector": {"a": "b"}}, 2, 8, 1, 64)
ON_GPU = Session(8, {"num_gpus": 1}, None, 64, 2, 64)


def make(**options: object) -> LlmConfig:
    return override_all(NegativesConfig(), {f"llm.{name}": value for name, value in options.items()}).llm


def test_options_become_the_arguments_of_an_engine():
    config = make(tensor_parallel=2, pipeline_parallel=2, context=4096, memory_share=0.5)
    found = engine_settings(config, ON_GPU)
    assert found["tensor_parallel_size"] == found["pipeline_parallel_size"] == 2
    assert found["max_model_len"] == 4096 and found["gpu_memory_utilization"] == 0.5
    assert found["distributed_executor_backend"] == "mp" and "kv_cache_memory_bytes" not in found
    plain = engine_settings(LlmConfig(), ON_GPU)
    assert "max_model_len" not in plain and "distributed_executor_backend" not in plain
    assert "kv_cache_memory_bytes" in engine_settings(LlmConfig(), ON_CPU)
    assert "kv_cache_memory_bytes" not in engine_settings(make(memory_share=0.2), ON_CPU)


def test_any_argument_is_read_as_vllm_reads_it():
    pytest.importorskip("vllm")
    options = {
        "engine.max_num_seqs": "64",
        "engine.enable_prefix_caching": "false",
        "engine.enforce_eager": True,
        "engine.kv_cache_dtype": "fp8",
        "engine.hf_overrides": '{"rope_theta": 5}',
        "engine.speculative_config.method": "ngram",
        "engine.speculative_config.num_speculative_tokens": 3,
        "engine.revision": "1234567",
    }
    found = engine_settings(make(**options, quantization="fp8"), ON_GPU)
    for name, value in {
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "kv_cache_dtype": "fp8",
        "hf_overrides": {"rope_theta": 5},
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "revision": "1234567",
        "quantization": "fp8",
    }.items():
        assert found[name] == value


def test_what_vllm_would_refuse_is_one_line():
    for options, said in [
        (
            {"engine.max_num_seq": "64"},
            "llm.engine.max_num_seq='64': .*; the closest is max_num_seqs",
        ),
        ({"engine.max_num_seqs": "many"}, "llm.engine.max_num_seqs='many': vLLM refuses it .*invalid int"),
        ({"engine.enforce_eager": "maybe"}, "llm.engine.enforce_eager='maybe': vLLM refuses it"),
        ({"engine.kv_cache_dtype": "fp7"}, "llm.engine.kv_cache_dtype='fp7': vLLM refuses it"),
        ({"engine.max_num_seqs.x": "3"}, "llm.engine.max_num_seqs.x='3': vLLM refuses it"),
        ({"engine.speculative_config": "{"}, "llm.engine.speculative_config='{': vLLM refuses it"),
        ({"engine.max_model_len": "64"}, "llm.engine.max_model_len='64': is set by llm.context"),
        ({"engine.tokenizer": "other"}, "llm.engine.tokenizer='other': is fixed"),
        ({"engine.help": "true"}, "llm.engine.help='true': .*unknown argument"),
        ({"quantization": "fp9"}, "llm.quantization='fp9': must be one of .*the closest is fp8"),
    ]:
        pytest.importorskip("vllm")
        with pytest.raises(ValueError, match=said) as error:
            check_engine(make(**options))
        assert "\n" not in str(error.value)


def test_a_model_without_chats_is_refused_before_anything_is_started(tmp_path):
    pytest.importorskip("vllm")
    tokenizer = write_tiny_tokenizer(tmp_path / "good")
    check_engine(make(model=str(tmp_path / "good")))
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "base")
    with pytest.raises(ValueError, match=r"llm.model=.*chat template does not take the prompts"):
        check_engine(make(model=str(tmp_path / "base")))


def test_without_vllm_the_engine_is_refused(monkeypatch):
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="vllm is not installed"):
        check_engine(LlmConfig())


def make_cluster(monkeypatch, nodes: list[dict], offered: int = 0) -> None:
    """Pretend that Ray has these nodes, and can have so many GPUs."""
    monkeypatch.setattr(engine.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(engine.ray, "cluster_resources", lambda: {"GPU": 16})
    monkeypatch.setattr(engine, "count_offered", lambda resource: offered)


def node(gpus: int, alive: bool = True) -> dict:
    return {"Alive": alive, "Resources": {"GPU": gpus, "CPU": 32}}


def test_an_engine_asks_for_all_its_gpus_and_a_pool_starts_with_those_that_are_there(monkeypatch):
    for options, offered, first, num_gpus in [
        ({}, 0, 1, 1),
        ({"engines": "1..6", "tensor_parallel": 4}, 0, 4, 4),
        ({"engines": "1..16", "tensor_parallel": 2}, 0, 8, 2),
        ({"engines": 2, "tensor_parallel": 4, "pipeline_parallel": 2}, 0, 2, 8),
        ({"engines": "3..4", "tensor_parallel": 8}, 32, 3, 8),
    ]:
        make_cluster(monkeypatch, [node(8), node(8), node(8, alive=False)], offered)
        assert plan_pool(make(**options), ON_GPU) == (first, {"num_gpus": num_gpus}), options


def test_engines_leave_cpus_for_tasks(monkeypatch):
    make_cluster(monkeypatch, [node(8)])
    for cpus, asked in ((9, {"num_gpus": 1}), (8, {"num_gpus": 1, "num_cpus": 0})):
        assert plan_pool(make(), replace(ON_GPU, num_cpus=cpus))[1] == asked
    make_cluster(monkeypatch, [{"Alive": True, "Resources": {"CPU": 4}}] * 2)
    assert plan_pool(make(engines="2..9"), ON_CPU) == (2, {"num_cpus": 1, "label_selector": {"a": "b"}})


def test_more_than_a_cluster_can_have_is_refused(monkeypatch):
    gpus, cpus = [node(8), node(8), node(8, alive=False)], [{"Alive": True, "Resources": {"CPU": 4}}] * 2
    for nodes, session, options, said in [
        (gpus, ON_GPU, {"engines": 3, "tensor_parallel": 8}, "3 of 8 GPUs each: needs 24 GPUs, .* has 16"),
        (gpus, ON_GPU, {"tensor_parallel": 16}, "1 of 16 GPUs each: .*on one node; the largest node has 8"),
        (cpus, ON_CPU, {"engines": "6..9"}, "6..9 of 1 CPUs each: needs 9 CPUs, the cluster has 8"),
        (cpus, ON_CPU, {"tensor_parallel": 5}, "1 of 5 CPUs each: .*on one node; the largest node has 4"),
    ]:
        make_cluster(monkeypatch, nodes)
        with pytest.raises(ValueError, match=f"llm.engines={said}"):
            plan_pool(make(**options), session)


class FakeEngine:
    """Says back what it was asked, or fails as the first token says."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    async def generate(self, tokens: list[int], params: Any, name: str) -> AsyncIterator[Any]:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineGenerateError

        self.asked.append((tokens, params, name))
        await asyncio.sleep(0.01 * (tokens[0] % 2))
        if tokens[0] >= 100:
            raise {100: VLLMValidationError, 101: EngineGenerateError, 102: ValueError}[tokens[0]](
                "too\nlong"
            )
        yield SimpleNamespace(outputs=[SimpleNamespace(text=f"{tokens} " * 1000)])


def ask_block(rows: list[tuple[str, str, list[int]]]) -> tuple[list[dict], FakeEngine]:
    actor, fake = object.__new__(AskEngine), FakeEngine()
    actor.config, actor.engine, actor.numbers = LlmConfig(seed=5), fake, count()
    keys, forms, tokens = zip(*rows, strict=True)
    table = pa.table(
        {
            "key": keys,
            "form": forms,
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
            "shard_ordinal": pa.array([3] * len(rows), pa.int32()),
        }
    )
    return asyncio.run(actor(table)).to_pylist(), fake


def test_a_block_is_answered_row_by_row_and_a_fault_is_a_rows_own():
    pytest.importorskip("vllm")
    rows = [(f"{i:08x}", "word", [i, 7]) for i in (0, 1, 100, 101, 102)]
    found, fake = ask_block([*rows, ("f" * 8, "caption", [2])])
    assert [row["key"] for row in found] == [*(key for key, *_ in rows), "f" * 8]
    assert [row["reply"] is None for row in found] == [False, False, True, True, True, False]
    assert all(row["reply"].startswith(f"{[i, 7]} ") for i, row in enumerate(found[:2]))
    assert all(len(row["reply"] or "") <= MAX_REPLY + 1 and row["away"] is False for row in found)
    assert all(row["error"].endswith(": too long") for row in found[2:5])
    assert {*found[0]} == {*ASKED_SCHEMA.names}
    assert len({name for *_, name in fake.asked}) == 6
    schemas = [json.loads(params.structured_outputs.json) for _, params, _ in fake.asked]
    assert schemas[0] == SCHEMAS["word"] and schemas[-1] == SCHEMAS["caption"]
    assert len({params.seed for _, params, _ in fake.asked}) == 6


def test_an_empty_block_has_the_columns_of_others():
    actor = object.__new__(AskEngine)
    names = [("key", pa.string()), ("form", pa.string()), ("tokens", pa.list_(pa.int32()))]
    empty = pa.schema([*names, ("shard_ordinal", pa.int32())]).empty_table()
    assert {*asyncio.run(actor(empty)).column_names} == {*ASKED_SCHEMA.names}
