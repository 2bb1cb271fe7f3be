"""Shards that a run writes: which rows each holds, and tasks that commit each, so that a killed run resumes.

They are in DataComp's layouts: resharded tars ready for open_clip, and the sorted subset file. An output is
made of a fixed range of input rows, whatever is kept of the rows before it: a change of one row changes one
output.
"""

import io
import json
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from posixpath import dirname
from typing import IO, Any, NamedTuple

import numpy as np

from raycomp.config import UserError
from raycomp.data import files
from raycomp.data.files import Folder, Written, join_uri, new_file, resolve
from raycomp.data.samples import parse_object, parse_uid, to_json, write_tar
from raycomp.run.work import map_tasks

SAMPLES_PER_SHARD = 10_000
SIZES = "sizes.json"
ORIGINAL = "original_"
SUBSET_DTYPE = np.dtype("u8,u8")

# Uids that write_subset sorts in memory at once: 16 bytes each, and three times that while sorting.
_SORT_ROWS = 4_000_000
_UID_BYTES = 16


def enrich(
    members: Mapping[str, bytes], uid: str, caption: str, fields: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return a sample's members with ``uid`` and ``fields`` in its json; every other member is unchanged.

    The json keeps its own fields in their order; the new ones follow. A field of its own with a new one's
    name stays as ``original_NAME``, unless that exists: a ``uid`` if it differs, an ``original_NAME`` as it
    is. Values that json cannot represent become null (see to_json). A sample whose caption came from its json
    gets a ``txt`` member; without it open_clip skips the sample.
    """
    _, found = parse_object(members.get("json"))
    own, added = found or {}, {"uid": uid, **fields}
    for name in [name for name in added if name in own]:
        if name.startswith(ORIGINAL):
            added[name] = own[name]
        elif name != "uid" or (own[name] is not None and parse_uid(own[name]) != uid):
            own.setdefault(ORIGINAL + name, own[name])
    enriched = {**members, "json": to_json({**own, **added}).encode()}
    enriched.setdefault("txt", caption.encode())
    return enriched


def write_shard(folder: str, index: int, samples: Iterable[tuple[str, dict[str, bytes]]]) -> int:
    """Write (uid, members) samples as ``{index:08d}.tar`` and its ``_stats.json``; return their number.

    The layout of DataComp's resharder: the key is ``{uid}-0``, 0 being the number of the copy. Equal samples
    give equal bytes.
    """
    stem = join_uri(folder, f"{index:08d}")
    count = write_tar(f"{stem}.tar", ((f"{uid}-0", members) for uid, members in samples))
    with new_file(f"{stem}_stats.json") as file:
        file.write(json.dumps({"successes": count}).encode())
    return count


def write_index(folder: str, sizes: Sequence[int], uids: Iterable[np.ndarray] | str) -> None:
    """Write the index files of the shards: ``sizes.json``, ``__len__`` and ``sample_ids.npy`` (as
    write_subset).

    ``sizes`` are the samples of each shard. ``uids`` are chunks as write_subset takes them, or the uri of a
    file that it wrote, which is copied.

    open_clip reads the sizes of the shards that it is given from ``sizes.json``. Other readers take
    ``__len__``, a Python literal, from the folder of their first shard. DataComp's own
    ``meta.json`` is not written: img2dataset takes every json file of a folder for a shard's statistics.
    """
    ids = join_uri(folder, "sample_ids.npy")
    if isinstance(uids, str):
        files.copy_file(uids, ids)
    else:
        write_subset(uids, ids)
    by_name = {f"{i:08d}.tar": size for i, size in enumerate(sizes)}
    for name, content in (("__len__", str(sum(sizes))), (SIZES, json.dumps(by_name))):
        with new_file(join_uri(folder, name)) as file:
            file.write(content.encode())


def read_sizes(uri: str | None, count: int) -> list[int]:
    """Return the samples of each of a run's ``count`` shards by its ``sizes.json``. Without one, as in older
    runs, all are SAMPLES_PER_SHARD but for the last, which may have fewer."""
    if uri is None:
        return [SAMPLES_PER_SHARD] * count
    filesystem, path = resolve(uri)
    with filesystem.open_input_file(path) as file:
        found = json.loads(file.read())
    return [found.get(f"{i:08d}.tar", 0) for i in range(count)]


def write_subset(uid_chunks: Iterable[np.ndarray], uri: str) -> int:
    """Write uids as DataComp's subset file, sorted, and return their number.

    ``uid_chunks`` are arrays of uint64 (n, 2), the upper and lower half of each uid, in any order; repeated
    uids stay (they mean upsampling). The file is ``np.save`` of dtype ``u8,u8`` and shape (n,). Its reader
    uses searchsorted, which needs the order. Memory does not grow with the number of uids: they are split by
    their first byte, parts that are still too large by the next, and each part is sorted by itself.
    """
    with tempfile.TemporaryDirectory(prefix="raycomp-subset-") as folder, new_file(uri) as target:
        everything = Path(folder) / "uids"
        with everything.open("wb") as file:
            count = sum(_append(file, chunk) for chunk in uid_chunks)
        descr = np.lib.format.dtype_to_descr(SUBSET_DTYPE)
        header = {"descr": descr, "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(target, header)
        for uid_N2 in _in_order(everything, 0):
            target.write(uid_N2.astype("<u8").tobytes())
    return count


def read_subset(uri: str) -> np.ndarray:
    """Return the uids of a file as ``write_subset`` writes it, uint64 (N, 2), all of them in memory.

    Raises ValueError where it is another kind of file, OSError where it cannot be read.
    """
    filesystem, path = resolve(uri)
    with filesystem.open_input_file(path) as file:
        try:
            uid_N = np.load(io.BytesIO(file.read()), allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{uri}: is damaged or no npy file") from error
    if not isinstance(uid_N, np.ndarray) or uid_N.dtype != SUBSET_DTYPE or uid_N.ndim != 1:
        kind = getattr(uid_N, "dtype", "an archive")
        raise ValueError(f"{uri}: must be uids of type u8,u8 in one dimension, is {kind}")
    return uid_N.view(np.uint64).reshape(-1, 2)


def _append(file: IO[bytes], uid_N2: np.ndarray) -> int:
    """Append uids as 16 bytes, the highest first: their order as bytes is their order as numbers."""
    file.write(np.ascontiguousarray(uid_N2, ">u8").tobytes())
    return len(uid_N2)


def _in_order(path: Path, depth: int) -> Iterator[np.ndarray]:
    """Yield the uids of a file, all equal in their first ``depth`` bytes, in ascending order; remove it."""
    parts: dict[int, Path] = {}
    is_small = os.path.getsize(path) <= _SORT_ROWS * _UID_BYTES or depth == _UID_BYTES
    with path.open("rb") as source:
        while raw := source.read(_SORT_ROWS * _UID_BYTES):
            uid_N2 = np.frombuffer(raw, ">u8").reshape(-1, 2)
            if is_small:
                native_N2 = uid_N2.astype(np.uint64)
                yield native_N2[np.lexsort((native_N2[:, 1], native_N2[:, 0]))]
                continue
            byte_N = uid_N2.view(np.uint8).reshape(-1, _UID_BYTES)[:, depth]
            order_N = np.argsort(byte_N, kind="stable")
            edges = np.searchsorted(byte_N[order_N], np.arange(257))
            for byte in np.unique(byte_N).tolist():
                parts[byte] = path.with_name(f"{path.name}-{byte:02x}")
                with parts[byte].open("ab") as file:
                    _append(file, uid_N2[order_N[edges[byte] : edges[byte + 1]]])
    path.unlink()
    for _, part in sorted(parts.items()):
        yield from _in_order(part, depth + 1)


SPAN = 2 * SAMPLES_PER_SHARD
"""Input rows of an output, about: half of them are kept by default. A larger shard is cut into pieces of this
many rows."""
_AT_ONCE = 16
_OUTPUTS = "outputs"

Range = tuple[int, int, int]
"""A shard, and its positions from and to."""


class Output(NamedTuple):
    """A shard to write: its number, its samples, and the input rows that these are among."""

    number: int
    size: int
    reads: list[Range]


def cut_ranges(rows_S: Sequence[int]) -> list[list[Range]]:
    """Return the ranges of input rows that one output each is made of, in order.

    ``rows_S``: rows of each shard. A shard of more than ``SPAN`` rows is cut into pieces of ``SPAN``. Others
    are joined in groups of a power of two shards, as many as have at most ``SPAN`` rows on average, and no
    more than twice ``SPAN`` together.
    """
    group = 1
    while 2 * group * sum(rows_S) <= SPAN * len(rows_S) and group < len(rows_S):
        group *= 2
    ranges: list[list[Range]] = [[]]
    for shard, rows in enumerate(rows_S):
        if shard % group == 0 or rows + sum(end for _, _, end in ranges[-1]) > 2 * SPAN:
            ranges.append([])
        if rows > SPAN:
            pieces = [(shard, start, min(start + SPAN, rows)) for start in range(0, rows, SPAN)]
            ranges += [*([piece] for piece in pieces), []]
        elif rows:
            ranges[-1].append((shard, 0, rows))
    return [held for held in ranges if held]


def count_pieces(position_K: np.ndarray) -> list[int]:
    """Return the number of a shard's kept rows in each piece of ``SPAN`` rows, by their positions."""
    return np.bincount(position_K // SPAN).tolist()


def plan_outputs(rows_S: Sequence[int], pieces_S: Sequence[Sequence[int]]) -> list[Output]:
    """Return the outputs of ``cut_ranges`` that have a sample, numbered in order.

    ``pieces_S``: ``count_pieces`` of each shard.
    """
    found: list[Output] = []
    for reads in cut_ranges(rows_S):
        if size := sum(sum(pieces_S[shard][start // SPAN : start // SPAN + 1]) for shard, start, _ in reads):
            found.append(Output(len(found), size, reads))
    return found


def split_rows(rows_F: Sequence[int], sizes: Sequence[int]) -> list[list[Range]]:
    """Return the parts of files, in order, that outputs of these sizes are made of: (file, from, to) of rows.

    ``rows_F``: rows of each file. Rows that the files lack are in no part.
    """
    edges = [0, *accumulate(rows_F)]
    found = []
    for first, last in pairwise([0, *accumulate(sizes)]):
        sources = range(bisect_right(edges, first) - 1, min(bisect_left(edges, last), len(rows_F)))
        parts = [(i, max(first - edges[i], 0), min(last - edges[i], rows_F[i])) for i in sources]
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
        manifests = _read_manifests(work)
        if not manifests:
            out.remove("shards")
        above = dirname(out.uri) + "/"
        for number, manifest in manifests.items():
            self.done.add(number)
            self.rewritten += len(manifest["images"])
            files.note_written(Written(above + name, *facts) for name, facts in manifest["written"].items())

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
    places = files.watched_places()
    count, written = files.call_watched(write_shard, places, out.at("shards"), number, samples)
    _write_manifest(out, work, number, images, written, key)
    return count


def link_output(
    out: Folder, work: Folder, number: int, earlier: Sequence[Written], images: dict[str, str], key: str
) -> None:
    """Take a shard and its statistics over from an earlier run as this run's shard ``number``."""
    names = (f"{number:08d}.tar", f"{number:08d}_stats.json")
    targets = [file._replace(uri=out.at("shards", name)) for file, name in zip(earlier, names, strict=True)]
    for file, target in zip(earlier, targets, strict=True):
        files.link_file(file, target.uri)
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
    facts = {file.uri.removeprefix(f"{dirname(out.uri)}/"): file[1:] for file in sorted(written)}
    manifest = {"images": images, "written": facts, "key": key}
    work.write_json(manifest, _OUTPUTS, f"{number:08d}.json")


def list_outputs(work: Folder) -> dict[str, dict[str, Any]]:
    """Return the number and the images in another format of every output, by what it is made of."""
    manifests = _read_manifests(work).items()
    return {one["key"]: {"number": number, "images": one["images"]} for number, one in manifests}


def read_images(work: Folder) -> dict[str, str]:
    """Return the SHA-256 by uid of all images that were written in another format."""
    manifests = _read_manifests(work).values()
    return {uid: sha256 for manifest in manifests for uid, sha256 in manifest["images"].items()}


def _read_manifests(work: Folder) -> dict[int, dict[str, Any]]:
    names = work.list_names(_OUTPUTS)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        read = threads.map(lambda name: work.read_json(_OUTPUTS, name), names)
        return {int(name.partition(".")[0]): manifest for name, manifest in zip(names, read, strict=True)}
