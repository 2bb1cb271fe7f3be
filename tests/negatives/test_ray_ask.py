"""Asking language models: a server that misbehaves in every way, and vLLM itself on the CPU."""

import asyncio
import json
import re
import subprocess
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from raycomp.config import ClusterConfig, override_all
from raycomp.language.prompts import CAPTION_FORM, INVALID_JSON, MAX_REPLY, NO_REPLY, SCHEMAS, read_reply
from raycomp.negatives import vllm as engine
from raycomp.negatives.ask import (
    ASKED_SCHEMA,
    KEY,
    KEY_VARIABLE,
    MESSAGES,
    Asked,
    AskServer,
    PromptSource,
    Secret,
    ask,
    read_replies,
)
from raycomp.negatives.config import LlmConfig, NegativesConfig
from raycomp.negatives.vllm import AskEngine, check_engine, engine_settings, plan_pool
from raycomp.run.executor import Session, connect
from tests.negatives.llm import GOOD_REPLY, fake_server, make_prompts, write_tiny_model, write_tiny_tokenizer

SECRET = "sk-never-to-be-seen-4711"
QUICK = {"timeout_s": 2.0, "patience_s": 2.0}


def answers(url: str, captions: list[str], key: str = SECRET, at_once: int = 16) -> list[dict]:
    """Ask by an asker of its own; return the columns that go on."""
    server = AskServer(LlmConfig(url=url, **QUICK), Secret(key))
    server.at_once, server.gate = at_once, asyncio.Semaphore(at_once)
    answered = asyncio.run(server(make_prompts(captions)))
    return answered.select(["reply", "error", "away"]).to_pylist()


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The seconds that were waited before a request was repeated."""
    asked: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        asked.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    return asked


def test_what_passes_is_repeated_until_it_is_answered(pauses):
    for caption, times in {"busy": 2, "shaky": 2, "packed gzip": 1, "packed raw": 1}.items():
        with fake_server() as server:
            assert answers(server.url, [caption]) == [{"reply": GOOD_REPLY, "error": None, "away": False}]
            assert (server.asked[caption], server.keys) == (times, {f"Bearer {SECRET}"}), caption
        if caption == "busy":
            assert pauses == [1.0], "Retry-After was not respected"
    with fake_server() as server:
        rows = answers(server.url, [f"good {i}" for i in range(40)], at_once=4)
        assert [row["reply"] for row in rows] == [GOOD_REPLY] * 40
        assert server.most_open == 4, "requests are open side by side up to the limit"


def test_an_answer_is_unpacked_within_bounds():
    for caption in ["bomb gzip", "bomb deflate", "bomb gzip failing", "bomb br"]:
        tracemalloc.start()
        try:
            with fake_server() as server:
                [row] = answers(server.url, [caption])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert row["reply"] is None and len(row["error"]) <= 300
        assert peak < 32 << 20


def test_a_fault_is_an_error_of_one_line_that_holds_no_secret(pauses):
    for caption, said, away in [
        ("closed", "status 429: .*tomorrow", True),
        ("broken", r"status 500: oops, as ever, for Bearer \*\*\*", False),
        ("refusing", "status 400: .*maximum context", False),
        ("locked", r"status 401: .*Incorrect API key provided: Bearer \*\*\*", True),
        ("garbage", "no chat completion: <html>", False),
        ("huge", "longer than 1,048,576 bytes", False),
        ("packed br", "compressed its answer as 'br'", False),
        ("reset", "Error", False),
        ("dropped", "ClientPayloadError", False),
        ("hanging", "no answer within 2 s", False),
    ]:
        with fake_server() as server:
            bad, good = answers(server.url, [caption, "good"])
        assert max(pauses, default=0) <= QUICK["patience_s"], "Retry-After of a day was waited for"
        assert good["reply"] == GOOD_REPLY and bad["reply"] is None and bad["away"] is away, caption
        assert re.search(said, bad["error"]) and "\n" not in bad["error"] and len(bad["error"]) <= 300
        assert SECRET not in repr(bad), caption
    # No part of the key outlives a cut.
    for form in ["long", "url", "json", "upper", "broken", "wide"]:
        with fake_server() as server:
            [row] = answers(server.url, [f"leaky {form}"], 'sk/never to+be "seen" 4711')
        assert "***" in row["error"] and "sk" not in row["error"].lower(), form
    # A senseless reply is a reply for others to judge.
    for caption, reason in {"silent": NO_REPLY, "prose": INVALID_JSON, "echo": INVALID_JSON}.items():
        with fake_server() as server:
            [row] = answers(server.url, [caption])
        assert row["error"] is None and read_reply(row["reply"], CAPTION_FORM) == reason
        assert len(row["reply"]) < 2500 and SECRET not in row["reply"]


def test_a_server_that_is_down_is_given_up_soon_and_a_url_shows_no_secret():
    with fake_server() as server:
        url = server.url
    rows = answers(url, [f"good {i}" for i in range(400)])
    assert all(row["away"] and "onnect" in row["error"] for row in rows)
    assert sum("not asked" in row["error"] for row in rows) == 400 - 16
    for url in ["http://me:word@host/v1", "https://host/v1?key=word"]:
        with pytest.raises(ValueError, match="OPENAI_API_KEY") as caught:
            LlmConfig(url=url)
        assert "word" not in str(caught.value).replace("password", "")


class Asking:
    """Prompts of which those that are answered are left out, as a run's are."""

    def __init__(
        self, tables: list[pa.Table], folder: Path, config: LlmConfig, engine: str, executor: str = "ray"
    ):
        self.tables, self.uri, self.config, self.engine = tables, str(folder / "replies"), config, engine
        self.executor = executor

    @property
    def open(self) -> list[pa.Table]:
        """The prompts without a reply."""
        left = [table for ordinal in range(len(self.tables)) for table in self.load(ordinal)]
        return [table for table in left if len(table)]

    def load(self, ordinal: int) -> Iterator[pa.Table]:
        replies, table = read_replies(self.uri, ordinal), self.tables[ordinal]
        yield table.filter(pa.array([key not in replies for key in table[KEY].to_pylist()]))

    def run(self) -> Asked:
        with connect(ClusterConfig(executor=self.executor)) as session:
            assert session.is_local == (self.executor == "local")
            prompts = PromptSource(range(len(self.tables)), self.load, sum(map(len, self.open)))
            return ask(prompts, self.config, self.engine, self.uri, session)

    @property
    def replies(self) -> dict[str, str]:
        """All replies."""
        return {k: v for i in range(len(self.tables)) for k, v in read_replies(self.uri, i).items()}


