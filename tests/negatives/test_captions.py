"""Captions of a curation: its subset's rows and no others, each with the other captions of its image."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.negatives.captions import (
    CaptionFile,
    count_captions,
    count_statuses,
    list_parquet,
    load_captions,
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

SCORES = [
    # uid, caption, image, status
    ("b" * 32, "a bad one first", None, CORRUPT_IMAGE),
    ("a" * 32, "a dog", "one", OK),
    ("b" * 32, "a cat", "two", NO_PHRASE),
    ("a" * 32, "the same uid again", "one", DUPLICATE_UID),
    ("c" * 32, "not kept", "one", OK),
]


def write_scores(folder) -> CaptionFile:
    names = ("uid", "caption", "image_sha256", "status")
    table = pa.table(dict(zip(names, zip(*SCORES, strict=True), strict=True)))
    table = table.append_column("shard", pa.array(["00.tar"] * len(table)))
    pq.write_table(table, folder / "00000.parquet")
    kept = pa.table({"uid": ["a" * 32, "b" * 32, "d" * 32], "shard": ["00.tar", "00.tar", "01.tar"]})
    pq.write_table(kept, folder / "kept.parquet")
    return CaptionFile(3, str(folder / "00000.parquet"), str(folder / "kept.parquet"))


def test_a_caption_that_is_not_utf8_is_a_row_with_a_status(tmp_path):
    """Parquet calls it text all the same."""
    captions = pa.array([b"a dog", b"\xff\xfe a cat", None], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"uid": ["a", "b", "c"], "caption": captions}), tmp_path / "0.parquet")
    (table,) = load_captions(CaptionFile(0, str(tmp_path / "0.parquet")), 10)
    assert table["caption"].to_pylist() == ["a dog", None, None]
    assert table["status"].to_pylist() == [None, BAD_ENCODING, None]
    found = count_statuses(CaptionFile(0, str(tmp_path / "0.parquet")))
    assert found == {OK: 1, BAD_ENCODING: 1, NO_CAPTION: 1}


def test_two_columns_of_one_name_are_said(tmp_path):
    table = pa.table([["a"], ["b"], ["c"]], names=["uid", "caption", "caption"])
    pq.write_table(table, tmp_path / "0.parquet")
    with pytest.raises(ValueError, match="must have one column 'caption' of text"):
        list_parquet(str(tmp_path / "0.parquet"))


def test_a_kept_row_stands_for_itself_alone(tmp_path):
    source = write_scores(tmp_path)
    rows = [row for table in load_captions(source, 1) for row in table.to_pylist()]
    assert [(row["uid"][0], row["caption"], row["position"]) for row in rows] == [
        ("a", "a dog", 0),
        ("b", "a cat", 1),
    ]
    assert len(rows) == count_captions(source)
    assert {row["shard_ordinal"] for row in rows} == {3}
    assert rows[0]["others"] == ["the same uid again", "not kept"] and rows[1]["others"] == []


def test_plain_parquet_needs_a_uid_of_its_own_in_every_row(tmp_path):
    for uids, expected in ((["a", "b"], 2), (["a", None], None), (["a", "a"], None)):
        pq.write_table(pa.table({"uid": uids, "caption": ["x", "y"]}), tmp_path / "a.parquet")
        assert count_captions(CaptionFile(0, str(tmp_path / "a.parquet"))) == expected


def test_texts_are_taken_however_parquet_stores_them(tmp_path):
    for kind in (pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        check_storage(tmp_path, kind)
    pq.write_table(pa.table({"uid": ["a"], "caption": [["x"]]}), tmp_path / "list.parquet")
    with pytest.raises(ValueError, match=r"'caption' of text; it has uid \(string\), caption \(list<"):
        list_parquet(str(tmp_path / "list.parquet"))


def check_storage(tmp_path, kind: pa.DataType) -> None:
    plain = {"uid": ["a", "b", "c"], "caption": ["a dog", "", None], "image_sha256": ["i", "i", None]}
    blocks = []
    for name, types in (
        ("plain", [pa.string()] * 3),
        ("other", [kind] * 3),
        ("null", [kind, kind, pa.null()]),
    ):
        hashes = [None] * 3 if name == "null" else plain["image_sha256"]
        columns = {**plain, "image_sha256": hashes}
        arrays = [pa.array(values, pa.string()).cast(one) if one != pa.null() else pa.nulls(3)
                  for values, one in zip(columns.values(), types, strict=True)]  # fmt: skip
        uri = str(tmp_path / f"{name}.parquet")
        pq.write_table(pa.table(arrays, list(columns)), uri)
        (source,) = list_parquet(uri)
        assert count_captions(source) == 3
        assert count_statuses(source) == {OK: 1, EMPTY_CAPTION: 1, NO_CAPTION: 1}
        blocks.append(pa.concat_tables(load_captions(source, 2)))
    assert blocks[0].equals(blocks[1]) and blocks[0].schema == blocks[2].schema


def test_uids_that_join_as_one_are_one(tmp_path):
    uid = "0aa4c152-6ad3-6f3d-d1f3-73db9a41956c"
    uids = [uid.replace("-", "").upper(), "Own", "own"]
    pq.write_table(pa.table({"uid": uids, "caption": list("xyz")}), tmp_path / "a.parquet")
    source = CaptionFile(0, str(tmp_path / "a.parquet"))
    (table,) = load_captions(source, 10)
    assert table["uid"].to_pylist() == [uid.replace("-", ""), "Own", "own"] and count_captions(source) == 3
    for same in (uid, uid.upper(), uid.replace("-", "")):
        pq.write_table(pa.table({"uid": [same, *uids], "caption": list("wxyz")}), tmp_path / "a.parquet")
        assert count_captions(source) is None
