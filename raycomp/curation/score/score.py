"""Score shards: align them all, mark duplicates, then attribute the best aligned; estimate what it costs.

A gate is global, so each phase finishes all shards before the next starts. This module schedules the work
over shards and commits the results.

A row counts if it has an alignment. Of the rows with one uid in the whole corpus the first by (sorted shard,
position) stays. Later ones lose alignment and embedding, so they are not part of the corpus. A later row with
the first row's image and caption gets the status ``duplicate_uid``; any other gets ``uid_conflict``: it is a
separate sample without a unique name.

Letters: S ranges of files, B buckets of uids, N rows. Edges are the starts of the parts of a file, and its
end.
"""

import hashlib
import posixpath
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import UserError
from raycomp.config.options import Machine, say_if_slow
from raycomp.core.selection import bucket_of, find_firsts, parse_uids
from raycomp.curation.config import CurateConfig, SelectionRule, make_pool_selection
from raycomp.curation.score.columns import list_own_columns, write_metadata
from raycomp.curation.score.reuse import (
    ALIGNED,
    COMPARED,
    LATER,
    REUSED,
    SHARDS,
    Reuse,
    is_same_shard,
    place_reused,
)
from raycomp.curation.score.stages import Align, Attribute, load_measures, parse, prepare
from raycomp.curation.select.filters import KEYS_MATCHED, blank_column, list_shards, list_unremoved
from raycomp.curation.select.marks import mark_rows
from raycomp.curation.select.measures import MARKS, ScoresFile, pair_marks
from raycomp.curation.select.select import Gates, commit_once, cut_pool, find_pool, is_attributed, load_pool
from raycomp.data import parquet
from raycomp.data.files import Folder, Written, link_file
from raycomp.data.inputs import ShardPath, describe_shards, fingerprint_shards
from raycomp.data.parquet import aligned_schema, attributed_schema, scores_schema
from raycomp.data.parquet_input import check_embeddings, check_stored
from raycomp.data.reader import count_samples, read_shard
from raycomp.data.runs import STATE
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.run.executor import (
    CPUS,
    READ,
    SCORERS,
    Part,
    Pass,
    Session,
    Stage,
    Stats,
    merge_parts,
    read_parts,
)
from raycomp.run.progress import check_bad_rows
from raycomp.run.work import Phase, map_files, map_tasks
from raycomp.table import Cell, Column, Table, format_facts


def align_stages(config: CurateConfig, spec: ScorerSpec) -> tuple[Stage, ...]:
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
    align = _stage_scorer(Align, "embeds images and captions", config, spec, scorers=config.scorers)
    return Stage("decode", "makes pixels and tokens", CPUS, decode, in_threads=True), align


def attribute_stages(config: CurateConfig) -> tuple[Stage, ...]:
    """Return the stages that the pool's rows pass through."""
    find = partial(
        parse, parser=config.parser, nonce=config.nonce, attribute=config.attribute, scorer=config.scorer
    )
    attribute = _stage_scorer(Attribute, "embeds edited captions", config)
    return Stage("parse", "finds phrases and edits captions", CPUS, find), attribute


