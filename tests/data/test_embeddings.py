"""Stored embeddings stand beside their rows, in two public layouts; what does not fit is refused."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.data.inputs import expand_input
from raycomp.data.parquet import to_matrix
from raycomp.data.parquet_input import check_embeddings
from raycomp.data.reader import extract, read_shard
from raycomp.words import IMAGE_EMBEDDING

NUM, WIDTH = 50, 12
STORED = np.random.default_rng(0).normal(size=(NUM, WIDTH))
LAYOUTS = ("clip_retrieval", "b32_img")


def write(folder: Path, layout: str, stored: np.ndarray, compressed: bool = False, num: int = NUM) -> Path:
    """Write metadata of ``num`` rows with ``stored`` beside it; return the array's file."""
    columns = {"caption": [f"a dog {i}" for i in range(num)], "image_path": ["gone.jpg"] * num}
    is_npy = layout == "clip_retrieval"
    table = folder / ("metadata/metadata_7.parquet" if is_npy else "meta/ab.parquet")
    table.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), table, row_group_size=13)
    if not is_npy:
        save = np.savez_compressed if compressed else np.savez
        save(table.with_suffix(".npz"), b32_txt=stored[:1] * 0, b32_img=stored)
        return table.with_suffix(".npz")
    (folder / "img_emb").mkdir(exist_ok=True)
    np.save(folder / "img_emb/img_emb_7.npy", stored)
    return folder / "img_emb/img_emb_7.npy"


def check(folder: Path, layout: str, width: int = WIDTH) -> None:
    check_embeddings(expand_input(str(folder), layout), "some-model", width)


def read(folder: Path, layout: str, block_rows: int) -> pa.Table:
    (shard,) = expand_input(str(folder), layout)
    return pa.concat_tables(read_shard(shard, block_rows))


def test_rows_and_embeddings_keep_step(tmp_path_factory):
    for block_rows in [7, 1000]:
        for dtype in ["<f2", "<f4", ">f4", "<f8"]:
            for layout, compressed in [(LAYOUTS[0], False), (LAYOUTS[1], False), (LAYOUTS[1], True)]:
                tmp_path = tmp_path_factory.mktemp("case")
                stored = STORED.astype(dtype)
                write(tmp_path, layout, stored, compressed)
                check(tmp_path, layout)
                found = read(tmp_path, layout, block_rows)
                assert np.array_equal(to_matrix(found[IMAGE_EMBEDDING]), stored.astype(np.float32))
                assert found["caption"].to_pylist() == [f"a dog {i}" for i in range(NUM)]
                assert set(found["status"].to_pylist()) == {"ok"} and found["image"].null_count == NUM
                assert '"image_path": "gone.jpg"' in found["json"][0].as_py()


def test_no_image_is_read_even_where_there_is_one(tmp_path):
    write(tmp_path, "clip_retrieval", STORED)
    (tmp_path / "metadata/gone.jpg").write_bytes(b"pixels")
    assert read(tmp_path, "clip_retrieval", 64)["image"].null_count == NUM
    (shard,) = expand_input(str(tmp_path), "clip_retrieval")
    assert [list(members) for _, members in extract(shard, {3})] == [["txt", "json"]]


def test_memory_holds_a_block_not_the_array(tmp_path_factory):
    for compressed, layout in [(False, LAYOUTS[0]), (True, LAYOUTS[1])]:
        tmp_path = tmp_path_factory.mktemp("case")
        stored = np.random.default_rng(0).normal(size=(NUM, 400_000)).astype(np.float16)  # 40 MB
        write(tmp_path, layout, stored, compressed)
        (shard,) = expand_input(str(tmp_path), layout)
        tracemalloc.start()
        before, most = pa.total_allocated_bytes(), 0
        for i, table in enumerate(read_shard(shard, 1)):
            most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[1])
            assert np.array_equal(to_matrix(table[IMAGE_EMBEDDING])[0], stored[i]), (compressed, layout)
        tracemalloc.stop()
        assert i == NUM - 1 and most < 28e6, (compressed, layout)


def test_damage_loses_the_rest_and_no_row(tmp_path):
    stored = np.random.default_rng(1).normal(size=(NUM, 4000)).astype(np.float32)
    path = write(tmp_path, "b32_img", stored, compressed=True)
    whole = path.read_bytes()
    at = len(whole) // 2
    path.write_bytes(whole[:at] + bytes(4000) + whole[at + 4000 :])
    found = to_matrix(read(tmp_path, "b32_img", 4)[IMAGE_EMBEDDING])
    lost = np.isnan(found).any(axis=1)
    assert len(found) == NUM and lost[-1] and not lost[:16].any()
    assert np.array_equal(found[:16], stored[:16])
    assert lost.tolist() == sorted(lost.tolist())


def test_damaged_metadata_is_still_a_row(tmp_path):
    write(tmp_path, "b32_img", STORED)
    path = tmp_path / "meta/ab.parquet"
    page = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:page] + b"\xff" * 30 + data[page + 30 :])
    check(tmp_path, "b32_img")
    found = read(tmp_path, "b32_img", 8)
    assert found["status"].to_pylist() == ["ok"] * 26 + ["truncated_shard"]
    path.write_bytes(data[:-9])
    check(tmp_path, "b32_img")
    assert read(tmp_path, "b32_img", 8)["status"].to_pylist() == ["unreadable_shard"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, layout):
    path = write(tmp_path, layout, STORED)
    whole = path.read_bytes()

    def refused(words: str, stored: np.ndarray | None = None, width: int = WIDTH) -> None:
        if stored is not None:
            write(tmp_path, layout, stored)
        with pytest.raises(ValueError, match=words) as error:
            check(tmp_path, layout, width)
        assert str(path) in str(error.value) and "\n" not in str(error.value)

    refused(
        "scorer.model='some-model': its embeddings have 512 values, those in .* 12; name the model", None, 512
    )
    refused(
        r"(ab|metadata_7)\.parquet': has 50 rows, .*(ab\.npz|img_emb_7\.npy) 49; must be as many", STORED[1:]
    )
    refused(r"must be rows of floats, is int64 of shape \(50, 12\)", STORED.astype(np.int64))
    refused(r"must be rows of floats, is float64 of shape \(50,\)", STORED[:, 0])
    refused("must be rows of floats, is object of shape", STORED.astype(object))
    refused("stored by column", np.asfortranarray(STORED))
    path.write_bytes(whole[: len(whole) // 2])
    refused("is cut: has .* of .* bytes" if layout == "clip_retrieval" else "not a zip file")
    path.write_bytes(b"no array at all")
    refused("cannot be used: the magic string|cannot be used: Invalid")
    path.write_bytes(b"")
    refused("prepare.stored_embeddings: .* cannot be used: ")
    path.unlink()
    refused("prepare.stored_embeddings: .* cannot be used: no such file")
    if layout == "b32_img":
        write(tmp_path, layout, STORED)
        said = r"ab\.npz cannot be used: holds no array 'l14_img', its arrays are b32_txt, b32_img"
        with pytest.raises(ValueError, match=said):
            check(tmp_path, "l14_img")


def test_input_of_another_layout_is_refused(tmp_path):
    write(tmp_path, "b32_img", STORED)
    with pytest.raises(ValueError, match=r"ab\.parquet': must be .*metadata/metadata_\*\.parquet with"):
        expand_input(str(tmp_path), "clip_retrieval")
    (tmp_path / "a.tar").touch()
    with pytest.raises(
        ValueError, match=r"a\.tar': must be \.parquet with prepare.stored_embeddings='b32_img'"
    ):
        expand_input(str(tmp_path), "b32_img")
