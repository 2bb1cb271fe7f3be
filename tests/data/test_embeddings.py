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


def write(folder: Path, layout: str, stored: np.ndarray, compressed: bool = False) -> Path:
    """Write metadata of NUM rows with ``stored`` beside it; return the array's file."""
    columns = {"caption": [f"a dog {i}" for i in range(NUM)], "image_path": ["gone.jpg"] * NUM}
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


def test_rows_and_embeddings_keep_step_and_no_image_is_read(new_folder):
    for dtype, block_rows in [("<f2", 7), ("<f4", 1000), (">f4", 7), ("<f8", 13)]:
        for layout, compressed in [(LAYOUTS[0], False), (LAYOUTS[1], False), (LAYOUTS[1], True)]:
            folder, stored = new_folder(), STORED.astype(dtype)
            path = write(folder, layout, stored, compressed)
            (path.parent / "gone.jpg").write_bytes(b"pixels")
            check(folder, layout)
            found = read(folder, layout, block_rows)
            assert np.array_equal(to_matrix(found[IMAGE_EMBEDDING]), stored.astype(np.float32))
            assert found["caption"].to_pylist() == [f"a dog {i}" for i in range(NUM)]
            assert set(found["status"].to_pylist()) == {"ok"} and found["image"].null_count == NUM
            assert '"image_path": "gone.jpg"' in found["json"][0].as_py()
            (shard,) = expand_input(str(folder), layout)
            assert [list(members) for _, members in extract(shard, {3})] == [["txt", "json"]]


def test_memory_holds_a_block_not_the_array(new_folder):
    for compressed, layout in [(False, LAYOUTS[0]), (True, LAYOUTS[1])]:
        stored = np.zeros((NUM, 400_000), np.float16)  # 40 MB
        stored[:, :100] = np.arange(NUM)[:, None]
        folder = new_folder()
        write(folder, layout, stored, compressed)
        (shard,) = expand_input(str(folder), layout)
        tracemalloc.start()
        before, most = pa.total_allocated_bytes(), 0
        for i, table in enumerate(read_shard(shard, 1)):
            most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[1])
            assert np.array_equal(to_matrix(table[IMAGE_EMBEDDING])[0], stored[i]), layout
        tracemalloc.stop()
        assert i == NUM - 1 and most < 28e6, layout


def test_damage_loses_the_rest_of_the_array_and_no_row(tmp_path):
    stored = np.random.default_rng(1).normal(size=(NUM, 4000)).astype(np.float32)
    path = write(tmp_path, "b32_img", stored, compressed=True)
    whole = path.read_bytes()
    at = len(whole) // 2
    path.write_bytes(whole[:at] + bytes(4000) + whole[at + 4000 :])
    found = to_matrix(read(tmp_path, "b32_img", 4)[IMAGE_EMBEDDING])
    lost = np.isnan(found).any(axis=1)
    assert len(found) == NUM and lost[-1] and np.array_equal(found[:16], stored[:16])
    assert lost.tolist() == sorted(lost.tolist())


def test_damaged_metadata_is_still_a_row(tmp_path):
    write(tmp_path, "b32_img", STORED)
    path = tmp_path / "meta/ab.parquet"
    page = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    data = path.read_bytes()
    damaged = data[:page] + b"\xff" * 30 + data[page + 30 :]
    for content, expected in (
        (damaged, ["ok"] * 26 + ["truncated_shard"]),
        (data[:-9], ["unreadable_shard"]),
    ):
        path.write_bytes(content)
        check(tmp_path, "b32_img")
        assert read(tmp_path, "b32_img", 8)["status"].to_pylist() == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path, layout):
    path = write(tmp_path, layout, STORED)
    whole = path.read_bytes()
    half = "is cut: has .* of .* bytes" if layout == "clip_retrieval" else "not a zip file"
    for content, said in [
        (STORED[1:], r"': has 50 rows, .*(ab\.npz|img_emb_7\.npy) 49; must be as many"),
        (STORED[:, :7], "scorer.model='some-model': .* have 12 values, .* 7; name the model"),
        (STORED.astype(np.int64), r"must be rows of floats, is int64 of shape \(50, 12\)"),
        (STORED[:, 0], r"must be rows of floats, is float64 of shape \(50,\)"),
        (STORED.astype(object), "must be rows of floats, is object of shape"),
        (np.asfortranarray(STORED), "stored by column"),
        (whole[: len(whole) // 2], half),
        (b"no array at all", "cannot be used: the magic string|cannot be used: Invalid"),
        (b"", "prepare.stored_embeddings: .* cannot be used: "),
        (None, "prepare.stored_embeddings: .* cannot be used: no such file"),
    ]:  # fmt: skip
        if isinstance(content, np.ndarray):
            write(tmp_path, layout, content)
        elif content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=said) as error:
            check(tmp_path, layout)
        assert str(path) in str(error.value) and "\n" not in str(error.value), said
    if layout == "b32_img":
        write(tmp_path, layout, STORED)
        said = r"ab\.npz cannot be used: holds no array 'l14_img', its arrays are b32_txt, b32_img"
        with pytest.raises(ValueError, match=said):
            check(tmp_path, "l14_img")
        with pytest.raises(ValueError, match=r"ab\.parquet': must be .*metadata/metadata_\*\.parquet with"):
            expand_input(str(tmp_path), "clip_retrieval")
        (tmp_path / "a.tar").touch()
        with pytest.raises(
            ValueError, match=r"a\.tar': must be \.parquet with prepare.stored_emb.*='b32_img'"
        ):
            expand_input(str(tmp_path), "b32_img")