def _stage_scorer(
    kind: type[Align | Attribute], what: str, config: CurateConfig, *args: Any, **options: Any
) -> Stage:
    """Return the stage of a class that loads a model; the user's scorers are called one at a time."""
    load = partial(kind, config.scorer, *args, **options)
    overlaps = config.scorer.overlap and not config.scorers
    return Stage(kind.__name__.lower(), f"{what}, on the scorers", SCORERS, load, overlaps)


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
        """Columns of a shard's rows after alignment, without the samples' json."""
        own, kind = list_own_columns(self.config.scorers), self.config.scorer.embedding_dtype
        return aligned_schema(self.spec.embedding_dim, kind, self.config.extra_columns, own)

    @property
    def with_content(self) -> bool:
        """Whether adjectives, verbs and relation words are measured."""
        return self.config.attribute.targets == words.CONTENT

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
    stats = {"align": _align_all(scoring)}
    aligned = [scoring.aligned_uri(ordinal) for ordinal in ordinals]
    states = [scoring.reuse.states.get(ordinal) for ordinal in ordinals]
    statuses = stats["align"].statuses

    def name_lost() -> list[str]:
        found = (parquet.read_columns(uri, [words.STATUS])[words.STATUS].to_pylist() for uri in aligned)
        pairs = zip(scoring.shards, found, strict=True)
        return [shard.name for shard, own in pairs if not {*words.SHARD_STATUSES}.isdisjoint(own)]

    check_bad_rows("input", statuses, config.max_bad_fraction, "rows", scoring.shards, name_lost)

    def cut() -> dict[str, Any]:
        conflicts = mark_duplicates(aligned, sum(statuses.values()), work)[words.UID_CONFLICT]
        if conflicts:
            unlike = {words.OK: statuses[words.OK] - conflicts, words.UID_CONFLICT: conflicts}
            check_bad_rows("input", {**statuses, **unlike}, config.max_bad_fraction)
        json_uris = [state.uri if state else uri for state, uri in zip(states, aligned, strict=True)]
        facts = {"metadata": write_metadata(list(zip(aligned, json_uris, strict=True)), out)}
        if config.has_marks:
            facts |= mark_rows(aligned, config, out, out, work, scoring.shards)
        return {"sections": facts} | cut_pool(scoring.pair_pool(aligned), scoring.pool)

    pool = commit_once(work, "pool", cut, scoring.check_lease)
    stats["attribute"] = _attribute_pool(scoring, Gates.from_dict(pool["gates"]), pool["sizes"])
    there = {*out.list_names(STATE)}  # files of an earlier attempt
    jobs = list(zip(aligned, states, strict=True))
    left = [job for job in jobs if posixpath.basename(job[0]) not in there]
    list(map_files(_write_state, left, out, work, label=STATE))
    out.write_json(describe_shards(scoring.shards), STATE, SHARDS)
    facts, found = pool.get("sections", {}), stats["align"].counts.pop(KEYS_MATCHED, Counter())
    if config.removed is not None and not scoring.reuse.scores:  # an update lists its own
        facts = {**facts, "unmatched": [*facts.get("unmatched", ()), *list_unremoved(config, found)]}
    return stats, facts


def check_aligned(shards: Sequence[ShardPath], work: Folder) -> None:
    """Raise UserError if a shard that an earlier start aligned now holds other samples.

    Only files with a later modification time are checked. Usually they were copied or touched; the check then
    costs reading them once more.
    """
    there = set(work.list_names(ALIGNED))
    names = {shard: f"{shard.ordinal:05d}.parquet" for shard in shards}
    items = [(shard, work.at(ALIGNED, name)) for shard, name in names.items() if name in there]
    list(map_tasks(_compare_shard, items, label="compare input"))


def _compare_shard(item: tuple[ShardPath, str]) -> None:
    shard, uri = item
    if not is_same_shard(shard, parquet.read_columns(uri, [*COMPARED, words.STATUS])):
        raise UserError(
            f"input={shard.uri!r}: changed since it was scored; restore it, or curate into a new folder"
        )


