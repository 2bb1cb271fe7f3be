"""A real S3 server: equal rows and bytes, faults that its client fixes, errors in one line."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from raycomp.curation.outputs import enrich, write_index, write_shard
from raycomp.data.files import Folder, new_file, resolve
from raycomp.data.inputs import expand_input, fingerprint_shards
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.reader import read_shard
from tests.faults.proxy import FAULTS, run_proxy

SAMPLE = {"jpg": bytes(40_000), "txt": b"dog"}
TABLE = pa.table({"uid": [f"{i:032x}" for i in range(50)], "alignment": np.arange(50, dtype=np.float32)})


def test_tables_and_shards_are_written_as_on_disk(bucket, tmp_path):
    def write(root: str) -> None:
        write_table(TABLE, f"{root}/out/scores/00000.parquet", TABLE.schema)
        samples = [(uid, enrich(SAMPLE, uid, "a", {})) for uid in TABLE["uid"].to_pylist()[:5]]
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


def test_image_paths_on_s3(bucket):
    Folder(bucket).write_bytes(b"pixels", "album", "images", "0.jpg")
    columns = {"image_path": ["images/0.jpg", "images/1.jpg", "images"], "caption": ["a", "b", "c"]}
    with new_file(f"{bucket}/album/a.parquet") as file:
        pq.write_table(pa.table(columns), file)
    (shard,) = expand_input(f"{bucket}/album")
    found = pa.concat_tables(read_shard(shard, 7)).to_pylist()
    assert [row["status"] for row in found] == ["ok", "image_file_missing", "image_file_missing"]
    assert found[0]["image"] == b"pixels" and json.loads(found[0]["json"])["caption"] == "a"


def test_every_fault_is_fixed_by_the_client(proxy, bucket):
    data = bytes(range(256)) * 40
    filesystem, path = resolve(f"{bucket}/small")
    for fault in FAULTS:
        # The client waits in vain once, then asks again.
        share, count = (0.1, 4) if fault == "timeout" else (0.3, 20)
        proxy.start({fault: share}, 3)
        for i in range(count):
            with filesystem.open_output_stream(f"{path}/{i}") as stream:
                stream.write(data)
            with filesystem.open_input_file(f"{path}/{i}") as file:
                assert file.read() == data, fault
        assert proxy.faults()[fault] >= 1, fault


@pytest.mark.slow
def test_a_whole_outage_is_an_error_of_the_storage(proxy, bucket):
    filesystem, path = resolve(f"{bucket}/down")
    proxy.start({"503": 1.0})
    with pytest.raises(OSError, match="AWS Error") as error:
        filesystem.get_file_info(path)
    assert "testing-secret" not in str(error.value) and len(proxy.seen) > 1
