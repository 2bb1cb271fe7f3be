"""Shards that a run writes: which rows each holds, and tasks that commit each, so that a killed run resumes.

An output is made of a fixed range of input rows, whatever is kept of the rows before it: a change of one row
changes one output.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from posixpath import dirname
from typing import Any, NamedTuple

import numpy as np

from raycomp.config import UserError
from raycomp.data.datacomp import SAMPLES_PER_SHARD, write_index, write_shard
from raycomp.data.files import Folder, Written, call_watched, link_file, note_written, watched_places
from raycomp.run.waves import map_tasks

SPAN = 2 * SAMPLES_PER_SHARD
"""Input rows of an output, about: half of them are kept by default. A larger shard is cut into pieces of this
many rows."""
_AT_ONCE = 16
_OUTPUTS = "outputs"

Range = tuple[int, int, int]
"""A shard, and its positions from and to."""


class Output(NamedTuple):
    """A shard to write."""

    number: int
    size: int
    """Samples."""
    reads: list[Range]
    """The input rows that its samples are among."""


def cut_ranges(rows_S: Sequence[int], span: int | None = None) -> list[list[Range]]:
    """Return the ranges of input rows that one output each is made of, in order.

    ``rows_S``: rows of each shard; ``span`` none = ``SPAN``. A shard of more than ``span`` rows is cut into
    pieces of ``span``. Others are joined in groups of a power of two shards, as many as have at most ``span``
    rows on average, and no more than twice ``span`` together.
    """
    span, group = span or SPAN, 1
    while 2 * group * sum(rows_S) <= span * len(rows_S) and group < len(rows_S):
        group *= 2
    ranges: list[list[Range]] = []
    for first in range(0, len(rows_S), group):
        held: list[Range] = []
        for shard, rows in enumerate(rows_S[first : first + group], first):
            if held and (rows > span or rows + sum(end for _, _, end in held) > 2 * span):
                ranges.append(held)
                held = []
            if rows > span:
                starts = range(0, rows, span)
                ranges += [[(shard, start, min(start + span, rows))] for start in starts]
            elif rows:
                held.append((shard, 0, rows))
        if held:
            ranges.append(held)
    return ranges


def count_pieces(position_K: np.ndarray, span: int | None = None) -> list[int]:
    """Return the number of a shard's kept rows in each piece of ``span`` rows, by their positions."""
    return np.bincount(position_K // (span or SPAN)).tolist()


def plan_outputs(
    rows_S: Sequence[int], pieces_S: Sequence[Sequence[int]], span: int | None = None
) -> list[Output]:
    """Return the outputs of ``cut_ranges`` that have a sample, numbered in order.

    ``pieces_S``: ``count_pieces`` of each shard.
    """
    span = span or SPAN
    found: list[Output] = []
    for reads in cut_ranges(rows_S, span):
        counts = (sum(pieces_S[shard][start // span : start // span + 1]) for shard, start, _ in reads)
        if size := sum(counts):
            found.append(Output(len(found), size, reads))
    return found


def split_rows(rows_F: Sequence[int], sizes: Sequence[int]) -> list[list[Range]]:
    """Return the parts of files, in order, that outputs of these sizes are made of: (file, from, to) of rows.

    ``rows_F``: rows of each file. Rows that the files lack are in no part.
    """
    edges = [0, *accumulate(rows_F)]
    found = []
    for first, last in pairwise([0, *accumulate(sizes)]):
        files = range(bisect_right(edges, first) - 1, min(bisect_left(edges, last), len(rows_F)))
        parts = [(file, max(first - edges[file], 0), min(last - edges[file], rows_F[file])) for file in files]
        found.append([part for part in parts if part[1] < part[2]])
    return found


class OutputFolder:
    """``shards/`` of a run: each output is committed by a manifest in ``work/outputs/``."""

    def __init__(self, out: Folder, work: Folder, outputs: Sequence[Output]):
        """Find which of the ``outputs`` an earlier attempt committed."""
        self.out, self.work, self.outputs = out, work, outputs
        self.done: set[int] = set()
        self.rewritten = 0
        """Committed images that were written in another format."""
        manifests = work.list_names(_OUTPUTS)
        if not manifests:
            out.remove("shards")
        for number, manifest in _read_manifests(work, manifests):
            self.done.add(number)
            self.rewritten += len(manifest["images"])
            above = dirname(out.uri) + "/"
            note_written(Written(above + name, *facts) for name, facts in manifest["written"].items())

    @property
    def left(self) -> list[Output]:
        """The outputs that are still to be written."""
        return [output for output in self.outputs if output.number not in self.done]

    def write(
        self,
        write: Callable[..., tuple[int, int]],
        jobs: Sequence[Any],
        uids: Iterable[np.ndarray] | str,
        *args: Any,
    ) -> None:
        """Write the outputs that are left by a task ``write(job, out, work, *args)`` per job, and the index.

        A task returns how many samples it committed by ``commit_output``, and how many images it wrote in
        another format. ``uids`` are the argument of ``write_index``. Raises UserError, and leaves no
        ``shards/``, if a task does; RuntimeError if the samples are not as many as the outputs should have.
        All tasks have ended by then, so nothing is written after ``shards/`` is removed.
        """
        wanted, written = sum(output.size for output in self.left), 0
        try:
            for samples, images in map_tasks(write, jobs, self.out, self.work, *args, label="materialize"):
                written += samples
                self.rewritten += images
        except UserError:
            self.out.remove("shards")
            self.work.remove(_OUTPUTS)
            raise
        if written != wanted:
            raise RuntimeError(f"materialize: wrote {written} of {wanted} samples")
        write_index(self.out.at("shards"), [output.size for output in self.outputs], uids)


def commit_output(
    out: Folder,
    work: Folder,
    number: int,
    samples: Iterable[tuple[str, dict[str, bytes]]],
    images: dict[str, str],
    key: str | None = None,
) -> int:
    """Write (uid, members) samples as a shard, then its manifest; return their number.

    ``images``: the SHA-256 by uid of images that are written in another format, filled by ``samples``.
    ``key``: what the shard is made of.
    """
    count, written = call_watched(write_shard, watched_places(), out.at("shards"), number, samples)
    _write_manifest(out, work, number, images, written, key)
    return count


def link_output(
    out: Folder, work: Folder, number: int, earlier: Sequence[Written], images: dict[str, str], key: str
) -> None:
    """Take a shard and its statistics over from an earlier run as this run's shard ``number``."""
    names = [f"{number:08d}.tar", f"{number:08d}_stats.json"]
    targets = [file._replace(uri=out.at("shards", name)) for file, name in zip(earlier, names, strict=True)]
    for file, target in zip(earlier, targets, strict=True):
        link_file(file, target.uri)
    _write_manifest(out, work, number, images, targets, key)


def _write_manifest(
    out: Folder,
    work: Folder,
    number: int,
    images: dict[str, str],
    written: Iterable[Written],
    key: str | None,
) -> None:
    # Relative to what changes when the folder moves.
    files = {file.uri.removeprefix(f"{dirname(out.uri)}/"): file[1:] for file in sorted(written)}
    facts = {"images": images, "written": files, "key": key}
    work.write_json(facts, _OUTPUTS, f"{number:08d}.json")


def list_outputs(work: Folder) -> dict[str, dict[str, Any]]:
    """Return the number and the images in another format of every output, by what it is made of."""
    manifests = _read_manifests(work, work.list_names(_OUTPUTS))
    return {one["key"]: {"number": number, "images": one["images"]} for number, one in manifests}


def read_images(work: Folder) -> dict[str, str]:
    """Return the SHA-256 by uid of all images that were written in another format."""
    manifests = _read_manifests(work, work.list_names(_OUTPUTS))
    return {uid: sha256 for _, manifest in manifests for uid, sha256 in manifest["images"].items()}


def _read_manifests(work: Folder, names: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        read = threads.map(lambda name: work.read_json(_OUTPUTS, name), names)
        for name, manifest in zip(names, read, strict=True):
            yield int(name.partition(".")[0]), manifest
