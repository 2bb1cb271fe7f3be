"""Tars of every dialect, whole and damaged: every sample is a row, a row is readable again."""

import gzip
import io
import json
import re
import tarfile

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from raycomp import schema, words
from raycomp.data.inputs import IMAGE_EXTENSIONS, ShardPath
from raycomp.data.samples import extract_tar, read_tar
from tests.fuzz.child import run
from tests.fuzz.inputs import EDITS, damage

pytestmark = pytest.mark.slow

SHARD = ShardPath(7, "00000.tar", "00000.tar", "tar")
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


def write(members: list, layout: int, is_v7: bool = False) -> bytes:
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
    return _without_magic(file.getvalue()) if is_v7 else file.getvalue()


def _without_magic(data: bytes) -> bytes:
    """Return a ustar archive as tar wrote it in 1979: nothing beyond the link's name."""
    blocks = [data[i : i + 512] for i in range(0, len(data), 512)]
    for i, block in enumerate(blocks):
        if block[257:262] == b"ustar":
            head = block[:148] + b" " * 8 + block[156:257] + bytes(255)
            blocks[i] = head[:148] + b"%06o\0 " % sum(head) + head[156:]
    return b"".join(blocks)


def read(data: bytes, block_rows: int) -> list[dict]:
    """Return the rows of a tar; check all that is promised of any."""
    tables = list(read_tar(io.BytesIO(data), SHARD, block_rows))
    assert all(table.schema == schema.SAMPLE_SCHEMA and 0 < len(table) <= block_rows for table in tables)
    rows = pa.concat_tables(tables).to_pylist()
    assert [row["position"] for row in rows] == list(range(len(rows)))
    assert [row["is_last"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert {row["status"] for row in rows} <= words.STATUSES.keys()
    assert all(row["status"] not in words.SHARD_STATUSES for row in rows[:-1])
    for row in rows:
        assert re.fullmatch("[0-9a-f]{32}", row["uid"])
        if row["status"] == words.OK:
            assert row["image"] is not None and row["caption"].strip()
    return rows


def check(data: bytes) -> list[dict]:
    """Check that a tar reads the same again, in other blocks too, and that its members are found again."""
    rows = read(data, 3)
    assert rows == read(data, 3) == read(data, 50)
    samples = {row["position"]: row for row in rows if row["status"] not in words.SHARD_STATUSES}
    found = dict(extract_tar(io.BytesIO(data), range(len(rows) + 1)))
    assert found.keys() == samples.keys()
    for position, members in found.items():
        image = next((members[name] for name in IMAGE_EXTENSIONS if name in members), None)
        assert image == samples[position]["image"]
        if samples[position]["json"] is not None:
            assert json.loads(members["json"]) is not None
        assert dict(extract_tar(io.BytesIO(data), {position})) == {position: members}
    return rows


MEMBERS = st.lists(st.tuples(PLAIN, DATA, st.just(tarfile.REGTYPE), st.just({})), max_size=9)
ANY_MEMBERS = st.lists(
    st.tuples(PLAIN | ODD, DATA, st.just(tarfile.REGTYPE) | st.sampled_from(KINDS), PAX), max_size=7
)


@given(MEMBERS, LAYOUTS, st.booleans())
def whole_tars(members, layout, is_v7):
    if is_v7 and (layout != tarfile.USTAR_FORMAT or any(len(name) > 99 for name, *_ in members)):
        is_v7 = False
    data = write(members, layout, is_v7)
    rows = check(data)
    assert [row["status"] for row in rows if row["status"] in words.SHARD_STATUSES] == (
        [] if members else [words.EMPTY_SHARD]
    )
    found = dict(extract_tar(io.BytesIO(data), range(len(rows))))
    written = sorted((name.rpartition("/")[2].partition(".")[2].lower(), text) for name, text, *_ in members)
    assert sorted(member for sample in found.values() for member in sample.items()) == written


@given(ANY_MEMBERS, LAYOUTS, EDITS, st.booleans(), st.booleans())
def damaged_tars(members, layout, edits, is_gzip, is_twice):
    data = write(members, layout)
    data = damage(data * 2 if is_twice else data, edits)
    check(gzip.compress(data, mtime=0) if is_gzip else data)


def test_whole_tars():
    run(whole_tars, 300, megabytes=128)


def test_damaged_tars():
    run(damaged_tars, 1200, megabytes=128)
