"""Write the kept samples as shards that open_clip reads: bytes unchanged, json enriched, DataComp layout."""

from collections.abc import Iterator

from raycomp.cluster.choose import Choice, kept_ranges, kept_uids, read_kept
from raycomp.cluster.session import map_tasks
from raycomp.schema import ALIGNMENT, CAPTION, MEAN_PAS, POSITION, SCORE, UID
from raycomp.shards.datacomp import SAMPLES_PER_SHARD, enrich, write_index, write_shard
from raycomp.shards.folder import Folder
from raycomp.shards.paths import ShardPath
from raycomp.shards.reader import extract
from raycomp.shards.scores import read_columns

_FIELDS = (ALIGNMENT, MEAN_PAS, SCORE)


def materialize(
    choice: Choice,
    shards: list[ShardPath],
    scores: list[str],
    out: Folder,
    work: Folder,
    per_shard: int = SAMPLES_PER_SHARD,
) -> int:
    """Write ``shards/``: the kept samples in the order of the input; return how many.

    Only shards that hold a kept sample are read again, each output by one task.
    """
    out.remove("shards")
    ranges = kept_ranges(choice.kept_per_shard, per_shard)
    outputs = [(o, [(shards[s], scores[s], s, a, b) for s, a, b in parts]) for o, parts in enumerate(ranges)]
    written = sum(map_tasks(_write_output, outputs, out, work, label="materialize"))
    if written != choice.num_kept:
        raise RuntimeError(f"materialize: wrote {written} of {choice.num_kept} kept samples")
    write_index(out.at("shards"), written, kept_uids(work, len(shards)))
    return written


def _write_output(
    output: tuple[int, list[tuple[ShardPath, str, int, int, int]]], out: Folder, work: Folder
) -> int:
    index, parts = output
    samples = (sample for part in parts for sample in _read_samples(work, *part))
    return write_shard(out.at("shards"), index, samples)


def _read_samples(
    work: Folder, shard: ShardPath, scores: str, ordinal: int, start: int, end: int
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (uid, members) of the kept rows ``start`` to ``end`` of a shard."""
    rows = {row[POSITION]: row for row in read_kept(work, ordinal, start, end).to_pylist()}
    captions = read_columns(scores, [CAPTION])[CAPTION]
    for position, members in extract(shard, rows):
        row = rows[position]
        fields = {name: row[name] for name in _FIELDS if row[name] is not None}
        yield row[UID], enrich(members, row[UID], captions[position].as_py(), fields)
