"""What a finished run is made of: a file that is missing, cut, grown, foreign or changed is named."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.config import UserError
from raycomp.data.files import Folder, WrittenFiles, call_watched, new_file, note_written, watch_writes
from raycomp.data.parquet import count_rows, read_columns, read_matching, write_table
from raycomp.data.runs import MANIFEST, check_results, verify_whole, write_manifest
from raycomp.data.samples import write_tar

SCHEMA = pa.schema([("uid", pa.string()), ("shard", pa.string())])
OUTPUTS = ("scores", "shards", "table.csv", "none")
NAMES = ["scores/00000.parquet", "scores/00001.parquet", "shards/00000000.tar", "table.csv"]


def make_table(count: int = 50, first: str = "a") -> pa.Table:
    return pa.table({"uid": [first, *(f"u{i}" for i in range(1, count))], "shard": ["0.tar"] * count})


def write_results(folder: Folder) -> None:
    for i in range(2):
        write_table(make_table(50 + i), folder.at("scores", f"{i:05d}.parquet"), SCHEMA)
    write_tar(folder.at("shards", "00000000.tar"), [("k", {"txt": b"a dog", "jpg": bytes(300)})])
    folder.write_bytes(b"a,b\n1,2\n", "table.csv")


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.stores)])
def place(request, tmp_path) -> Folder:
    if request.param == "disk":
        return Folder(str(tmp_path / "run"))
    return Folder(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


def finish(folder: Folder) -> dict:
    with watch_writes(WrittenFiles([folder.at(output) for output in OUTPUTS])) as watch:
        write_results(folder)
    assert sorted(watch.files) == [folder.at(name) for name in NAMES]
    return {"manifest": write_manifest(folder, OUTPUTS, watch.files)}


def test_what_was_hashed_while_written_is_what_is_there(place):
    run = finish(place)
    known = json.loads(place.read_bytes(MANIFEST))
    assert sorted(known) == NAMES
    for name, (size, sha256, footer) in known.items():
        data = place.read_bytes(name)
        assert (size, sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert (footer is not None) == name.endswith(".parquet")
    assert run["manifest"]["files"] == 4 and run["manifest"]["bytes"] == sum(one[0] for one in known.values())
    again = write_manifest(place, OUTPUTS, {})  # all of it read, as after a kill
    assert again == run["manifest"]
    with verify_whole(True):
        assert list(check_results(place, run)) == NAMES
    assert list(check_results(place, run, "shards", "none")) == ["shards/00000000.tar"]


BREAKS: dict[str, Callable[[Path], object]] = {
    r"scores/00001\.parquet: is missing": lambda run: (run / "scores/00001.parquet").unlink(),
    r"0\.tar: is shorter than .* 512 byt": lambda run: os.truncate(run / NAMES[2], 512),
    r"table\.csv: is longer": lambda run: (run / "table.csv").write_text("a,b\n1,2\n3,4\n"),
    r"2\.parquet: was not written by the": lambda run: (run / "scores/00002.parquet").touch(),
    r"copy\)\.TAR: was not written by the": lambda run: (run / "shards/0 (copy).TAR").touch(),
    r"manifest\.json: was changed": lambda run: (run / MANIFEST).write_text("{}"),
    r"manifest\.json: is missing": lambda run: (run / MANIFEST).unlink(),
    "scores: is a file, must be a folder of the run": lambda run: (
        shutil.rmtree(run / "scores"),
        (run / "scores").touch(),
    ),
}


def test_a_broken_run_names_its_file(new_folder):
    for said, damage in BREAKS.items():
        path = new_folder()
        run = finish(Folder(str(path)))

        damage(path)
        with pytest.raises(ValueError, match=said) as error:
            check_results(Folder(str(path)), run)
        assert "\n" not in str(error.value), said


def test_a_changed_bit_is_found_by_its_hash(new_folder):
    for name in NAMES:
        folder = Folder(str(new_folder()))
        run = finish(folder)
        data = bytearray(folder.read_bytes(name))
        data[len(data) // 3] ^= 1
        folder.write_bytes(data, name)
        for other in [".DS_Store", "._00000.parquet", "_SUCCESS", "notes.txt", "00000.parquet.bak"]:
            folder.write_bytes(b"x", "scores", other)  # what no reader takes
        assert list(check_results(folder, run)) == NAMES
        with verify_whole(True), pytest.raises(ValueError, match=rf"/{name}: was changed"):
            check_results(folder, run)


def test_a_parquet_file_is_known_by_its_footer_and_its_pages_where_it_is_opened(tmp_path):
    folder = Folder(str(tmp_path))
    uri = check_results(folder, finish(folder))[NAMES[0]]
    whole = read_columns(uri)
    assert uri.footer is not None and pickle.loads(pickle.dumps(uri)).footer == uri.footer
    assert whole.equals(make_table()) and read_matching(uri, ["uid"], "shard", "0.tar").num_rows == 50
    write_table(make_table(first="b"), str(uri), SCHEMA)  # as many bytes, another text
    for read in (read_columns, count_rows, lambda uri: read_matching(uri, ["uid"], "shard", "0.tar")):
        with pytest.raises(
            UserError, match=r"00000\.parquet: was changed; it is not the file that the run wrote"
        ):
            read(uri)
        read(str(uri))
    write_table(make_table(), str(uri), SCHEMA)
    data = bytearray((tmp_path / NAMES[0]).read_bytes())
    data[60] ^= 1  # of a page
    (tmp_path / NAMES[0]).write_bytes(data)
    with pytest.raises(UserError, match="is damaged or no Parquet file"):
        read_columns(uri)


def test_a_footer_larger_than_the_first_read_is_read_whole(tmp_path):
    table = pa.table({f"column {i}": [i] for i in range(1500)})
    folder = Folder(str(tmp_path))
    with watch_writes(WrittenFiles([folder.at("scores")])) as watch:
        write_table(table, folder.at("scores", "00000.parquet"), table.schema)
    run = {"manifest": write_manifest(folder, ("scores",), watch.files)}
    (uri,) = check_results(folder, run).values()
    assert read_columns(uri).equals(table) and pq.read_metadata(uri).serialized_size > 64 << 10


def test_a_storage_that_lost_or_cut_what_was_written_ends_the_run(tmp_path):
    folder = Folder(str(tmp_path))
    for is_lost, said in ((True, "is not there"), (False, "holds 1")):
        with watch_writes(WrittenFiles([folder.at(output) for output in OUTPUTS])) as watch:
            write_results(folder)
        if is_lost:
            folder.remove("table.csv")
        else:
            folder.write_bytes(b"1", "table.csv")
        with pytest.raises(OSError, match=rf"table\.csv: {said}"):
            write_manifest(folder, OUTPUTS, watch.files)


def test_what_is_written_anew_or_removed_or_out_of_order_counts_as_it_ends(tmp_path):
    folder = Folder(str(tmp_path))
    with watch_writes(WrittenFiles([folder.at(output) for output in OUTPUTS])) as watch:
        write_results(folder)
        with new_file(folder.at("table.csv")) as file:
            file.write(b"longer than it was before")
            file.seek(2)
            file.write(b"xx")
        folder.remove("shards")
        folder.write_bytes(b"aside", "work", "x")
        with pytest.raises(RuntimeError), new_file(folder.at("scores", "00000.parquet")) as file:
            file.write(b"broken off")
            raise RuntimeError
    assert sorted(watch.files) == [folder.at(name) for name in (*NAMES[:2], NAMES[3])]
    run = {"manifest": write_manifest(folder, OUTPUTS, watch.files)}
    with verify_whole(True):
        check_results(folder, run)


def test_what_tasks_wrote_is_noted_by_the_process_that_watches(tmp_path):
    folder = Folder(str(tmp_path))
    places, uri = [folder.at("scores")], folder.at("scores", "a")
    result, written = call_watched(lambda name: folder.write_bytes(b"abc", name) or 7, places, "scores/a")
    assert result == 7 and [file.uri for file in written] == [uri]
    elsewhere = WrittenFiles([folder.at("other")])
    with watch_writes(WrittenFiles(places)) as mine, watch_writes(elsewhere) as other:
        note_written(written)
    assert list(mine.files) == [uri] and not other.files
