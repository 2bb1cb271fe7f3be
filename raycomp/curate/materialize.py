"""Write the kept, scored samples as shards that open_clip reads: enriched json, DataComp layout."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice

from raycomp.config import UserError
from raycomp.curate.choose import SUBSET, Chosen, read_kept
from raycomp.curate.outputs import Output, OutputFolder, commit_output, plan_outputs
from raycomp.curate.rewrite import hash_image, is_scored, rewrite
from raycomp.data.datacomp import enrich
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ShardPath
from raycomp.data.reader import extract, read_offsets
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
    choice: Chosen, shards: list[ShardPath], scores: list[str], out: Folder, work: Folder
) -> bool:
    """Write ``shards/``: the kept samples in the order of the input. Outputs of an earlier attempt stay.

    Only shards that hold a kept sample are read again. Returns whether an image was written in another
    format. Raises UserError, and leaves no ``shards/``, if an image or a caption differs from the scored one.
    """
    folder = OutputFolder(out, work, plan_outputs(choice.rows_S, choice.pieces_S))
    jobs = [
        (outputs, {shard: (shards[shard], scores[shard]) for one in outputs for shard, _, _ in one.reads})
        for outputs in join_pieces(folder.left)
    ]
    folder.write(_write_outputs, jobs, out.at(*SUBSET))
    return folder.rewritten > 0


def join_pieces(outputs: Sequence[Output]) -> list[list[Output]]:
    """Return the outputs by task: pieces of one shard are written by one task, which reads it once."""
    groups = groupby(outputs, lambda output: (output.reads[0][0], output.reads[-1][0]))
    return [list(group) for _, group in groups]


def changed_error(shard: ShardPath, position: int) -> UserError:
    """Return the error for a sample that differs from the scored one."""
    return UserError(
        f"input={shard.uri!r}: changed after it was scored: sample {position} differs from the scored "
        f"one; curate it into a new folder"
    )


def _write_outputs(
    job: tuple[list[Output], dict[int, tuple[ShardPath, str]]], out: Folder, work: Folder
) -> tuple[int, int]:
    """Return how many samples were written, and how many images in another format."""
    outputs, files = job
    images: dict[str, str] = {}
    samples = chain.from_iterable(
        _read_samples(work, images, *files[ordinal], ordinal, [read[1:] for read in reads])
        for ordinal, reads in groupby(chain.from_iterable(one.reads for one in outputs), lambda read: read[0])
    )
    count = num_images = 0
    for output in outputs:
        count += commit_output(out, work, output.number, islice(samples, output.size), images)
        num_images += len(images)
        images.clear()
    return count, num_images


def _read_samples(
    work: Folder,
    images: dict[str, str],
    shard: ShardPath,
    scores: str,
    ordinal: int,
    ranges: Sequence[tuple[int, int]],
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (uid, members) of the kept rows of a shard with positions in ranges; add to ``images``."""
    kept = read_kept(work, ordinal).to_pylist()
    rows = {row[POSITION]: row for row in kept if any(start <= row[POSITION] < end for start, end in ranges)}
    scored, offsets = read_columns(scores, [IMAGE_SHA256, CAPTION]), read_offsets(scores)
    left = set(rows)
    for position, members in extract(shard, rows, offsets):
        row, caption = rows[position], scored[CAPTION][position].as_py()
        if not is_scored(members, scored[IMAGE_SHA256][position].as_py(), caption):
            raise changed_error(shard, position)
        left.remove(position)
        fields = {name: row[name] for name in _FIELDS if row[name] is not None}
        as_read, said = rewrite(members)
        if "original_sha256" in said and (sha256 := hash_image(as_read)):
            images[row[UID]] = sha256
        yield row[UID], enrich(as_read, row[UID], caption, {**said, **fields})
    if left:
        raise changed_error(shard, min(left))
