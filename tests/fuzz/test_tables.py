"""Parquet of every type, whole and damaged: as many rows as the file has, strict json, the same again."""

import io
import json
import os
import tempfile
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import fs

from raycomp import schema, words
from raycomp.data.inputs import ShardPath
from raycomp.data.parquet_input import extract_table, read_table
from tests.fuzz.child import run
from tests.fuzz.inputs import EDITS, check_strict, damage

pytestmark = pytest.mark.slow

FILES = fs.LocalFileSystem()
UNITS = ("s", "ms", "us", "ns")
# Types whose values are bits: any bits may stand in a file, whatever they mean.
BITS = [
    *(getattr(pa, f"{sign}int{size}")() for sign in ("", "u") for size in (8, 16, 32, 64)),
    pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"),
    pa.time64("us"), pa.time64("ns"), *map(pa.duration, UNITS), *map(pa.timestamp, UNITS),
    pa.timestamp("us", "UTC"), pa.timestamp("s", "+02:00"), pa.timestamp("ms", "Mars/Olympus"),
    pa.decimal128(38, 3), pa.decimal128(5, -4), pa.decimal256(70, 9), pa.binary(3),
]  # fmt: skip
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
NAMES = (
    "image",
    "jpg",
    "filepath",
    "image_path",
    "caption",
    "text",
    "key",
    "uid",
    "url",
    "a",
    "json",
    "\u00e9",
)
EDGES = st.sampled_from([0, -1, 1, 2**7, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)])
WORDS = st.binary(max_size=6) | st.sampled_from(
    [b"a dog", b" ", b"\xff", b"0.jpg", b"../0.jpg", b"/etc/passwd", b"\0", b".", b"x" * 300, b"a" * 32]
)  # fmt: skip


