"""Staged parts: the rows of a shard that came together, and what a phase tells about itself beside them."""

import json
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data.arrow import SECONDS
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.paths import join_uri
from raycomp.run.growth import There
from raycomp.run.progress import WorkerPool
from raycomp.run.stage import WRITE
from raycomp.words import IS_LAST, POSITION, SHARD_ORDINAL, STATUS

_SAMPLED_PER_PART = 32
_SAMPLED_AT_MOST = 4096
_READ_AT_ONCE = 8
_COUNTERS = ("seconds", "offered")
_PART_METADATA = pa.schema(
    [
        (SHARD_ORDINAL, pa.int32()),
        ("file", pa.string()),
        ("rows", pa.int32()),
        ("total", pa.int32()),
        ("stats", pa.string()),
    ]
)


class Stalled(TimeoutError):
    """Nothing came of a phase for ``cluster.stall_s``."""


@dataclass
class Stats:
    """What a phase tells about itself: mergeable, bounded, in run.json and the report, in no result."""

    seconds: Any = field(default_factory=Counter)
    """Stage -> how long its workers were busy, added up."""
    offered: Counter = field(default_factory=Counter)
    """Stage -> how long its workers were there: their number times the wall time, added up over restarts."""
    wall_s: float = 0.0
    commit_s: float = 0.0
    """The part of the wall time that went into writing manifests."""
    worker_pools: dict[str, WorkerPool] = field(default_factory=dict)
    """Who worked on every stage, in the order of the work; after a restart, the last try's."""
    growth: list[There] = field(default_factory=list)
    """Scorers and CPUs over the wall time, where they came and went; a step per change."""
    counts: dict[str, Counter] = field(default_factory=dict)
    """Column -> value -> rows, or values of lists, with it; of every row its status."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Column -> values of a bounded sample of rows, the same rows in every column."""

    @property
    def statuses(self) -> Counter:
        """Status -> rows."""
        return self.counts.get(STATUS, Counter())

    def add(self, other: dict[str, Any]) -> None:
        """Take in another's ``to_dict``, which json may have been in between."""
        for name in _COUNTERS:
            getattr(self, name).update(other[name])
        for since, *there in other["growth"]:
            if not self.growth or [*self.growth[-1][1:]] != there:
                self.growth.append(There(since + self.wall_s, *there))
        self.wall_s += other["wall_s"]
        self.commit_s += other["commit_s"]
        self.worker_pools |= {stage: WorkerPool(*place) for stage, place in other["crew"].items()}
        for column, counted in other["counts"].items():
            self.counts.setdefault(column, Counter()).update(counted)
        for column, sampled in other["samples"].items():
            values = self.samples.setdefault(column, [])
            values += sampled[: _SAMPLED_AT_MOST - len(values)]

    def to_dict(self) -> dict[str, Any]:
        """Return what json can hold; the worker pools are called ``crew`` there."""
        return {"crew" if name == "worker_pools" else name: value for name, value in vars(self).items()}

    def busy_shares(self) -> dict[str, float]:
        """Return how much of the time its workers had each stage was at work, 0 to 1.

        Merging holds no slot of a CPU, so writing could come to more than its workers had: it is told as 1.
        """
        return {
            stage: min(1.0, seconds / self.offered[stage]) if self.offered[stage] else 0.0
            for stage, seconds in self.seconds.items()
        }


@dataclass(frozen=True)
class Part:
    """What becomes of the rows that a pass ends in."""

    schema: pa.Schema
    """The columns that are written."""
    counted: tuple[str, ...] = ()
    """Columns of texts, or of lists of them, whose values are counted beside the status."""
    sampled: tuple[str, ...] = ()
    """Columns of numbers of which a sample is told, of rows that have them all."""


def name_parts(ordinal: int) -> str:
    """Return the folder that a shard's parts lie in, which is removed as one."""
    return f"{ordinal:05d}"


def stage_part(table: pa.Table, parts_uri: str, part: Part) -> pa.Table:
    """Write the rows of each shard in ``table`` as a part; return a receipt per part."""
    all_metadata = []
    for ordinal in pc.unique(table[SHARD_ORDINAL]).to_pylist():
        started = time.perf_counter()
        rows = table.filter(pc.equal(table[SHARD_ORDINAL], ordinal))
        positions = rows[POSITION].to_pylist()
        # The same rows get the same name, so a task that runs again writes over its first try.
        digest = zlib.crc32(repr(positions).encode())
        name = f"{name_parts(ordinal)}/{digest:08x}-{len(positions)}.parquet"
        write_table(rows.select(part.schema.names), join_uri(parts_uri, name), part.schema)
        stats = _measure(rows, part)
        stats.seconds[WRITE] = time.perf_counter() - started
        all_metadata.append((ordinal, name, len(rows), _total(rows), json.dumps(stats.to_dict())))
    columns = list(zip(*all_metadata, strict=True)) or [()] * len(_PART_METADATA)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, _PART_METADATA, strict=True)], schema=_PART_METADATA
    )


def _total(rows: pa.Table) -> int | None:
    """Return the number of rows of the shard if its last row is here."""
    if IS_LAST not in rows.column_names:
        return None
    last = rows[POSITION].filter(rows[IS_LAST])
    return last[0].as_py() + 1 if len(last) else None


def _measure(rows: pa.Table, part: Part) -> Stats:
    stats = Stats()
    for name in rows.column_names:
        if name.startswith(SECONDS):
            stats.seconds[name.removeprefix(SECONDS)] += pc.sum(rows[name]).as_py() or 0.0
    for name in (STATUS, *part.counted):
        values = rows[name] if pa.types.is_string(rows[name].type) else pc.list_flatten(rows[name])
        stats.counts[name] = Counter(values.to_pylist())
    if part.sampled:
        sample = rows.select(part.sampled).drop_null().slice(0, _SAMPLED_PER_PART)
        stats.samples = sample.to_pydict()
    return stats


def read_parts(parts_uri: str, names: Iterable[str]) -> pa.Table | None:
    """Return the rows of staged parts in the order of their positions; None where there is no part.

    Raises RuntimeError if a position stands twice: a shard is never merged from overlapping parts.
    """
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        tables = list(pool.map(lambda name: read_columns(join_uri(parts_uri, name)), names))
    if not tables:
        return None
    table = pa.concat_tables(tables)
    positions = table[POSITION].to_numpy()
    order = positions.argsort(kind="stable")
    if len(set(positions.tolist())) < len(positions):
        raise RuntimeError(f"{parts_uri}: parts {sorted(names)} overlap")
    return table.take(pa.array(order))


def merge_parts(ordinal: int, parts_uri: str, names: list[str], target_uri: str, schema: pa.Schema) -> int:
    """Write an item's rows in the order of their positions; return their number."""
    table = read_parts(parts_uri, names)
    assert table is not None, "every item has a part"
    write_table(table, join_uri(target_uri, f"{ordinal:05d}.parquet"), schema)
    return len(table)
