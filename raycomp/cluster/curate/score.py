"""Score shards on Ray: align them all, mark duplicates, then attribute the best aligned.

A gate is global, so each phase runs over all shards before the next begins. What does the work is a plain
function or callable of ``loops/``; here it is laid over shards and committed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset

from raycomp.cluster.curate.choose import commit_once, cut_pool
from raycomp.cluster.curate.dedupe import mark_duplicates
from raycomp.cluster.curate.merge import merge_aligned, merge_scores
from raycomp.cluster.progress import DEVICE, ON_SCORERS
from raycomp.cluster.session import Session
from raycomp.cluster.source import ItemSource, read_timed
from raycomp.cluster.waves import Phase, Stats, stage_part
from raycomp.config import CurateConfig, TooMuchBadData
from raycomp.loops.curate.align import Align
from raycomp.loops.curate.attribute import Attribute, parse
from raycomp.loops.curate.measures import corpus_columns
from raycomp.loops.curate.prepare import prepare
from raycomp.loops.curate.select import Gates, judge, pool_config
from raycomp.loops.tables import add_columns
from raycomp.models.clip import ScorerSpec
from raycomp.schema import ATTRIBUTED_SCHEMA, aligned_schema, scores_schema
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import read_columns
from raycomp.shards.paths import ShardPath
from raycomp.shards.reader import read_shard
from raycomp.words import (
    ALIGNED_STATUSES,
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    KEPT,
    OK,
    POSITION,
    SHARD_ORDINAL,
    STATUS,
    STATUSES,
    UID,
    UID_CONFLICT,
)

# Rows that a scorer takes at a time, per thread of a CPU or for a GPU: enough to fill its passes, few enough
# to keep a small run moving.
_PAIRS_PER_CALL = {"cpu": 32, "gpu": 512}
_CAPTIONS_PER_CALL = {"cpu": 128, "gpu": 1024}


@dataclass(frozen=True)
class Job:
    """One curation: what to do, on what, where to."""

    config: CurateConfig
    spec: ScorerSpec
    shards: list[ShardPath]
    out: Folder
    work: Folder
    session: Session
    check_lease: Callable[[], None] = lambda: None
    """Raises where another run took the folder over; asked before every commit."""

    @property
    def ordinals(self) -> list[int]:
        """Every shard's number."""
        return [shard.ordinal for shard in self.shards]

    @property
    def aligned_schema(self) -> pa.Schema:
        """Columns of a shard's rows after alignment."""
        scorer = self.config.scorer
        return aligned_schema(self.spec.embedding_dim, scorer.embedding_dtype, self.config.extra_columns)

    def aligned_uri(self, ordinal: int) -> str:
        """Where a shard's rows lie after alignment."""
        return self.work.at("aligned", f"{ordinal:05d}.parquet")

    def scores_uri(self, ordinal: int) -> str:
        """Where a shard's final scores lie."""
        return self.out.at("scores", f"{ordinal:05d}.parquet")

    @property
    def stage_workers(self) -> dict[str, int]:
        """How many workers each stage has at most: scorers, or slots of the CPUs that scorers leave.

        One task takes a shard from reading to its scorer, so no more of them work than there are shards.
        """
        taken = self.session.num_scorers * self.session.scorer_resources.get("num_cpus", 1)
        free = max(1, int(self.session.num_cpus - taken))
        on_scorers = dict.fromkeys((*ON_SCORERS, DEVICE), self.session.num_scorers)
        by_shard = dict.fromkeys(("read", "decode", "parse"), min(free, len(self.shards)))
        return {**by_shard, **on_scorers, "write": free}

    def scorers(self) -> dict:
        """Return how Ray Data runs a scoring stage: a fixed pool from the start.

        While one call computes, the next one's blocks are put together.
        """
        return {
            "compute": ActorPoolStrategy(size=self.session.num_scorers, max_concurrent_calls_per_actor=2),
            "batch_format": "pyarrow",
            **self.session.scorer_resources,
        }


def score(job: Job) -> dict[str, Stats]:
    """Write ``scores/``: one file per shard. Returns each phase's stats.

    Raises TooMuchBadData, and ValueError where no row is usable.
    """
    stats = {"align": align_all(job)}
    aligned = [job.aligned_uri(ordinal) for ordinal in job.ordinals]
    statuses = stats["align"].statuses
    check_bad_rows(statuses, job.config.max_bad_fraction)

    def cut() -> dict[str, Any]:
        conflicts = mark_duplicates(aligned, sum(statuses.values()))[UID_CONFLICT]
        unlike = {OK: statuses[OK] - conflicts, UID_CONFLICT: conflicts} if conflicts else {}
        check_bad_rows({**statuses, **unlike}, job.config.max_bad_fraction)
        return cut_pool(aligned, job.config)

    pool = commit_once(job.work, "pool", cut, job.check_lease)
    stats["attribute"] = attribute_pool(job, Gates.from_dict(pool["gates"]), pool["sizes"])
    return stats


