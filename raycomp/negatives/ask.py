"""Ask a language model for many replies: vLLM in actors of Ray Data, or a server; each block is stored.

``replies/00012/9f3c21aa-64.parquet`` holds 64 replies to prompts of the twelfth file of captions. Its name is
derived from its keys, so a repeated block overwrites its first attempt. A failed prompt is stored with its
error; the file of a later attempt with its answer is stored in the same folder. Before more prompts are
asked, the reply files of a file of captions are merged into one.

A prompt that cannot be answered (too long, refused by the server) is a row with an error. Ray restarts an
engine that dies. If that does not help, the unanswered prompts are asked again; at last the run stops and can
be resumed.

A server is any OpenAI-compatible one: many requests at a time, retried while a retry may succeed. Its faults
are errors of rows, never exceptions. The key is sent to the server alone and removed from every answer.
"""

import asyncio
import html
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import aiohttp
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data import parquet
from raycomp.data.files import Folder, join_uri
from raycomp.language.prompts import MAX_REPLY, SCHEMAS
from raycomp.negatives.captions import CaptionFile, load_captions
from raycomp.negatives.config import LlmConfig, NegativesConfig
from raycomp.negatives.write import list_prompts
from raycomp.negatives.write_all import ROWS_WITH_REPLIES, Writing, name_parquet
from raycomp.run.executor import Session
from raycomp.run.local import cut
from raycomp.run.progress import Progress
from raycomp.run.work import map_tasks
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
_TEXT, _ORDINAL = pa.string(), (SHARD_ORDINAL, pa.int32())
PROMPT_SCHEMA = pa.schema([(KEY, _TEXT), (UID, _TEXT), (MESSAGES, _TEXT), (FORM, _TEXT), _ORDINAL])
ASKED_SCHEMA = pa.schema([(KEY, _TEXT), (REPLY, _TEXT), (ERROR, _TEXT), (AWAY, pa.bool_()), _ORDINAL])
REPLIES_SCHEMA = pa.schema([ASKED_SCHEMA.field(name) for name in (KEY, REPLY, ERROR)])
METADATA_SCHEMA = pa.schema(
    [("answered", pa.int32()), ("failed", pa.int32()), (AWAY, pa.int32()), (ERROR, _TEXT)]
)
# Blocks are small, because an interrupted run repeats those in flight. Together they fill an engine, which
# takes up to 1,024 sequences at a time, and leave some in the queue.
ROWS_PER_BLOCK = 64
# For a server: the last slow requests of a block leave no gap.
SERVER_BLOCKS_AT_ONCE = 4
AT_ONCE_PER_ENGINE = 16

KEY_VARIABLE = "OPENAI_API_KEY"
# A correct answer is a few kilobytes; longer ones are not read to the end.
_MAX_BODY = 1 << 20
MAX_ERROR = 300
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_CONNECT_S = 10.0
# The server is busy or restarts: the same request may succeed later.
_BUSY = (408, 425, 429, 502, 503, 504)
# The address or the key is wrong: a retry cannot succeed.
_REFUSED = (301, 302, 303, 307, 308, 401, 402, 404, 405)


def ask_all(writing: Writing) -> None:
    """Ask the engine until every prompt is answered or out of attempts; replies are stored in ``replies/``.

    The prompts of a later call follow from the replies to the earlier ones. Raises OSError if the engine no
    longer answers. Prompts that stay unanswered while others are answered are left out.
    """
    config, prompts_uri = writing.config, writing.work.at("prompts")
    for _ in range(config.negatives.calls * config.llm.tries):
        writing.lease.check()
        folders = config, writing.replies_uri, prompts_uri
        counts = list(map_tasks(write_prompts, writing.sources, *folders, label="prompts"))
        if not any(counts):
            return
        asked = [source.ordinal for source, count in zip(writing.sources, counts, strict=True) if count]
        writing.lease.check()
        load = partial(load_prompts, replies_uri=writing.replies_uri, prompts_uri=prompts_uri)
        prompts = PromptSource(asked, load, sum(counts))
        try:
            ask(prompts, config.llm, config.negatives.engine, writing.replies_uri, writing.session)
        except OSError:
            if not _still_answers(writing):
                raise
            return


