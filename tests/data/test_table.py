"""Parquet as input: every row of a file is a row, in the file's order, whatever is wrong with it."""

import datetime
import io
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
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


def test_photos_as_bytes(photos, tmp_path_factory):
    for caption in ["caption", "text", "txt", "TEXT"]:
        for image in ["image", "jpg", "png", "webp", "struct", "large"]:
            tmp_path = tmp_path_factory.mktemp("case")
            pixels = [data for data, _ in photos]
            column = pa.array(pixels, pa.large_binary() if image == "large" else pa.binary())
            if image == "struct":
                column = pa.array([{"bytes": data, "path": "gone.jpg"} for data in pixels])
            name = image if image in ("jpg", "png", "webp") else "image"
            columns = {name: column, caption: [text for _, text in photos]}
            found = read(write(tmp_path, columns, row_group_size=17))
            assert [(row["image"], row["caption"]) for row in found] == photos, (caption, image)
            assert {row["status"] for row in found} == {"ok"}, (caption, image)
            assert found[3]["key"] == "000000003" and found[3]["uid"] == sample_uid("in.parquet", "000000003")


def test_photos_as_paths(photos, tmp_path_factory):
    for kind in ["image_path", "filepath", "image", "struct"]:
        tmp_path = tmp_path_factory.mktemp("case")
        (tmp_path / "images").mkdir()
        for i, (data, _) in enumerate(photos[:4]):
            (tmp_path / f"images/{i}.jpg").write_bytes(data)
        (tmp_path.parent / "outside.jpg").write_bytes(b"secret")
        paths = [f"images/{i}.jpg" for i in range(3)] + [f"{tmp_path}/images/3.jpg"]
        outside = str(tmp_path.parent / "outside.jpg")
        wrong = ["none.jpg", "images", "", "../outside.jpg", outside, "a\0b", "x" * 5000]
        values = [*paths, *wrong, None]
        column = pa.array([{"bytes": None, "path": path} for path in values]) if kind == "struct" else values
        columns = {"image" if kind == "struct" else kind: column, "caption": ["a dog"] * len(values)}
        found = read(write(tmp_path, columns))
        assert [row["image"] for row in found[:4]] == [data for data, _ in photos[:4]], kind
        missing, refused, none = "image_file_missing", "image_path_refused", "no_image"
        assert [row["status"] for row in found[:4]] == ["ok"] * 4, kind
        expected = [missing, missing, none, refused, refused, refused, missing, none]
        assert [row["status"] for row in found[4:]] == expected, kind


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


OWN_UIDS = {
    "text": pa.array([UID.upper()]),
    "dashes": pa.array([str(uuid.UUID(UID))]),
    "bytes of text": pa.array([UID.encode()]),
    "bytes": pa.array([bytes.fromhex(UID)]),
    "fixed bytes": pa.array([bytes.fromhex(UID)], pa.binary(16)),
    "uuid": pa.array([bytes.fromhex(UID)], pa.uuid()),
}


def test_an_own_uid_of_any_type_is_taken(tmp_path_factory):
    for kind in OWN_UIDS:
        tmp_path = tmp_path_factory.mktemp("case")
        (row,) = read(write(tmp_path, {"jpg": [b"x"], "caption": ["a"], "uid": OWN_UIDS[kind]}))
        assert (row["status"], row["uid"]) == ("ok", UID), kind


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


def dates(days: int) -> pa.Array:
    return pa.array([0, days, 1], pa.int32()).cast(pa.date32())


def numbers(value: int, kind: pa.DataType) -> pa.Array:
    return pa.array([0, value, 1], pa.int64()).cast(kind)


