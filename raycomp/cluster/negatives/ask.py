"""Ask a language model for many replies: vLLM through ``ray.data.llm``, or a server; each block is kept.

Only key, uid, file and chat of a prompt ride through the stages. A prompt that cannot be answered (too long,
refused by the server) is a row with an error. An engine that dies is started again by Ray; where that does
not help, what is not answered yet is asked once more, and in the end the run stops and can go on later.
"""

import importlib.util
import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from ray.data import ActorPoolStrategy, Dataset
from ray.exceptions import RayActorError, RayError, RaySystemError, UserCodeException

from raycomp.cluster.negatives.chat import AT_ONCE_PER_ENGINE, Chat, Secret
from raycomp.cluster.progress import Progress
from raycomp.cluster.receipts import read_receipts
from raycomp.cluster.session import Session
from raycomp.config import LlmConfig
from raycomp.language.prompts import MAX_REPLY, REPLY_SCHEMA
from raycomp.loops.negatives.replies import (
    ASKED_SCHEMA,
    AWAY,
    ERROR,
    MESSAGES,
    RECEIPT_SCHEMA,
    REPLY,
    has_replies,
    write_replies,
)
from raycomp.words import KEY, SHARD_ORDINAL

KEY_VARIABLE = "OPENAI_API_KEY"
# Blocks are small, as an interrupted run asks again what is in flight; together they fill an engine, which
# takes up to 1,024 sequences at a time.
_ROWS_PER_BLOCK = 64
_BLOCKS_AT_ONCE = 16
# Of a server's one actor: the last slow requests of a block leave no gap.
_SERVER_BLOCKS_AT_ONCE = 4
# For the chat template, reading prompts and writing replies.
_CPUS_BESIDE_ENGINES = 3
# Enough for tests; without it the CPU build takes nearly all memory there is.
_CPU_CACHE_BYTES = 1 << 30
# Ray's column for what went wrong with a row.
_ROW_ERROR = "__inference_error__"
_MAX_ERROR = 300


class Asked(NamedTuple):
    """What a pass came to: prompts answered, and prompts whose last try ended in an error."""

    answered: int
    failed: int


def ask(
    make_prompts: Callable[[], Dataset],
    count: int,
    config: LlmConfig,
    engine: str,
    replies_uri: str,
    session: Session,
) -> Asked:
    """Ask ``count`` prompts once; write replies and errors under ``replies_uri`` block by block.

    ``make_prompts()`` is a dataset of rows of PROMPT_SCHEMA without those that are answered. It is called
    again where the engine dies for good, ``config.tries`` times in all. ``engine`` is vllm or http. Raises
    OSError where nobody answers or the engine keeps dying; all that was answered is kept.
    Raises ValueError for what the user can mend.
    """
    build = {"vllm": _build_vllm, "http": _build_http}[engine]
    name = f"the engine vllm ({config.model})" if engine == "vllm" else f"the server {config.url}"
    was_disturbed = False
    for _ in range(config.tries):
        processor = build(config, session)
        prompts = make_prompts().repartition(target_num_rows_per_block=_ROWS_PER_BLOCK)
        kept = processor(prompts).map_batches(
            partial(_keep, uri=replies_uri), batch_size=None, batch_format="pyarrow", num_cpus=1
        )
        with Progress(f"ask {engine}", count, unit="prompt") as progress:
            tally = _Tally(progress)
            died = _run(kept, tally, config)
        if died is None:
            if not tally.answered and tally.is_nobody_there(replies_uri):
                raise OSError(f"{name} answered none of {count:,} prompts: {tally.last_error}")
            if not was_disturbed and tally.answered + tally.failed != count:
                raise RuntimeError(f"of {count} prompts {tally.answered + tally.failed} came back")
            # A pass that broke off kept replies that nobody counted.
            return Asked(count - tally.failed, tally.failed)
        if isinstance(died, RayActorError) and died.actor_init_failed:
            raise OSError(f"{name} does not start: {_last_line(died)}") from died
        was_disturbed = True
    assert died is not None, "config.tries is at least 1"
    raise OSError(f"{name} kept dying; what it answered is kept: {_last_line(died)}") from died


class _Tally:
    """The driver's count of one pass."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.answered = self.failed = self.away = 0
        self.last_error: str | None = None

    def add(self, receipt: dict[str, Any]) -> None:
        self.answered += receipt["answered"]
        self.failed += receipt["failed"]
        self.away += receipt[AWAY]
        self.last_error = receipt[ERROR] or self.last_error
        for _ in range(receipt["answered"] + receipt["failed"]):
            self.progress.finish_one()

    def is_nobody_there(self, replies_uri: str) -> bool:
        """Whether it was for want of somebody to answer that nothing was.

        Prompts that fail by themselves, when all others are answered, are no reason to stop a run.
        """
        return bool(self.failed) and (self.away > 0 or not has_replies(replies_uri))


def _run(dataset: Dataset, tally: _Tally, config: LlmConfig) -> RayError | None:
    """Run a pass to its end; return what the engine died of, if it did so for good."""
    try:
        for receipts in read_receipts(dataset):
            for receipt in receipts:
                tally.add(receipt)
    except (RayActorError, RaySystemError) as error:
        return error
    except UserCodeException as error:
        if "ChatTemplateUDF" not in str(error):
            raise
        said = _last_line(error)
        raise ValueError(
            f"llm.model={config.model!r}: its chat template does not take the prompts: {said}"
        ) from error
    return None


def _last_line(error: Exception | None) -> str:
    """Return what a traceback inside an error says at its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else "")
    return f"{type(error).__name__}: {said}"[:_MAX_ERROR]


