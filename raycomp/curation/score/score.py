"""Score shards: align them all, mark duplicates, then attribute the best aligned.

A gate is global, so each phase finishes all shards before the next starts. Plain functions and callables of
this package do the work; this module schedules them over shards and commits the results.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import UserError
from raycomp.curation.config import CurateConfig, SelectionRule, make_pool_selection
from raycomp.curation.score.dedupe import mark_duplicates
from raycomp.curation.score.metadata import write_metadata
from raycomp.curation.score.own_scorers import list_own_columns
from raycomp.curation.score.prepare import load_measures, parse, prepare
from raycomp.curation.score.reuse import (
    ALIGNED,
    COMPARED,
    SHARDS,
    STATE,
    Reuse,
    StateFile,
    find_whole,
    is_same_shard,
    place_reused,
    write_states,
)
from raycomp.curation.select.marks import MARKS, mark_rows, pair_marks
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.select import Gates, commit_once, cut_pool, find_pool, is_attributed, load_pool
from raycomp.data.files import Folder, link_file
from raycomp.data.parquet import FAULTS, SHUFFLED_ALIGNMENT, add_columns, read_columns, write_table
from raycomp.data.parquet_input import check_stored
from raycomp.data.paths import ShardPath, describe_shards, join_uri
from raycomp.data.reader import read_shard
from raycomp.models.spec import ScorerSpec
from raycomp.run.bad_data import check_bad_rows
from raycomp.run.executor import CPUS, SCORERS, Stage
from raycomp.run.passes import Part, Pass, Stats, read_parts
from raycomp.run.session import Session
from raycomp.run.waves import Phase, map_files, map_tasks
from raycomp.schema import aligned_schema, attributed_schema, scores_schema
from raycomp.words import (
    ALIGNED_STATUSES,
    ALIGNMENT,
    CONTENT,
    CONTENT_WORDS,
    JSON,
    OK,
    PHRASES,
    POSITION,
    STATUS,
    UID_CONFLICT,
)

if TYPE_CHECKING:
    pass


def align_stages(config: CurateConfig, spec: ScorerSpec) -> tuple[Stage, Stage]:
    """Return the stages that every sample passes through."""
    decode = partial(
        prepare,
        scorer=config.scorer,
        spec=spec,
        max_pixels=config.prepare.max_pixels,
        extra_columns=config.extra_columns,
        fast_decode=config.prepare.fast_decode,
        removed=config.removed,
    )
    align = partial(_load_scorer, "Align", config.scorer, spec, scorers=config.scorers)
    return (
        Stage("decode", "makes pixels and tokens", CPUS, decode, in_threads=True),
        Stage("align", "embeds images and captions, on the scorers", SCORERS, align, _overlaps(config)),
    )


def attribute_stages(config: CurateConfig) -> tuple[Stage, Stage]:
    """Return the stages that the pool's rows pass through."""
    find = partial(
        parse, parser=config.parser, nonce=config.nonce, attribute=config.attribute, scorer=config.scorer
    )
    attribute = partial(_load_scorer, "Attribute", config.scorer)
    return (
        Stage("parse", "finds phrases and edits captions", CPUS, find),
        Stage("attribute", "embeds edited captions, on the scorers", SCORERS, attribute, _overlaps(config)),
    )


def _overlaps(config: CurateConfig) -> bool:
    """Whether two calls of a scorer may run at a time; the user's scorers are called one at a time."""
    return config.scorer.overlap and not config.scorers


def _load_scorer(name: str, *args: Any, **options: Any) -> Any:
    """Return an object of ``scorers``; only a process that scores imports torch."""
    from raycomp.curation.score import scorers

    return getattr(scorers, name)(*args, **options)


# Rows that a scorer takes at a time, per thread of a CPU or for a GPU: enough to fill its passes, and few
# enough that a small run makes progress.
_PAIRS_PER_CALL = {"cpu": 32, "gpu": 512}
_CAPTIONS_PER_CALL = {"cpu": 128, "gpu": 1024}


