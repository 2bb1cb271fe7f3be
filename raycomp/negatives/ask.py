"""Ask a language model for many replies: vLLM in actors of Ray Data, or a server; each block is stored.

``replies/00012/9f3c21aa-64.parquet`` holds 64 replies to prompts of the twelfth file of captions. Its name is
derived from its keys, so a repeated block overwrites its first attempt. A failed prompt is stored with its
error; the file of a later attempt with its answer is stored in the same folder. Before more prompts are
asked, the reply files of a file of captions are merged into one.

A prompt that cannot be answered (too long, refused by the server) is a row with an error. Ray restarts an
engine that dies. If that does not help, the unanswered prompts are asked again; at last the run stops and can
be resumed.
"""

import asyncio
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.language.prompts import SCHEMAS
from raycomp.negatives.chat import AT_ONCE_PER_ENGINE, Chat, Secret
from raycomp.negatives.config import LlmConfig
from raycomp.run.local import Session, cut
from raycomp.run.progress import Progress
from raycomp.words import KEY, SHARD_ORDINAL, UID

# Files of replies that are read at a time.
_AT_ONCE = 16
MESSAGES = "messages"
# The form that a prompt requests, of ``prompts.FORMS``.
FORM = "form"
REPLY = "reply"
ERROR = "error"
# Whether the engine or server did not respond to this prompt; such a prompt may still be answered.
AWAY = "away"
PROMPT_SCHEMA = pa.schema(
    [
        (KEY, pa.string()),
        (UID, pa.string()),
        (MESSAGES, pa.string()),
        (FORM, pa.string()),
        (SHARD_ORDINAL, pa.int32()),
    ]
)
ASKED_SCHEMA = pa.schema(
    [
        (KEY, pa.string()),
        (REPLY, pa.string()),
        (ERROR, pa.string()),
        (AWAY, pa.bool_()),
        (SHARD_ORDINAL, pa.int32()),
    ]
)
REPLIES_SCHEMA = pa.schema([ASKED_SCHEMA.field(name) for name in (KEY, REPLY, ERROR)])
METADATA_SCHEMA = pa.schema(
    [("answered", pa.int32()), ("failed", pa.int32()), (AWAY, pa.int32()), (ERROR, pa.string())]
)


def to_prompt_table(
    prompts: Sequence[tuple[str, str, Sequence[Mapping[str, str]], str]], ordinal: int
) -> pa.Table:
    """Return rows of PROMPT_SCHEMA for (key, uid, chat, form) of one file of captions."""
    rows = [
        {KEY: key, UID: uid, MESSAGES: json.dumps(list(chat)), FORM: form, SHARD_ORDINAL: ordinal}
        for key, uid, chat, form in prompts
    ]
    return pa.Table.from_pylist(rows, PROMPT_SCHEMA)


def write_replies(table: pa.Table, uri: str) -> pa.Table:
    """Write rows of ASKED_SCHEMA under ``uri``; return part metadata for each file of captions among them."""
    all_metadata = []
    for ordinal in pc.unique(table[SHARD_ORDINAL]).to_pylist():
        rows = table.filter(pc.equal(table[SHARD_ORDINAL], ordinal))
        name = _name_file(rows[KEY].to_pylist())
        write_table(rows.select(REPLIES_SCHEMA.names), _folder(uri, ordinal).at(name), REPLIES_SCHEMA)
        failed, away = rows[REPLY].null_count, pc.sum(rows[AWAY]).as_py() or 0
        errors = [None, *rows[ERROR].drop_null().to_pylist()]
        counts = {"answered": len(rows) - failed, "failed": failed}
        all_metadata.append({**counts, AWAY: away, ERROR: errors[-1]})
    return pa.Table.from_pylist(all_metadata, METADATA_SCHEMA)


def read_replies(uri: str, ordinal: int) -> dict[str, str]:
    """Return the replies to the prompts of one file of captions by key, without failed ones."""
    table = _read_all(_folder(uri, ordinal))[1]
    return {} if table is None else _first_replies(table)


def compact_replies(uri: str, ordinal: int) -> None:
    """Merge the replies to the prompts of one file of captions into one file.

    A failed prompt keeps its last error, unless it was answered. An interruption loses no reply.
    """
    folder = _folder(uri, ordinal)
    names, table = _read_all(folder)
    if table is None or len(names) < 2:
        return
    replies = _first_replies(table)
    errors = dict(zip(table[KEY].to_pylist(), table[ERROR].to_pylist(), strict=True))
    keys = sorted(errors)
    rows = [
        {KEY: key, REPLY: replies.get(key), ERROR: None if key in replies else errors[key]} for key in keys
    ]
    whole = pa.Table.from_pylist(rows, REPLIES_SCHEMA)
    name = _name_file(keys)
    write_table(whole, folder.at(name), REPLIES_SCHEMA)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(folder.remove, [other for other in names if other != name]))