@pytest.mark.parametrize("executor", ["ray", "local"])
def test_a_server_with_every_fault_loses_no_prompt(ray_cluster, tmp_path, monkeypatch, executor):
    monkeypatch.setenv(KEY_VARIABLE, SECRET)
    kinds = "good busy shaky closed broken refusing garbage empty reset hanging echo prose".split()
    with fake_server() as server:
        captions = [f"{kinds[i % 12]} {i}" for i in range(96)]
        tables = [make_prompts(captions[:60], 0), make_prompts(captions[60:], 1)]
        config = LlmConfig(url=server.url + "/", seed=3, engines=4, timeout_s=5.0, patience_s=8.0)
        asking = Asking(tables, tmp_path, config, "http", executor)
        assert asking.run() == Asked(answered=40, failed=56)
        assert sum(map(len, asking.open)) == 56
        served, body = sum(server.asked.values()), server.bodies[0]
        assert body["response_format"]["json_schema"]["schema"] == SCHEMAS[CAPTION_FORM]
        assert body["model"] == config.model and body["max_tokens"] == 160
        assert len({body["seed"] for body in server.bodies}) == 96, "each prompt has its own seed"
        # Once more: what was answered is not asked again, and prompts that fail by themselves stop nothing.
        closed = (["closed" not in m for m in table[MESSAGES].to_pylist()] for table in tables)
        asking.tables = [table.filter(pa.array(keep)) for table, keep in zip(tables, closed, strict=True)]
        assert asking.run() == Asked(answered=0, failed=48)
        assert all(server.asked[c] == 1 for c in captions if c.startswith(("good", "echo", "prose")))
        assert sum(server.asked.values()) > served
    # The server is gone: one line, which shows its address and no key.
    prompts = [make_prompts([f"good {i}" for i in range(100)])]
    asking = Asking(prompts, tmp_path / "down", LlmConfig(url=server.url, **QUICK), "http", executor)
    with pytest.raises(OSError, match=r"answered none of 100 prompts: .*onnect") as caught:
        asking.run()
    assert server.url in str(caught.value) and "\n" not in str(caught.value)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*.parquet"))
    rows = pa.concat_tables(pq.read_table(path) for path in tmp_path.rglob("*.parquet"))
    assert SECRET.encode() not in stored and SECRET not in str(rows.to_pylist()) + str(caught.value)
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    found = subprocess.run(["grep", "-rl", SECRET, str(logs)], capture_output=True, text=True)
    assert found.stdout == ""


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> str:
    pytest.importorskip("vllm")
    return write_tiny_model(tmp_path_factory.mktemp("tiny-llm"))


@pytest.mark.engine
def test_vllm_answers_in_the_schema_and_nothing_is_asked_twice(ray_cluster, tmp_path, tiny_model):
    captions = [f"A dog number {i} on a red car." for i in range(23)]
    tables = [make_prompts(captions, 0), make_prompts(["word " * 8000], 1)]
    # Random letters: only the schema ends a reply.
    config = LlmConfig(model=tiny_model, temperature=1.0, max_tokens=1024)
    asking = Asking(tables, tmp_path, config, "vllm")
    assert asking.run() == Asked(answered=23, failed=1)
    replies = asking.replies
    for text in replies.values():
        jsonschema.validate(json.loads(text), SCHEMAS[CAPTION_FORM])
        assert read_reply(text, CAPTION_FORM) == "wrong_fields" or len(read_reply(text, CAPTION_FORM)) == 1
    assert len(set(replies.values())) == 23
    # The caption that is too long for the model is a row's error.
    files = list((tmp_path / "replies" / "00001").iterdir())
    [row] = pq.read_table(files[0]).to_pylist()
    assert row["reply"] is None and "4096" in row["error"]
    assert asking.open == [tables[1]]


def kill_engine(asking: Asking) -> None:
    """Kill the engine's process once the first replies are on disk."""
    while not asking.replies:
        time.sleep(0.1)
    children = psutil.Process().children(recursive=True)
    [engine] = [child for child in children if "EngineCor" in child.name()]
    engine.kill()


@pytest.mark.slow
def test_an_engine_that_dies_is_started_again_and_nothing_is_lost(ray_cluster, tmp_path, tiny_model):
    tables = [make_prompts([f"A dog number {i} on a red car." for i in range(800)])]
    asking = Asking(tables, tmp_path, LlmConfig(model=tiny_model, max_tokens=16), "vllm")
    killer = threading.Thread(target=kill_engine, args=(asking,), daemon=True)
    killer.start()
    assert asking.run() == Asked(answered=800, failed=0)
    killer.join()
    assert len(asking.replies) == 800
    assert not killer.is_alive()


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
