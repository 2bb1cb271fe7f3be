"""Write the kept samples as shards that open_clip reads: what was scored, json enriched, DataComp layout."""

from collections.abc import Iterable, Iterator

from raycomp.cluster.curate.choose import Choice, kept_ranges, kept_uids, read_kept
from raycomp.cluster.session import map_tasks
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


class InputChanged(Exception):
    """A sample is no longer what its scores are of."""

    def __init__(self, shard: ShardPath, position: int):
        super().__init__(
            f"input={shard.uri!r}: changed after it was scored, sample {position} is not what the scores are "
            f"of; curate it into a new folder"
        )


def materialize(
    choice: Choice,
    shards: list[ShardPath],
    scores: list[str],
    out: Folder,
    work: Folder,
    per_shard: int = SAMPLES_PER_SHARD,
) -> int:
    """Write ``shards/``: the kept samples in the order of the input; return how many.

    Only shards that hold a kept sample are read again, each output by one task. Raises ValueError, and leaves
    no ``shards/``, where an image or a caption is not the one that was scored.
    """
    out.remove("shards")
    ranges = kept_ranges(choice.kept_per_shard, per_shard)
    outputs = [(o, [(shards[s], scores[s], s, a, b) for s, a, b in parts]) for o, parts in enumerate(ranges)]
    written = add_up(map_tasks(_write_output, outputs, out, work, label="materialize"), out)
    if written != choice.num_kept:
        raise RuntimeError(f"materialize: wrote {written} of {choice.num_kept} kept samples")
    write_index(out.at("shards"), written, kept_uids(work, len(shards)))
    return written


def add_up(written: Iterable[int | str], out: Folder) -> int:
    """Return the sum of what tasks wrote; where one tells a change instead, remove ``shards/`` and raise it.

    All tasks have ended by then, so nothing is written after the removal.
    """
    results = list(written)
    changes = [result for result in results if isinstance(result, str)]
    if changes:
        out.remove("shards")
        raise ValueError(changes[0])
    return sum(results)


def _write_output(
    output: tuple[int, list[tuple[ShardPath, str, int, int, int]]], out: Folder, work: Folder
) -> int | str:
    """Return how many samples were written, or what has changed."""
    index, parts = output
    samples = (sample for part in parts for sample in _read_samples(work, *part))
    try:
        return write_shard(out.at("shards"), index, samples)
    except InputChanged as changed:
        return str(changed)


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
            raise InputChanged(shard, position)
        left.remove(position)
        fields = {name: row[name] for name in _FIELDS if row[name] is not None}
        rewritten, said = rewrite(members)
        yield row[UID], enrich(rewritten, row[UID], caption, {**said, **fields})
    if left:
        raise InputChanged(shard, min(left))
