"""What a corpus says in which context, and some of its photos: written once, read by workers."""

from collections.abc import Sequence
from functools import lru_cache
from heapq import nsmallest

import pyarrow as pa

from raycomp.config import ParserConfig
from raycomp.data.arrow import from_rows, readable
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.paths import find_stamp
from raycomp.language.context import MOST_ENTRIES, TABLES, Context, count_context, keep_commonest, no_context
from raycomp.language.judge.form import LONGEST_EDITED
from raycomp.negatives.captions import CaptionFile, draw_uid, load_captions
from raycomp.negatives.reading import load_reader
from raycomp.run.tasks import map_files
from raycomp.schema import CONTEXT_SCHEMA
from raycomp.words import CAPTION, IMAGE_EMBEDDING, UID

MOST_COUNTED = 1_000_000
"""Captions that are counted, about; of more, some are drawn by their uids."""
# While files are merged, tables are cut where they have this many times the entries that are kept.
_SLACK = 8
NUM_PHOTOS = 1_000
"""Photos of the corpus that a photo is compared with, drawn by their uids."""
_PHOTOS = pa.schema([(IMAGE_EMBEDDING, pa.list_(pa.float32()))])
_ROWS = 1_000


def write_context(sources: Sequence[CaptionFile], num_captions: int, parser: ParserConfig, uri: str) -> None:
    """Count the captions of all files and write the commonest pairs of each table."""
    limit = min(1.0, MOST_COUNTED / max(num_captions, 1))
    context = no_context()
    for counted in map_files(_count_file, sources, limit, parser, label="count contexts"):
        context.add(counted)
        if max(map(len, context.tables.values())) > _SLACK * MOST_ENTRIES:
            context = keep_commonest(context, _SLACK // 2 * MOST_ENTRIES)
    tables = keep_commonest(context).tables
    rows = [(name, *pair, count) for name in TABLES for pair, count in sorted(tables[name].items())]
    write_table(from_rows(rows, CONTEXT_SCHEMA), uri, CONTEXT_SCHEMA)


def _count_file(source: CaptionFile, limit: float, parser: ParserConfig) -> Context:
    context = no_context()
    for table in load_captions(source, _ROWS):
        rows = zip(table[UID].to_pylist(), table[CAPTION].to_pylist(), strict=True)
        texts = [readable(text) for uid, text in rows if text and draw_uid(uid, "context") < limit]
        texts = [text for text in texts if text.strip() and len(text) <= LONGEST_EDITED]
        reader = load_reader(parser)
        reader.read(texts)
        context.add(count_context(reader.parsed[text] for text in texts))
    return context


def load_context(uri: str) -> Context:
    """Return the counts of a file that ``write_context`` wrote, loaded once per process."""
    return _load_context(uri, find_stamp(uri))


@lru_cache(maxsize=1)
def _load_context(uri: str, stamp: tuple[int | None, int | None]) -> Context:
    context = no_context()
    for row in read_columns(uri).to_pylist():
        context.tables[row["table"]][row["first"], row["second"]] = row["count"]
    return context


def write_photos(sources: Sequence[CaptionFile], uri: str) -> None:
    """Write the embeddings of the photos that all are compared with."""
    found = [row for rows in map_files(_draw_photos, sources, label="draw photos") for row in rows]
    vectors = [vector for *_, vector in nsmallest(NUM_PHOTOS, found, key=lambda row: row[:2])]
    table = pa.table({IMAGE_EMBEDDING: pa.array(vectors, _PHOTOS.field(0).type)})
    write_table(table, uri, _PHOTOS)


def _draw_photos(source: CaptionFile) -> list[tuple[float, str, list[float]]]:
    kept: list[tuple[float, str, list[float]]] = []
    for table in load_captions(source, 10 * _ROWS):
        drawn = ((draw_uid(uid, "screen"), uid, place) for place, uid in enumerate(table[UID].to_pylist()))
        first = nsmallest(NUM_PHOTOS, drawn)
        vectors = table[IMAGE_EMBEDDING]
        kept = nsmallest(
            NUM_PHOTOS, [*kept, *((draw, uid, vectors[place].as_py()) for draw, uid, place in first)]
        )
    return kept
