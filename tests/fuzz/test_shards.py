"""Tars and Parquet, whole and damaged, and samples' json: a row for every sample, that is readable again."""

import gzip
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import fs

from raycomp import schema, words
from raycomp.config import ScorerConfig
from raycomp.curation.outputs import enrich
from raycomp.curation.score.stages import prepare
from raycomp.data.inputs import IMAGE_EXTENSIONS, ShardPath
from raycomp.data.parquet_input import extract_table, read_table
from raycomp.data.samples import extract_tar, parse_object, read_tar
from raycomp.models.architecture import ScorerSpec
from raycomp.models.images import ImageSpec
from tests.fuzz.child import run
from tests.fuzz.inputs import EDITS, JSON_VALUES, ODD_JSON, check_strict, damage

pytestmark = pytest.mark.slow

SHARD = ShardPath(7, "00000.tar", "00000.tar", "tar")
FILES = fs.LocalFileSystem()
PLAIN = st.builds(
    "{}.{}".format,
    st.sampled_from(["0", "1", "a/b", "../up", "long/" * 30 + "key", "x" * 99, "y" * 150]),
    st.sampled_from(["jpg", "PNG", "txt", "json", "seg.png", "cls", ""]),
)
ODD = st.text(max_size=12) | st.sampled_from(["/", ".", "..", "__m__", "__m__/0.jpg", "a.jpg/", "\udcff.jpg"])
KINDS = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE,
         tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, tarfile.SOLARIS_XHDTYPE, b"Z", b"\0"]  # fmt: skip
DATA = st.binary(max_size=20) | st.sampled_from(
    [b"", b"a dog", b"{}", b'{"caption": "a cat", "uid": "0"}', b"[]", b"\xff", b"x" * 511, b"y" * 1025]
)  # fmt: skip
PAX = st.dictionaries(
    st.sampled_from(["path", "size", "linkpath", "GNU.sparse.name", "GNU.sparse.size", "hdrcharset", "c"]),
    st.sampled_from(["", "0", "-1", "9" * 17, "1e3", "0.jpg", "b.txt", "\u00fc", "\0"]) | st.text(max_size=5),
    max_size=2,
)  # fmt: skip
LAYOUTS = st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
MEMBERS = st.lists(st.tuples(PLAIN, DATA, st.just(tarfile.REGTYPE), st.just({})), max_size=9)
ANY_MEMBERS = st.lists(
    st.tuples(PLAIN | ODD, DATA, st.just(tarfile.REGTYPE) | st.sampled_from(KINDS), PAX), max_size=7
)