@dataclass(frozen=True)
class Scoring:
    """One curation: its config, input and output."""

    config: CurateConfig
    spec: ScorerSpec
    shards: list[ShardPath]
    out: Folder
    work: Folder
    session: Session
    check_lease: Callable[[], None] = lambda: None
    """Raises if another run took over the folder; called before every commit."""
    reuse: Reuse = field(default_factory=Reuse)
    """What is taken over from an earlier curation."""

    @property
    def ordinals(self) -> list[int]:
        """Every shard's number."""
        return [shard.ordinal for shard in self.shards]

    @property
    def pool(self) -> SelectionRule:
        """The selection rule for the rows to be attributed."""
        return make_pool_selection(self.config.pool, self.config.select.datacomp_compat)

    def pair_pool(self, aligned: Sequence[str]) -> list[ScoresFile]:
        """Return the files that the pool is taken from; marked rows are in it only if it is everything."""
        if self.config.pool == 1:
            return [ScoresFile(uri) for uri in aligned]
        return pair_marks(aligned, self.config, self.out)

    @property
    def aligned_schema(self) -> pa.Schema:
        """Columns of a shard's rows after alignment, and the samples' json, which metadata/ is made of."""
        config = self.config
        own, kind = list_own_columns(config.scorers), config.scorer.embedding_dtype
        scored = aligned_schema(self.spec.embedding_dim, kind, config.extra_columns, own)
        return scored.append(pa.field(JSON, pa.string()))

    @property
    def with_content(self) -> bool:
        """Whether adjectives, verbs and relation words are measured."""
        return self.config.attribute.targets == CONTENT

    @property
    def scores_schema(self) -> pa.Schema:
        """Columns of a shard's final scores."""
        aligned = self.aligned_schema
        return scores_schema(aligned.remove(aligned.get_field_index(JSON)), self.with_content)

    def aligned_uri(self, ordinal: int) -> str:
        """Path of a shard's rows after alignment."""
        return self.work.at(ALIGNED, f"{ordinal:05d}.parquet")

    def scores_uri(self, ordinal: int) -> str:
        """Path of a shard's final scores."""
        return self.out.at("scores", f"{ordinal:05d}.parquet")


def score(scoring: Scoring) -> tuple[dict[str, Stats], dict[str, Any]]:
    """Write ``scores/`` and ``metadata/``: one file per shard. Returns each phase's stats, and facts of the
    metadata and the marks for run.json.

    Raises TooMuchBadData, and ValueError where no row is usable.
    """
    config, out, work, ordinals = scoring.config, scoring.out, scoring.work, scoring.ordinals
    stats = {"align": align_all(scoring)}
    aligned = [scoring.aligned_uri(ordinal) for ordinal in ordinals]
    states = scoring.reuse.states
    statuses = stats["align"].statuses
    check_bad_rows("input", statuses, config.max_bad_fraction)

    def cut() -> dict[str, Any]:
        conflicts = mark_duplicates(aligned, sum(statuses.values()), work)[UID_CONFLICT]
        unlike = {OK: statuses[OK] - conflicts, UID_CONFLICT: conflicts} if conflicts else {}
        check_bad_rows("input", {**statuses, **unlike}, config.max_bad_fraction)
        json_uris = [
            states[ordinal].uri if ordinal in states else uri
            for ordinal, uri in zip(ordinals, aligned, strict=True)
        ]
        metadata = write_metadata(list(zip(aligned, json_uris, strict=True)), out)
        facts = mark_rows(aligned, config, out, out, work, scoring.shards)
        marked = scoring.pair_pool(aligned)
        return {"sections": {"metadata": metadata, **facts}} | cut_pool(marked, scoring.pool)

    pool = commit_once(work, "pool", cut, scoring.check_lease)
    stats["attribute"] = attribute_pool(scoring, Gates.from_dict(pool["gates"]), pool["sizes"])
    files = [
        StateFile(scoring.scores_uri(i), uri, states.get(i), find_whole(work, i) is not None)
        for i, uri in zip(ordinals, aligned, strict=True)
    ]
    write_states(files, out, work)
    out.write_json(describe_shards(scoring.shards), STATE, SHARDS)
    return stats, pool.get("sections", {})


def check_aligned(shards: Sequence[ShardPath], work: Folder) -> None:
    """Raise UserError if a shard that an earlier start aligned now holds other samples.

    Only files with a later modification time are checked. Usually they were copied or touched; the check then
    costs reading them once more.
    """
    there = set(work.list_names(ALIGNED))
    names = {shard: f"{shard.ordinal:05d}.parquet" for shard in shards}
    items = [(shard, work.at(ALIGNED, name)) for shard, name in names.items() if name in there]
    for _ in map_tasks(_compare_shard, items, label="compare input"):
        pass


def _compare_shard(item: tuple[ShardPath, str]) -> None:
    shard, uri = item
    if not is_same_shard(shard, read_columns(uri, [*COMPARED, STATUS])):
        raise UserError(
            f"input={shard.uri!r}: changed since it was scored; restore it, or curate into a new folder"
        )