def check_bad_rows(statuses: dict[str, int], most: float) -> None:
    """Raise where too many rows, or all, have no alignment."""
    rows = sum(statuses.values())
    bad = {status: count for status, count in statuses.items() if status not in ALIGNED_STATUSES}
    if sum(bad.values()) == rows:
        reasons = ", ".join(f"{count:,} {status}" for status, count in sorted(bad.items()))
        raise ValueError(f"input: none of {rows:,} rows is usable ({reasons})")
    if sum(bad.values()) > most * rows:
        reasons = ", ".join(f"{count:,} {status}" for status, count in sorted(bad.items()))
        share = sum(bad.values()) / rows
        raise TooMuchBadData(
            f"{share:.1%} of {rows:,} rows have no alignment ({reasons}), more than max_bad_fraction={most}"
            + (f"; {UID_CONFLICT}: {STATUSES[UID_CONFLICT]}" if UID_CONFLICT in bad else "")
        )


def align_all(job: Job) -> Stats:
    """Phase 1: every sample of every shard gets a row with a status and, if it can, an alignment."""
    phase = Phase(
        "align",
        job.work,
        job.config.waves.shards_per_wave,
        merge_aligned,
        (job.work.at("aligned"), job.aligned_schema),
        job.stage_workers,
        job.check_lease,
    )
    return phase.run(job.ordinals, partial(_align_dataset, job), None)


def _align_dataset(job: Job, ordinals: list[int], parts_uri: str) -> Dataset:
    config, rows = job.config, job.session.block_rows
    read = partial(read_timed, partial(read_shard, block_rows=rows))
    prepare_block = partial(
        prepare,
        scorer=config.scorer,
        spec=job.spec,
        max_pixels=config.prepare.max_pixels,
        extra_columns=config.extra_columns,
        fast_decode=config.prepare.fast_decode,
    )
    return (
        ray.data.read_datasource(
            ItemSource([job.shards[o] for o in ordinals], read), override_num_blocks=len(ordinals), num_cpus=1
        )
        .map_batches(prepare_block, batch_size=None, batch_format="pyarrow", num_cpus=1)
        .map_batches(
            Align,
            fn_constructor_args=(config.scorer, job.spec, job.session.num_threads),
            batch_size=config.scorer.batch_size or job.session.rows_per_call(_PAIRS_PER_CALL),
            **job.scorers(),
        )
        .map_batches(
            partial(stage_part, parts_uri=parts_uri, schema=job.aligned_schema),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
        )
    )


def attribute_pool(job: Job, pool: Gates, pool_sizes: list[int]) -> Stats:
    """Phase 2: phrases, counterfactuals and drops of the pool; scores files are final after it."""
    phase = Phase(
        "attribute",
        job.work,
        job.config.waves.shards_per_wave,
        merge_scores,
        (job.work.at("aligned"), job.out.at("scores"), scores_schema(job.aligned_schema)),
        job.stage_workers,
        job.check_lease,
    )
    totals = dict(zip(job.ordinals, pool_sizes, strict=True))
    return phase.run(job.ordinals, partial(_attribute_dataset, job, pool), totals)


def _attribute_dataset(job: Job, pool: Gates, ordinals: list[int], parts_uri: str) -> Dataset:
    config = job.config
    items = [(ordinal, job.aligned_uri(ordinal)) for ordinal in ordinals]
    load = partial(_load_pool, config=pool_config(config), gates=pool, block_rows=job.session.block_rows)
    source = ItemSource(items, partial(read_timed, load))
    parse_block = partial(
        parse,
        parser=config.parser,
        nonce=config.nonce,
        attribute=config.attribute,
        scorer=config.scorer,
    )
    return (
        ray.data.read_datasource(source, override_num_blocks=len(items), num_cpus=1)
        .map_batches(parse_block, batch_size=None, batch_format="pyarrow", num_cpus=1)
        .map_batches(
            Attribute,
            fn_constructor_args=(config.scorer, job.session.num_threads),
            batch_size=job.session.rows_per_call(_CAPTIONS_PER_CALL),
            **job.scorers(),
        )
        .map_batches(
            partial(stage_part, parts_uri=parts_uri, schema=ATTRIBUTED_SCHEMA),
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=1,
        )
    )


def _load_pool(
    item: tuple[int, str], config: CurateConfig, gates: Gates, block_rows: int
) -> Iterator[pa.Table]:
    """Yield the rows of one aligned file that are in the pool."""
    ordinal, uri = item
    columns = [POSITION, UID, STATUS, CAPTION, ALIGNMENT, IMAGE_EMBEDDING]
    table = read_columns(uri, columns)
    reason_N, _ = judge(table.select(corpus_columns(config, with_second=False)), config, gates)
    table = table.filter(pa.array(reason_N == KEPT))
    table = add_columns(table, {SHARD_ORDINAL: pa.array([ordinal] * len(table), pa.int32())})
    for start in range(0, len(table), block_rows):
        yield table.slice(start, block_rows)
