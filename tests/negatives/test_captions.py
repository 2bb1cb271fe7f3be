"""Captions of files: a curation's subset and no others, each with the other captions of its image."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.data.files import Folder
from raycomp.data.parquet import OTHERS
from raycomp.negatives import captions as shared_captions
from raycomp.negatives.captions import (
    MOST_OTHERS,
    CaptionFile,
    count_captions,
    count_statuses,
    list_parquet,
    load_captions,
    share_captions,
)
from raycomp.words import (
    BAD_ENCODING,
    CORRUPT_IMAGE,
    DUPLICATE_UID,
    EMPTY_CAPTION,
    NO_CAPTION,
    NO_PHRASE,
    OK,
)
from tests.negatives.written import run

SCORES = [
    # uid, caption, image, status
    ("b" * 32, "a bad one first", None, CORRUPT_IMAGE),
    ("a" * 32, "a dog", "one", OK),
    ("b" * 32, "a cat", "two", NO_PHRASE),
    ("a" * 32, "the same uid again", "one", DUPLICATE_UID),
    ("c" * 32, "not kept", "one", OK),
]


def write_table(path: Path, **columns: list) -> CaptionFile:
    pq.write_table(pa.table(columns), path)
    return CaptionFile(0, str(path))


def test_columns_that_are_no_text_or_two_are_said(tmp_path):
    twice = pa.table([["a"], ["b"], ["c"]], names=["uid", "caption", "caption"])
    for table, said in [
        (twice, "must have one column 'caption' of text"),
        (pa.table({"uid": ["a"], "caption": [["x"]]}), r"of text; it has uid \(string\), caption \(list<"),
    ]:
        pq.write_table(table, tmp_path / "0.parquet")
        with pytest.raises(ValueError, match=said):
            list_parquet(str(tmp_path / "0.parquet"))


def test_a_kept_row_stands_for_itself_alone(tmp_path):
    names = ("uid", "caption", "image_sha256", "status")
    columns = dict(zip(names, map(list, zip(*SCORES, strict=True)), strict=True))
    write_table(tmp_path / "00000.parquet", **columns, shard=["00.tar"] * len(SCORES))
    kept = ["a" * 32, "b" * 32, "d" * 32]
    write_table(tmp_path / "kept.parquet", uid=kept, shard=["00.tar", "00.tar", "01.tar"])
    source = CaptionFile(3, str(tmp_path / "00000.parquet"), str(tmp_path / "kept.parquet"))
    rows = [row for table in load_captions(source, 1) for row in table.to_pylist()]
    found = [
        (row["uid"][0], row["caption"], row["position"], row["shard_ordinal"], row["others"]) for row in rows
    ]
    assert found == [("a", "a dog", 0, 3, ["the same uid again", "not kept"]), ("b", "a cat", 1, 3, [])]
    assert len(rows) == count_captions(source)


def test_plain_parquet_needs_a_uid_of_its_own_in_every_row(tmp_path):
    """Uids that join as one are one."""
    uid = "0aa4c152-6ad3-6f3d-d1f3-73db9a41956c"
    plain = uid.replace("-", "")
    for uids, expected in [
        (["a", "b"], ["a", "b"]),
        (["a", None], None),
        (["a", "a"], None),
        ([plain.upper(), "Own", "own"], [plain, "Own", "own"]),
        *(([same, plain.upper()], None) for same in (uid, uid.upper(), plain)),
    ]:
        source = write_table(tmp_path / "a.parquet", uid=uids, caption=["x"] * len(uids))
        assert count_captions(source) == (expected and len(expected)), uids
        (table,) = load_captions(source, 10)
        assert expected is None or table["uid"].to_pylist() == expected, uids


def test_texts_are_taken_however_parquet_stores_them(tmp_path):
    uids, captions = ["a", "b", "c"], ["a dog", "", None]
    hashed = pa.array(["i", "i", None], pa.string())
    blocks = []
    for kind in (pa.string(), pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        for images in (hashed.cast(kind), pa.nulls(3)):
            texts = {"uid": pa.array(uids).cast(kind), "caption": pa.array(captions).cast(kind)}
            source = write_table(tmp_path / "0.parquet", **texts, image_sha256=images)
            assert list_parquet(source.uri) == [source] and count_captions(source) == 3, kind
            assert count_statuses(source) == {OK: 1, EMPTY_CAPTION: 1, NO_CAPTION: 1}, kind
            blocks.append(pa.concat_tables(load_captions(source, 2)))
    assert all(one.equals(blocks[i % 2]) and one.schema == blocks[0].schema for i, one in enumerate(blocks))


def write_files(folder: Path, files: list[list[tuple[str | None, str]]]) -> list[CaptionFile]:
    """Write (image, caption) rows as files of captions."""
    folder.mkdir()
    found = []
    for ordinal, rows in enumerate(files):
        images, captions = zip(*rows, strict=True)
        uids = [f"{ordinal:016x}{place:016x}" for place in range(len(rows))]
        images, uri = pa.array(images, pa.string()), folder / f"{ordinal}.parquet"
        write_table(uri, uid=uids, caption=list(captions), image_sha256=images)
        found.append(CaptionFile(ordinal, str(uri)))
    return found


@pytest.fixture
def here(monkeypatch, tmp_path) -> Folder:
    """Do the tasks of files in this process; return their folder."""
    do_all = lambda do, items, *args, label: [do(item, *args) for item in items]  # noqa: E731
    monkeypatch.setattr(shared_captions, "map_files", do_all)
    (tmp_path / "work").mkdir()
    return Folder(str(tmp_path / "work"))


def test_captions_of_all_files_are_known(here, tmp_path, monkeypatch):
    """Against a plain search over all rows."""
    images = [*(f"image {i}" for i in range(12)), None, "image \u00e9"]
    for seed, at_once in [(0, 1), (2, 7), (4, 1_000)]:
        monkeypatch.setattr(shared_captions, "_KEYS_AT_ONCE", at_once)
        rng = random.Random(seed)
        files = [
            [(rng.choice(images), f"caption {rng.randrange(30)}") for _ in range(rng.randrange(1, 15))]
            for _ in range(rng.randrange(2, 6))
        ]
        sources = write_files(tmp_path / f"in{seed}", files)
        shared = share_captions(sources, sum(map(len, files)), here)
        for source, rows in zip(shared, files, strict=True):
            found = [row[OTHERS] for table in load_captions(source, 4) for row in table.to_pylist()]
            for (image, caption), others in zip(rows, found, strict=True):
                every = [text for part in files for own, text in part if own == image and text != caption]
                assert set(others) == (set() if image is None else set(every)), (seed, at_once)
                assert len(others) == len(set(others)) <= MOST_OTHERS


def test_what_is_not_shared_or_not_utf8_is_left_out(here, tmp_path):
    sources = write_files(tmp_path / "in", [[("a", "x"), ("a", "y")], [("b", "x")]])
    assert share_captions(sources, 3, here) == sources and share_captions(sources[:1], 2, here) == sources[:1]
    sources = write_files(tmp_path / "bad", [[("a", "x")], [("a", "y"), ("a", "z")]])
    table = pq.read_table(sources[1].uri)
    bad = pa.array([b"\xff\xfe", b"z"]).cast(pa.string(), safe=False)
    pq.write_table(table.set_column(1, "caption", bad), sources[1].uri)
    assert count_statuses(sources[1]) == {OK: 1, BAD_ENCODING: 1}
    first, _ = share_captions(sources, 3, here)
    assert [row[OTHERS] for part in load_captions(first, 4) for row in part.to_pylist()] == [["z"]]


def test_a_negative_that_another_file_says_of_the_image_is_rejected(tmp_path):
    """Without the other file the same edit is a negative."""
    caption, found = "A black dog sleeps on a bench", []
    for other in [("b", "A red car"), ("a", None)]:
        write_files(tmp_path / f"in{len(found)}", [[("a", caption)], [(other[0], other[1] or found[0][0])]])
        options = {"rank": False, "operations": ("REPLACE",), "per_caption": 99, "candidates": 6}
        (row, _) = run(tmp_path / f"in{len(found)}", tmp_path / f"out{len(found)}", **options)
        found.append([one["text"] for one in row["negatives"]])
    alone, shared = found
    assert len(alone) > 3 and alone[0] not in shared and set(shared) <= set(alone)
