"""Ask a language model for many replies: vLLM in actors of Ray Data, or a server; each block is kept.

A prompt that cannot be answered (too long, refused by the server) is a row with an error. An engine that dies
is started again by Ray; where that does not help, what is not answered yet is asked once more, and in the end
the run stops and can go on later.
"""

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset
from ray.exceptions import RayActorError, RayError, RaySystemError

from raycomp.cluster.negatives.chat import AT_ONCE_PER_ENGINE, Chat, Secret
from raycomp.cluster.negatives.engine import ROWS_PER_BLOCK, lay_engines, sampling
from raycomp.cluster.progress import Progress
from raycomp.cluster.receipts import read_receipts
from raycomp.cluster.session import Session
from raycomp.config import LlmConfig
from raycomp.language.prompts import SCHEMAS
from raycomp.loops.negatives.replies import (
    ASKED_SCHEMA,
    AWAY,
    ERROR,
    FORM,
    MESSAGES,
    RECEIPT_SCHEMA,
    REPLY,
    has_replies,
    write_replies,
)
from raycomp.words import KEY

KEY_VARIABLE = "OPENAI_API_KEY"
# Of a server's one actor: the last slow requests of a block leave no gap.
_SERVER_BLOCKS_AT_ONCE = 4
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
    lay = {"vllm": lay_engines, "http": _lay_server}[engine]
    name = f"the engine vllm ({config.model})" if engine == "vllm" else f"the server {config.url}"
    was_disturbed = False
    for _ in range(config.tries):
        prompts = make_prompts().repartition(target_num_rows_per_block=ROWS_PER_BLOCK)
        kept = lay(prompts, config, session).map_batches(
            partial(_keep, uri=replies_uri), batch_size=None, batch_format="pyarrow", num_cpus=1
        )
        with Progress(f"ask {engine}", count, unit="prompt") as progress:
            tally = _Tally(progress)
            died = _run(kept, tally)
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


def _run(dataset: Dataset, tally: _Tally) -> RayError | None:
    """Run a pass to its end; return what the engine died of, if it did so for good."""
    try:
        for receipts in read_receipts(dataset):
            for receipt in receipts:
                tally.add(receipt)
    except (RayActorError, RaySystemError) as error:
        return error
    return None


def _last_line(error: Exception | None) -> str:
    """Return what a traceback inside an error says at its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in reversed(lines) if "Error: " in line), lines[-1] if lines else "")
    return f"{type(error).__name__}: {said}"[:_MAX_ERROR]


def _lay_server(prompts: Dataset, config: LlmConfig, session: Session) -> Dataset:
    _, most = config.span
    return prompts.map_batches(
        AskServer,
        fn_constructor_args=(config, read_key()),
        batch_size=ROWS_PER_BLOCK,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=1, max_concurrent_calls_per_actor=_SERVER_BLOCKS_AT_ONCE * most),
    )


class AskServer:
    """The one actor that talks to a server: adds reply, error and away to every prompt of a block."""

    def __init__(self, config: LlmConfig, key: Secret | None):
        self.config = config
        self.chat = Chat(
            url=f"{(config.url or '').rstrip('/')}/chat/completions",
            key=key,
            at_once=AT_ONCE_PER_ENGINE * config.span[1],
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
    schema = {"name": "negative", "schema": SCHEMAS[row[FORM]], "strict": True}
    body = {
        "model": config.model,
        "messages": json.loads(row[MESSAGES]),
        **sampling(config, row[KEY]),
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    return json.dumps(body)


def _keep(table: pa.Table, uri: str) -> pa.Table:
    """Write a block of what came back; return its receipts."""
    if not len(table):
        return RECEIPT_SCHEMA.empty_table()
    return write_replies(table.select(ASKED_SCHEMA.names), uri)
