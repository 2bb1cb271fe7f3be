"""Write the kept, scored samples as shards that open_clip reads: enriched json, DataComp layout."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby, islice
from typing import Any

from raycomp.config import UserError
from raycomp.curation.choose import SUBSET, Chosen, read_kept
from raycomp.curation.outputs import (
    Output,
    OutputFolder,
    commit_output,
    link_output,
    list_outputs,
    plan_outputs,
)
from raycomp.curation.reuse import Reuse
from raycomp.curation.rewrite import hash_image, is_scored, rewrite
from raycomp.curation.state import OUTPUTS, STATE
from raycomp.data.datacomp import enrich
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.data.paths import ShardPath
from raycomp.data.reader import extract, read_offsets
from raycomp.data.written import Written
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_SHA256,
    MEAN_PAS,
    POSITION,
    SCORE,
    UID,
)


def materialize(
    choice: Chosen,
    shards: list[ShardPath],
    scores: list[str],
    out: Folder,
    work: Folder,
    reuse: Reuse | None = None,
) -> bool:
    """Write ``shards/``: the kept samples in the order of the input. Outputs of an earlier attempt stay.

    Only shards that hold a kept sample are read again. An output of the run that ``reuse`` names is linked if
    it is made of the same rows. Returns whether an image was written in another format. Raises UserError, and
    leaves no ``shards/``, if an image or a caption differs from the scored one.
    """
    folder = OutputFolder(out, work, plan_outputs(choice.rows_S, choice.pieces_S))
    # A score of a rule with a fit depends on all rows: it would change every output with every update.
    fields = (ALIGNMENT, MEAN_PAS, *([SCORE] if choice.gates.fit is None else []))
    jobs = [
        (outputs, {shard: (shards[shard], scores[shard]) for one in outputs for shard, _, _ in one.reads})
        for outputs in join_pieces(folder.left)
    ]
    folder.write(_write_outputs, jobs, out.at(*SUBSET), fields, reuse or Reuse())
    if reuse is not None:
        out.write_json(list_outputs(work), STATE, OUTPUTS)
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
    job: tuple[list[Output], dict[int, tuple[ShardPath, str]]],
    out: Folder,
    work: Folder,
    fields: Sequence[str],
    reuse: Reuse,
) -> tuple[int, int]:
    """Return how many samples were written, and how many images in another format."""
    outputs, files = job
    earlier = {} if reuse.outputs is None else read_keys(reuse.outputs)
    keys = {output.number: name_output(output, files, work, fields) for output in outputs}
    count = num_images = 0
    left = []
    for output in outputs:
        known = earlier.get(keys[output.number])
        if known is None or not reuse.has_output(shard for shard, _, _ in output.reads):
            left.append(output)
            continue
        files_of = reuse.find_output(known["number"])
        link_output(out, work, output.number, files_of, known["images"], keys[output.number])
        count, num_images = count + output.size, num_images + len(known["images"])
    images: dict[str, str] = {}
    samples = chain.from_iterable(
        _read_samples(work, images, *files[ordinal], ordinal, [read[1:] for read in reads], fields)
        for ordinal, reads in groupby(chain.from_iterable(one.reads for one in left), lambda read: read[0])
    )
    for output in left:
        part = islice(samples, output.size)
        count += commit_output(out, work, output.number, part, images, keys[output.number])
        num_images += len(images)
        images.clear()
    return count, num_images


def name_output(
    output: Output, files: Mapping[int, tuple[ShardPath, str]], work: Folder, fields: Sequence[str]
) -> str:
    """Return a digest of the rows that an output is made of: their places, content and fields."""
    digest = hashlib.sha256()
    for ordinal, start, end in output.reads:
        kept = read_kept(work, ordinal).select([POSITION, UID, IMAGE_SHA256, CAPTION, *fields])
        rows = [row for row in kept.to_pylist() if start <= row[POSITION] < end]
        digest.update(repr((files[ordinal][0].name, rows)).encode())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def read_keys(file: Written) -> dict[str, dict[str, Any]]:
    """Return the outputs of an earlier run by what they are made of, as ``list_outputs`` gave them."""
    return Folder(file.uri).read_json()


def _read_samples(
    work: Folder,
    images: dict[str, str],
    shard: ShardPath,
    scores: str,
    ordinal: int,
    ranges: Sequence[tuple[int, int]],
    names: Sequence[str],
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
        fields = {name: row[name] for name in names if row[name] is not None}
        as_read, said = rewrite(members)
        if "original_sha256" in said and (sha256 := hash_image(as_read)):
            images[row[UID]] = sha256
        yield row[UID], enrich(as_read, row[UID], caption, {**said, **fields})
    if left:
        raise changed_error(shard, min(left))
