"""Negatives in other people's layouts: enriched shards, NegCLIP's TSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from raycomp.cluster.choose import kept_ranges
from raycomp.cluster.session import map_tasks
from raycomp.core.selection import parse_uids
from raycomp.loops.captions import Source, read_aligned
from raycomp.loops.tables import to_matrix
from raycomp.schema import CAPTION, IMAGE_EMBEDDING, NEGATIVES, UID
from raycomp.shards.datacomp import SAMPLES_PER_SHARD, enrich, write_index, write_shard
from raycomp.shards.files import new_file
from raycomp.shards.folder import Folder
from raycomp.shards.paths import ShardPath
from raycomp.shards.reader import extract
from raycomp.shards.scores import read_columns

NEIGHBOURS = 3
_TSV = ("", "title", "filepath", "neg_caption", "neg_image")


def write_shards(shards: Sequence[ShardPath], negatives: Sequence[str], out: Folder) -> int:
    """Write a curation's shards once more, each sample's json with its negatives; return how many samples.

    The samples of a curation's shards stand in the order of its scores, and so do negatives.
    """
    out.remove("shards")
    counts = list(map_tasks(_count, negatives, label="count"))
    ranges = kept_ranges(counts, SAMPLES_PER_SHARD)
    if len(ranges) != len(shards):
        raise RuntimeError(f"{len(shards)} shards cannot hold {sum(counts)} samples in the layout of curate")
    jobs = [
        (shard, [(negatives[o], a, b) for o, a, b in parts])
        for shard, parts in zip(shards, ranges, strict=True)
    ]
    written = sum(map_tasks(_write_shard, jobs, out, label="materialize"))
    if written != sum(counts):
        raise RuntimeError(f"materialize: wrote {written} of {sum(counts)} samples")
    write_index(out.at("shards"), written, (parse_uids(read_columns(uri, [UID])[UID]) for uri in negatives))
    return written


def _count(uri: str) -> int:
    return len(read_columns(uri, [UID]))


def _write_shard(job: tuple[ShardPath, list[tuple[str, int, int]]], out: Folder) -> int:
    shard, parts = job
    rows = [row for part in parts for row in _read_rows(*part)]
    return write_shard(out.at("shards"), shard.ordinal, _enrich(shard, rows))


def _read_rows(uri: str, start: int, end: int) -> list[dict[str, Any]]:
    return read_columns(uri, [UID, CAPTION, NEGATIVES]).slice(start, end - start).to_pylist()


def _enrich(shard: ShardPath, rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, bytes]]]:
    for position, members in extract(shard, set(range(len(rows)))):
        row = rows[position]
        enriched = enrich(members, row[UID], row[CAPTION], {NEGATIVES: row[NEGATIVES]})
        yield row[UID], enriched


def write_negclip(sources: Sequence[Source], negatives: Sequence[str], out: Folder) -> int:
    """Write ``exports/negclip.tsv``; return its rows: the captions that have a negative.

    Columns as NegCLIP's trainer reads them (Yuksekgonul et al. 2023): row number, title, filepath,
    neg_caption (a Python list of texts), neg_image (a Python list of the numbers of the three rows whose
    images are nearest among those of the same file). ``filepath`` is the name that the sample's image has in
    the curation's shards when it is a JPEG.
    """
    first = 0
    with new_file(out.at("exports", "negclip.tsv")) as file:
        file.write(_to_tsv([_TSV]))
        jobs = list(zip(sources, negatives, strict=True))
        for rows in map_tasks(_read_negclip, jobs, label="export"):
            numbered = [
                (first + i, title, path, repr(texts), repr([first + n for n in near]))
                for i, (title, path, texts, near) in enumerate(rows)
            ]
            file.write(_to_tsv(numbered))
            first += len(rows)
    return first


def _to_tsv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _read_negclip(job: tuple[Source, str]) -> list[tuple[str, str, list[str], list[int]]]:
    """Return title, path, texts and nearest rows of one file's captions that have negatives."""
    source, uri = job
    rows = [row for row in read_columns(uri, [UID, CAPTION, NEGATIVES]).to_pylist() if row[NEGATIVES]]
    table = read_aligned(source.uri, [UID, IMAGE_EMBEDDING])
    place = {uid: i for i, uid in enumerate(table[UID].to_pylist())}
    image_ND = to_matrix(table[IMAGE_EMBEDDING])[[place[row[UID]] for row in rows]].astype(np.float32)
    return [
        (row[CAPTION], f"{row[UID]}-0.jpg", [negative["text"] for negative in row[NEGATIVES]], near)
        for row, near in zip(rows, find_nearest(image_ND, NEIGHBOURS), strict=True)
    ]


def find_nearest(image_ND: np.ndarray, count: int) -> list[list[int]]:
    """Return the ``count`` nearest other rows of each row of unit embeddings [N, D], nearest first.

    With fewer others, all of them; ties by row number.
    """
    found = []
    for start in range(0, len(image_ND), 1024):
        cosine_MN = image_ND[start : start + 1024] @ image_ND.T
        rows_M = np.arange(len(cosine_MN))
        cosine_MN[rows_M, start + rows_M] = -np.inf
        order_MN = np.argsort(-cosine_MN, axis=1, kind="stable")[:, : min(count, len(image_ND) - 1)]
        found += order_MN.tolist()
    return found
