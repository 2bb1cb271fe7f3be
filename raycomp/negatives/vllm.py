"""vLLM's engines as actors of Ray Data: token ids in, replies out, a block of prompts at a time.

CPU tasks turn chats into token ids, so that an engine's process only feeds its engine.
vLLM returns a reply when it is complete, not token by token, and many blocks are in flight at once.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from itertools import count
from typing import Any, NoReturn

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset, read_datasource
from ray.exceptions import RayActorError, RaySystemError
from ray.util.annotations import RayDeprecationWarning

from raycomp.config.options import check_choice
from raycomp.data.parquet import TOKENS
from raycomp.language.prompts import MAX_REPLY, SCHEMAS
from raycomp.models.architecture import one_line
from raycomp.models.language_model import render_chats
from raycomp.negatives import ask
from raycomp.negatives.config import LlmConfig
from raycomp.run.executor import Session
from raycomp.run.ray_cluster import ItemSource, count_offered, read_metadata
from raycomp.words import KEY, SHARD_ORDINAL

_BLOCKS_AT_ONCE = 20
# For reading and rendering prompts, and for writing replies.
_CPUS_WITHOUT_ENGINES = 3
# With the resources of a CPU engine, Ray would fuse rendering with it and run it in the engine's process.
_CPUS_PER_RENDERER = 0.9
# Enough for tests; without it the CPU build takes nearly all memory.
_CPU_CACHE_BYTES = 1 << 30
# Arguments of vLLM's engine that raycomp has an option for.
_OPTIONS = {
    "model": "llm.model",
    "tensor_parallel_size": "llm.tensor_parallel",
    "pipeline_parallel_size": "llm.pipeline_parallel",
    "data_parallel_size": "llm.engines",
    "max_model_len": "llm.context",
    "gpu_memory_utilization": "llm.memory_share",
    "quantization": "llm.quantization",
}
# Arguments that determine prompts and replies.
_FIXED = (
    *("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init", "runner", "convert"),
    *("structured_outputs_config", "stream_interval"),
)


def ask_on_ray(
    prompts: ask.PromptSource,
    config: LlmConfig,
    engine: str,
    replies_uri: str,
    session: Session,
    take: Callable[[dict[str, Any]], None],
) -> ask.Died | None:
    """Ask all prompts; return the engine's final error if it failed for good."""
    items, block = list(prompts.items), {"batch_size": ask.ROWS_PER_BLOCK, "batch_format": "pyarrow"}
    rows = read_datasource(ItemSource(items, prompts.load), override_num_blocks=len(items), num_cpus=1)
    blocks = rows.repartition(target_num_rows_per_block=ask.ROWS_PER_BLOCK)
    if engine == "vllm":
        asked = _ask_engines(blocks, config, session)
    else:
        at_once = ask.SERVER_BLOCKS_AT_ONCE * config.span[1]
        asked = blocks.map_batches(
            ask.AskServer,
            fn_constructor_args=(config, ask.read_key()),
            num_cpus=int(session.most_cpus > 1),  # tasks need a CPU, too
            compute=ActorPoolStrategy(size=1, max_concurrent_calls_per_actor=at_once),
            **block,
        )
    write = partial(ask.write_replies, uri=replies_uri)
    kept = asked.map_batches(write, batch_size=None, batch_format="pyarrow", num_cpus=1)
    try:
        for all_metadata in read_metadata(kept):
            for metadata in all_metadata:
                take(metadata)
    except (RayActorError, RaySystemError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        last = next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else "")
        said = f"{type(error).__name__}: {last}"[: ask.MAX_ERROR]
        return ask.Died(said, bool(getattr(error, "actor_init_failed", False)), error)
    return None


