"""Samples as rows of SAMPLE_SCHEMA: each sample's status and uid, and blocks with deterministic cuts."""

import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from raycomp import schema, words
from raycomp.data.paths import ShardPath

# A block ends at this many bytes, however few rows that is.
BLOCK_BYTES = 64 << 20

# Maximum nesting of lists and objects. Python's own json is limited by the stack, here and in every reader of
# the output; a sample's json has three or four levels.
MAX_DEPTH = 100

_UID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_UID_BYTES = 16


class SampleRow(NamedTuple):
    """One sample, good or bad, or (with key "") a shard-level error."""

    key: str
    status: str
    uid: str
    url: str | None = None
    caption: str | None = None
    image: bytes | None = None
    json: str | None = None
    offset: int | None = None
    """Of a tar: the byte at which the sample's headers begin."""


class BrokenShard(Exception):
    """A shard cannot be read further; ``status`` is that of the row which takes the place of the rest."""

    def __init__(self, status: str):
        super().__init__(status)
        self.status = status


def sample_uid(shard_name: str, key: str, own: Any = None) -> str:
    """Return the uid of a sample: 32 hex digits.

    ``own`` if it is a uid (see parse_uid), else the first 16 bytes of SHA-256 over ``shard_name``, one zero
    byte and ``key``, both in UTF-8.
    """
    return parse_uid(own) or hashlib.sha256(f"{shard_name}\0{key}".encode()).hexdigest()[:32]


def parse_uid(own: Any) -> str | None:
    """Return a uid as 32 lower-case hex digits; None where ``own`` is not a uid.

    A uid is 16 bytes, a UUID, or a text (bytes or str) of 32 hex digits, with a UUID's dashes or without.
    """
    if isinstance(own, uuid.UUID):
        return own.hex
    if isinstance(own, bytes) and len(own) == _UID_BYTES:
        return own.hex()
    text = decode_text(own) if own else None
    return text.replace("-", "").lower() if text and _UID.fullmatch(text) else None


def parse_object(text: bytes | str | None) -> tuple[str | None, dict[str, Any] | None]:
    """Return a json object as text and as dict; (None, None) where ``text`` is anything else.

    Numbers that json does not allow (NaN, Infinity, 1e400) are read as Python reads them; of a repeated key
    the last value counts; see to_json. Nesting deeper than MAX_DEPTH, or a whole number of more than 4,300
    digits, gives (None, None).
    """
    if text is None:
        return None, None
    try:
        text = text.decode() if isinstance(text, bytes) else text
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None, None
    return (text, fields) if isinstance(fields, dict) and _is_shallow(text, fields) else (None, None)


def _is_shallow(text: str, value: Any) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return True
    level = [value]
    for _ in range(MAX_DEPTH):
        nested = [inner for inner in level if isinstance(inner, dict | list)]
        level = [v for inner in nested for v in (inner.values() if isinstance(inner, dict) else inner)]
    return not any(isinstance(inner, dict | list) for inner in level)


def to_json(value: Any) -> str:
    """Return ``value`` as json that every reader accepts and UTF-8 can encode.

    Converted by plain; halves of surrogate pairs become ``?``.
    """
    return json.dumps(to_json_value(value), ensure_ascii=False).encode("utf-8", "replace").decode()


def to_json_value(value: Any) -> Any:
    """Return ``value`` with null for bytes and numbers that are not finite, and text for types json lacks.

    Raises RecursionError where it is nested some hundred times.
    """
    if isinstance(value, dict):
        return {str(name): to_json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def decode_text(text: Any) -> str | None:
    """Return ``text`` (UTF-8 bytes or str) as a str that UTF-8 can encode; None for any other value."""
    try:
        if isinstance(text, bytes):
            return text.decode()
        text.encode()
    except (UnicodeError, AttributeError):
        return None
    return text


def first_text(value: Any) -> str | bytes | None:
    """Return a text; for a list, as of an image with several captions, its first; None without one."""
    values = value if isinstance(value, list) else [value]
    return next((item for item in values if isinstance(item, str | bytes)), None)


def check_sample(has_image: bool, has_caption: bool, caption: str | None, bad_json: bool) -> str:
    """Return the first fault of a sample: of its image, then its caption (None if undecodable), its json."""
    if not has_image:
        return words.NO_IMAGE
    if not has_caption:
        return words.NO_CAPTION
    if caption is None:
        return words.BAD_ENCODING
    if not caption.strip():
        return words.EMPTY_CAPTION
    return words.BAD_JSON if bad_json else words.OK


def make_row(
    shard: ShardPath, key: str, fields: dict[str, Any], found: Any, image: bytes | str | None, bad_json: bool
) -> SampleRow:
    """Return the row of a list or table: its ``fields``, its caption as it was ``found``, its image.

    ``image`` is a text, the sample's status, where it cannot be read. Where the shard's embeddings are stored
    none is needed.
    """
    caption = decode_text(found)
    has_image = image is not None or shard.embeddings is not None
    status = check_sample(has_image, found is not None, caption, bad_json)
    return SampleRow(
        key,
        image if isinstance(image, str) else status,
        sample_uid(shard.base or shard.name, key, fields.get("uid")),
        decode_text(fields.get("url", fields.get("URL"))),
        caption,
        image if isinstance(image, bytes) else None,
        to_json(fields),
    )


def cut_blocks(rows: Iterable[SampleRow], shard: ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of one shard as tables of SAMPLE_SCHEMA, numbered from 0, the last one marked.

    A block ends at ``block_rows`` rows or BLOCK_BYTES, never by time: a restarted reader yields equal blocks.
    Where ``rows`` raise BrokenShard a row of its status is the last one. A shard without rows gets one row
    with the status empty_shard.
    """
    block: list[SampleRow] = []
    position, size = 0, 0
    for row in _read_whole(rows, shard):
        if len(block) >= block_rows or size >= BLOCK_BYTES:
            yield _to_table(block, shard, position, False)
            position, size, block = position + len(block), 0, []
        block.append(row)
        size += len(row.image or b"") + len(row.json or "") + len(row.caption or "")
    yield _to_table(block, shard, position, True)


def _read_whole(rows: Iterable[SampleRow], shard: ShardPath) -> Iterator[SampleRow]:
    status: str | None = words.EMPTY_SHARD
    try:
        for row in rows:
            status = None
            yield row
    except BrokenShard as broken:
        status = broken.status
    if status:
        yield SampleRow("", status, sample_uid(shard.name, ""))


def _to_table(rows: list[SampleRow], shard: ShardPath, position: int, ends_shard: bool) -> pa.Table:
    columns: dict[str, Any] = dict(zip(SampleRow._fields, zip(*rows, strict=True), strict=True))
    columns[words.SHARD] = [shard.name] * len(rows)
    columns[words.SHARD_ORDINAL] = [shard.ordinal] * len(rows)
    columns[words.POSITION] = range(position, position + len(rows))
    columns[words.IS_LAST] = [False] * (len(rows) - 1) + [ends_shard]
    return pa.table(
        [pa.array(columns[field.name], field.type) for field in schema.SAMPLE_SCHEMA],
        schema=schema.SAMPLE_SCHEMA,
    )