def sampling(config: LlmConfig, key: str) -> dict[str, Any]:
    """Return how a prompt is sampled. Its own seed keeps its reply apart from what is asked beside it."""
    seed = (int(key[:8], 16) + config.seed) % 2**31
    return {"temperature": config.temperature, "max_tokens": config.max_tokens, "seed": seed}


def engine_settings(session: Session) -> dict[str, Any]:
    """Return vLLM's arguments beside the model."""
    settings: dict[str, Any] = {
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        "disable_log_stats": True,
    }
    if session.device == "cpu":
        settings |= {"kv_cache_memory_bytes": _CPU_CACHE_BYTES, "enforce_eager": True}
        # vLLM 0.29 takes back a seeded draw where a prompt is computed in parts, and dies of that on CPUs.
        settings |= {"enable_chunked_prefill": False}
    return settings


def _build_vllm(config: LlmConfig, session: Session) -> Callable[[Dataset], Dataset]:
    if importlib.util.find_spec("vllm") is None:
        raise ValueError("negatives.engine=vllm: vllm is not installed; pip install 'raycomp[vllm]'")
    on_cpu = session.device == "cpu"
    needed = _CPUS_BESIDE_ENGINES + (config.engines if on_cpu else 0)
    if session.num_cpus < needed:
        raise ValueError(
            f"llm.engines={config.engines}: needs {needed} CPUs, the cluster has {session.num_cpus}"
        )
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    processor = build_processor(
        vLLMEngineProcessorConfig(
            model_source=config.model,
            engine_kwargs=engine_settings(session),
            batch_size=_ROWS_PER_BLOCK,
            max_concurrent_batches=_BLOCKS_AT_ONCE,
            concurrency=(config.engines, config.engines),
            should_continue_on_error=True,
            log_engine_metrics=False,
            placement_group_config={"bundle_per_worker": {"CPU": 1}} if on_cpu else None,
            runtime_env={"env_vars": {"VLLM_NO_USAGE_STATS": "1"}},
            chat_template_stage={"concurrency": 1},
            # The engine turns text into tokens and back by itself: two pools of actors less.
            tokenize_stage=False,
            detokenize_stage=False,
        ),
        preprocess=partial(_to_engine, config=config),
        postprocess=_from_engine,
    )
    engines = processor.get_stage_by_name("vLLMEngineStage").map_batches_kwargs
    # A lost node or engine is made up for, a prompt that kills every engine comes to an end.
    engines["max_task_retries"] = config.tries
    engines["label_selector"] = session.scorer_resources.get("label_selector")
    return processor


def _to_engine(row: dict[str, Any], config: LlmConfig) -> dict[str, Any]:
    params = {**sampling(config, row[KEY]), "structured_outputs": {"json": json.dumps(REPLY_SCHEMA)}}
    return {"messages": json.loads(row[MESSAGES]), "sampling_params": params}


def _from_engine(row: dict[str, Any]) -> dict[str, Any]:
    return {KEY: row[KEY], SHARD_ORDINAL: row[SHARD_ORDINAL], REPLY: row["generated_text"][: MAX_REPLY + 1]}


def _build_http(config: LlmConfig, session: Session) -> Callable[[Dataset], Dataset]:
    return partial(
        Dataset.map_batches,
        fn=AskServer,
        fn_constructor_args=(config, read_key()),
        batch_size=_ROWS_PER_BLOCK,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(
            size=1, max_concurrent_calls_per_actor=_SERVER_BLOCKS_AT_ONCE * config.engines
        ),
    )


class AskServer:
    """The one actor that talks to a server: adds reply, error and away to every prompt of a block."""

    def __init__(self, config: LlmConfig, key: Secret | None):
        self.config = config
        self.chat = Chat(
            url=f"{(config.url or '').rstrip('/')}/chat/completions",
            key=key,
            at_once=AT_ONCE_PER_ENGINE * config.engines,
            timeout_s=config.timeout_s,
            patience_s=config.patience_s,
        )

    async def __call__(self, table: pa.Table) -> pa.Table:
        """Ask all prompts of a block."""
        answers = await self.chat.ask([_to_body(row, self.config) for row in table.to_pylist()])
        for name in (REPLY, ERROR, AWAY):
            values = [getattr(answer, name) for answer in answers]
            table = table.append_column(name, pa.array(values, ASKED_SCHEMA.field(name).type))
        return table


def read_key() -> Secret | None:
    """Return the key for the server from the environment, if there is one."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"{KEY_VARIABLE}: must be printable ASCII")
    return Secret(key) if key else None


def _to_body(row: dict[str, Any], config: LlmConfig) -> str:
    schema = {"name": "negative", "schema": REPLY_SCHEMA, "strict": True}
    body = {
        "model": config.model,
        "messages": json.loads(row[MESSAGES]),
        **sampling(config, row[KEY]),
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    return json.dumps(body)


def _keep(table: pa.Table, uri: str) -> pa.Table:
    """Write a block of what an engine returned; rows that failed in it have other columns than the rest."""
    if not len(table):
        return RECEIPT_SCHEMA.empty_table()
    if _ROW_ERROR in table.column_names:
        said = pc.utf8_slice_codeunits(table[_ROW_ERROR], 0, _MAX_ERROR)
        table = table.append_column(ERROR, pc.if_else(pc.equal(said, ""), pa.scalar(None, pa.string()), said))
    columns = [
        table[name].cast(kind) if name in table.column_names else pa.nulls(len(table), kind)
        for name, kind in zip(ASKED_SCHEMA.names, ASKED_SCHEMA.types, strict=True)
    ]
    return write_replies(pa.table(columns, schema=ASKED_SCHEMA), uri)
