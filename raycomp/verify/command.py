"""``raycomp verify``: recompute what a curation's record states. Works in this process, without Ray."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.compute as pc

from raycomp.core.selection import parse_uids
from raycomp.core.uids import to_keys
from raycomp.curation.choose import cut_all
from raycomp.curation.config import find_selection, read_config
from raycomp.curation.leaves import COMMITMENT, DECISION, LEAVES, bind_leaves, commit, describe_rows
from raycomp.curation.marks import list_marked
from raycomp.curation.removal import list_shards
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, judge_file
from raycomp.curation.state import SALT, STATE
from raycomp.data.datacomp import read_subset
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.parquet import read_columns
from raycomp.data.paths import KEPT_FILE, ShardPath, fingerprint_shards
from raycomp.data.runs import digest, list_output, list_scores, read_finished
from raycomp.models.describe import describe_scorer, fingerprint_scorer
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.verify.rescore import (
    BOUNDS,
    OTHER_BOUND,
    Difference,
    Rescorer,
    bound_share,
    compare_rows,
    draw_rows,
    find_attributed,
    list_drawable,
    read_and_count,
)
from raycomp.words import KEPT, REMOVED, STATUS, UID

_MOST_SHOWN = 5


def verify(source: str, rows: int = 300, seed: int = 0) -> Iterator[str]:
    """Yield a line for each check of the curation or version in ``source`` that passes.

    Files against the manifest; both gates and the subset from all scores; the Merkle root from all rows; the
    number of rows from the input; the scores of ``rows`` random rows from their pixels. Raises ValueError at
    the first check that fails, or that cannot be made.
    """
    if rows < 1:
        raise ValueError(f"--rows {rows}: must be at least 1")
    folder, run = Folder(source), read_finished(source)
    if run["kind"] != "curate" or "rows_root" not in run:
        raise ValueError(f"{source}: must hold a curation with a root over its rows, of this version")
    with use(Local(len(os.sched_getaffinity(0)))):
        files = check_results(folder, run, is_whole=True)
        yield f"files: {len(files):,} have the SHA-256 of the manifest"
        marked = list_marked(run, source)
        yield _check_gates(run, marked, files)
        yield _check_root(run, marked, files)
        yield from _check_input(run, list_scores(run, source), rows, seed)


def _check_gates(run: dict[str, Any], marked: list[ScoresFile], files: dict[str, Any]) -> str:
    """Cut the gates anew from all scores; compare the decisions with the subset."""
    selection = find_selection(read_config(run["config"]))
    since = run.get("removed_since", 0)
    gates = Gates.from_dict(run["gates"])
    if not since and cut_all(marked, selection) != gates:
        raise ValueError("gates: are not those that the scores give; a score, a mark or run.json was changed")
    kept: list[np.ndarray] = []
    decided = list_output(files, LEAVES)
    for ordinal, file in enumerate(marked):
        table, reason_N, _ = judge_file(file, selection, gates)
        stated = read_columns(decided[ordinal], [DECISION])[DECISION].to_pylist()
        gone_N = np.array(table[STATUS].to_pylist(), object) == REMOVED
        is_other_N = (np.array(stated, object) != reason_N) & ~gone_N
        if is_other_N.any():
            uid = table[UID][int(is_other_N.argmax())].as_py()
            raise ValueError(f"decisions: {is_other_N.sum():,} rows of {file.uri} differ, such as {uid}")
        kept.append(to_keys(parse_uids(table.filter(pc.equal(reason_N, KEPT))[UID])))
    keys = np.sort(np.concatenate(kept))
    for name in (KEPT_FILE, "subset/subset.npy"):
        uris = files[name]
        found = parse_uids(read_columns(uris, [UID])[UID]) if name == KEPT_FILE else read_subset(uris)
        if not np.array_equal(np.sort(to_keys(found)), keys):
            raise ValueError(f"{name}: does not hold the rows that the gates keep")
    said = f"decisions: {len(keys):,} rows are kept, those that the gates keep"
    if since:
        return f"{said}; {since:,} rows were removed since, so the gates cannot be cut anew"
    return f"gates: cut anew from {gates.num_corpus:,} rows, as in run.json; {said}"


def _check_root(run: dict[str, Any], marked: list[ScoresFile], files: dict[str, Any]) -> str:
    """Recompute commitments and root. A row that was removed since has its commitment alone."""
    tables = {name: list_output(files, name) for name in (STATE, LEAVES)}
    gone = 0
    for ordinal, file in enumerate(marked):
        scores, leaves = read_columns(file.uri), read_columns(tables[LEAVES][ordinal])
        salts = read_columns(tables[STATE][ordinal], [SALT])[SALT].to_pylist()
        decisions = leaves[DECISION].to_pylist()
        contents, known = describe_rows(scores, decisions), leaves[COMMITMENT].to_pylist()
        rows = zip(contents, salts, known, scores[STATUS].to_pylist(), strict=True)
        for content, salt, commitment, status in rows:
            if status == REMOVED != content[DECISION]:
                gone += 1
            elif commit(content, salt) != commitment:
                raise ValueError(f"rows: {content[UID]} of {file.uri} is not what was committed to")
    with TemporaryDirectory() as place:
        pairs = [(file.uri, tables[LEAVES][ordinal]) for ordinal, file in enumerate(marked)]
        found = bind_leaves(pairs, Folder(str(Path(place, "out"))), Folder(str(Path(place, "work"))))
    if found != run["rows_root"]:
        raise ValueError(f"root: the rows give {found['root']}, run.json states {run['rows_root']['root']}")
    since = f"; of {gone:,} rows that were removed since, only the commitments are known" if gone else ""
    return f"root: {found['root']} over {found['rows']:,} rows, as in run.json{since}"


def _check_input(run: dict[str, Any], scores: Sequence[str], rows: int, seed: int) -> Iterator[str]:
    """Count the rows of the input, and score random ones again."""
    config = read_config(run["config"])
    shards = list_shards(config)
    if digest(fingerprint_shards(shards)) != run["fingerprint"]["input"]:
        raise ValueError(f"input={config.input!r}: is not what was scored; restore it to verify scores")
    if fingerprint_scorer(config.scorer) != run["fingerprint"]["scorer"]:
        raise ValueError(f"scorer.weights={config.scorer.weights!r}: is not the model that scored")
    drawable = [list_drawable(uri) for uri in scores]
    drawn = draw_rows(drawable, rows, seed)
    rescorer = Rescorer(config, describe_scorer(config.scorer))
    bound = _find_bound(run, str(rescorer.align[1].device.place), config.scorer.precision)
    differences: list[Difference] = []
    count = 0
    for shard, uri, positions in zip(shards, scores, drawn, strict=True):
        num, found = _rescore(rescorer, shard, uri, positions, bound)
        count, differences = count + num, [*differences, *found]
    yield f"count: {count:,} rows in {len(shards):,} shards, as in scores/"
    total, num_drawn = sum(map(len, drawable)), sum(map(len, drawn))
    if differences:
        uids = dict.fromkeys(one.uid for one in differences)
        shown = "; ".join(_say(one) for one in differences[:_MOST_SHOWN])
        raise ValueError(f"scores: {len(uids):,} of {num_drawn:,} random rows differ: {shown}")
    how = "bit for bit" if bound is None else f"alignments within {bound:g}, on another kind of device"
    share = bound_share(num_drawn, total)
    yield (
        f"scores: {num_drawn:,} random rows of {total:,} scored again, {how}; at 95 % confidence less than "
        f"{share:.2%} of the rows are false"
    )


def _rescore(
    rescorer: Rescorer, shard: ShardPath, uri: str, positions: np.ndarray, bound: float | None
) -> tuple[int, list[Difference]]:
    """Return the number of a shard's rows, and the differences of those at ``positions``."""
    samples, count = read_and_count(shard, positions)
    known = len(read_columns(uri, [STATUS]))
    if count != known:
        raise ValueError(f"count: {shard.uri} has {count:,} rows, its scores have {known:,}")
    if samples is None:
        return count, []
    flags = find_attributed(uri, positions)
    parts = rescorer.score(samples, flags)
    return count, [one for part in parts for one in compare_rows(uri, part, bound)]


def _find_bound(run: dict[str, Any], place: str, precision: str) -> float | None:
    """Return the bound on differences of alignments, None where the device is of the kind that scored."""
    device = "cpu" if place == "cpu" else "gpu"
    if device == run.get("device") and device == "cpu":
        return None
    if device == run.get("device") and _describe_gpu() == run.get("gpu"):
        return None
    return BOUNDS.get(precision, OTHER_BOUND)


def _describe_gpu() -> dict[str, Any] | None:
    from raycomp.models.device import describe_gpu  # torch

    found = describe_gpu()
    return dict(found) if found else None


def _say(one: Difference) -> str:
    recorded, found = (repr(value)[:40] for value in (one.recorded, one.found))
    return f"{one.uid} {one.column} is {recorded}, scored again {found}"
