"""Parquet as input: every row of a file is a row, in the file's order, whatever is wrong with it."""

import datetime
import io
import json
import math
import os
import random
import signal
import socket
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from raycomp import schema, words
from raycomp.data import samples
from raycomp.data.inputs import expand_input
from raycomp.data.parquet_input import read_table
from raycomp.data.reader import extract, read_shard
from raycomp.data.samples import sample_uid

UID = "0123456789abcdef0123456789abcdef"
MISSING, REFUSED = "image_file_missing", "image_path_refused"


def write(folder: Path, columns: dict, **options) -> str:
    path = folder / "in.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read(path: str, block_rows: int = 4) -> list[dict]:
    (shard,) = expand_input(path)
    tables = list(read_shard(shard, block_rows))
    assert all(table.schema == schema.SAMPLE_SCHEMA for table in tables)
    found = pa.concat_tables(tables).to_pylist()
    assert [row["position"] for row in found] == list(range(len(found)))
    assert [row["is_last"] for row in found] == [False] * (len(found) - 1) + [True]
    return found


def statuses(path: str) -> list[str]:
    return [row["status"] for row in read(path)]


def test_photos_as_paths(tmp_path, monkeypatch):
    """Only regular files below the folder are opened, and none beyond the limit."""
    folder = tmp_path / "in"
    (folder / "images").mkdir(parents=True)
    for name, size in (("0.jpg", 5), ("1.jpg", 10), ("large.jpg", 11)):
        (folder / "images" / name).write_bytes(b"x" * size)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    targets = {
        "link": "images/0.jpg",
        "out": "../secret.jpg",
        "up": "..",
        "zero": "/dev/zero",
        "self": "self",
    }
    for name, target in targets.items():
        os.symlink(target, folder / name)
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)  # a socket's path is short
        server.bind("socket")
    expected = {
        "images/0.jpg": "ok", f"{folder}/images/1.jpg": "ok", "link": "ok",
        "images/large.jpg": "image_too_large", "none.jpg": MISSING, "images": MISSING, "": "no_image",
        "../secret.jpg": REFUSED, f"{tmp_path}/secret.jpg": REFUSED, "a\0b": REFUSED, "x" * 5000: MISSING,
        "out": REFUSED, "up/secret.jpg": REFUSED, "up": REFUSED, "zero": REFUSED, "self": MISSING,
        "pipe": MISSING, "socket": MISSING, None: "no_image",
    }  # fmt: skip
    monkeypatch.setattr(samples, "MAX_MEMBER_BYTES", 10)
    os.symlink(folder, tmp_path / "linked")
    signal.alarm(20)  # a reader that waits is ended
    try:
        for name, above in (("image_path", "in"), ("filepath", "linked"), ("image", "in")):
            paths = [path and path.replace(str(folder), str(tmp_path / above)) for path in expected]
            column = [{"bytes": None, "path": path} for path in paths] if name == "image" else paths
            write(folder, {name: column, "caption": ["a dog"] * len(paths)})
            found = read(str(tmp_path / above / "in.parquet"))
            assert [row["status"] for row in found] == [*expected.values()], name
            assert [row["image"] for row in found[:4]] == [b"x" * 5, b"x" * 10, b"x" * 5, None]
    finally:
        signal.alarm(0)


def test_other_columns_go_into_json(tmp_path):
    columns = {
        "jpg": [b"x", b"y"],
        "text": ["a dog", None],
        "uid": [UID.upper(), "short"],
        "key": ["k0", "k1"],
        "url": ["http://x", None],
        "score": [0.5, float("nan")],
        "at": [datetime.datetime(2020, 1, 2), None],
        "tags": [["a", "b"], []],
        "embedding": [b"\0\1", None],
    }
    first, second = read(write(tmp_path, columns))
    assert (first["key"], first["uid"], first["url"]) == ("k0", UID, "http://x")
    assert json.loads(first["json"]) == {
        "text": "a dog", "uid": UID.upper(), "key": "k0", "url": "http://x", "score": 0.5,
        "at": "2020-01-02 00:00:00.000000", "tags": ["a", "b"], "embedding": None,
    }  # fmt: skip
    assert json.loads(second["json"])["score"] is None
    assert (second["status"], second["uid"]) == ("no_caption", sample_uid("in.parquet", "k1"))
    for own in (
        pa.array([str(uuid.UUID(UID))]),
        pa.array([UID.encode()]),
        pa.array([bytes.fromhex(UID)]),
        pa.array([bytes.fromhex(UID)], pa.binary(16)),
        pa.array([bytes.fromhex(UID)], pa.uuid()),
    ):
        (row,) = read(write(tmp_path, {"jpg": [b"x"], "caption": ["a"], "uid": own}))
        assert (row["status"], row["uid"]) == ("ok", UID), own