def _align_all(scoring: Scoring) -> Stats:
    """Phase 1: every sample of every shard gets a row with a status and, if possible, an alignment."""
    config, session, work, reuse = scoring.config, scoring.session, scoring.work, scoring.reuse
    reused = place_reused(reuse, config, work) if reuse.scores else Counter()
    shards = {shard.ordinal: shard for shard in scoring.shards if shard.ordinal not in reuse.scores}
    stats = Stats()
    if shards:
        load_measures()  # before the stage that would count it as decoding
        stored = [shard for shard in shards.values() if shard.embeddings is not None]
        list(map_files(check_stored, stored, config.scorer.model, scoring.spec.embedding_dim, label="check"))
        schema = scoring.aligned_schema.append(pa.field(words.JSON, pa.string()))  # metadata/ is made of it
        counted = () if config.removed is None else (KEYS_MATCHED,)
        steps = Pass(
            session,
            items=shards,
            read=partial(read_shard, block_rows=session.block_rows),
            stages=align_stages(config, scoring.spec),
            part=Part(schema, counted, sampled=(words.ALIGNMENT, parquet.SHUFFLED_ALIGNMENT)),
            rows=session.block_rows,
            scorer_rows=config.scorer.batch_size or session.rows_per_call(_PAIRS_PER_CALL),
        )
        merge_args = (work.at(ALIGNED), schema)
        phase = Phase("align", work, config.waves, steps, merge_parts, merge_args, scoring.check_lease)
        if session.device == "cpu" and re.match(r"ViT-(B-16|L|H|g|bigG|SO)", name := config.scorer.model):
            phase.advice = (
                f"{name} is slow on a CPU; --model ViT-B-32 is several times as fast (other scores)"
            )
        # A store's shards are read once.
        stats = phase.run(about=count_samples(list(shards.values())) if session.is_local else None)
    stats.counts[words.STATUS] = stats.statuses + reused
    stats.counts[REUSED] = reused
    return stats


def _attribute_pool(scoring: Scoring, pool: Gates, pool_sizes: list[int]) -> Stats:
    """Phase 2: phrases, counterfactuals and drops of the pool. Scores files are final after it."""
    config, session, work = scoring.config, scoring.session, scoring.work
    marked = scoring.pair_pool([scoring.aligned_uri(ordinal) for ordinal in scoring.ordinals])
    steps = Pass(
        session,
        items=dict(zip(scoring.ordinals, enumerate(marked), strict=True)),
        read=partial(load_pool, selection=scoring.pool, gates=pool, block_rows=session.block_rows),
        stages=attribute_stages(config),
        part=Part(attributed_schema(scoring.with_content), counted=(parquet.FAULTS,)),
        rows=session.block_rows,
        scorer_rows=session.rows_per_call(_CAPTIONS_PER_CALL),
    )
    schema = scores_schema(scoring.aligned_schema, scoring.with_content)
    merge_args = (work, scoring.out, schema, scoring.pool, pool, marked[0].marks is not None)
    phase = Phase("attribute", work, config.waves, steps, _merge_scores, merge_args, scoring.check_lease)
    return phase.run(dict(zip(scoring.ordinals, pool_sizes, strict=True)))


