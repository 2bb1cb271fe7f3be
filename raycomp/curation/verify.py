"""``raycomp verify``: recompute what a curation's record states. Works in this process, without Ray.

Random rows are scored again from their pixels and texts. A score is a pure function of a sample, a model and
options, so on the same kind of device every bit must be the same. On another kind the last bits differ; there
alignments are compared within a bound.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.core.selection import parse_uids, to_keys
from raycomp.curation.config import CurateConfig, VerifyConfig, make_selection, read_config
from raycomp.curation.outputs import read_subset
from raycomp.curation.score.reuse import ATTRIBUTED, LATER
from raycomp.curation.score.score import align_stages, attribute_stages
from raycomp.curation.select.filters import list_shards
from raycomp.curation.select.marks import list_marked
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.select import SUBSET, Gates, cut_all, is_attributed, judge_file
from raycomp.data.files import KEPT_FILE, Folder
from raycomp.data.inputs import ShardPath, fingerprint_shards
from raycomp.data.parquet import add_columns, count_rows, encode_rows, read_columns
from raycomp.data.reader import read_shard
from raycomp.data.runs import check_results, digest, list_scores, read_finished
from raycomp.models.architecture import ScorerSpec, describe_scorer, fingerprint_scorer
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.words import ALIGNMENT, CAPTION, IMAGE_EMBEDDING, KEPT, POSITION, STATUS, UID

BOUNDS = {"fp32": 1e-4}
OTHER_BOUND = 2e-2
"""Largest difference of alignments between kinds of devices, by scorer.precision."""
_MOST_SHOWN = 5
_BLOCK_ROWS = 256
_ROWS_PER_CALL = 64
# Of an earlier row with the same uid a later one has lost these.
_LOST = (STATUS, ALIGNMENT, IMAGE_EMBEDDING)


def verify(source: str, config: VerifyConfig) -> Iterator[str]:
    """Yield a line for each check of the curation in ``source`` that passes.

    Files against the manifest; both gates, the counts and the subset from all scores; the number of rows from
    the input; the scores of random rows from their pixels and texts. Raises ValueError at the first check
    that fails, or that cannot be made.
    """
    folder, run = Folder(source), read_finished(source)
    if run["kind"] != "curate":
        raise ValueError(f"{source}: holds {run['kind']}; must hold a curation")
    with use(Local(len(os.sched_getaffinity(0)))):
        files = check_results(folder, run, is_whole=True)
        yield f"files: {len(files):,} have the SHA-256 of the manifest"
        yield _check_gates(run, list_marked(run, source), files)
        yield from _check_input(run, list_scores(run, source), config.rows, config.seed)


def _check_gates(run: dict[str, Any], marked: list[ScoresFile], files: dict[str, Any]) -> str:
    """Cut the gates anew from all scores; compare the decisions with the counts and the subset."""
    selection = make_selection(read_config(run["config"]))
    gates = Gates.from_dict(run["gates"])
    if cut_all(marked, selection) != gates:
        raise ValueError("gates: are not those that the scores give; a score, a mark or run.json was changed")
    reasons: Counter[str] = Counter()
    kept: list[np.ndarray] = []
    for file in marked:
        table, reason_N, _ = judge_file(file, selection, gates)
        reasons.update(reason_N.tolist())
        kept.append(to_keys(parse_uids(table.filter(pc.equal(reason_N, KEPT))[UID])))
    funnel = run["funnel"]
    if reasons != Counter({**funnel["dropped"], KEPT: funnel["kept"]}):
        raise ValueError("funnel: has other counts than the gates give")
    keys = np.sort(np.concatenate(kept))
    subset, in_table = "/".join(SUBSET), parse_uids(read_columns(files[KEPT_FILE], [UID])[UID])
    for name, found in ((KEPT_FILE, in_table), (subset, read_subset(files[subset]))):
        if not np.array_equal(np.sort(to_keys(found)), keys):
            raise ValueError(f"{name}: does not hold the rows that the gates keep")
    return (
        f"gates: cut anew from {gates.num_corpus:,} rows, as in run.json; {len(keys):,} rows are kept, those "
        "of the subset"
    )


def _check_input(run: dict[str, Any], scores: Sequence[str], rows: int, seed: int) -> Iterator[str]:
    """Count the rows of the input, and score random ones again."""
    config = read_config(run["config"])
    shards = list_shards(config)
    if digest(fingerprint_shards(shards)) != run["fingerprint"]["input"]:
        raise ValueError(f"input={config.input!r}: is not what was scored; restore it to verify scores")
    if fingerprint_scorer(config.scorer) != run["fingerprint"]["scorer"]:
        raise ValueError(f"scorer.weights={config.scorer.weights!r}: is not the model that scored")
    statuses = (read_columns(uri, [STATUS])[STATUS].to_pylist() for uri in scores)
    drawable = [np.flatnonzero([one != words.REMOVED for one in own]) for own in statuses]
    drawn = draw_rows(drawable, rows, seed)
    rescorer = Rescorer(config, describe_scorer(config.scorer))
    from raycomp.models.device import describe_gpu  # torch

    device = "cpu" if str(rescorer.align[1].device.place) == "cpu" else "gpu"
    is_alike = device == run.get("device") and (device == "cpu" or describe_gpu() == run.get("gpu"))
    bound = None if is_alike else BOUNDS.get(config.scorer.precision, OTHER_BOUND)
    differences: list[tuple[str, str, Any, Any]] = []
    count = 0
    for shard, uri, positions in zip(shards, scores, drawn, strict=True):
        samples, num_read = read_and_count(shard, positions)
        count += num_read
        if num_read != (known := count_rows(uri)):
            raise ValueError(f"count: {shard.uri} has {num_read:,} rows, its scores have {known:,}")
        if samples is not None:
            for part in rescorer.score(samples, is_attributed(uri)[positions]):
                differences += compare_rows(uri, part, bound)
    yield f"count: {count:,} rows in {len(shards):,} shards, as in scores/"
    total, num_drawn = sum(map(len, drawable)), sum(map(len, drawn))
    if differences:
        num_uids = len({uid for uid, *_ in differences})
        shown = "; ".join(
            f"{uid} {column} is {then!r:.40}, scored again {now!r:.40}"
            for uid, column, then, now in differences[:_MOST_SHOWN]
        )
        raise ValueError(f"scores: {num_uids:,} of {num_drawn:,} random rows differ: {shown}")
    how = "bit for bit" if bound is None else f"alignments within {bound:g}, on another kind of device"
    yield (
        f"scores: {num_drawn:,} random rows of {total:,} scored again, {how}; at 95 % confidence less than "
        f"{bound_share(num_drawn, total):.2%} of the rows are false"
    )


def draw_rows(rows_S: Sequence[np.ndarray], count: int, seed: int) -> list[np.ndarray]:
    """Draw ``count`` rows without replacement, every row as likely as any other; fewer where there are fewer.

    ``rows_S``: the positions that may be drawn, of each shard. Returns the drawn ones, sorted, of each shard.
    """
    edges = np.cumsum([0, *map(len, rows_S)])
    total = int(edges[-1])
    drawn = np.sort(np.random.default_rng(seed).choice(total, min(count, total), replace=False))
    parts = np.split(drawn, np.searchsorted(drawn, edges[1:-1]))
    return [np.sort(rows[part - start]) for rows, part, start in zip(rows_S, parts, edges, strict=False)]


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
                table = table.filter(usable)
                wanted = (words.SHARD_ORDINAL, POSITION, UID, STATUS, CAPTION, ALIGNMENT, IMAGE_EMBEDDING)
                found = table.select(wanted)
                for stage in self.attribute:
                    found = stage(found)
                names = [name for name in (STATUS, *ATTRIBUTED) if name in found.column_names]
                yield add_columns(table, {name: found[name] for name in names})


def compare_rows(scores: str, found: pa.Table, bound: float | None) -> list[tuple[str, str, Any, Any]]:
    """Return (uid, column, recorded, found) of a scores file's values that differ from those scored again.

    ``bound`` none = every bit of every column counts; else alignments alone, within the bound.
    """
    recorded = read_columns(scores).take(found[POSITION].combine_chunks())
    is_later_N = np.isin(np.array(recorded[STATUS].to_pylist(), object), LATER)
    differences = []
    for name in recorded.column_names if bound is None else [ALIGNMENT]:
        then = recorded[name]
        # Rows that are not attributed have nothing there.
        scored = found[name] if name in found.column_names else pa.chunked_array([pa.nulls(len(found))])
        now = scored.cast(then.type)
        if bound is None:
            pairs = zip(encode_rows(then), encode_rows(now), strict=True)
            is_other_N = np.array([a != b for a, b in pairs], bool)
        else:
            first_N, second_N = (column.to_numpy().astype(np.float64) for column in (then, now))
            is_other_N = ~np.isclose(first_N, second_N, rtol=0, atol=bound, equal_nan=True)
        if name in _LOST:
            is_other_N &= ~is_later_N
        for row in np.flatnonzero(is_other_N).tolist():
            uid, *values = (column[row].as_py() for column in (recorded[UID], then, now))
            differences.append((uid, name, *values))
    return differences


def bound_share(num_drawn: int, num_rows: int) -> float:
    """Return the share of false rows above which at least one of the drawn ones is false in 95 of 100 draws.

    Draws are without replacement; the binomial 1 - .05^(1/n) bounds it from above. 1 where none was drawn.
    """
    if not num_drawn:
        return 1.0
    return 0.0 if num_drawn == num_rows else 1 - 0.05 ** (1 / num_drawn)