ODD_VALUES = {
    "date": dates(2**31 - 1),
    "early date": dates(-(2**31)),
    "date64": numbers(2**62 // 86_400_000 * 86_400_000, pa.date64()),
    "timestamp": numbers(2**62, pa.timestamp("ms")),
    "early timestamp": numbers(-(2**62), pa.timestamp("us")),
    "nanoseconds": numbers(1, pa.timestamp("ns")),
    "zone": numbers(2**62, pa.timestamp("ms", "Europe/Rome")),
    "unknown zone": numbers(5, pa.timestamp("us", "Mars/Olympus")),
    "duration": numbers(2**62, pa.duration("ms")),
    "nanoseconds long": numbers(1, pa.duration("ns")),
}


def test_a_value_that_python_cannot_hold_is_a_fault_of_its_row_alone(tmp_path_factory):
    for shape in ["plain", "struct", "list", "map"]:
        for odd in ODD_VALUES:
            tmp_path = tmp_path_factory.mktemp("case")
            values = ODD_VALUES[odd]
            column = {
                "plain": values,
                "struct": pa.StructArray.from_arrays([values, values], ["a", "b"]),
                "list": pa.ListArray.from_arrays([0, 1, 2, 3], values),
                "map": pa.MapArray.from_arrays([0, 1, 2, 3], ["x", "y", "z"], values),
            }[shape]
            found = read(write(tmp_path, {"jpg": [b"x"] * 3, "caption": ["a dog"] * 3, "odd": column}))
            first, middle, last = (row["status"] for row in found)
            assert middle in ("ok", "bad_json"), (shape, odd)
            assert first == last == "ok" or (odd == "unknown zone" and first == middle == last == "bad_json")
            for row in found:
                assert (json.loads(row["json"])["odd"] is None) == (row["status"] == "bad_json"), (shape, odd)
            if shape != "plain" and odd in ("date", "early date", "timestamp", "early timestamp", "zone"):
                assert middle == "bad_json", (shape, odd)


def test_of_a_list_of_captions_the_first_text_is_taken(tmp_path_factory):
    for kind in [pa.string(), pa.large_string(), pa.binary()]:
        tmp_path = tmp_path_factory.mktemp("case")
        lists = pa.array([["a dog", "a cat"], [None, "a cow"], ["", "b"], [], None], pa.list_(kind))
        found = read(write(tmp_path, {"jpg": [b"x"] * 5, "caption": lists}))
        assert [row["caption"] for row in found] == ["a dog", "a cow", "", None, None], kind
        assert [row["status"] for row in found] == ["ok", "ok", "empty_caption", "no_caption", "no_caption"]
        (shard,) = expand_input(str(tmp_path))
        assert [members.get("txt") for _, members in extract(shard, {0, 1})] == [b"a dog", b"a cow"], kind


def test_only_regular_files_below_the_folder_are_opened(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/good.jpg").write_bytes(b"good")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    os.symlink("good.jpg", tmp_path / "in/link.jpg")
    os.symlink("../secret.jpg", tmp_path / "in/out.jpg")
    os.symlink("..", tmp_path / "in/up")
    os.symlink("/dev/zero", tmp_path / "in/zero.jpg")
    os.symlink("self.jpg", tmp_path / "in/self.jpg")
    os.mkfifo(tmp_path / "in/pipe.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path / "in")  # a socket's path is short
        server.bind("socket.jpg")
    names = ["good", "link", "out", "up/secret", "zero", "self", "pipe", "socket"]
    columns = {"image_path": [f"{name}.jpg" for name in names] + ["up"], "caption": ["a"] * 9}
    os.symlink(tmp_path / "in", tmp_path / "linked")
    write(tmp_path / "in", columns)
    signal.alarm(20)  # a reader that waits is ended
    try:
        for folder in ("in", "linked"):
            found = read(str(tmp_path / folder / "in.parquet"))
            assert [row["image"] for row in found] == [b"good"] * 2 + [None] * 7
            assert [row["status"].split("_")[1:] for row in found] == (
                [[]] * 2 + [["path", "refused"]] * 3 + [["file", "missing"]] * 3 + [["path", "refused"]]
            )
    finally:
        signal.alarm(0)


def test_a_file_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "MAX_MEMBER_BYTES", 10)
    (tmp_path / "a.jpg").write_bytes(b"x" * 10)
    (tmp_path / "b.jpg").write_bytes(b"x" * 11)
    found = read(write(tmp_path, {"image_path": ["a.jpg", "b.jpg"], "caption": ["a", "b"]}))
    assert [(row["status"], row["image"]) for row in found] == [("ok", b"x" * 10), ("image_too_large", None)]


def test_faults_of_the_file(tmp_path):
    rng = random.Random(0)
    columns = {"jpg": [rng.randbytes(20_000) for _ in range(40)], "caption": ["a"] * 40}
    path = Path(write(tmp_path, columns, row_group_size=10, use_dictionary=False))
    whole = path.read_bytes()

    def faults(data: bytes) -> list[str]:
        path.write_bytes(data)
        return [row["status"] for row in read(str(path))]

    assert faults(whole) == ["ok"] * 40
    for data in (b"", b"no parquet", whole[: len(whole) // 2], whole[:-3], b"x" * 9000):
        assert faults(data) == ["unreadable_shard"]
    page = pq.ParquetFile(io.BytesIO(whole)).metadata.row_group(2).column(0).data_page_offset
    damaged = whole[:page] + b"\xff" * 50 + whole[page + 50 :]
    assert faults(damaged) == ["ok"] * 20 + ["truncated_shard"]
    assert faults(b"") == ["unreadable_shard"]
    write(tmp_path, {"jpg": pa.array([], pa.binary()), "caption": pa.array([], pa.string())})
    assert [row["status"] for row in read(str(path))] == ["empty_shard"]


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
    file = Failing(Path(path).read_bytes())
    with pytest.raises(ConnectionResetError):
        list(read_table(file, shard, 4, fs.LocalFileSystem()))


def test_memory_holds_a_block_not_the_file(tmp_path):
    """A row group of 64 MB is read 8 rows at a time in a small part of that."""
    rng = random.Random(0)
    columns = {"jpg": [rng.randbytes(250_000) for _ in range(256)], "caption": ["a"] * 256}
    options = {"compression": "none", "use_dictionary": False, "write_batch_size": 4}
    (shard,) = expand_input(write(tmp_path, columns, **options))
    del columns
    before, most = pa.total_allocated_bytes(), 0
    for table in read_shard(shard, 8):
        most = max(most, pa.total_allocated_bytes() - before)
        assert len(table) == 8
    assert most < 24e6


IN_LITTLE_MEMORY = """
import pathlib, resource, sys
from raycomp.data.inputs import expand_input
from raycomp.data.reader import extract, read_shard
small, *bombs = (expand_input(path)[0] for path in sys.argv[1:])
def count(shard):
    rows = sum(len(table) for table in read_shard(shard, 1000))
    return rows, sum(len(members["jpg"]) for _, members in extract(shard, {0, 399}))
count(small)  # everything is loaded
held = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 700_000_000,) * 2)
for shard in bombs:
    assert count(shard) == (400, 4_000_000), shard
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process as Linux has them")
def test_a_small_file_of_large_rows_takes_little_memory(tmp_path):
    """A picture that stands in a dictionary once, and pictures that pack well: 800 MB each."""
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), [b"x" * 2_000_000])
    images = {"small": [b"x"] * 400, "once": once, "packed": [bytes(2_000_000)] * 400}
    paths = []
    for name, column in images.items():
        (tmp_path / name).mkdir()
        options = {"compression": "zstd", "use_dictionary": name == "once", "store_schema": False}
        columns = {"jpg": column, "caption": ["a"] * 400}
        paths.append(write(tmp_path / name, columns, write_batch_size=4, **options))
    assert sum(os.path.getsize(path) for path in paths) < 1_000_000
    done = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_MEMORY, *paths],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    assert done.returncode == 0, done.stderr


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


def test_damage_anywhere_is_rows_and_never_an_error(tmp_path):
    """Flip bytes of a good file: each still gives numbered rows, or says what is wrong with it."""
    rng = random.Random(0)
    columns = {"jpg": [b"x" * 50] * 40, "caption": ["a dog"] * 40, "tags": [["a"], []] * 20, "n": [1.5] * 40}
    whole = Path(write(tmp_path, columns, row_group_size=8)).read_bytes()
    seen = set()
    for trial in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(4, len(data) - 8)
            data[at : at + 3] = rng.randbytes(3)
        path = tmp_path / f"{trial}.parquet"
        path.write_bytes(data)
        seen |= {row["status"] for row in read(str(path))}
    assert "truncated_shard" in seen and "ok" in seen and seen <= set(words.STATUSES)


NINE = "000000003"
KEYS = {
    "text": (["a", None, "", NINE], ["a", "row-000000001", "row-000000002", NINE]),
    "integers": ([5, 0, -1, 7], ["5", "0", "-1", "7"]),
    "floats": ([7.0, None, 0.5, math.inf], ["7", "row-000000001", "row-000000002", "row-000000003"]),
    "bytes": ([b"k", b"", b"\xff", NINE.encode()], ["k", "row-000000001", "row-000000002", NINE]),
    "nulls": ([None] * 4, [f"row-{i:09d}" for i in range(4)]),
}


def test_a_row_without_a_key_is_named_as_no_other(tmp_path_factory):
    for kind in KEYS:
        tmp_path = tmp_path_factory.mktemp("case")
        keys, expected = KEYS[kind]
        columns = {"jpg": [b"x"] * 4, "caption": ["a"] * 4, "key": keys}
        found = read(write(tmp_path, columns))
        assert [row["key"] for row in found] == expected, kind
        assert [row["uid"] for row in found] == [sample_uid("in.parquet", key) for key in expected], kind