def check_engine(config: LlmConfig) -> None:
    """Raise ValueError if vLLM is missing, its version does not fit the options, or the model has no chats.

    For a folder the chat template is also tested. No engine is started.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ValueError("negatives.engine=vllm: vllm is not installed; pip install 'raycomp[vllm]'")
    _read_arguments(config)
    if os.path.isdir(config.model):
        chat = json.dumps([{"role": role, "content": "a dog"} for role in ("system", "user")])
        render_chats([chat], config.model, **_rendering(config))


def _read_arguments(config: LlmConfig) -> dict[str, Any]:
    """Return ``llm.engine`` as vLLM's own command line reads it; ValueError if vLLM would refuse it."""
    if not config.engine and config.quantization is None:
        return {}
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    if config.quantization is not None:
        check_choice("llm.quantization", config.quantization, QUANTIZATION_METHODS)
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False, allow_abbrev=False))

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    parser.error = refuse  # type: ignore[method-assign]
    known = {action.dest: action for action in parser._actions if action.dest != "help"}
    found: dict[str, Any] = {}
    for name, text in config.engine.items():
        dest, said, problem = name.partition(".")[0], f"llm.engine.{name}={text!r}", ""
        if dest in _OPTIONS:
            problem = f"is set by {_OPTIONS[dest]}; set that option"
        elif dest in _FIXED:
            problem = "is fixed, as prompts and replies depend on it; remove it"
        elif dest not in known:
            closest = "".join(f"; the closest is {one}" for one in get_close_matches(dest, known, 1))
            problem = f"unknown argument of vLLM's engine{closest}"
        if problem:
            raise ValueError(f"{said}: {problem}")
        flag = dest.replace("_", "-") + name.removeprefix(dest)
        argument = f"--{flag}={text}"
        if isinstance(known[dest], argparse.BooleanOptionalAction) and text.lower() in ("true", "false"):
            argument = f"--{flag}" if text.lower() == "true" else f"--no-{flag}"
        try:
            value = getattr(parser.parse_args([argument]), dest)
        except (argparse.ArgumentError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{said}: vLLM refuses it ({one_line(error)})") from error
        found[dest] = {**found.get(dest, {}), **value} if "." in name else value
    return found


def engine_settings(config: LlmConfig, session: Session) -> dict[str, Any]:
    """Return vLLM's arguments except the model."""
    settings: dict[str, Any] = {
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "disable_log_stats": True,
        "tensor_parallel_size": config.tensor_parallel,
        "pipeline_parallel_size": config.pipeline_parallel,
        "quantization": config.quantization,
    }
    if config.context is not None:
        settings["max_model_len"] = config.context
    if config.memory_share is not None:
        settings["gpu_memory_utilization"] = config.memory_share
    if config.gpus_per_engine > 1:
        settings["distributed_executor_backend"] = "mp"
    if session.device == "cpu":
        if config.memory_share is None:
            settings["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        settings["enforce_eager"] = True
        # vLLM 0.29 reverts a seeded draw if a prompt is computed in parts, and crashes from that on CPUs.
        settings["enable_chunked_prefill"] = False
    return settings | _read_arguments(config)


def _ask_engines(prompts: Dataset, config: LlmConfig, session: Session) -> Dataset:
    """Return the prompts in blocks, answered by a pool of engines of the size in the options."""
    (least, most), options = config.span, _rendering(config)
    first, resources = plan_pool(config, session)

    def render(table: pa.Table) -> pa.Table:
        tokens = render_chats(table[ask.MESSAGES].to_pylist(), config.model, **options)
        kept = table.select([KEY, ask.FORM, SHARD_ORDINAL])
        return kept.append_column(TOKENS, pa.array(tokens, pa.list_(pa.int32())))

    tokens = prompts.map_batches(render, batch_size=None, batch_format="pyarrow", num_cpus=_CPUS_PER_RENDERER)
    sizes: dict[str, Any] = {"min_size": least, "max_size": most, "initial_size": first}
    with warnings.catch_warnings():
        # Ray Data 2.60 warns of actor options that it has no name for, such as retries.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        return tokens.map_batches(
            AskEngine,
            fn_constructor_args=(config, engine_settings(config, session)),
            batch_size=ask.ROWS_PER_BLOCK,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(max_concurrent_calls_per_actor=_BLOCKS_AT_ONCE, **sizes),
            # A lost node or engine is replaced; a prompt that kills every engine is given up.
            max_task_retries=config.tries,
            **resources,
        )


def plan_pool(config: LlmConfig, session: Session) -> tuple[int, dict[str, Any]]:
    """Return the number of engines at the start of a pass, and an engine's resource request to Ray.

    A pass starts with one engine per free set of GPUs, or else the minimum. Raises ValueError if the cluster
    can never fulfil the request.
    """
    (least, most), each = config.span, config.gpus_per_engine
    where = {name: value for name, value in session.scorer_resources.items() if not name.startswith("num_")}
    kind = session.device.upper()
    nodes = [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
    offered, needed, problem = count_offered(kind), least * each, ""
    needed_cpus = needed + _CPUS_WITHOUT_ENGINES
    if session.device == "cpu" and session.most_cpus < needed_cpus:
        problem = f"needs {needed_cpus} CPUs, the cluster has {session.num_cpus}"
    elif max(sum(nodes), offered) < needed:
        problem = f"needs {needed} {kind}s, the cluster has {sum(nodes)} and can have {offered}"
    elif each > max(nodes) and not offered:
        problem = f"all {kind}s of an engine must be on one node; the largest node has {max(nodes)}"
    if problem:
        raise ValueError(f"llm.engines={config.engines} of {each} {kind}s each: {problem}")
    if session.device == "cpu":
        return least, {"num_cpus": each, **where}
    # Ray Data requests a CPU for each engine; where that leaves none for tasks, an engine requests none.
    spared = {} if session.most_cpus > sum(nodes) // each else {"num_cpus": 0}
    there = int(ray.cluster_resources().get("GPU", 0)) // each
    return min(most, max(least, there)), {"num_gpus": each, **spared, **where}


def _rendering(config: LlmConfig) -> dict[str, Any]:
    """Return the engine's arguments that affect the prompts' tokens."""
    trusts = config.engine.get("trust_remote_code", "").lower() == "true"
    return {"revision": config.engine.get("revision"), "trust_remote_code": trusts}


class AskEngine:
    """One engine: adds reply, error and away to every prompt of a block; several blocks are in flight."""

    def __init__(self, config: LlmConfig, settings: Mapping[str, Any]):
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self.config = config
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=config.model, **settings))
        self.numbers = count()

    async def __call__(self, table: pa.Table) -> pa.Table:
        """Ask all prompts of a block."""
        rows = zip(*(table[name].to_pylist() for name in (KEY, ask.FORM, TOKENS)), strict=True)
        answers = await asyncio.gather(*(self._ask(*row) for row in rows))
        return ask.add_answers(table.select([KEY, SHARD_ORDINAL]), answers)

    async def _ask(self, key: str, form: str, tokens: list[int]) -> ask.Answer:
        """Return the reply, or the reason why there is none; with a dead engine this process ends."""
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        params = SamplingParams(
            **ask.sampling(self.config, key),
            structured_outputs=StructuredOutputsParams(json=json.dumps(SCHEMAS[form])),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        try:
            async for output in self.engine.generate(tokens, params, f"{next(self.numbers)}"):
                reply = output.outputs[0].text
        except EngineDeadError:
            # Ray restarts the actor, with its rows.
            os._exit(1)
        except (VLLMClientError, EngineGenerateError, ValueError) as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return ask.Answer(error=said[: ask.MAX_ERROR])
        return ask.Answer(reply[: MAX_REPLY + 1])