def _still_answers(writing: Writing) -> bool:
    """Ask again for a prompt that was answered before: if it succeeds, the remaining prompts are at fault."""
    config = writing.config
    for source in writing.sources:
        replies = read_replies(writing.replies_uri, source.ordinal)
        for table in load_captions(source, ROWS_WITH_REPLIES) if replies else ():
            known = [prompt for prompt in list_prompts(table, config, {}) if prompt.key in replies][:1]
            if known:
                rows = to_prompt_table(known, source.ordinal)
                prompts = PromptSource([rows], lambda rows: iter([rows]), 1)
                place = writing.work.at("asked-again"), writing.session
                try:
                    return ask(prompts, config.llm, config.negatives.engine, *place).answered == 1
                except OSError:
                    return False
    return False


def write_prompts(source: CaptionFile, config: NegativesConfig, replies_uri: str, prompts_uri: str) -> int:
    """Write one file's prompts that are not answered yet; return their number."""
    compact_replies(replies_uri, source.ordinal)
    replies, rows, count = read_replies(replies_uri, source.ordinal), config.cluster.block_rows, 0
    with parquet.new_groups(join_uri(prompts_uri, name_parquet(source.ordinal)), PROMPT_SCHEMA) as write:
        for table in load_captions(replace(source, with_images=False), ROWS_WITH_REPLIES):
            prompts = list_prompts(table, config, replies)
            count += len(prompts)
            for start in range(0, len(prompts), rows):
                write(to_prompt_table(prompts[start : start + rows], source.ordinal))
    return count


def load_prompts(ordinal: int, replies_uri: str, prompts_uri: str) -> Iterator[pa.Table]:
    """Yield the written prompts in blocks, without those answered since: the engine may have failed."""
    replies = read_replies(replies_uri, ordinal)
    for table in parquet.read_groups(join_uri(prompts_uri, name_parquet(ordinal))):
        yield table.filter(pa.array([key not in replies for key in table[KEY].to_pylist()]))


def to_prompt_table(
    prompts: Sequence[tuple[str, str, Sequence[Mapping[str, str]], str]], ordinal: int
) -> pa.Table:
    """Return rows of PROMPT_SCHEMA for (key, uid, chat, form) of one file of captions."""
    rows = [(key, uid, json.dumps(list(chat)), form, ordinal) for key, uid, chat, form in prompts]
    return parquet.from_rows(rows, PROMPT_SCHEMA)


def write_replies(table: pa.Table, uri: str) -> pa.Table:
    """Write rows of ASKED_SCHEMA under ``uri``; return part metadata for each file of captions among them."""
    all_metadata = []
    for ordinal in pc.unique(table[SHARD_ORDINAL]).to_pylist():
        rows = table.filter(pc.equal(table[SHARD_ORDINAL], ordinal))
        _write_file(rows.select(REPLIES_SCHEMA.names), _folder(uri, ordinal))
        failed, away = rows[REPLY].null_count, pc.sum(rows[AWAY]).as_py() or 0
        errors = [None, *rows[ERROR].drop_null().to_pylist()]
        all_metadata.append((len(rows) - failed, failed, away, errors[-1]))
    return parquet.from_rows(all_metadata, METADATA_SCHEMA)


def read_replies(uri: str, ordinal: int) -> dict[str, str]:
    """Return the replies to the prompts of one file of captions by key, without failed ones."""
    return _first_replies(_read_all(_folder(uri, ordinal))[1])


def _first_replies(table: pa.Table) -> dict[str, str]:
    answered = table.filter(table[REPLY].is_valid())
    pairs = zip(answered[KEY].to_pylist(), answered[REPLY].to_pylist(), strict=True)
    return dict(reversed(list(pairs)))


def compact_replies(uri: str, ordinal: int) -> None:
    """Merge the replies to the prompts of one file of captions into one file.

    A failed prompt keeps its last error, unless it was answered. An interruption loses no reply.
    """
    folder = _folder(uri, ordinal)
    names, table = _read_all(folder)
    if len(names) < 2:
        return
    replies = _first_replies(table)
    errors = dict(zip(table[KEY].to_pylist(), table[ERROR].to_pylist(), strict=True))
    rows = [(key, replies.get(key), None if key in replies else errors[key]) for key in sorted(errors)]
    name = _write_file(parquet.from_rows(rows, REPLIES_SCHEMA), folder)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(folder.remove, [other for other in names if other != name]))


def _folder(uri: str, ordinal: int) -> Folder:
    return Folder(Folder(uri).at(f"{ordinal:05d}"))


def _write_file(rows: pa.Table, folder: Folder) -> str:
    """Write replies under a name that follows from their keys; return it."""
    keys = rows[KEY].to_pylist()
    name = f"{zlib.crc32(repr(keys).encode()):08x}-{len(keys)}.parquet"
    parquet.write_table(rows, folder.at(name), REPLIES_SCHEMA)
    return name