def test_bad_rows(tmp_path):
    """Text that is not UTF-8 can stand in a string column: nothing checks it on the way."""

    def texts(*values: bytes) -> pa.Array:
        return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())

    columns = {
        "jpg": [b"x"] * 4,
        "caption": texts(b"a dog", b"caf\xe9", b" ", b"a cat"),
        "place": texts(b"Rome", b"Oslo", b"Bern", b"\xff"),
    }
    found = read(write(tmp_path, columns))
    assert [row["status"] for row in found] == ["ok", "bad_encoding", "empty_caption", "bad_json"]
    assert json.loads(found[1]["json"]) == {"caption": None, "place": "Oslo"}


def numbers(value: int, kind: pa.DataType) -> pa.Array:
    return pa.array([0, value, 1], pa.int64()).cast(kind)


ODD_VALUES = {
    "date": pa.array([0, 2**31 - 1, 1], pa.int32()).cast(pa.date32()),
    "date64": numbers(2**62 // 86_400_000 * 86_400_000, pa.date64()),
    "timestamp": numbers(2**62, pa.timestamp("ms")),
    "early timestamp": numbers(-(2**62), pa.timestamp("us")),
    "nanoseconds": numbers(1, pa.timestamp("ns")),
    "zone": numbers(2**62, pa.timestamp("ms", "Europe/Rome")),
    "unknown zone": numbers(5, pa.timestamp("us", "Mars/Olympus")),
    "duration": numbers(2**62, pa.duration("ms")),
    "nanoseconds long": numbers(1, pa.duration("ns")),
}


def test_a_value_that_python_cannot_hold_is_a_fault_of_its_row_alone(tmp_path):
    for odd, values in ODD_VALUES.items():
        for shape, column in {
            "plain": values,
            "struct": pa.StructArray.from_arrays([values, values], ["a", "b"]),
            "list": pa.ListArray.from_arrays([0, 1, 2, 3], values),
            "map": pa.MapArray.from_arrays([0, 1, 2, 3], ["x", "y", "z"], values),
        }.items():
            found = read(write(tmp_path, {"jpg": [b"x"] * 3, "caption": ["a dog"] * 3, "odd": column}))
            first, middle, last = (row["status"] for row in found)
            assert middle in ("ok", "bad_json"), (shape, odd)
            assert first == last == "ok" or (odd == "unknown zone" and first == middle == last == "bad_json")
            for row in found:
                assert (json.loads(row["json"])["odd"] is None) == (row["status"] == "bad_json"), (shape, odd)
            if shape != "plain" and odd in ("date", "timestamp", "early timestamp", "zone"):
                assert middle == "bad_json", (shape, odd)


def test_of_a_list_of_captions_the_first_text_is_taken(tmp_path):
    for kind in [pa.string(), pa.large_string(), pa.binary()]:
        lists = pa.array([["a dog", "a cat"], [None, "a cow"], ["", "b"], [], None], pa.list_(kind))
        path = write(tmp_path, {"jpg": [b"x"] * 5, "caption": lists})
        assert [row["caption"] for row in read(path)] == ["a dog", "a cow", "", None, None], kind
        assert statuses(path) == ["ok", "ok", "empty_caption", "no_caption", "no_caption"], kind
        (shard,) = expand_input(path)
        assert [members.get("txt") for _, members in extract(shard, {0, 1})] == [b"a dog", b"a cow"], kind


def test_faults_of_the_file(tmp_path):
    rng = random.Random(0)
    columns = {"jpg": [rng.randbytes(20_000) for _ in range(40)], "caption": ["a"] * 40}
    path = Path(write(tmp_path, columns, row_group_size=10, use_dictionary=False))
    whole = path.read_bytes()
    for data in (b"", b"no parquet", whole[: len(whole) // 2], whole[:-3], b"x" * 9000):
        path.write_bytes(data)
        assert statuses(str(path)) == ["unreadable_shard"]
    page = pq.ParquetFile(io.BytesIO(whole)).metadata.row_group(2).column(0).data_page_offset
    path.write_bytes(whole[:page] + b"\xff" * 50 + whole[page + 50 :])
    assert statuses(str(path)) == ["ok"] * 20 + ["truncated_shard"]
    write(tmp_path, {"jpg": pa.array([], pa.binary()), "caption": pa.array([], pa.string())})
    assert statuses(str(path)) == ["empty_shard"]


def test_damage_anywhere_is_rows_and_never_an_error(tmp_path):
    rng = random.Random(0)
    columns = {"jpg": [b"x" * 50] * 40, "caption": ["a dog"] * 40, "tags": [["a"], []] * 20, "n": [1.5] * 40}
    path = Path(write(tmp_path, columns, row_group_size=8))
    whole = path.read_bytes()
    seen = set()
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(4, len(data) - 8)
            data[at : at + 3] = rng.randbytes(3)
        path.write_bytes(data)
        seen |= set(statuses(str(path)))
    assert {"truncated_shard", "ok"} <= seen <= set(words.STATUSES)


def test_errors_of_the_file_system_pass_through(tmp_path):
    class Failing(io.BytesIO):
        num_reads = 0

        def read(self, size: int = -1) -> bytes:
            self.num_reads += 1
            if self.num_reads > 4:
                raise ConnectionResetError("the connection broke")
            return super().read(size)

    columns = {"jpg": [bytes(20_000)] * 200, "caption": ["a"] * 200}
    path = write(tmp_path, columns, row_group_size=10, compression="none", use_dictionary=False)
    (shard,) = expand_input(path)
    with pytest.raises(ConnectionResetError):
        list(read_table(Failing(Path(path).read_bytes()), shard, 4, fs.LocalFileSystem()))


def test_memory_holds_a_block_not_the_file(tmp_path, monkeypatch):
    """Of pictures of 64 MB, of one that stands in a dictionary once, and of those that pack well."""
    monkeypatch.setattr(samples, "BLOCK_BYTES", 1 << 20)
    rng = random.Random(0)
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), [b"x" * 250_000])
    for column in ([rng.randbytes(250_000) for _ in range(256)], once, [bytes(250_000)] * 256):
        options = {"use_dictionary": column is once, "write_batch_size": 4, "store_schema": False}
        (shard,) = expand_input(write(tmp_path, {"jpg": column, "caption": ["a"] * 256}, **options))
        before, most, num = pa.total_allocated_bytes(), 0, 0
        for table in read_shard(shard, 1000):
            most = max(most, pa.total_allocated_bytes() - before)
            num += len(table)
        assert num == 256 and most < 12e6


def test_extract_gives_tar_members(photos, tmp_path):
    images = [data for data, _ in photos[:20]]
    images[5:10] = [b"\x89PNG..", b"RIFF....WEBP", b"GIF89a", b"BM..", b"??"]
    images[10] = b"\0\0\0\x1cftypavif"
    columns = {"image": images, "caption": [text for _, text in photos[:20]], "uid": [UID] * 20}
    (shard,) = expand_input(write(tmp_path, columns, row_group_size=3))
    found = dict(extract(shard, {19, 0, 5, 6, 7, 8, 9, 10, 77}))
    extensions = [next(iter(members)) for members in found.values()]
    assert extensions == ["jpg", "png", "webp", "gif", "bmp", "jpg", "avif", "jpg"]
    assert list(found) == [0, 5, 6, 7, 8, 9, 10, 19]
    assert found[19]["jpg"] == images[19] and found[19]["txt"].decode() == photos[19][1]
    assert json.loads(found[19]["json"]) == {"caption": photos[19][1], "uid": UID}


NINE = "000000003"
KEYS = {
    "text": (["a", None, "", NINE], ["a", "row-000000001", "row-000000002", NINE]),
    "integers": ([5, 0, -1, 7], ["5", "0", "-1", "7"]),
    "floats": ([7.0, None, 0.5, math.inf], ["7", "row-000000001", "row-000000002", "row-000000003"]),
    "bytes": ([b"k", b"", b"\xff", NINE.encode()], ["k", "row-000000001", "row-000000002", NINE]),
}


def test_a_row_without_a_key_is_named_as_no_other(tmp_path):
    for kind, (keys, expected) in KEYS.items():
        found = read(write(tmp_path, {"jpg": [b"x"] * 4, "caption": ["a"] * 4, "key": keys}))
        assert [row["key"] for row in found] == expected, kind
        assert [row["uid"] for row in found] == [sample_uid("in.parquet", key) for key in expected], kind