@st.composite
def arrays(draw, kind: pa.DataType, length: int) -> pa.Array:
    """Draw an array of a type; numbers are bits, text is bytes."""
    if pa.types.is_null(kind):
        return pa.nulls(length)
    if kind in TEXTS:
        words = [draw(st.none() | WORDS) for _ in range(length)]
        binary = pa.large_binary() if kind in TEXTS[1::2] and "large" in str(kind) else pa.binary()
        return pa.array(words, binary).view(kind) if "string" in str(kind) else pa.array(words, kind)
    if pa.types.is_dictionary(kind):
        return draw(arrays(kind.value_type, length)).dictionary_encode()
    if pa.types.is_struct(kind):
        fields = list(kind)
        parts = [draw(arrays(field.type, length)) for field in fields]
        return pa.StructArray.from_arrays(parts, fields=fields)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        sizes = [draw(st.integers(0, 2)) for _ in range(length)]
        offsets = pa.array([sum(sizes[:i]) for i in range(length + 1)], pa.int32())
        if pa.types.is_map(kind):
            keys = pa.array([f"k{i % 2}" for i in range(sum(sizes))], pa.string())
            return pa.MapArray.from_arrays(offsets, keys, draw(arrays(kind.item_type, sum(sizes))))
        return pa.ListArray.from_arrays(offsets, draw(arrays(kind.value_type, sum(sizes))))
    if pa.types.is_boolean(kind):
        return pa.array([draw(st.none() | st.booleans()) for _ in range(length)], kind)
    width = kind.bit_width // 8
    bits = st.binary(min_size=width, max_size=width) | EDGES.map(
        lambda n: n.to_bytes(32, "little", signed=True)[:width]
    )
    data = b"".join(draw(bits) for _ in range(length))
    valid = draw(st.binary(min_size=length // 8 + 1, max_size=length // 8 + 1) | st.none())
    return pa.Array.from_buffers(kind, length, [valid and pa.py_buffer(valid), pa.py_buffer(data)])


LEAVES = st.sampled_from([*BITS, *TEXTS, pa.bool_(), pa.null()])
TYPES = st.recursive(
    LEAVES | st.sampled_from(TEXTS).map(lambda kind: pa.dictionary(pa.int32(), kind)),
    lambda inner: inner.map(pa.list_)
    | inner.map(lambda kind: pa.map_(pa.string(), kind))
    | st.lists(st.tuples(st.sampled_from(["a", "path"]), inner), min_size=1, max_size=3).map(pa.struct),
    max_leaves=3,
)  # fmt: skip


@st.composite
def files(draw) -> tuple[bytes, int]:
    """Draw a Parquet file and its number of rows; what Arrow itself cannot write is no example."""
    length = draw(st.sampled_from([1, 3, 9, 0]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    kinds = [draw(st.sampled_from(TEXTS) | TYPES) if name in NAMES[:9] else draw(TYPES) for name in names]
    columns = [draw(arrays(kind, length)) for kind in kinds]
    file = io.BytesIO()
    try:
        table = pa.Table.from_arrays(columns, names)
        pq.write_table(
            table,
            file,
            row_group_size=draw(st.sampled_from([1, 4, 100])),
            compression=draw(st.sampled_from(["none", "snappy", "zstd"])),
            use_dictionary=draw(st.booleans()),
            store_schema=draw(st.booleans()),
            data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
        )
    except (pa.ArrowException, OSError):
        assume(False)
    return file.getvalue(), length


@cache
def make_shard() -> ShardPath:
    """Return the shard in a folder with one picture."""
    folder = os.path.join(tempfile.mkdtemp(), "in")
    os.mkdir(folder)
    with open(os.path.join(folder, "0.jpg"), "wb") as file:
        file.write(b"\xff\xd8\xff picture")
    return ShardPath(7, os.path.join(folder, "x.parquet"), "x.parquet", "parquet")


def read(data: bytes, block_rows: int) -> list[dict]:
    """Return the rows of a file; check all that is promised of any."""
    tables = list(read_table(pa.BufferReader(data), make_shard(), block_rows, FILES))
    assert all(table.schema == schema.SAMPLE_SCHEMA and 0 < len(table) <= block_rows for table in tables)
    rows = pa.concat_tables(tables).to_pylist()
    assert [row["position"] for row in rows] == list(range(len(rows)))
    assert [row["is_last"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert {row["status"] for row in rows} <= words.STATUSES.keys()
    for row in rows:
        if row["json"] is not None:
            assert isinstance(check_strict(row["json"].encode()), dict)
        if row["status"] == words.OK:
            assert row["image"] is not None and row["caption"].strip() and row["json"] is not None
    return rows


def check(data: bytes) -> list[dict]:
    """Check that a file reads the same again, in other blocks too, and that its rows are found again."""
    rows = read(data, 2)
    assert rows == read(data, 2) == read(data, 100)
    samples = [row for row in rows if row["status"] not in words.SHARD_STATUSES]
    found = dict(extract_table(pa.BufferReader(data), make_shard(), range(len(rows)), FILES))
    assert list(found) == [row["position"] for row in samples]
    for row, members in zip(samples, found.values(), strict=True):
        assert members["json"].decode() == (row["json"] or "{}")
        assert members.get("txt") == (None if row["caption"] is None else row["caption"].encode())
        images = [data for name, data in members.items() if name not in ("txt", "json")]
        assert images == ([] if row["image"] is None else [row["image"]])
    return rows


@given(files())
def whole_tables(file):
    data, length = file
    rows = check(data)
    if length:
        assert len(rows) == length and rows[-1]["status"] not in words.SHARD_STATUSES
    else:
        assert [row["status"] for row in rows] == [words.EMPTY_SHARD]


@given(files(), EDITS)
def damaged_tables(file, edits):
    check(damage(file[0], edits))


def load() -> None:
    """Read one file, so that Arrow has what it needs."""
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [b"x"], "caption": ["a dog"], "c": [json.dumps({})]}), file)
    check(file.getvalue())


def test_whole_tables():
    run(whole_tables, 400)


def test_damaged_tables():
    run(damaged_tables, 600)
