"""Captions in files, and the negatives that are written of them in this process."""

import random
from hashlib import md5
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import raycomp
from raycomp.config import ClusterConfig, ScorerConfig
from raycomp.data.parquet import OTHERS
from raycomp.negatives.captions import CaptionFile, load_captions
from raycomp.negatives.config import LlmConfig, NegativesConfig, WritingConfig
from raycomp.words import CAPTION, UID


def make_table(captions: list[str | None]) -> pa.Table:
    """Return captions with uids, and no others of their images."""
    others = pa.array([[] for _ in captions], pa.list_(pa.string()))
    uids = [f"{i:032x}" for i in range(len(captions))]
    return pa.table(
        {UID: pa.array(uids, pa.string()), CAPTION: pa.array(captions, pa.string()), OTHERS: others}
    )


def write_captions(path: Path, captions: list[str | None]) -> str:
    """Write the same as a file."""
    pq.write_table(make_table(captions).select([UID, CAPTION]), path)
    return str(path)


def make_captions(folder: Path, num_files: int = 3, per_file: int = 40) -> str:
    """Write files of captions, two for each image, whose words have habits."""
    folder.mkdir(exist_ok=True)
    rng = random.Random(0)
    people, animals = ("man", "woman", "boy", "girl"), ("dog", "cat", "horse", "cow")
    colours, places = ("red", "blue", "green", "white"), ("car", "table", "bench", "tree")
    every = list(product(people, ("next to", "behind", "in front of"), colours, places, animals))
    weights = [1 + 3 * (colour == "red") + 3 * (animal == "dog") for _, _, colour, _, animal in every]
    for file in range(num_files):
        drawn = rng.choices(every, weights, k=per_file)
        captions = [f"A {who} with a {a} stands {where} a {c} {what}." for who, where, c, what, a in drawn]
        names = [md5(f"{file} {i}".encode()).hexdigest() for i in range(per_file)]
        images = [f"{file} {i // 2}" for i in range(per_file)]
        table = pa.table({"uid": names, "caption": captions, "image_sha256": images})
        pq.write_table(table, folder / f"{file}.parquet")
    return str(folder)


def read_captions(source: str, num_files: int) -> list[dict]:
    """Return the rows of such files, as a run reads them."""
    files = [CaptionFile(i, f"{source}/{i}.parquet") for i in range(num_files)]
    return [row for one in files for table in load_captions(one, 7) for row in table.to_pylist()]


def run(
    source: str | Path,
    out: Path,
    scorer: ScorerConfig | None = None,
    llm: LlmConfig | None = None,
    **options: object,
) -> list[dict]:
    """Write negatives; return the rows."""
    parts = {"scorer": scorer} if scorer else {}
    parts |= {"llm": llm} if llm else {}
    writing, local = WritingConfig(**options), ClusterConfig(executor="local")
    raycomp.negatives(NegativesConfig(input=str(source), negatives=writing, cluster=local, **parts), str(out))
    return read_negatives(out)


def read_negatives(out: Path) -> list[dict]:
    """Return the rows that a run wrote."""
    return [row for path in sorted((out / "negatives").iterdir()) for row in pq.read_table(path).to_pylist()]
