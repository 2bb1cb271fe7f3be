"""Write the kept, scored samples as shards that open_clip reads: enriched json, DataComp layout."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from raycomp.config import UserError
from raycomp.curate.choose import SUBSET, Chosen, kept_ranges, read_kept, set_images
from raycomp.curate.rewrite import hash_image, is_scored, rewrite
from raycomp.data.datacomp import SAMPLES_PER_SHARD, enrich, write_index, write_shard
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ShardPath
from raycomp.data.reader import extract
from raycomp.run.tasks import map_tasks
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


class Outputs(NamedTuple):
    """Outputs that start in one shard, which a task reads once, and the first rows of the shards after it."""

    first: int
    """Number of the first output."""
    sizes: list[int]
    """Number of samples in each."""
    reads: list[tuple[int, int, int]]
    """Shards with ranges (from, to) of their kept rows."""


def materialize(
    choice: Chosen,
    shards: list[ShardPath],
    scores: list[str],
    out: Folder,
    work: Folder,
    per_shard: int = SAMPLES_PER_SHARD,
) -> None:
    """Write ``shards/``: the kept samples in the order of the input.

    Only shards that hold a kept sample are read again. ``subset/kept.parquet`` gets the SHA-256 of images
    that are written in another format. Raises UserError, and leaves no ``shards/``, if an image or a caption
    differs from the scored one.
    """
    jobs = [
        (outputs, [(shards[shard], scores[shard]) for shard, _, _ in outputs.reads])
        for outputs in plan_outputs(kept_ranges(choice.kept_per_shard, per_shard))
    ]
    rewritten = write_folder(_write_outputs, jobs, out.at(*SUBSET), choice.num_kept, out, work)
    if rewritten:
        set_images(out, rewritten)


def plan_outputs(ranges: list[list[tuple[int, int, int]]]) -> list[Outputs]:
    """Return the outputs of ``kept_ranges`` by the shard that they start in."""
    found: list[Outputs] = []
    for number, parts in enumerate(ranges):
        if not found or found[-1].reads[0][0] != parts[0][0]:
            found.append(Outputs(number, [], []))
        _, sizes, reads = found[-1]
        sizes.append(sum(end - start for _, start, end in parts))
        for shard, start, end in parts:
            if reads and reads[-1][0] == shard:
                start = reads.pop()[1]
            reads.append((shard, start, end))
    return found


def write_folder(
    write: Callable[..., tuple[int, dict[str, str]]],
    jobs: Sequence[Any],
    uids: Iterable[np.ndarray] | str,
    count: int,
    out: Folder,
    *args: Any,
) -> dict[str, str]:
    """Rewrite ``shards/`` with a task ``write(job, out, *args)`` per job, and the index of its samples.

    A task returns the number of samples it wrote, and the SHA-256, by uid, of images whose format changed;
    these are merged and returned. ``uids`` are the argument of ``write_index``.
    Raises UserError if a task does, RuntimeError if the tasks write a number other than ``count``. All tasks
    have ended by then, so nothing is written after ``shards/`` is removed again.
    """
    out.remove("shards")
    written, rewritten = 0, dict[str, str]()
    try:
        for num_samples, images in map_tasks(write, jobs, out, *args, label="materialize"):
            written += num_samples
            rewritten |= images
    except UserError:
        out.remove("shards")
        raise
    if written != count:
        raise RuntimeError(f"materialize: wrote {written} of {count} samples")
    write_index(out.at("shards"), written, uids)
    return rewritten


def changed_error(shard: ShardPath, position: int) -> UserError:
    """Return the error for a sample that differs from the scored one."""
    return UserError(
        f"input={shard.uri!r}: changed after it was scored: sample {position} differs from the scored "
        f"one; curate it into a new folder"
    )


def _write_outputs(
    job: tuple[Outputs, list[tuple[ShardPath, str]]], out: Folder, work: Folder
) -> tuple[int, dict[str, str]]:
    """Return how many samples were written, and the SHA-256 of images in another format by uid."""
    outputs, files = job
    rewritten: dict[str, str] = {}
    parts = zip(files, outputs.reads, strict=True)
    samples = chain.from_iterable(_read_samples(work, rewritten, *file, *rows) for file, rows in parts)
    count = sum(
        write_shard(out.at("shards"), outputs.first + i, islice(samples, size))
        for i, size in enumerate(outputs.sizes)
    )
    return count, rewritten


def _read_samples(
    work: Folder, rewritten: dict[str, str], shard: ShardPath, scores: str, ordinal: int, start: int, end: int
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (uid, members) of the kept rows ``start`` to ``end`` of a shard; add to ``rewritten``."""
    rows = {row[POSITION]: row for row in read_kept(work, ordinal, start, end).to_pylist()}
    scored = read_columns(scores, [IMAGE_SHA256, CAPTION])
    left = set(rows)
    for position, members in extract(shard, rows):
        row, caption = rows[position], scored[CAPTION][position].as_py()
        if not is_scored(members, scored[IMAGE_SHA256][position].as_py(), caption):
            raise changed_error(shard, position)
        left.remove(position)
        fields = {name: row[name] for name in _FIELDS if row[name] is not None}
        as_read, said = rewrite(members)
        if "original_sha256" in said and (sha256 := hash_image(as_read)):
            rewritten[row[UID]] = sha256
        yield row[UID], enrich(as_read, row[UID], caption, {**said, **fields})
    if left:
        raise changed_error(shard, min(left))
