"""Choose a subset from scores alone: cut the gates over all files, then write the rows that pass.

Each task reads several files. The driver receives counts; the kept rows go from task to task by files in
``work``. So its memory does not grow with the corpus, and it requests no shard file from the storage.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.attribution import Moments
from raycomp.core.selection import parse_uids
from raycomp.curation.config import SelectionRule
from raycomp.curation.measures import Corpus, check_scores, corpus_columns, read_corpus, take_columns
from raycomp.curation.outputs import count_pieces, read_images
from raycomp.curation.rules import PAS
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, cut_gates, enters_attribute, judge_file, judge_table
from raycomp.data.arrow import add_columns
from raycomp.data.datacomp import write_subset
from raycomp.data.folder import Folder
from raycomp.data.parquet import (
    count_rows,
    new_groups,
    read_columns,
    read_in_order,
    read_schema,
    write_table,
)
from raycomp.run.tasks import add_counts, map_files, map_tasks
from raycomp.schema import KEPT_SCHEMA
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    IMAGE_SHA256,
    KEPT,
    KEY,
    MARK,
    MARK_REASONS,
    MEAN_PAS,
    PHRASES,
    POSITION,
    SCORE,
    SHARD,
    SHARD_ORDINAL,
    STATUS,
    UID,
)

SUBSET = ("subset", "subset.npy")
# The kept rows of one shard, with the columns that locate their samples.
_PART_SCHEMA = KEPT_SCHEMA.append(pa.field(POSITION, pa.int32()))


@dataclass(frozen=True)
class Chosen:
    """The result of a choice: gate thresholds, kept rows per shard, and dropped rows by reason."""

    gates: Gates
    rows_S: list[int]
    """Rows of each shard."""
    pieces_S: list[list[int]]
    """Kept rows of each shard, by piece (``count_pieces``)."""
    reasons: Counter
    moments: Moments | None = None
    """Under cpi those of the PAS that the attribute gate ranks: Eq. 5 divides by them."""

    @property
    def faults(self) -> Counter[str]:
        """Rows by reason, marked rows under one name: a mark is not a fault of the row."""
        marked = sum(self.reasons[reason] for reason in MARK_REASONS)
        others = {reason: count for reason, count in self.reasons.items() if reason not in MARK_REASONS}
        return Counter({**others, MARK: marked})

    @property
    def num_kept(self) -> int:
        """Rows in the subset."""
        return sum(map(sum, self.pieces_S))


def choose(
    scores: list[ScoresFile], selection: SelectionRule, out: Folder, work: Folder, check: Callable[[], None]
) -> Chosen:
    """Cut the gates over the files; write each shard's kept rows to ``work``, and ``subset.npy`` to ``out``.

    ``check`` is called before the gates are committed; it raises if this run may not commit.
    """
    committed = commit_once(work, "subset", lambda: {"gates": cut_all(scores, selection).to_dict()}, check)
    gates = Gates.from_dict(committed["gates"])
    moments = None
    if selection.rule.attribute_by == PAS:
        moments = reduce(Moments.merge, map_files(_pool_moments, scores, selection, gates))
    jobs = [(file, _kept_part(work, ordinal)) for ordinal, file in enumerate(scores)]
    found = list(map_files(_write_kept, jobs, selection, gates))
    list(map_tasks(_write_subset, [len(scores)], out, work, label="subset"))
    return Chosen(
        gates,
        [counted.total() for counted, _ in found],
        [pieces for _, pieces in found],
        sum((counted for counted, _ in found), Counter()),
        moments,
    )


def write_kept(choice: Chosen, out: Folder, work: Folder, has_images: bool = False) -> None:
    """Write ``subset/kept.parquet``, the kept rows of all shards in their order, by one task.

    ``has_images``: whether outputs hold images in another format, whose SHA-256 the rows get.
    """
    list(map_tasks(_join_kept, [len(choice.rows_S)], out, work, has_images, label="subset"))


def _write_subset(num_shards: int, out: Folder, work: Folder) -> None:
    parts = [_kept_part(work, ordinal) for ordinal in range(num_shards)]
    write_subset((parse_uids(kept[UID]) for kept in read_in_order(parts, [UID])), out.at(*SUBSET))


def _join_kept(num_shards: int, out: Folder, work: Folder, has_images: bool) -> None:
    images = read_images(work) if has_images else {}
    parts = [_kept_part(work, ordinal) for ordinal in range(num_shards)]
    with new_groups(out.at("subset", "kept.parquet"), KEPT_SCHEMA) as write:
        for kept in read_in_order(parts, KEPT_SCHEMA.names):
            write(_set_images(kept, images) if images else kept)


def _set_images(kept: pa.Table, images: Mapping[str, str]) -> pa.Table:
    """Return kept rows with new SHA-256 values for the images of some uids."""
    uids, known = (kept[name].to_pylist() for name in (UID, IMAGE_SHA256))
    found = [images.get(uid, image) for uid, image in zip(uids, known, strict=True)]
    place = kept.schema.get_field_index(IMAGE_SHA256)
    return kept.set_column(place, IMAGE_SHA256, pa.array(found, pa.string()))


def commit_once(
    work: Folder, name: str, cut: Callable[[], dict[str, Any]], check: Callable[[], None]
) -> dict[str, Any]:
    """Return ``work/gates/NAME.json`` of an earlier attempt, else cut the gates and commit it."""
    names = ("gates", f"{name}.json")
    if not work.exists(*names):
        found = cut()
        check()
        work.write_json(found, *names)
    return work.read_json(*names)


def cut_pool(scores: list[ScoresFile], pool: SelectionRule) -> dict[str, Any]:
    """Return the gate of the pool that is attributed, and the number of its rows in each file that have not
    been attributed yet."""
    gates = cut_all(scores, pool)
    return {"gates": gates.to_dict(), "sizes": list(map_files(count_unattributed, scores, pool, gates))}


def load_pool(
    item: tuple[int, ScoresFile], selection: SelectionRule, gates: Gates, block_rows: int
) -> Iterator[pa.Table]:
    """Yield the rows of one aligned file that are in the pool, but for those with an attribution."""
    ordinal, file = item
    columns = [POSITION, UID, STATUS, CAPTION, ALIGNMENT, IMAGE_EMBEDDING]
    rows = np.flatnonzero(find_pool(file, selection, gates) & ~is_attributed(file.uri))
    table = read_columns(file.uri, columns).take(pa.array(rows))
    table = add_columns(table, {SHARD_ORDINAL: pa.array([ordinal] * len(table), pa.int32())})
    for start in range(0, len(table), block_rows):
        yield table.slice(start, block_rows)


def cut_all(scores: list[ScoresFile], selection: SelectionRule) -> Gates:
    """Cut the gates of a selection rule over all files; every pass reads each file."""
    return cut_gates(
        selection, lambda *measure: map_files(_measure, scores, selection, *measure, fold=add_counts)
    )


def _measure(
    file: ScoresFile, selection: SelectionRule, measure: Callable, with_attribute: bool, *args: Any
) -> Any:
    return measure(_load(file, selection, with_attribute), selection, *args)


def _load(file: ScoresFile, selection: SelectionRule, with_attribute: bool) -> Corpus:
    table = file.read(corpus_columns(selection, with_attribute))
    check_scores(table, file.uri)
    return read_corpus(table, selection)


def find_pool(file: ScoresFile, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return which rows of a file are in the pool, bool [N]."""
    table = take_columns(file.read(corpus_columns(selection, False)), selection, False)
    return (judge_table(table, selection, gates)[0] == KEPT).astype(bool)


