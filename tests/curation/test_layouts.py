"""The same photos with captions in nine layouts give the same scores."""

import csv
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.data.samples import write_tar
from tests.corpus import by_cpi

NUM = 16
_COMPARED = ("image_sha256", "alignment", "mean_pas", "caption")
Pairs = list[tuple[str, bytes, str]]


def write_csv(folder: Path, pairs: Pairs, delimiter: str, name: str) -> None:
    with open(folder / name, "w", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(["file_name", "caption"])
        rows.writerows([f"{name}.jpg", text] for name, _, text in pairs)


def write_parquet(folder: Path, pairs: Pairs, make: Callable[[str, bytes], object]) -> None:
    images = [make(f"{name}.jpg", image) for name, image, _ in pairs]
    pq.write_table(pa.table({"image": images, "caption": [text for *_, text in pairs]}), folder / "a.parquet")


def write_tars(folder: Path, pairs: Pairs) -> None:
    write_tar(
        str(folder / "0.tar"), [(name, {"jpg": image, "txt": text.encode()}) for name, image, text in pairs]
    )
    for name, *_ in pairs:
        (folder / f"{name}.jpg").unlink()


def write_texts(folder: Path, pairs: Pairs) -> None:
    for name, _, text in pairs:
        (folder / f"{name}.txt").write_text(text)


def write_lines(folder: Path, pairs: Pairs) -> None:
    rows = [json.dumps({"file_name": f"{name}.jpg", "text": text}) for name, _, text in pairs]
    (folder / "metadata.jsonl").write_text("\n".join(rows))


def write_json(folder: Path, pairs: Pairs) -> None:
    (folder / "captions.json").write_text(json.dumps({f"{name}.jpg": [text, "-"] for name, _, text in pairs}))


# What each layout has in addition to a file of every photo.
LAYOUTS: dict[str, Callable[[Path, Pairs], None]] = {
    "tar": write_tars,
    "parquet of bytes": lambda folder, pairs: write_parquet(folder, pairs, lambda path, image: image),
    "parquet of paths": lambda folder, pairs: write_parquet(folder, pairs, lambda path, image: path),
    "parquet of structs": lambda folder, pairs: write_parquet(
        folder, pairs, lambda path, image: {"bytes": image, "path": path}
    ),
    "csv": lambda folder, pairs: write_csv(folder, pairs, ",", "captions.csv"),
    "tsv": lambda folder, pairs: write_csv(folder, pairs, "\t", "pairs.tsv"),
    "json lines": write_lines,
    "json": write_json,
    "texts": write_texts,
}


@pytest.fixture(scope="module")
def pairs(shared: Path) -> Pairs:
    root = shared / "data/flickr8k_800"
    lines = (root / "captions.jsonl").read_text().splitlines()[:NUM]
    rows = [json.loads(line) for line in lines]
    names = [row["image"] for row in rows]
    images = [(root / "images" / name).read_bytes() for name in names]
    texts = [row["captions"][0] for row in rows]
    return list(zip((name.removesuffix(".jpg") for name in names), images, texts, strict=True))


def test_nine_layouts_have_the_same_scores(pairs, tmp_path, tiny_scorer):
    found, shards = {}, {}
    for layout, write in LAYOUTS.items():
        folder = tmp_path / layout
        folder.mkdir()
        for name, image, _ in pairs:
            (folder / f"{name}.jpg").write_bytes(image)
        write(folder, pairs)
        run = raycomp.curate(by_cpi(input=str(folder), scorer=tiny_scorer), tmp_path / f"out {layout}")
        assert run["funnel"]["read"] == NUM
        scores = raycomp.open(tmp_path / f"out {layout}").table("scores").sort_by("image_sha256")
        columns = [scores[name].to_pylist() for name in _COMPARED]
        found[layout] = hashlib.sha256(repr(columns).encode()).hexdigest()
        shards[layout] = len([*(tmp_path / f"out {layout}/shards").glob("*.tar")])
    assert len(set(found.values())) == 1, found
    assert set(shards.values()) == {1}
