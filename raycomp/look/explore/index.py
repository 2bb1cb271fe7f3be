"""The index of the rows that are shown: columns to filter by, orders to sort by, rows by word.

M rows. The page holds the columns in memory, 18 bytes a row; orders and words are loaded when they are used.
Numbers are written as little-endian arrays in base64.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data.folder import Folder
from raycomp.look.explore.cards import Indexed, put
from raycomp.words import ALIGNMENT, DUPLICATE_GROUP, KEPT, MEAN_PAS, OUTCOME, SCORE, STATUS, UID

SCORES = (SCORE, ALIGNMENT, MEAN_PAS)
MOST_BUCKETS = 256
_CODES_PER_BUCKET = 20_000


def write_index(parts: Sequence[Indexed], folder: Folder) -> dict[str, Any]:
    """Write the index to ``data/index`` of the folder; return what the page must know of it."""
    table = pa.concat_tables([part.table for part in parts], promote_options="default")
    columns: dict[str, Any] = {"kinds": encode(np.concatenate([part.kinds_M for part in parts]))}
    names = {}
    for name in (OUTCOME, STATUS):
        names[name], code_M = _encode_names(table[name])
        columns[name] = encode(code_M)
    for name in SCORES:
        value_M = table[name].to_numpy().astype("<f4")
        columns[name] = encode(value_M)
        put(folder, f"index/by_{name}", encode(np.argsort(value_M, kind="stable").astype("<u4")))
    if DUPLICATE_GROUP in table.column_names:
        columns["group"] = encode(_number_groups(table[DUPLICATE_GROUP]))
    put(folder, "index/columns", columns)
    put(folder, "index/uids", table[UID].to_pylist())
    drop_P = np.concatenate([part.drop_P for part in parts])
    return {
        "outcomes": names[OUTCOME],
        "statuses": names[STATUS],
        "buckets": _write_words(parts, folder),
        "values": parts[0].names,
        # Shading is full at the 95th percentile, to two figures.
        "scale": float(f"{np.quantile(drop_P, 0.95):.1e}") if drop_P.any() else 0.05,
    }


def encode(array_M: np.ndarray) -> str:
    """Return an array's bytes in base64."""
    return base64.b64encode(array_M.tobytes()).decode("ascii")


def find_bucket(word: str, num_buckets: int) -> int:
    """Return the number of the script that holds a word's rows; the page computes the same."""
    return sum(word.encode()) % num_buckets


def _encode_names(column: pa.ChunkedArray) -> tuple[list[list[Any]], np.ndarray]:
    """Return each name with its count, kept first, then by count, and each row's number of its name."""
    counts = {one["values"]: one["counts"] for one in pc.value_counts(column).to_pylist()}
    names = sorted(counts, key=lambda name: (name != KEPT, -counts[name], name))
    code_M = pc.index_in(column, pa.array(names, pa.string())).to_numpy().astype(np.uint8)
    return [[name, counts[name]] for name in names], code_M


def _number_groups(column: pa.ChunkedArray) -> np.ndarray:
    """Return the number of each row's group of near-duplicates, from 1; 0 for none, uint32 [M]."""
    number = column.combine_chunks().dictionary_encode().indices
    return (pc.fill_null(number, -1).to_numpy() + 1).astype("<u4")


def _write_words(parts: Sequence[Indexed], folder: Folder) -> int:
    """Write the rows of every word; return the number of scripts."""
    vocabulary: dict[str, int] = {}
    words = []
    for part in parts:
        number_V = [vocabulary.setdefault(word, len(vocabulary)) for word in part.words]
        words.append(np.array(number_V, np.int64)[part.word_E])
    word_E, code_E = np.concatenate(words), np.concatenate([part.code_E for part in parts])
    order_E = np.argsort(word_E, kind="stable")  # the rows of a word stay in order
    code_E = code_E[order_E].astype("<u4")
    edges = np.searchsorted(word_E[order_E], np.arange(len(vocabulary) + 1))
    num_buckets = int(np.clip(len(code_E) // _CODES_PER_BUCKET, 1, MOST_BUCKETS))
    buckets: list[list[list[str]]] = [[] for _ in range(num_buckets)]
    for word, number in vocabulary.items():
        codes = encode(code_E[edges[number] : edges[number + 1]])
        buckets[find_bucket(word, num_buckets)].append([word, codes])
    for number, content in enumerate(buckets):
        put(folder, f"index/words_{number:03d}", content)
    return num_buckets