def _read_all(folder: Folder) -> tuple[list[str], pa.Table | None]:
    """Return the names of the files in a folder, and their rows in order of the names."""
    names = [name for name in folder.list_names() if name.endswith(".parquet")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tables = list(pool.map(lambda name: read_columns(folder.at(name), REPLIES_SCHEMA.names), names))
    return names, pa.concat_tables(tables) if tables else None


def _first_replies(table: pa.Table) -> dict[str, str]:
    """Return the first reply to every prompt that has one."""
    answered = table.filter(table[REPLY].is_valid())
    pairs = zip(answered[KEY].to_pylist(), answered[REPLY].to_pylist(), strict=True)
    return dict(reversed(list(pairs)))


def _name_file(keys: Sequence[str]) -> str:
    return f"{zlib.crc32(repr(list(keys)).encode()):08x}-{len(keys)}.parquet"


def _folder(uri: str, ordinal: int) -> Folder:
    return Folder(Folder(uri).at(f"{ordinal:05d}"))


KEY_VARIABLE = "OPENAI_API_KEY"
# Blocks are small, because an interrupted run repeats those in flight. Together they fill an engine, which
# takes up to 1,024 sequences at a time, and leave some in the queue.
ROWS_PER_BLOCK = 64
# For a server: the last slow requests of a block leave no gap.
SERVER_BLOCKS_AT_ONCE = 4


class Asked(NamedTuple):
    """The result of a pass: prompts answered, and prompts whose last attempt ended in an error."""

    answered: int
    failed: int


class Died(NamedTuple):
    """An engine ended for good."""

    why: str
    at_start: bool
    error: BaseException


@dataclass(frozen=True)
class PromptSource:
    """The prompts: ``load(item)`` yields rows of PROMPT_SCHEMA of each item, without those answered."""

    items: Sequence[Any]
    load: Callable[[Any], Iterator[pa.Table]]
    count: int


def ask(prompts: PromptSource, config: LlmConfig, engine: str, replies_uri: str, session: Session) -> Asked:
    """Ask the prompts once; write replies and errors under ``replies_uri`` block by block.

    Prompts are loaded again if the engine dies for good, ``config.tries`` times in all. ``engine`` is vllm
    or http. Raises OSError if there is no answer or the engine keeps dying; all answers are kept.
    Raises ValueError for errors the user can fix.
    """
    name = f"the engine vllm ({config.model})" if engine == "vllm" else f"the server {config.url}"
    count, was_disturbed = prompts.count, False
    for _ in range(config.tries):
        with Progress(f"ask {engine}", count, unit="prompt") as progress:
            tally = _Tally(progress)
            died = None
            if session.is_local:
                asyncio.run(_ask_here(prompts, config, replies_uri, tally))
            else:
                from raycomp.negatives.vllm import ask_on_ray

                died = ask_on_ray(prompts, config, engine, replies_uri, session, tally.add)
        if died is None:
            if not tally.answered and tally.is_server_gone(replies_uri):
                raise OSError(f"{name} answered none of {count:,} prompts: {tally.last_error}")
            if not was_disturbed and tally.answered + tally.failed != count:
                raise RuntimeError(f"{tally.answered + tally.failed} of {count} prompts were answered")
            # An interrupted pass may have stored replies that were not counted.
            return Asked(count - tally.failed, tally.failed)
        if died.at_start:
            raise OSError(f"{name} does not start: {died.why}") from died.error
        was_disturbed = True
    assert died is not None, "config.tries is at least 1"
    raise OSError(f"{name} failed repeatedly; its answers are kept: {died.why}") from died.error


async def _ask_here(prompts: PromptSource, config: LlmConfig, replies_uri: str, tally: "_Tally") -> None:
    """Ask a server from this process, several blocks at a time."""
    server = AskServer(config, read_key())

    async def ask_block(table: pa.Table) -> list[dict[str, Any]]:
        return write_replies(await server(table), replies_uri).to_pylist()

    blocks = cut(chain.from_iterable(map(prompts.load, prompts.items)), ROWS_PER_BLOCK)
    asked: set[asyncio.Task[list[dict[str, Any]]]] = set()
    for block in chain(blocks, [None]):
        if block is not None:
            asked.add(asyncio.create_task(ask_block(block)))
        while asked and (block is None or len(asked) >= SERVER_BLOCKS_AT_ONCE * config.span[1]):
            done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                for metadata in task.result():
                    tally.add(metadata)


class _Tally:
    """The driver's count of one pass."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.answered = self.failed = self.away = 0
        self.last_error: str | None = None

    def add(self, metadata: dict[str, Any]) -> None:
        self.answered += metadata["answered"]
        self.failed += metadata["failed"]
        self.away += metadata[AWAY]
        self.last_error = metadata[ERROR] or self.last_error
        for _ in range(metadata["answered"] + metadata["failed"]):
            self.progress.finish_one()

    def is_server_gone(self, replies_uri: str) -> bool:
        """Whether the pass had no answers because the engine or server did not respond.

        Prompts that fail by themselves, when all others are answered, do not stop a run.
        """
        if self.away or not self.failed:
            return bool(self.failed)
        files = (int(name) for name in Folder(replies_uri).list_names() if name.isdigit())
        return not any(read_replies(replies_uri, ordinal) for ordinal in files)


class AskServer:
    """The one client of a server: adds reply, error and away to every prompt of a block."""

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
        bodies = []
        for row in table.to_pylist():
            schema = {"name": "negative", "schema": SCHEMAS[row[FORM]], "strict": True}
            body = {"model": self.config.model, "messages": json.loads(row[MESSAGES])}
            body |= sampling(self.config, row[KEY])
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
            bodies.append(json.dumps(body))
        answers = await self.chat.ask(bodies)
        for name in (REPLY, ERROR, AWAY):
            values = [getattr(answer, name) for answer in answers]
            table = table.append_column(name, pa.array(values, ASKED_SCHEMA.field(name).type))
        return table


def read_key() -> Secret | None:
    """Return the key for the server from the environment, if set."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"{KEY_VARIABLE}: must be printable ASCII")
    return Secret(key) if key else None


def sampling(config: LlmConfig, key: str) -> dict[str, Any]:
    """Return the sampling parameters of a prompt. Its own seed makes its reply independent of the batch."""
    seed = (int(key[:8], 16) + config.seed) % 2**31
    return {"temperature": config.temperature, "max_tokens": config.max_tokens, "seed": seed}