def is_attributed(uri: str) -> np.ndarray:
    """Return which rows of a file have phrases, if only an empty list, bool [N]."""
    name = PHRASES if PHRASES in read_schema(uri).names else None
    if name is None:
        return np.zeros(count_rows(uri), bool)
    return read_columns(uri, [PHRASES])[PHRASES].is_valid().to_numpy()


def count_unattributed(file: ScoresFile, selection: SelectionRule, gates: Gates) -> int:
    """Return how many rows of a file are in the pool and have no attribution."""
    return int((find_pool(file, selection, gates) & ~is_attributed(file.uri)).sum())


def count_pool(file: ScoresFile, selection: SelectionRule, gates: Gates) -> int:
    """Return how many rows of a file are in the pool."""
    return int(find_pool(file, selection, gates).sum())


def _pool_moments(file: ScoresFile, selection: SelectionRule, gates: Gates) -> Moments:
    corpus = _load(file, selection, True)
    return Moments.of(corpus.measures[PAS][enters_attribute(corpus, selection, gates)])


def _write_kept(
    job: tuple[ScoresFile, str], selection: SelectionRule, gates: Gates
) -> tuple[Counter, list[int]]:
    """Write one file's kept rows; return the number of rows by reason, and of kept rows by piece."""
    file, part = job
    kept = [KEY, SHARD, POSITION, IMAGE_SHA256, CAPTION, MEAN_PAS]
    table, reason_N, score_N = judge_file(file, selection, gates, kept)
    table = table.append_column(SCORE, pa.array(score_N)).filter(pa.array(reason_N == KEPT))
    write_table(table.select(_PART_SCHEMA.names), part, _PART_SCHEMA)
    return Counter(reason_N.tolist()), count_pieces(table[POSITION].to_numpy())


def _kept_part(work: Folder, ordinal: int) -> str:
    return work.at("kept", f"{ordinal:05d}.parquet")


def read_kept(work: Folder, ordinal: int) -> pa.Table:
    """Return a shard's kept rows, with their positions."""
    return read_columns(_kept_part(work, ordinal))