def _read_all(folder: Folder) -> tuple[list[str], pa.Table]:
    """Return the names of the files in a folder, and their rows in order of the names."""
    names = [name for name in folder.list_names() if name.endswith(".parquet")]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = partial(parquet.read_columns, columns=REPLIES_SCHEMA.names)
        tables = list(pool.map(read, map(folder.at, names)))
    return names, pa.concat_tables([REPLIES_SCHEMA.empty_table(), *tables])


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
            tally, died = _Tally(progress), None
            if session.is_local:
                asyncio.run(_ask_here(prompts, config, replies_uri, tally))
            else:
                from raycomp.negatives.vllm import ask_on_ray

                died = ask_on_ray(prompts, config, engine, replies_uri, session, tally.add)
        if died is None:
            if tally.failed and not tally.answered:
                # Prompts that fail by themselves, when all others are answered, do not stop a run.
                files = (int(one) for one in Folder(replies_uri).list_names() if one.isdigit())
                if tally.away or not any(read_replies(replies_uri, ordinal) for ordinal in files):
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


async def _ask_here(prompts: PromptSource, config: LlmConfig, replies_uri: str, tally: _Tally) -> None:
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


def add_answers(table: pa.Table, answers: Sequence[Sequence[Any]]) -> pa.Table:
    """Return the table with reply, error and away of each row, the first three entries of its answer."""
    for place, name in enumerate((REPLY, ERROR, AWAY)):
        values = [answer[place] for answer in answers]
        table = table.append_column(name, pa.array(values, ASKED_SCHEMA.field(name).type))
    return table


def sampling(config: LlmConfig, key: str) -> dict[str, Any]:
    """Return the sampling parameters of a prompt. Its own seed makes its reply independent of the batch."""
    seed = (int(key[:8], 16) + config.seed) % 2**31
    return {"temperature": config.temperature, "max_tokens": config.max_tokens, "seed": seed}


class Secret:
    """A text that is not shown when its object is printed."""

    def __init__(self, text: str):
        self.text = text
        forms = {text, quote(text, safe=""), quote_plus(text), json.dumps(text)[1:-1], html.escape(text)}
        forms |= {" ".join(form.split()) for form in forms}
        self._forms = re.compile(
            "|".join(map(re.escape, sorted(forms, key=len, reverse=True))), re.IGNORECASE
        )

    def __repr__(self) -> str:
        return "Secret(***)"

    def cut_from(self, text: str) -> str:
        """Return ``text`` without the secret, in any case and in the escapes of URLs, JSON and HTML."""
        return self._forms.sub("***", text)


def read_key() -> Secret | None:
    """Return the key for the server from the environment, if set."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"{KEY_VARIABLE}: must be printable ASCII")
    return Secret(key) if key else None


class Answer(NamedTuple):
    """The result of one request: a reply or an error."""

    reply: str | None = None
    error: str | None = None
    away: bool = False
    """The server did not respond, so the prompt itself is not known to be at fault."""
    may_pass: bool = False
    """The same request may succeed later."""
    is_garbage: bool = False
    """The response is not that of an OpenAI-compatible server."""
    wait_s: float = 0.0
    """The server's Retry-After."""


