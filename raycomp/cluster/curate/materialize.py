"""Write the kept samples as shards that open_clip reads: what was scored, json enriched, DataComp layout."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from raycomp.cluster.curate.choose import SUBSET, Chosen, kept_ranges, read_kept
from raycomp.cluster.tasks import map_tasks
from raycomp.config import UserError
from raycomp.loops.curate.rewrite import is_scored, rewrite
from raycomp.shards.datacomp import SAMPLES_PER_SHARD, enrich, write_index, write_shard
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import read_columns
from raycomp.shards.paths import ShardPath
from raycomp.shards.reader import extract
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_SHA256,
    MEAN_PAS,
    POSITION,
    SCORE,
    UID,
)

_FIELDS = (ALIGNMENT, MEAN_PAS, SCORE)


def materialize(
    choice: Chosen,
    shards: list[ShardPath],
    scores: list[str],
    out: Folder,
    work: Folder,
    per_shard: int = SAMPLES_PER_SHARD,
) -> None:
    """Write ``shards/``: the kept samples in the order of the input.

    Only shards that hold a kept sample are read again, each output by one task. Raises UserError, and leaves
    no ``shards/``, where an image or a caption is not the one that was scored.
    """
    ranges = kept_ranges(choice.kept_per_shard, per_shard)
    outputs = [(o, [(shards[s], scores[s], s, a, b) for s, a, b in parts]) for o, parts in enumerate(ranges)]
    write_folder(_write_output, outputs, out.at(*SUBSET), choice.num_kept, out, work)


def write_folder(
    write: Callable[..., int],
    jobs: Sequence[Any],
    uids: Iterable[np.ndarray] | str,
    count: int,
    out: Folder,
    *args: Any,
) -> None:
    """Write ``shards/`` anew with a task ``write(job, out, *args)`` per job, and the index of its samples.

    ``uids`` are what ``write_index`` takes.
    Raises UserError where a task does, RuntimeError where they write another number than ``count``. All tasks
    have ended by then, so nothing is written after ``shards/`` is removed again.
    """
    out.remove("shards")
    try:
        written = sum(map_tasks(write, jobs, out, *args, label="materialize"))
    except UserError:
        out.remove("shards")
        raise
    if written != count:
        raise RuntimeError(f"materialize: wrote {written} of {count} samples")
    write_index(out.at("shards"), written, uids)


def tell_change(shard: ShardPath, position: int) -> UserError:
    """Return the error for a sample that is no longer what its scores are of."""
    return UserError(
        f"input={shard.uri!r}: changed after it was scored, sample {position} is not what the scores are "
        f"of; curate it into a new folder"
    )


def _write_output(
    output: tuple[int, list[tuple[ShardPath, str, int, int, int]]], out: Folder, work: Folder
) -> int:
    """Return how many samples were written."""
    index, parts = output
    samples = (sample for part in parts for sample in _read_samples(work, *part))
    return write_shard(out.at("shards"), index, samples)


def _read_samples(
    work: Folder, shard: ShardPath, scores: str, ordinal: int, start: int, end: int
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (uid, members) of the kept rows ``start`` to ``end`` of a shard."""
    rows = {row[POSITION]: row for row in read_kept(work, ordinal, start, end).to_pylist()}
    scored = read_columns(scores, [IMAGE_SHA256, CAPTION])
    left = set(rows)
    for position, members in extract(shard, rows):
        row, caption = rows[position], scored[CAPTION][position].as_py()
        if not is_scored(members, scored[IMAGE_SHA256][position].as_py(), caption):
            raise tell_change(shard, position)
        left.remove(position)
        fields = {name: row[name] for name in _FIELDS if row[name] is not None}
        rewritten, said = rewrite(members)
        yield row[UID], enrich(rewritten, row[UID], caption, {**said, **fields})
    if left:
        raise tell_change(shard, min(left))