def read(tables: Iterable[pa.Table], block_rows: int) -> list[dict]:
    """Return the rows of a shard; check all that is promised of any."""
    tables = list(tables)
    assert all(table.schema == schema.SAMPLE_SCHEMA and 0 < len(table) <= block_rows for table in tables)
    rows = pa.concat_tables(tables).to_pylist()
    assert [row["position"] for row in rows] == list(range(len(rows)))
    assert [row["is_last"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert {row["status"] for row in rows} <= words.STATUSES.keys()
    assert all(row["status"] not in words.SHARD_STATUSES for row in rows[:-1])
    for row in rows:
        assert re.fullmatch("[0-9a-f]{32}", row["uid"])
        assert row["status"] != words.OK or (row["image"] is not None and row["caption"].strip())
    return rows


def check(read_again: Callable[[int], Iterable[pa.Table]], extract: Callable[[Any], Any]) -> list[dict]:
    """Check that a shard reads the same again, in other blocks too, and that its samples are found again."""
    rows = read(read_again(3), 3)
    assert rows == read(read_again(3), 3) == read(read_again(50), 50)
    samples = {row["position"]: row for row in rows if row["status"] not in words.SHARD_STATUSES}
    found = dict(extract(range(len(rows) + 1)))
    assert found.keys() == samples.keys()
    for position, members in found.items():
        image = next((members[name] for name in IMAGE_EXTENSIONS if name in members), None)
        assert image == samples[position]["image"]
        if "json" in members and samples[position]["json"] is not None:  # a class becomes a json of its own
            assert json.loads(members["json"]) is not None
        assert dict(extract({position})) == {position: members}
    return rows


def write_tar(members: list, layout: int, is_v7: bool = False) -> bytes:
    """Return a tar of (name, data, kind, pax headers) members; one that cannot be said is no example."""
    file = io.BytesIO()
    try:
        with tarfile.open(fileobj=file, mode="w", format=layout, errors="surrogateescape") as tar:
            for name, data, kind, headers in members:
                info = tarfile.TarInfo(name)
                info.type, info.pax_headers, info.size = kind, headers, len(data)
                info.linkname = "0.jpg" if kind in (tarfile.LNKTYPE, tarfile.SYMTYPE) else ""
                tar.addfile(info, io.BytesIO(data))
    except ValueError:
        assume(False)
    data = file.getvalue()
    blocks = [data[i : i + 512] for i in range(0, len(data), 512)]
    for i, block in enumerate(blocks if is_v7 else ()):
        if block[257:262] == b"ustar":  # as tar wrote it in 1979: nothing beyond the link's name
            head = block[:148] + b" " * 8 + block[156:257] + bytes(255)
            blocks[i] = head[:148] + b"%06o\0 " % sum(head) + head[156:]
    return b"".join(blocks)


def check_tar(data: bytes) -> list[dict]:
    return check(
        lambda size: read_tar(io.BytesIO(data), SHARD, size), lambda rows: extract_tar(io.BytesIO(data), rows)
    )


@given(MEMBERS, LAYOUTS, st.booleans())
def whole_tars(members, layout, is_v7):
    is_v7 = is_v7 and layout == tarfile.USTAR_FORMAT and all(len(name) <= 99 for name, *_ in members)
    data = write_tar(members, layout, is_v7)
    rows = check_tar(data)
    faults = [row["status"] for row in rows if row["status"] in words.SHARD_STATUSES]
    assert faults == ([] if members else [words.EMPTY_SHARD])
    found = dict(extract_tar(io.BytesIO(data), range(len(rows))))
    written = sorted((name.rpartition("/")[2].partition(".")[2].lower(), text) for name, text, *_ in members)
    assert sorted(member for sample in found.values() for member in sample.items()) == written


@given(ANY_MEMBERS, LAYOUTS, EDITS, st.booleans(), st.booleans())
def damaged_tars(members, layout, edits, is_gzip, is_twice):
    data = write_tar(members, layout)
    data = damage(data * 2 if is_twice else data, edits)
    check_tar(gzip.compress(data, mtime=0) if is_gzip else data)


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
NAMES = [
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
]
EDGES = st.sampled_from([0, -1, 1, 2**7, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)])
WORDS = st.binary(max_size=6) | st.sampled_from(
    [b"a dog", b" ", b"\xff", b"0.jpg", b"../0.jpg", b"/etc/passwd", b"\0", b".", b"x" * 300, b"a" * 32]
)  # fmt: skip
LEAVES = st.sampled_from([*BITS, *TEXTS, pa.bool_(), pa.null()])
TYPES = st.recursive(
    LEAVES | st.sampled_from(TEXTS).map(lambda kind: pa.dictionary(pa.int32(), kind)),
    lambda inner: inner.map(pa.list_)
    | inner.map(lambda kind: pa.map_(pa.string(), kind))
    | st.lists(st.tuples(st.sampled_from(["a", "path"]), inner), min_size=1, max_size=3).map(pa.struct),
    max_leaves=3,
)  # fmt: skip


@st.composite
def arrays(draw, kind: pa.DataType, length: int) -> pa.Array:
    """Draw an array of a type; numbers are bits, text is bytes."""
    if pa.types.is_null(kind):
        return pa.nulls(length)
    if kind in TEXTS:
        words = [draw(st.none() | WORDS) for _ in range(length)]
        binary = pa.large_binary() if "large" in str(kind) else pa.binary()
        return pa.array(words, binary).view(kind) if "string" in str(kind) else pa.array(words, kind)
    if pa.types.is_dictionary(kind):
        return draw(arrays(kind.value_type, length)).dictionary_encode()
    if pa.types.is_struct(kind):
        fields = list(kind)
        return pa.StructArray.from_arrays([draw(arrays(one.type, length)) for one in fields], fields=fields)
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
    edges = EDGES.map(lambda n: n.to_bytes(32, "little", signed=True)[:width])
    data = b"".join(draw(st.binary(min_size=width, max_size=width) | edges) for _ in range(length))
    valid = draw(st.binary(min_size=length // 8 + 1, max_size=length // 8 + 1) | st.none())
    return pa.Array.from_buffers(kind, length, [valid and pa.py_buffer(valid), pa.py_buffer(data)])


@st.composite
def files(draw) -> tuple[bytes, int]:
    """Draw a Parquet file and its number of rows; what Arrow itself cannot write is no example."""
    length = draw(st.sampled_from([1, 3, 9, 0]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5))
    kinds = [draw(st.sampled_from(TEXTS) | TYPES) if name in NAMES[:9] else draw(TYPES) for name in names]
    columns = [draw(arrays(kind, length)) for kind in kinds]
    options = {
        "row_group_size": draw(st.sampled_from([1, 4, 100])),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd"])),
        "use_dictionary": draw(st.booleans()),
        "store_schema": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
    }
    file = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_arrays(columns, names), file, **options)
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


def check_table(data: bytes) -> list[dict]:
    rows = check(
        lambda size: read_table(pa.BufferReader(data), make_shard(), size, FILES),
        lambda rows: extract_table(pa.BufferReader(data), make_shard(), rows, FILES),
    )
    for row in rows:
        assert row["json"] is None or isinstance(check_strict(row["json"].encode()), dict)
        assert row["status"] != words.OK or row["json"] is not None
    return rows


@given(files())
def whole_tables(file):
    data, length = file
    rows = check_table(data)
    if length:
        assert len(rows) == length and rows[-1]["status"] not in words.SHARD_STATUSES
    else:
        assert [row["status"] for row in rows] == [words.EMPTY_SHARD]


@given(files(), EDITS)
def damaged_tables(file, edits):
    check_table(damage(file[0], edits))


SCORER = ScorerConfig(model="ViT-B-32", weights="random:0")
SPEC = ScorerSpec(ImageSpec(8, 8, (0.5,) * 3, (0.5,) * 3), 77, 4, True)
EXTRA = ("a", "license")
FIELDS = st.sampled_from(["caption", "uid", "url", "original_width", "original_height", "alignment", *EXTRA])
VALUES = ODD_JSON | JSON_VALUES.map(json.dumps)
OBJECTS = st.lists(st.tuples(FIELDS.map(json.dumps), VALUES), max_size=5).map(
    lambda pairs: "{" + ", ".join(map(": ".join, pairs)) + "}"
)
JSON = st.lists(
    st.builds(damage, (OBJECTS | VALUES).map(str.encode), st.just([]) | EDITS), min_size=1, max_size=4
)


@given(JSON, st.booleans())
def json_members(texts, is_fast):
    for text in texts:
        whole, fields = parse_object(text)
        assert (whole is None) == (fields is None) and (whole is None or json.loads(whole) is not None)
    samples = [
        [("jpg", b"no picture"), ("json", text), *([("txt", b"a dog")] if i % 2 else [])]
        for i, text in enumerate(texts)
    ]
    members = [
        (f"{i:03d}.{name}", data, tarfile.REGTYPE, {}) for i, one in enumerate(samples) for name, data in one
    ]
    data = write_tar(members, tarfile.GNU_FORMAT)
    table = pa.concat_tables(read_tar(io.BytesIO(data), SHARD, 3))
    assert len(table) == len(texts)
    written = dict(extract_tar(io.BytesIO(data), range(len(texts))))
    for row in table.to_pylist():
        if row["status"] == words.OK:
            added = {"alignment": 0.5, "mean_pas": None}
            found = enrich(written[row["position"]], row["uid"], row["caption"], added)
            assert check_strict(found["json"]).items() >= {**added, "uid": row["uid"]}.items()
            assert found["txt"].decode() and found["jpg"] == b"no picture"
    found, again = (prepare(table, SCORER, SPEC, 1000, EXTRA, is_fast) for _ in range(2))
    assert found.equals(again) and found[words.POSITION].to_pylist() == list(range(len(texts)))
    assert words.STATUSES.keys() >= set(found[words.STATUS].to_pylist())
    assert {pa.string()} == {found.schema.field(name).type for name in EXTRA}
    assert all(0 < width < 2**31 for width in found[words.ORIGINAL_WIDTH].drop_null().to_pylist())


def load() -> None:
    """Read one file, so that Arrow has what it needs, and load the tokenizer."""
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [b"x"], "caption": ["a dog"], "c": [json.dumps({})]}), file)
    check_table(file.getvalue())
    json_members.hypothesis.inner_test([b"{}"], False)


def test_shards():
    run(whole_tars, 300, megabytes=128)
    run(damaged_tars, 1200, megabytes=128)
    run(whole_tables, 400)
    run(damaged_tables, 600)
    run(json_members, 400)