def _merge_scores(
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

    Rows that are taken over keep their attribution while they are in the pool; others without attribution
    have the status that they had before. A scores file that is taken over and in which nothing changes
    becomes this run's as it is.
    """
    name = f"{ordinal:05d}.parquet"
    uri, target = work.at(ALIGNED, name), out.at("scores", name)
    file = ScoresFile(uri, out.at(MARKS, name) if is_marked else None)
    in_pool_N, had_N = find_pool(file, selection, gates), is_attributed(uri)
    whole = _find_whole(work, name)
    if whole is not None and np.array_equal(in_pool_N, had_N):
        link_file(whole, target)
        return len(in_pool_N)
    aligned = parquet.read_columns(uri)
    none = attributed_schema(words.CONTENT_WORDS in schema.names).empty_table()
    found = read_parts(parts_uri, names) or none
    added_names = [name for name in found.column_names if name != words.POSITION]
    own = aligned if words.PHRASES in aligned.column_names else found.slice(0, 0)
    both = pa.concat_tables([own.select(added_names), found.select(added_names)])
    row_N = np.where(in_pool_N & had_N, np.arange(len(aligned)), -1)
    row_N[found[words.POSITION].to_numpy()] = len(own) + np.arange(len(found))
    added = both.take(pa.array(row_N, mask=row_N < 0))
    is_aligned = pc.is_in(aligned[words.STATUS], pa.array(words.ALIGNED_STATUSES))
    before = pc.if_else(is_aligned, words.OK, aligned[words.STATUS])
    columns = {name: added[name] for name in added_names}
    columns[words.STATUS] = pc.coalesce(added[words.STATUS], before)
    parquet.write_table(parquet.add_columns(aligned, columns).select(schema.names), target, schema)
    return len(aligned)


def _find_whole(work: Folder, name: str) -> Written | None:
    """Return the facts of a scores file that is taken over whole, None where rows of it were changed."""
    there = work.exists(REUSED, f"{name}.json")
    return Written(*work.read_json(REUSED, f"{name}.json")) if there else None


def state_schema(scores: pa.Schema) -> pa.Schema:
    """Return the columns of a state file; ``scores``: those of the scores file."""
    return pa.schema([(words.JSON, pa.string()), *(scores.field(name) for name in _BLANKED)])


def _write_state(job: tuple[str, Written | None], out: Folder, work: Folder) -> None:
    """Write the json of the rows of an aligned file, and what later occurrences of a uid lost.

    The job has the file, and the earlier state of the rows if they are taken over.
    """
    uri, earlier = job
    name = posixpath.basename(uri)
    if earlier is not None and _find_whole(work, name) is not None:
        link_file(earlier, out.at(STATE, name))
        return
    schema = state_schema(parquet.read_schema(out.at("scores", name)))
    statuses = parquet.read_columns(out.at("scores", name), [words.STATUS])[words.STATUS]
    texts = parquet.read_columns(earlier.uri if earlier else uri, [words.JSON])[words.JSON]
    texts = pc.if_else(pc.equal(statuses, words.REMOVED), pa.scalar(None, pa.string()), texts)
    lost, row_N = schema.empty_table(), np.full(len(texts), -1)
    if work.exists(_LOST, name):
        lost = parquet.read_columns(work.at(_LOST, name))
        row_N[lost[words.POSITION].to_numpy()] = np.arange(len(lost))
    places = pa.array(row_N, mask=row_N < 0)
    columns = [lost[one].combine_chunks().take(places) for one in _BLANKED]
    parquet.write_table(pa.table([texts, *columns], schema=schema), out.at(STATE, name), schema)


_BLANKED = (words.ALIGNMENT, words.IMAGE_EMBEDDING)
"""Columns that later occurrences of a uid lose."""
_LOST = "lost"
"""Folder below ``work`` with what later occurrences of a uid lost, by the names of the scores files."""
_ROWS_PER_BUCKET = 4_000_000
# Files of a range: few enough for one task, many enough that a bucket reads few ranges.
_FILES_PER_STRETCH = 16
_MOST_STRETCHES = 1024
_AT_ONCE = 8
_FOLDER = "dedupe"
_ENTRY = np.dtype([("uid", "<u8", 2), ("content", "<u8"), ("ordinal", "<i4"), ("position", "<i4")])
_FOUND = np.dtype([("ordinal", "<i4"), ("position", "<i4"), ("is_conflict", "?")])


class Stretch(NamedTuple):
    """Consecutive files, the first of which has the ordinal ``first``."""

    number: int
    first: int
    uris: Sequence[str]


def mark_duplicates(
    aligned: list[str], num_rows: int, work: Folder, rows_per_bucket: int = _ROWS_PER_BUCKET
) -> Counter[str]:
    """Rewrite the files that hold later occurrences; return how many rows have either status.

    Safe to repeat: marks of an earlier attempt are counted. Ranges of files partition their rows by bucket of
    uids, 32 bytes a row below ``work``. Buckets find later rows and partition them by range. Ranges mark
    them. The driver receives only the offsets of the parts in each file. ``num_rows`` sizes the buckets.
    """
    num_buckets = max(1, -(-num_rows // rows_per_bucket))
    size = max(_FILES_PER_STRETCH, -(-len(aligned) // _MOST_STRETCHES))
    starts = range(0, len(aligned), size)
    stretches = [Stretch(number, start, aligned[start : start + size]) for number, start in enumerate(starts)]
    parted = list(map_tasks(_part_rows, stretches, num_buckets, work, label="deduplicate"))
    edge_SB, buckets = np.stack([edge_B for edge_B, _ in parted]), range(num_buckets)
    found = map_tasks(_find_later, buckets, stretches, edge_SB, work, label="deduplicate")
    edge_BS = np.stack(list(found))
    again = [stretches[i] for i in np.flatnonzero(np.diff(edge_BS).any(axis=0))]
    marked = list(map_tasks(_mark_stretch, again, edge_BS, work, label="deduplicate"))
    work.remove(_FOLDER)
    return sum([*(earlier for _, earlier in parted), *marked], Counter())


def _part_rows(stretch: Stretch, num_buckets: int, work: Folder) -> tuple[np.ndarray, Counter[str]]:
    """Write entries of a range's rows that have an alignment, by bucket.

    Returns its edges, [B + 1], and the number of rows marked before.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        read = list(threads.map(_read_entries, enumerate(stretch.uris, stretch.first)))
    entries = np.concatenate([entries for entries, _ in read])
    bucket_N = bucket_of(entries["uid"], num_buckets)
    order_N = np.argsort(bucket_N, kind="stable")
    work.write_bytes(entries[order_N].tobytes(), _FOLDER, f"rows-{stretch.number:05d}")
    edge_B = np.searchsorted(bucket_N[order_N], np.arange(num_buckets + 1))
    return edge_B, sum((earlier for _, earlier in read), Counter())


def _read_entries(numbered: tuple[int, str]) -> tuple[np.ndarray, Counter[str]]:
    """Return entries of the rows of a file that have an alignment, and the number marked before."""
    ordinal, uri = numbered
    names = [words.UID, words.STATUS, words.ALIGNMENT, words.IMAGE_SHA256, words.CAPTION]
    table = parquet.read_columns(uri, names)
    earlier = Counter(status for status in table[words.STATUS].to_pylist() if status in LATER)
    row_M = np.flatnonzero(table[words.ALIGNMENT].is_valid().to_numpy())
    table = table.take(pa.array(row_M))
    entries = np.empty(len(table), _ENTRY)
    entries["uid"], entries["ordinal"], entries["position"] = parse_uids(table[words.UID]), ordinal, row_M
    # The image, where its hash is known, and the caption.
    pairs = zip(table[words.IMAGE_SHA256].to_pylist(), table[words.CAPTION].to_pylist(), strict=True)
    hashes = (hashlib.blake2b(f"{image}\0{text}".encode(), digest_size=8).digest() for image, text in pairs)
    entries["content"] = np.frombuffer(b"".join(hashes), "<u8")
    return entries, earlier


def _find_later(bucket: int, stretches: list[Stretch], edge_SB: np.ndarray, work: Folder) -> np.ndarray:
    """Write the rows of a bucket that are not the first of their uid, by range; return edges, [S + 1]."""
    entries = _read_parts([f"rows-{one.number:05d}" for one in stretches], edge_SB, bucket, work, _ENTRY)
    first_N = find_firsts(entries["uid"], entries["ordinal"], entries["position"])
    row_M = np.flatnonzero(first_N != np.arange(len(entries)))
    later = np.empty(len(row_M), _FOUND)
    later["ordinal"], later["position"] = entries["ordinal"][row_M], entries["position"][row_M]
    later["is_conflict"] = entries["content"][row_M] != entries["content"][first_N[row_M]]
    later = np.sort(later, order=("ordinal", "position"))
    if len(later):
        work.write_bytes(later.tobytes(), _FOLDER, f"later-{bucket:05d}")
    firsts = [stretch.first for stretch in stretches]
    return np.append(np.searchsorted(later["ordinal"], firsts), len(later))


def _mark_stretch(stretch: Stretch, edge_BS: np.ndarray, work: Folder) -> Counter[str]:
    """Mark the later rows of a range's files, and write what they lose; return their number per status."""
    names = [f"later-{bucket:05d}" for bucket in range(len(edge_BS))]
    later = np.sort(_read_parts(names, edge_BS, stretch.number, work, _FOUND), order=("ordinal", "position"))
    marked: Counter[str] = Counter()
    for ordinal in np.unique(later["ordinal"]):
        rows, uri = later[later["ordinal"] == ordinal], stretch.uris[ordinal - stretch.first]
        table, name = parquet.read_columns(uri), posixpath.basename(uri)
        positions = pa.array(rows["position"])
        lost = table.select(_BLANKED).take(positions).append_column(words.POSITION, positions)
        parquet.write_table(lost, work.at(_LOST, name), lost.schema.remove_metadata())
        work.remove(REUSED, f"{name}.json")
        marks = np.where(rows["is_conflict"], words.UID_CONFLICT, words.DUPLICATE_UID).tolist()
        statuses, is_later_N = np.array(table[words.STATUS].to_pylist(), object), np.zeros(len(table), bool)
        statuses[rows["position"]], is_later_N[rows["position"]] = marks, True
        columns = {column: blank_column(table[column], is_later_N) for column in _BLANKED}
        columns[words.STATUS] = pa.array(statuses, pa.string())
        parquet.write_table(parquet.add_columns(table, columns), uri, table.schema.remove_metadata())
        marked.update(marks)
    return marked


def _read_parts(
    names: list[str], edges: np.ndarray, number: int, work: Folder, dtype: np.dtype
) -> np.ndarray:
    """Return the content of files, joined, each between the edges of its part ``number``."""

    def read(name: str, edge: np.ndarray) -> bytes:
        start, end = (int(place) * dtype.itemsize for place in edge[number : number + 2])
        return b"" if start == end else work.read_range(start, end, _FOLDER, name)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return np.frombuffer(b"".join(threads.map(read, names, edges)), dtype)


NUM_ROWS = 256
# A slow stage is measured on fewer rows.
_STAGE_S, _LEAST_ROWS = 7.0, 8
_BLOCK_ROWS = 64
_MOST_SHARDS, _MOST_EXAMINED = 16, 64
_BYTES = {"float32": 4, "float16": 2}
# A row of scores without its embedding: caption, uid, phrases, compressed.
_OTHER_BYTES = 600


class TimedRows(NamedTuple):
    """Rows to measure on, and the shards they represent, each read completely once before it was timed."""

    table: pa.Table
    read_s: float
    num_rows: int
    """Samples in all of these shards."""
    num_bytes: int
    names: list[str]
    passed_over: list[str]
    """Shards that were read and are damaged, or hold no usable row."""
    statuses: Counter[str] | None = None
    """Where ``table`` and ``passed_over`` are the whole input: its rows that are not in ``table``."""


def plan(config: CurateConfig) -> str:
    """Return shards, samples, time, bytes and cost per million pairs, from up to 256 rows of a few shards, in
    some 20 seconds after the model is loaded.

    The shards are undamaged and of medium size; the number of samples is estimated by bytes. Cost is in
    worker hours, in money if ``cluster.price_per_hour`` is set, and for each of ``cluster.machines``. Raises
    ValueError for the checks that ``curate`` makes before it starts, and if no usable row is found.
    """
    shards = list_shards(config)
    parquet.check_extra_columns(config.extra_columns)
    sizes = [int(shard["size"]) for shard in fingerprint_shards(shards)]
    spec = describe_scorer(config.scorer)
    check_embeddings(shards, config.scorer.model, spec.embedding_dim)
    sample = take_sample(shards, sizes)
    million, device = _time_stages(config, spec, sample, shards)
    samples = round(sample.num_rows * sum(sizes) / sample.num_bytes)
    names, passed_over = (
        part[0] if len(part) == 1 else f"{len(part):,} shards ({', '.join(part[:1])}, ...)"
        for part in (sample.names, sample.passed_over)
    )
    stored = samples * (spec.embedding_dim * _BYTES[config.scorer.embedding_dtype] + _OTHER_BYTES)
    facts = {
        "shards": f"{len(sizes):,}, {sum(sizes) / 1e9:,.3f} GB",
        "samples": f"about {samples:,}, by bytes: {sample.num_rows:,} in {sample.num_bytes / 1e6:,.3f} MB "
        f"of {names}",
        "scores": f"about {stored / 1e9:,.3f} GB",
        "measured": f"up to {len(sample.table):,} of these, one worker on {device}, files read once before",
    }
    if sample.passed_over:
        facts["passed"] = f"over {passed_over}: incomplete, or without a usable row"
    hours, millions = sum(million.values()) / 3600, samples / 1e6  # of one worker, per million pairs
    facts["cost"] = f"{hours:,.1f} worker hours per million pairs, {hours * millions:,.3f} in all"
    if config.cluster.price_per_hour is not None:
        price = hours * config.cluster.price_per_hour
        facts["price"] = f"{price:,.2f} per million pairs, {price * millions:,.2f} in all"
    _, workers = config.cluster.span or (1, 1)
    total = hours * millions / workers
    units = ("hours", 1.0), ("minutes", 60.0), ("seconds", 3600.0)
    took = next(f"{total * size:,.1f} {name}" for name, size in units if total * size >= 2 or size == 3600)
    facts["time"] = f"about {took} on {workers} worker{'s' * (workers > 1)} like this one"
    tables = [Table("", ("stage", Column("time", "s per million pairs", 0)), [*million.items()])]
    if config.cluster.machines:
        import torch  # after all checks

        stages = [*align_stages(config, spec), *attribute_stages(config)]
        scorer_s = sum(million[stage.name] for stage in stages if stage.where == SCORERS)
        cores = torch.get_num_threads() if device == "cpu" else 0
        prices = price_machines(config.cluster.priced, sum(million.values()) - scorer_s, scorer_s, cores)
        tables.append(prices)
    return "\n\n".join([format_facts(facts), *(table.to_text() for table in tables)])


def take_sample(shards: Sequence[ShardPath], sizes: Sequence[int]) -> TimedRows:
    """Read undamaged shards from the medium size outwards until there are 256 rows or 16 shards.

    Damaged shards are used only if there are no others. Raises NoneUsable if 64 shards hold no usable
    row.
    """
    by_size = sorted(range(len(shards)), key=lambda i: (sizes[i], i))
    middle = (len(by_size) - 1) // 2
    outwards = sorted(range(len(by_size)), key=lambda rank: (abs(rank - middle), rank))[:_MOST_EXAMINED]
    whole: dict[int, int] = {}
    partial: dict[int, int] = {}
    statuses: Counter[str] = Counter()
    examined = []
    for index in (by_size[rank] for rank in outwards):
        if len(whole) == _MOST_SHARDS or sum(whole.values()) >= NUM_ROWS:
            break
        examined.append(index)
        found = Counter[str]()
        for block in read_shard(shards[index], _BLOCK_ROWS):  # completely
            found.update(block[words.STATUS].to_pylist())
        statuses += found
        rows = sum(number for status, number in found.items() if status not in words.SHARD_STATUSES)
        if found[words.OK]:
            (whole if rows == found.total() else partial)[index] = rows
    chosen = whole or dict(list(partial.items())[:1])
    if not chosen:
        check_bad_rows("input", statuses, 1.0, shards=shards)
    started = time.perf_counter()
    blocks = (islice(read_shard(shards[index], _BLOCK_ROWS), NUM_ROWS // _BLOCK_ROWS) for index in chosen)
    table = pa.concat_tables(chain.from_iterable(blocks))
    read_s = time.perf_counter() - started
    is_sample = pc.invert(pc.is_in(table[words.STATUS], pa.array(words.SHARD_STATUSES)))
    table = table.filter(is_sample).slice(0, NUM_ROWS)
    passed_over = [shards[index].name for index in examined if index not in chosen]
    names = [shards[index].name for index in chosen]
    num_bytes = sum(sizes[index] for index in chosen)
    num_rows, others = sum(chosen.values()), statuses - Counter(table[words.STATUS].to_pylist())
    is_whole = len(examined) == len(shards) and len(table) == num_rows
    return TimedRows(table, read_s, num_rows, num_bytes, names, passed_over, others if is_whole else None)


def _time_stages(
    config: CurateConfig, spec: ScorerSpec, sample: TimedRows, shards: Sequence[ShardPath]
) -> tuple[dict[str, float], str]:
    """Run every stage over the sample in this process; return seconds per million samples by stage, and the
    device. All rows are decoded. Raises as ``curate`` where the sample is the whole input."""
    seconds, table, device = {READ: sample.read_s / len(sample.table) * 1e6}, sample.table, ""
    weight = 1.0  # rows of the sample that a row of the table stands for
    for stage in (*align_stages(config, spec), *attribute_stages(config)):
        with say_if_slow(f"measuring {stage.name}"):
            work, limit_s = stage.start(), inf if stage.name == "decode" else _STAGE_S
            work(table.filter(pc.equal(table[words.STATUS], words.OK)).slice(0, 1))  # sets up, not timed
            table, row_s = _time_stage(work, table, limit_s)
        seconds[stage.name] = row_s / weight * 1e6
        statuses = table[words.STATUS].to_pylist()
        if stage.name == "decode":
            others, most_bad = sample.statuses, config.max_bad_fraction
            counts, most_bad = Counter(statuses) + (others or Counter()), 1 if others is None else most_bad
            check_bad_rows("input", counts, most_bad, "rows", shards, lambda: sample.passed_over)
        if stage.name == "align":
            # As many usable rows as are attributed; the choice of rows does not affect time.
            usable = np.flatnonzero([status == words.OK for status in statuses])
            row_M = usable[: max(1, round(config.pool * len(usable)))]
            weight, device = len(table) / max(1, len(row_M)), str(work.device.place)
            table = table.take(pa.array(row_M))
    return seconds, device


def _time_stage(work: Any, table: pa.Table, limit_s: float) -> tuple[pa.Table, float]:
    """Return the first rows after the stage, as many as the limit allows, and its seconds per row."""
    num, least = 0, min(_LEAST_ROWS, len(table))
    while num < least:
        num, started = least, time.perf_counter()
        done = work(table.slice(0, num))
        row_s = (time.perf_counter() - started) / num
        # After the first, small call as many as there is time for.
        least = int(min(len(table), limit_s / max(row_s, 1e-9))) if num == _LEAST_ROWS else 0
    return (done, row_s) if num else (table, 0.0)


def price_machines(machines: Sequence[Machine], cpu_s: float, scorer_s: float, scorer_cores: int) -> Table:
    """Return hours and cost of a million pairs on one of each kind of machine, and the bottleneck there.

    ``cpu_s``: seconds of one core for reading and the stages on CPUs; ``scorer_s``: of one GPU, or of
    ``scorer_cores`` cores, for the stages of scorers (0 = a GPU). Stages run in parallel, so the slower of
    CPUs and GPUs determines the time of a machine. GPUs, and cores, count as equal to those measured. A
    machine whose scorers were not measured here gets no estimate.
    """
    per_million = (Column("hours", "per million pairs", 2), Column("cost", "per million pairs", 2))
    rows: list[tuple[Cell, ...]] = []
    for machine in machines:
        if (scorer_cores == 0) != (machine.gpus > 0):
            how = "without" if scorer_cores else "with"
            rows.append((machine.name, None, None, f"not known: measured {how} a GPU"))
            continue
        on_gpus_s = 0.0 if scorer_cores else scorer_s / machine.gpus
        on_cpus_s = (cpu_s + scorer_s * scorer_cores) / machine.cpus
        hours = max(on_cpus_s, on_gpus_s) / 3600
        bound = "its GPUs" if on_gpus_s > on_cpus_s else "its CPUs"
        rows.append((machine.name, hours, hours * machine.price_per_hour, bound))
    return Table("", ("machine", *per_million, "bound by"), rows)
