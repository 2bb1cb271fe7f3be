"""Prompts as rows, and the replies to them on disk: an answered prompt is never asked again.

``replies/00012/9f3c21aa-64.parquet`` holds 64 replies to prompts of the twelfth file of captions. Its name is
derived from its keys, so a repeated block overwrites its first attempt. A failed prompt is stored with its
error; the file of a later attempt with its answer is stored in the same folder. Before more prompts are
asked, the reply files of a file of captions are merged into one.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns, write_table
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
        errors = rows[ERROR].drop_null().to_pylist()
        away = pc.sum(rows[AWAY]).as_py() or 0
        all_metadata.append(
            {
                "answered": len(rows) - rows[REPLY].null_count,
                "failed": rows[REPLY].null_count,
                AWAY: away,
                ERROR: (errors or [None])[-1],
            }
        )
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


def has_replies(uri: str) -> bool:
    """Whether any prompt was answered."""
    return any(read_replies(uri, int(name)) for name in Folder(uri).list_names() if name.isdigit())


def _folder(uri: str, ordinal: int) -> Folder:
    return Folder(Folder(uri).at(f"{ordinal:05d}"))