class AskServer:
    """The one client of a server: adds reply, error and away to every prompt of a block.

    Its state persists between blocks. Each request takes at most ``timeout_s`` seconds, and is not retried
    after ``patience_s``.
    """

    def __init__(self, config: LlmConfig, key: Secret | None):
        self.config, self.key = config, key
        self.url = f"{(config.url or '').rstrip('/')}/chat/completions"
        self.at_once = AT_ONCE_PER_ENGINE * config.span[1]
        self.gate = asyncio.Semaphore(self.at_once)
        self.faults_in_row = 0
        self.last_fault = ""

    async def __call__(self, table: pa.Table) -> pa.Table:
        """Ask all prompts of a block."""
        bodies = []
        for row in table.to_pylist():
            schema = {"name": row[FORM], "schema": SCHEMAS[row[FORM]], "strict": True}
            body = {"model": self.config.model, "messages": json.loads(row[MESSAGES])}
            body |= sampling(self.config, row[KEY])
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
            bodies.append(json.dumps(body))
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key.text}"
        async with aiohttp.ClientSession(
            headers=headers,
            # The gate limits the number of connections.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.config.timeout_s, sock_connect=_CONNECT_S),
            # A megabyte can unpack to a thousand: ``unpack`` limits the size.
            auto_decompress=False,
        ) as http:
            answers = await asyncio.gather(*(self._ask(http, body) for body in bodies))
        return add_answers(table, answers)

    async def _ask(self, http: aiohttp.ClientSession, body: str) -> Answer:
        """Retry a request until it is answered, or the patience or the server's Retry-After is exceeded.

        If as many consecutive requests as are open at a time failed, no more are sent.
        """
        async with self.gate:
            deadline = time.monotonic() + self.config.patience_s
            pause_s = _FIRST_PAUSE_S
            while self.faults_in_row < self.at_once:
                answer = await self._post(http, body)
                left_s = deadline - time.monotonic()
                if not answer.may_pass or left_s <= 0 or answer.wait_s > left_s:
                    # The server, rather than the prompt, is at fault.
                    is_its_fault = answer.away or answer.may_pass or answer.is_garbage
                    self.faults_in_row = self.faults_in_row + 1 if is_its_fault else 0
                    self.last_fault = answer.error or ""
                    return answer
                await asyncio.sleep(max(answer.wait_s, min(pause_s, left_s)))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        text = f"not asked: {self.faults_in_row} requests failed in a row; {self.last_fault}"
        return self._fault(text, away=True)

    async def _post(self, http: aiohttp.ClientSession, body: str) -> Answer:
        """Send a request once."""
        try:
            async with http.post(self.url, data=body.encode(), allow_redirects=False) as response:
                data = b""  # up to one byte past the limit, which shows that it is too long
                while len(data) <= _MAX_BODY and (
                    part := await response.content.read(_MAX_BODY + 1 - len(data))
                ):
                    data += part
                data = unpack(data, response.headers.get("Content-Encoding", ""))
                wait_s = read_seconds(response.headers.get("Retry-After", ""))
                return self._judge(response.status, wait_s, data)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return self._fault(f"{type(error).__name__}: {error}", away=True, may_pass=True)
        except TimeoutError:
            return self._fault(f"no answer within {self.config.timeout_s:g} s", may_pass=True)
        except (aiohttp.ClientError, OSError) as error:
            return self._fault(f"{type(error).__name__}: {error}", may_pass=True)

    def _judge(self, status: int, wait_s: float, data: bytes) -> Answer:
        # Zeros are removed, so UTF-16 is readable too.
        shown = data.decode("utf-8", "replace").replace("\0", "") or "nothing"
        if status != 200:
            away, may_pass = status in _BUSY or status in _REFUSED, status in _BUSY or status >= 500
            return self._fault(f"status {status}: {shown}", away=away, may_pass=may_pass, wait_s=wait_s)
        if len(data) > _MAX_BODY:
            return self._fault(f"the answer is longer than {_MAX_BODY:,} bytes: {self._clean(shown, 80)}")
        try:
            reply = json.loads(data)["choices"][0]["message"]["content"]
            is_chat = reply is None or isinstance(reply, str)
        except (ValueError, LookupError, TypeError, RecursionError):
            is_chat = False
        if not is_chat:
            return self._fault(f"no chat completion: {shown}", is_garbage=True)
        # One letter more than a correct reply can have is as wrong as any longer reply.
        return Answer(reply=self._clean(reply or "", MAX_REPLY + 1))

    def _clean(self, text: str, length: int) -> str:
        """Return a text that may be stored: without the key, of limited length, without half surrogates.

        The key is removed before the rest is cut, because half a key would not be recognized.
        """
        if self.key is not None:
            text = self.key.cut_from(text)
        return text[:length].encode("utf-8", "replace").decode("utf-8")

    def _fault(self, text: str, **flags: Any) -> Answer:
        """Return a response as an error of one line."""
        return Answer(error=self._clean(" ".join(text.split()), MAX_ERROR), **flags)


def unpack(data: bytes, packed_as: str) -> bytes:
    """Unpack a body that a server compressed against the request; at most one byte past the limit.

    A body of another kind than gzip and deflate, packed twice or damaged, becomes a text that describes this.
    """
    kind = packed_as.strip().lower()
    if kind in ("", "identity"):
        return data
    if kind not in ("gzip", "x-gzip", "deflate"):
        return f"the server compressed its answer as {packed_as!r}; accepted are gzip and deflate".encode()
    # Deflate comes without a header, too; else zlib finds out which header it has.
    is_raw = kind == "deflate" and data[:1] and data[0] & 0x0F != 8
    try:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS | 32)
        return unpacker.decompress(data, _MAX_BODY + 1)
    except zlib.error as error:
        return f"the server's {kind} data cannot be decompressed ({error})".encode()


def read_seconds(text: str) -> float:
    """Read Retry-After in seconds; for a date the growing pauses apply."""
    return min(float(text), 86_400.0) if text.strip().isdecimal() and text.isascii() else 0.0
