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
    pytest.importorskip("vllm")
    options = {"max_num_seqs": "64", "enable_prefix_caching": "false", "enforce_eager": True}
    options |= {"hf_overrides": '{"rope_theta": 5}', "revision": "1234567"}
    options |= {"speculative_config.method": "ngram", "speculative_config.num_speculative_tokens": 3}
    options = {f"engine.{name}": value for name, value in options.items()}
    found = engine_settings(make(**options, quantization="fp8"), ON_GPU)
    wanted = {
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "quantization": "fp8",
    }
    wanted |= {"hf_overrides": {"rope_theta": 5}, "revision": "1234567", "quantization": "fp8"}
    wanted |= {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert found | wanted == found


def test_what_vllm_would_refuse_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("vllm")
    tokenizer = write_tiny_tokenizer(tmp_path / "good")
    check_engine(make(model=str(tmp_path / "good")))
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "base")
    for options, said in [
        ({"engine.max_num_seq": "64"}, "llm.engine.max_num_seq='64': .*; the closest is max_num_seqs"),
        ({"engine.max_num_seqs": "many"}, "llm.engine.max_num_seqs='many': vLLM refuses it .*invalid int"),
        ({"engine.enforce_eager": "maybe"}, "llm.engine.enforce_eager='maybe': vLLM refuses it"),
        ({"engine.kv_cache_dtype": "fp7"}, "llm.engine.kv_cache_dtype='fp7': vLLM refuses it"),
        ({"engine.max_num_seqs.x": "3"}, "llm.engine.max_num_seqs.x='3': vLLM refuses it"),
        ({"engine.speculative_config": "{"}, "llm.engine.speculative_config='{': vLLM refuses it"),
        ({"engine.max_model_len": "64"}, "llm.engine.max_model_len='64': is set by llm.context"),
        ({"engine.tokenizer": "other"}, "llm.engine.tokenizer='other': is fixed"),
        ({"engine.help": "true"}, "llm.engine.help='true': .*unknown argument"),
        ({"quantization": "fp9"}, "llm.quantization='fp9': must be one of .*the closest is fp8"),
        ({"model": str(tmp_path / "base")}, "llm.model=.*chat template does not take the prompts"),
    ]:
        with pytest.raises(ValueError, match=said) as error:
            check_engine(make(**options))
        assert "\n" not in str(error.value)
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="vllm is not installed"):
        check_engine(LlmConfig())


GPUS = [{"Alive": alive, "Resources": {"GPU": 8, "CPU": 32}} for alive in (True, True, False)]


CPUS = [{"Alive": True, "Resources": {"CPU": 4}}] * 2


def test_an_engine_asks_for_all_its_gpus_and_a_pool_starts_with_those_that_are_there(monkeypatch):
    """On a cluster of two nodes and a dead one; of what it can have, some is offered."""
    monkeypatch.setattr(engine.ray, "cluster_resources", lambda: {"GPU": 16})
    narrow, full = replace(ON_GPU, num_cpus=9), replace(ON_GPU, num_cpus=8)
    on_cpu = {"num_cpus": 1, "label_selector": {"a": "b"}}
    for nodes, session, options, offered, wanted in [
        (GPUS, ON_GPU, {}, 0, (1, {"num_gpus": 1})),
        (GPUS, ON_GPU, {"engines": "1..6", "tensor_parallel": 4}, 0, (4, {"num_gpus": 4})),
        (GPUS, ON_GPU, {"engines": "1..16", "tensor_parallel": 2}, 0, (8, {"num_gpus": 2})),
        (GPUS, ON_GPU, {"engines": 2, "tensor_parallel": 4, "pipeline_parallel": 2}, 0, (2, {"num_gpus": 8})),
        (GPUS, ON_GPU, {"engines": "3..4", "tensor_parallel": 8}, 32, (3, {"num_gpus": 8})),
        (GPUS[:1], narrow, {}, 0, (1, {"num_gpus": 1})),
        (GPUS[:1], full, {}, 0, (1, {"num_gpus": 1, "num_cpus": 0})),
        (CPUS, ON_CPU, {"engines": "2..9"}, 0, (2, on_cpu)),
        (GPUS, ON_GPU, {"engines": 3, "tensor_parallel": 8}, 0, "3 of 8 GPUs each: needs 24 GPUs, .* has 16"),
        (
            GPUS,
            ON_GPU,
            {"tensor_parallel": 16},
            0,
            "1 of 16 GPUs each: .*one node; the largest node has 8",
        ),
        (CPUS, ON_CPU, {"engines": "6..9"}, 0, "6..9 of 1 CPUs each: needs 9 CPUs, the cluster has 8"),
        (CPUS, ON_CPU, {"tensor_parallel": 5}, 0, "1 of 5 CPUs each: .*on one node; the largest node has 4"),
    ]:
        monkeypatch.setattr(engine.ray, "nodes", lambda nodes=nodes: nodes)
        monkeypatch.setattr(engine, "count_offered", lambda resource, offered=offered: offered)
        if isinstance(wanted, str):
            with pytest.raises(ValueError, match=f"llm.engines={wanted}"):
                plan_pool(make(**options), session)
        else:
            assert plan_pool(make(**options), session) == wanted, options


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


def ask_block(rows: list[tuple[str, str, list[int]]]) -> tuple[pa.Table, FakeEngine]:
    actor, fake = object.__new__(AskEngine), FakeEngine()
    actor.config, actor.engine, actor.numbers = LlmConfig(seed=5), fake, count()
    names = [("key", pa.string()), ("form", pa.string()), ("tokens", pa.list_(pa.int32()))]
    schema = pa.schema([*names, ("shard_ordinal", pa.int32())])
    cells = [dict(zip(schema.names, (*row, 3), strict=True)) for row in rows]
    return asyncio.run(actor(pa.Table.from_pylist(cells, schema))), fake


def test_a_block_is_answered_row_by_row_and_a_fault_is_a_rows_own():
    pytest.importorskip("vllm")
    rows = [(f"{i:08x}", "word", [i, 7]) for i in (0, 1, 100, 101, 102)]
    table, fake = ask_block([*rows, ("f" * 8, "caption", [2])])
    found = table.to_pylist()
    assert [row["key"] for row in found] == [*(key for key, *_ in rows), "f" * 8]
    assert [row["reply"] is None for row in found] == [False, False, True, True, True, False]
    assert all(row["reply"].startswith(f"{[i, 7]} ") for i, row in enumerate(found[:2]))
    assert all(len(row["reply"] or "") <= MAX_REPLY + 1 and row["away"] is False for row in found)
    assert all(row["error"].endswith(": too long") for row in found[2:5])
    assert {*table.column_names} == {*ask_block([])[0].column_names} == {*ASKED_SCHEMA.names}
    assert len({name for *_, name in fake.asked}) == 6
    schemas = [json.loads(params.structured_outputs.json) for _, params, _ in fake.asked]
    assert schemas[0] == SCHEMAS["word"] and schemas[-1] == SCHEMAS["caption"]
    assert len({params.seed for _, params, _ in fake.asked}) == 6
