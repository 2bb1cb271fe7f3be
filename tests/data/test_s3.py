"""The same functions on a real S3 server of this machine: what holds on disk holds there."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from raycomp import words
from raycomp.curation.outputs import enrich, write_index, write_shard
from raycomp.data.files import check_writable, new_file, resolve
from raycomp.data.inputs import expand_input, fingerprint_shards
from raycomp.data.parquet import read_columns, to_matrix, write_table
from raycomp.data.parquet_input import check_embeddings
from raycomp.data.reader import extract, read_shard
from raycomp.data.samples import write_tar
from tests.faults.proxy import run_proxy

SAMPLES = [(f"{i:05d}", {"jpg": bytes([i]) * 40_000, "txt": f"dog {i}".encode()}) for i in range(30)]
TABLE = pa.table({"uid": [f"{i:032x}" for i in range(50)], "alignment": np.arange(50, dtype=np.float32)})


def rows(spec: str) -> list[dict]:
    return [
        row for shard in expand_input(spec) for table in read_shard(shard, 7) for row in table.to_pylist()
    ]


def fill(root: str) -> None:
    write_tar(f"{root}/web/00000.tar", SAMPLES[:20])
    write_tar(f"{root}/web/00001.tar", SAMPLES[20:])
    table = pa.table({"jpg": [m["jpg"] for _, m in SAMPLES[:9]], "caption": ["a"] * 9})
    with new_file(f"{root}/tables/00000.parquet") as file:
        pq.write_table(table, file, row_group_size=4)


def test_a_corpus_moved_to_s3_gives_equal_rows(bucket, tmp_path):
    spec = "{0}/web/{{00000..00001}}.tar::{0}/tables"
    for root in (bucket, str(tmp_path)):
        fill(root)
    there, here = (rows(spec.format(root)) for root in (bucket, str(tmp_path)))
    assert len(there) == 39 and {row[words.STATUS] for row in there} == {"ok"}
    assert there == here
    shards = expand_input(spec.format(bucket))
    assert [shard.name for shard in shards] == ["0=00000.tar", "0=00001.tar", "1=00000.parquet"]
    assert shards[0].uri == f"{bucket}/web/00000.tar"
    assert [shard.name for shard in expand_input(f"{bucket}/**/*1.tar")] == ["web/00001.tar"]
    assert [entry["size"] for entry in fingerprint_shards(shards)] == [
        Path(shard.uri).stat().st_size for shard in expand_input(spec.format(tmp_path))
    ]
    assert [dict(extract(shard, {0, 3})) for shard in shards[:2]] == [
        {0: SAMPLES[0][1], 3: SAMPLES[3][1]},
        {0: SAMPLES[20][1], 3: SAMPLES[23][1]},
    ]
    assert dict(extract(shards[2], {5}))[5]["jpg"] == SAMPLES[5][1]["jpg"]


def test_tables_and_shards_are_written_as_on_disk(bucket, tmp_path):
    def write(root: str) -> None:
        write_table(TABLE, f"{root}/out/scores/00000.parquet", TABLE.schema)
        samples = [(uid, enrich(SAMPLES[0][1], uid, "a", {})) for uid in TABLE["uid"].to_pylist()[:5]]
        write_shard(f"{root}/out/shards", 0, samples)
        write_index(f"{root}/out/shards", [5], [np.arange(10, dtype=np.uint64).reshape(5, 2)])

    for root in (bucket, str(tmp_path)):
        write(root)
    assert read_columns(f"{bucket}/out/scores/00000.parquet", ["uid"]).equals(TABLE.select(["uid"]))
    filesystem, path = resolve(f"{bucket}/out")
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    for info in (info for info in found if info.type == fs.FileType.File):
        local = tmp_path / info.path.removeprefix(bucket.removeprefix("s3://") + "/")
        assert filesystem.open_input_stream(info.path).read() == local.read_bytes(), info.path
    here = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert sum(info.type == fs.FileType.File for info in found) == len(here) == 6


def test_a_large_shard_goes_up_in_parts(bucket):
    samples = [(f"{i}", {"jpg": bytes([i]) * 1_000_000, "txt": b"a"}) for i in range(24)]
    write_tar(f"{bucket}/large.tar", samples)
    found = rows(f"{bucket}/large.tar")
    assert [row["image"] for row in found] == [members["jpg"] for _, members in samples]


def test_a_cut_object_is_a_row(bucket):
    filesystem, path = resolve(f"{bucket}/web/00000.tar")
    data = filesystem.open_input_stream(path).read()
    with new_file(f"{bucket}/cut/00000.tar") as file:
        file.write(data[:100_000])
    assert [row["status"] for row in rows(f"{bucket}/cut")] == ["ok", "ok", "truncated_shard"]


def test_a_failed_write_leaves_no_object(bucket):
    with pytest.raises(RuntimeError), new_file(f"{bucket}/half.tar") as file:
        file.write(b"x" * 20_000_000)
        raise RuntimeError("no more")
    filesystem, path = resolve(f"{bucket}/half.tar")
    assert filesystem.get_file_info(path).type == fs.FileType.NotFound


def test_an_interrupted_upload_leaves_no_object(bucket, monkeypatch):
    def send_some(source, target, size):
        target.write(source.read(12_000_000))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", send_some)
    with pytest.raises(KeyboardInterrupt), new_file(f"{bucket}/cut.tar") as file:
        file.write(b"x" * 20_000_000)
    filesystem, path = resolve(f"{bucket}/cut.tar")
    assert filesystem.get_file_info(path).type == fs.FileType.NotFound


def test_faults_are_one_line_without_secrets(bucket):
    for spec in (f"{bucket}/none/*.tar", f"{bucket}/none.tar", "s3://no-such-bucket/a.tar"):
        with pytest.raises(ValueError) as error:
            expand_input(spec)
        assert "\n" not in str(error.value) and "testing-secret" not in str(error.value)
    check_writable(f"{bucket}/out")
    with pytest.raises(ValueError, match="cannot be written"):
        check_writable("s3://no-such-bucket/out")


def test_a_vanished_object_is_an_error_of_the_storage(bucket):
    write_tar(f"{bucket}/gone/0.tar", SAMPLES[:3])
    (shard,) = expand_input(f"{bucket}/gone")
    filesystem, path = resolve(shard.uri)
    filesystem.delete_file(path)
    with pytest.raises(FileNotFoundError):
        next(read_shard(shard, 3))


def test_requests_for_a_brace_list_do_not_grow_with_it(bucket, monkeypatch):
    """And what a listing says of an object is what the object itself says."""
    for i in range(60):
        for name in (f"many/{i:02d}.parquet", f"many/{i:02d}.npz"):
            with new_file(f"{bucket}/{name}") as file:
                file.write(b"x" * i)
    alone = [fingerprint_shards(expand_input(f"{bucket}/many/{i:02d}.parquet", "b32_img")) for i in range(60)]
    counts = []
    with run_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        for last in (39, 59):
            proxy.start({})
            shards = expand_input(f"{bucket}/many/{{00..{last}}}.parquet", "b32_img")
            assert fingerprint_shards(shards) == [one for (one,) in alone[: last + 1]]
            counts.append(len(proxy.seen))
        with pytest.raises(ValueError, match=r"no such file or folder: .*/many/60\.parquet"):
            expand_input(f"{bucket}/many/{{00..60}}.parquet")
    assert counts[0] == counts[1] <= 6


def test_stored_embeddings_on_s3(bucket):
    for stored in ["clip_retrieval", "b32_img"]:
        embedding_ND = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float16)
        is_npy = stored == "clip_retrieval"
        table, array = (
            ("metadata/metadata_0.parquet", "img_emb/img_emb_0.npy") if is_npy else ("0.parquet", "0.npz")
        )
        root = f"{bucket}/{stored}"
        with new_file(f"{root}/{table}") as file:
            pq.write_table(pa.table({"caption": ["a"] * 300}), file)
        with new_file(f"{root}/{array}") as file:
            np.save(file, embedding_ND) if is_npy else np.savez(file, b32_img=embedding_ND)
        shards = expand_input(root, stored)
        check_embeddings(shards, "some-model", 64)
        found = np.concatenate([to_matrix(table["image_embedding"]) for table in read_shard(shards[0], 32)])
        assert np.array_equal(found, embedding_ND.astype(np.float32)), stored
        with pytest.raises(ValueError, match=r"have 32 values, those in s3://.* 64;"):
            check_embeddings(shards, "some-model", 32)
        filesystem, path = resolve(f"{root}/{array}")
        filesystem.delete_file(path)
        with pytest.raises(ValueError, match="cannot be used: no such file"):
            check_embeddings(shards, "some-model", 64)


def test_image_paths_on_s3(bucket):
    with new_file(f"{bucket}/album/images/0.jpg") as file:
        file.write(b"pixels")
    columns = {"image_path": ["images/0.jpg", "images/1.jpg", "images"], "caption": ["a", "b", "c"]}
    with new_file(f"{bucket}/album/a.parquet") as file:
        pq.write_table(pa.table(columns), file)
    found = rows(f"{bucket}/album")
    assert [row["status"] for row in found] == ["ok", "image_file_missing", "image_file_missing"]
    assert found[0]["image"] == b"pixels" and json.loads(found[0]["json"])["caption"] == "a"
