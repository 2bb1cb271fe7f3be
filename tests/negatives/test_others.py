"""Captions that an image has in other files: against a plain search over all rows."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.config import ClusterConfig
from raycomp.data.files import Folder
from raycomp.data.parquet import OTHERS
from raycomp.negatives import captions as shared_captions
from raycomp.negatives.captions import MOST_OTHERS, CaptionFile, load_captions
from raycomp.negatives.config import NegativesConfig, WritingConfig


def write_files(folder: Path, files: list[list[tuple[str | None, str]]]) -> list[CaptionFile]:
    """Write (image, caption) rows as files of captions."""
    folder.mkdir()
    found = []
    for ordinal, rows in enumerate(files):
        images, captions = zip(*rows, strict=True)
        uids = [f"{ordinal:016x}{place:016x}" for place in range(len(rows))]
        table = pa.table({"uid": uids, "caption": captions, "image_sha256": pa.array(images, pa.string())})
        pq.write_table(table, folder / f"{ordinal}.parquet")
        found.append(CaptionFile(ordinal, str(folder / f"{ordinal}.parquet")))
    return found


@pytest.fixture(autouse=True)
def here(request, monkeypatch) -> None:
    """Do the tasks of files in this process, but for a whole command."""
    if "rejected" not in request.node.name:
        monkeypatch.setattr(
            shared_captions,
            "map_files",
            lambda do, items, *args, label: [do(item, *args) for item in items],
        )


def draw_files(seed: int) -> list[list[tuple[str | None, str]]]:
    rng = random.Random(seed)
    images = [*(f"image {i}" for i in range(12)), None, "image \u00e9"]
    return [
        [(rng.choice(images), f"caption {rng.randrange(30)}") for _ in range(rng.randrange(1, 15))]
        for _ in range(rng.randrange(2, 6))
    ]


def test_captions_of_all_files_are_known(tmp_path, monkeypatch):
    for seed, at_once in [(0, 1), (1, 1), (2, 7), (3, 7), (4, 1_000)]:
        monkeypatch.setattr(shared_captions, "_KEYS_AT_ONCE", at_once)
        files = draw_files(seed)
        sources = write_files(tmp_path / f"in{seed}", files)
        (tmp_path / f"work{seed}").mkdir()
        work = Folder(str(tmp_path / f"work{seed}"))
        shared = shared_captions.share_captions(sources, sum(map(len, files)), work)
        for source, rows in zip(shared, files, strict=True):
            found = [row[OTHERS] for table in load_captions(source, 4) for row in table.to_pylist()]
            for (image, caption), others in zip(rows, found, strict=True):
                every = [text for part in files for own, text in part if own == image and text != caption]
                assert set(others) == (set() if image is None else set(every)), (seed, at_once)
                assert len(others) == len(set(others)) <= MOST_OTHERS


def test_nothing_is_written_where_no_image_is_shared(tmp_path):
    sources = write_files(tmp_path / "in", [[("a", "x"), ("a", "y")], [("b", "x")]])
    assert shared_captions.share_captions(sources, 3, Folder(str(tmp_path))) == sources
    assert shared_captions.share_captions(sources[:1], 2, Folder(str(tmp_path))) == sources[:1]


def test_captions_that_are_not_utf8_are_left_out(tmp_path):
    sources = write_files(tmp_path / "in", [[("a", "x")], [("a", "y"), ("a", "z")]])
    table = pq.read_table(sources[1].uri)
    bad = pa.array([b"\xff\xfe", b"z"]).cast(pa.string(), safe=False)
    pq.write_table(table.set_column(1, "caption", bad), sources[1].uri)
    (tmp_path / "work").mkdir()
    first, _ = shared_captions.share_captions(sources, 3, Folder(str(tmp_path / "work")))
    assert [row[OTHERS] for part in load_captions(first, 4) for row in part.to_pylist()] == [["z"]]


def test_a_negative_that_another_file_says_of_the_image_is_rejected(tmp_path):
    """Without the other file the same edit is a negative."""
    caption = "A black dog sleeps on a bench"
    config = WritingConfig(rank=False, operations=("REPLACE",), per_caption=99, candidates=6)

    def write(name: str, files: list[list[tuple[str | None, str]]]) -> list[str]:
        write_files(tmp_path / name, files)
        whole = NegativesConfig(
            input=str(tmp_path / name), negatives=config, cluster=ClusterConfig(executor="local")
        )
        raycomp.negatives(whole, str(tmp_path / f"{name} out"))
        (row, *_) = pq.read_table(tmp_path / f"{name} out" / "negatives" / "00000.parquet").to_pylist()
        return [one["text"] for one in row["negatives"]]

    alone = write("alone", [[("a", caption)], [("b", "A red car")]])
    assert len(alone) > 3
    kept = write("shared", [[("a", caption)], [("a", alone[0])]])
    assert alone[0] not in kept and set(kept) <= set(alone)
