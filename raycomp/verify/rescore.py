"""Score random rows of a curation again, from their pixels, and compare.

A score is a pure function of a sample, a model and options, so on the same kind of device every bit must be
the same. On another kind the last bits differ; there alignments are compared within a bound.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.curation.config import CurateConfig
from raycomp.curation.stages import align_stages, attribute_stages
from raycomp.data.arrow import add_columns
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ShardPath
from raycomp.data.reader import read_shard
from raycomp.data.row_bytes import encode_rows
from raycomp.models.spec import ScorerSpec
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    DUPLICATE_UID,
    IMAGE_EMBEDDING,
    MEAN_PAS,
    PHRASES,
    POSITION,
    REMOVED,
    SHARD_ORDINAL,
    STATUS,
    UID,
    UID_CONFLICT,
)

BOUNDS = {"fp32": 1e-4}
OTHER_BOUND = 2e-2
"""Largest difference of alignments between kinds of devices, by scorer.precision."""
_BLOCK_ROWS = 256
_ROWS_PER_CALL = 64
_LATER = (DUPLICATE_UID, UID_CONFLICT)
_ATTRIBUTED = (STATUS, MEAN_PAS, PHRASES, "content_words")
# Of an earlier row with the same uid a later one has lost these.
_LOST = (STATUS, ALIGNMENT, IMAGE_EMBEDDING)


class Difference(NamedTuple):
    """A value of a row that is not what scoring it again gives."""

    uid: str
    column: str
    recorded: Any
    found: Any


def draw_rows(rows_S: Sequence[np.ndarray], count: int, seed: int) -> list[np.ndarray]:
    """Draw ``count`` rows without replacement, every row as likely as any other; fewer where there are fewer.

    ``rows_S``: the positions that may be drawn, of each shard. Returns the drawn ones, sorted, of each shard.
    """
    edges = np.cumsum([0, *map(len, rows_S)])
    total = int(edges[-1])
    drawn = np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False))
    return [
        np.sort(rows[drawn[(drawn >= start) & (drawn < end)] - start])
        for rows, start, end in zip(rows_S, edges[:-1], edges[1:], strict=True)
    ]


def read_and_count(shard: ShardPath, positions: np.ndarray) -> tuple[pa.Table | None, int]:
    """Read a whole shard; return its rows at some positions (None without one), and its number of rows."""
    taken, count = [], 0
    for table in read_shard(shard, _BLOCK_ROWS):
        count += len(table)
        is_taken = pc.is_in(table[POSITION], pa.array(positions, table.schema.field(POSITION).type))
        if pc.any(is_taken).as_py():
            taken.append(table.filter(is_taken))
    return (pa.concat_tables(taken) if taken else None), count


class Rescorer:
    """The stages of a curation in this process, each started once."""

    def __init__(self, config: CurateConfig, spec: ScorerSpec):
        self.align = [stage.start() for stage in align_stages(config, spec)]
        self.attribute = [stage.start() for stage in attribute_stages(config)]

    def score(self, samples: pa.Table, is_attributed_N: np.ndarray) -> Iterator[pa.Table]:
        """Yield the samples with all columns of scores/; those of attribution where ``is_attributed_N``."""
        for start in range(0, len(samples), _ROWS_PER_CALL):
            table = samples.slice(start, _ROWS_PER_CALL)
            for stage in self.align:
                table = stage(table)
            flags = pa.array(is_attributed_N[start : start + _ROWS_PER_CALL])
            usable = pc.and_(flags, table[ALIGNMENT].combine_chunks().is_valid())
            yield table.filter(pc.invert(usable))
            if pc.any(usable).as_py():
                yield self._attribute(table.filter(usable))

    def _attribute(self, table: pa.Table) -> pa.Table:
        found = table.select([SHARD_ORDINAL, POSITION, UID, STATUS, CAPTION, ALIGNMENT, IMAGE_EMBEDDING])
        for stage in self.attribute:
            found = stage(found)
        return add_columns(table, {name: found[name] for name in _ATTRIBUTED if name in found.column_names})


def compare_rows(scores: str, found: pa.Table, bound: float | None) -> list[Difference]:
    """Return the values of a scores file that differ from rows that were scored again.

    ``bound`` none = every bit of every column counts; else alignments alone, within the bound.
    """
    recorded = read_columns(scores).take(found[POSITION].combine_chunks())
    statuses = np.array(recorded[STATUS].to_pylist(), object)
    is_later_N, differences = np.isin(statuses, _LATER), []
    for name in recorded.column_names if bound is None else [ALIGNMENT]:
        then = recorded[name]
        # Rows that are not attributed have nothing there.
        scored = found[name] if name in found.column_names else pa.chunked_array([pa.nulls(len(found))])
        now = scored.cast(then.type)
        is_other_N = _differ(then, now, bound)
        if name in _LOST:
            is_other_N &= ~is_later_N
        for row in np.flatnonzero(is_other_N).tolist():
            uid = recorded[UID][row].as_py()
            differences.append(Difference(uid, name, then[row].as_py(), now[row].as_py()))
    return differences


def _differ(then: pa.ChunkedArray, now: pa.ChunkedArray, bound: float | None) -> np.ndarray:
    if bound is None:
        pairs = zip(encode_rows(then), encode_rows(now), strict=True)
        return np.array([a != b for a, b in pairs], bool)
    both = (column.to_numpy().astype(np.float64) for column in (then, now))
    first, second = both
    return ~((np.abs(first - second) <= bound) | (np.isnan(first) & np.isnan(second)))


def list_drawable(scores: str) -> np.ndarray:
    """Return the positions of the rows of a scores file that can be scored again: all but removed ones."""
    statuses = read_columns(scores, [STATUS])[STATUS].to_pylist()
    return np.flatnonzero([status != REMOVED for status in statuses])


def find_attributed(scores: str, positions: np.ndarray) -> np.ndarray:
    """Return which rows have been attributed, bool [n]."""
    return read_columns(scores, [PHRASES])[PHRASES].is_valid().to_numpy()[positions]


def bound_share(num_drawn: int, num_rows: int) -> float:
    """Return the share of false rows above which at least one of the drawn ones is false in 95 of 100 draws.

    Draws are without replacement; the binomial 1 - .05^(1/n) bounds it from above. 1 where none was drawn.
    """
    if not num_drawn:
        return 1.0
    return 0.0 if num_drawn == num_rows else 1 - 0.05 ** (1 / num_drawn)