def align_all(scoring: Scoring) -> Stats:
    """Phase 1: every sample of every shard gets a row with a status and, if possible, an alignment."""
    config, session, work, reuse = scoring.config, scoring.session, scoring.work, scoring.reuse
    reused = place_reused(reuse, config, work) if reuse.scores else Counter()
    shards = {shard.ordinal: shard for shard in scoring.shards if shard.ordinal not in reuse.scores}
    stats = Stats()
    if shards:
        load_measures()  # before the stage that would count it as decoding
        stored = [shard for shard in shards.values() if shard.embeddings is not None]
        dim, model = scoring.spec.embedding_dim, config.scorer.model
        for _ in map_files(check_stored, stored, model, dim, label="check"):
            pass
        steps = Pass(
            session,
            items=shards,
            read=partial(read_shard, block_rows=session.block_rows),
            stages=align_stages(config, scoring.spec),
            part=Part(scoring.aligned_schema, sampled=(ALIGNMENT, SHUFFLED_ALIGNMENT)),
            rows=session.block_rows,
            scorer_rows=config.scorer.batch_size or session.rows_per_call(_PAIRS_PER_CALL),
        )
        phase = Phase(
            "align",
            work,
            config.waves.shards_per_wave,
            merge_aligned,
            (work.at(ALIGNED), scoring.aligned_schema),
            steps.worker_pools,
            scoring.check_lease,
            steps.most,
        )
        stats = phase.run([*shards], steps.run, None)
    stats.counts[STATUS] = stats.statuses + reused
    return stats


def attribute_pool(scoring: Scoring, pool: Gates, pool_sizes: list[int]) -> Stats:
    """Phase 2: phrases, counterfactuals and drops of the pool. Scores files are final after it."""
    config, session = scoring.config, scoring.session
    marked = scoring.pair_pool([scoring.aligned_uri(ordinal) for ordinal in scoring.ordinals])
    steps = Pass(
        session,
        items=dict(zip(scoring.ordinals, enumerate(marked), strict=True)),
        read=partial(load_pool, selection=scoring.pool, gates=pool, block_rows=session.block_rows),
        stages=attribute_stages(config),
        part=Part(attributed_schema(scoring.with_content), counted=(FAULTS,)),
        rows=session.block_rows,
        scorer_rows=session.rows_per_call(_CAPTIONS_PER_CALL),
    )
    phase = Phase(
        "attribute",
        scoring.work,
        config.waves.shards_per_wave,
        merge_scores,
        (scoring.work, scoring.out, scoring.scores_schema, scoring.pool, pool, marked[0].marks is not None),
        steps.worker_pools,
        scoring.check_lease,
        steps.most,
    )
    return phase.run(scoring.ordinals, steps.run, dict(zip(scoring.ordinals, pool_sizes, strict=True)))


def merge_aligned(ordinal: int, parts_uri: str, names: list[str], target_uri: str, schema: pa.Schema) -> int:
    """Write the shard's rows after alignment, in the order of their positions; return their number."""
    table = read_parts(parts_uri, names)
    assert table is not None, "every shard has a part"
    write_table(table, join_uri(target_uri, f"{ordinal:05d}.parquet"), schema)
    return len(table)


def merge_scores(
    ordinal: int,
    parts_uri: str,
    names: list[str],
    work: Folder,
    out: Folder,
    schema: pa.Schema,
    selection: SelectionRule,
    gates: Gates,
    is_marked: bool,
) -> int:
    """Join a shard's aligned rows with the attribution of those in the pool; return their number.

    Rows that are taken over keep their attribution while they are in the pool. A scores file that is taken
    over and in which nothing changes becomes this run's as it is.
    """
    name = f"{ordinal:05d}.parquet"
    uri, target = work.at(ALIGNED, name), out.at("scores", name)
    file = ScoresFile(uri, out.at(MARKS, name) if is_marked else None)
    in_pool_N, had_N = find_pool(file, selection, gates), is_attributed(uri)
    whole = find_whole(work, ordinal)
    if whole is not None and np.array_equal(in_pool_N, had_N):
        link_file(whole, target)
        return len(in_pool_N)
    aligned, attributed = read_columns(uri), attributed_schema(CONTENT_WORDS in schema.names)
    found = read_parts(parts_uri, names) or attributed.empty_table()
    write_table(join_attribution(aligned, found, in_pool_N & had_N).select(schema.names), target, schema)
    return len(aligned)


def join_attribution(aligned: pa.Table, found: pa.Table, stays_N: np.ndarray) -> pa.Table:
    """Return aligned rows with the attribution ``found``, by position, and their own where it stays.

    Other rows have none, and the status that they had before.
    """
    names = [name for name in found.column_names if name not in (POSITION, STATUS)]
    is_aligned = pc.is_in(aligned[STATUS], pa.array(ALIGNED_STATUSES))
    before = pc.if_else(is_aligned, OK, aligned[STATUS])
    own = aligned if PHRASES in aligned.column_names else found.slice(0, 0)
    both = pa.concat_tables([own.select([STATUS, *names]), found.select([STATUS, *names])])
    row_N = np.where(stays_N, np.arange(len(aligned)), -1)
    row_N[found[POSITION].to_numpy()] = len(own) + np.arange(len(found))
    added = both.take(pa.array(row_N, mask=row_N < 0))
    columns = {name: added[name] for name in names}
    return add_columns(aligned, columns | {STATUS: pc.coalesce(added[STATUS], before)})
