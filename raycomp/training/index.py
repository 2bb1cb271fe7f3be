"""Lists the training pairs, a table for every shard, and counts all other rows by reason."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raycomp.core.selection import parse_uids
from raycomp.core.uids import drop_duplicates
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns, write_table
from raycomp.run.tasks import map_files, map_tasks
from raycomp.schema import PAIRS_SCHEMA
from raycomp.training.hard import HardImages
from raycomp.training.pairs import Pairs, index_shard
from raycomp.training.tally import check_pairs, count_kinds, count_most, describe_lost, tally_pairs
from raycomp.words import DUPLICATE_UID, HELD_OUT, OK, UID

_FOLDER = "pairs"


@dataclass(frozen=True)
class Index:
    """The pairs of a run, shard by shard."""

    uris: tuple[str, ...]
    rows_S: tuple[int, ...]
    """Rows of every shard in an epoch: a sample that the subset repeats has several."""
    reasons: Counter[str]
    """All samples of the input by status: ok is trained on."""
    tally: Counter[str]
    """Counts as ``tally_pairs`` returns them."""
    kinds: Counter[tuple[str, str]]
    """Negatives by operation and kind."""
    most_negatives: int
    """That a pair has."""
    warnings: tuple[str, ...] = ()
    """A warning for every status whose rows are left out."""


def make_index(
    pairs: Pairs, work: Folder, hold_out: Callable[[Sequence[str]], np.ndarray] | None = None
) -> Index:
    """List the pairs of every shard in ``work``, or those that are not listed there yet.

    ``hold_out`` takes pairs out of the tables and returns their uids, uint64 (H, 2). Raises ValueError where
    there is none, and for whatever else only all shards together show; TooMuchBadData where more of it is bad
    than may be.
    """
    ordinals = list(range(len(pairs.shards)))
    reasons: Counter[str] = Counter()
    for found in map_tasks(_list_pairs, ordinals, pairs, work, label="list pairs"):
        reasons.update(found)
    uris = tuple(_at(work, ordinal) for ordinal in ordinals)
    uids = [] if pairs.is_curated else list(map_files(_read_uids, uris, label="compare uids"))
    repeated = [~keep_n for keep_n in drop_duplicates(uids)]
    again = [(uri, rows_n) for uri, rows_n in zip(uris, repeated, strict=False) if rows_n.any()]
    for _ in map_tasks(_drop_rows, again, label="drop duplicates"):
        pass
    held_H2 = np.empty((0, 2), np.uint64) if hold_out is None else hold_out(uris)
    rows, tally, kinds, most = [], Counter[str](), Counter[tuple[str, str]](), 0
    for one, of_kinds, of_one in map_files(_tally, uris, pairs, label="count pairs"):
        rows.append(one["pairs"])
        tally.update(one)
        kinds.update(of_kinds)
        most = max(most, of_one)
    # An interrupted run may have dropped some before.
    num_found = tally["samples"] + len(held_H2)
    if reasons[OK] > num_found:
        reasons[DUPLICATE_UID] += reasons[OK] - num_found
    reasons[OK] = tally["samples"]
    if len(held_H2):
        reasons[HELD_OUT] = len(held_H2)
    check_pairs(pairs, reasons, tally, [*uids, held_H2] if pairs.subset else ())
    lost = tuple(describe_lost(pairs, reasons, tally))
    return Index(uris, tuple(rows), reasons, tally, kinds, most, lost)


def _at(work: Folder, ordinal: int, suffix: str = "parquet") -> str:
    return work.at(_FOLDER, f"{ordinal:05d}.{suffix}")


def _list_pairs(ordinal: int, pairs: Pairs, work: Folder) -> Counter[str]:
    """Write the table of a shard's pairs, then how many rows it has by reason; return that."""
    name = f"{ordinal:05d}.json"
    if not work.exists(_FOLDER, name):
        table, reasons = index_shard(pairs, ordinal)
        write_table(table, _at(work, ordinal), PAIRS_SCHEMA)
        work.write_json(reasons, _FOLDER, name)
    return Counter(work.read_json(_FOLDER, name))


def _read_uids(uri: str) -> np.ndarray:
    return parse_uids(read_columns(uri, [UID])[UID])


def _drop_rows(item: tuple[str, np.ndarray]) -> None:
    uri, rows_n = item
    write_table(read_columns(uri).filter(pa.array(~rows_n)), uri, PAIRS_SCHEMA)


def _tally(uri: str, pairs: Pairs) -> tuple[Counter[str], Counter[tuple[str, str]], int]:
    table = read_columns(uri)
    pictures = HardImages(pairs.negative_images, pairs.token) if pairs.negative_images else None
    return tally_pairs(table, pictures), count_kinds(table), count_most(table)
