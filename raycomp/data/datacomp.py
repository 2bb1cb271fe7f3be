"""DataComp's layouts: resharded tars ready for open_clip, and the sorted subset file."""

import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from raycomp.data.files import copy_file, new_file
from raycomp.data.paths import join_uri, resolve
from raycomp.data.rows import parse_object, parse_uid, to_json
from raycomp.data.tar import write_tar

SAMPLES_PER_SHARD = 10_000
SIZES = "sizes.json"
SUBSET_DTYPE = np.dtype("u8,u8")

# Uids that write_subset sorts in memory at once: 16 bytes each, and three times that while sorting.
_SORT_ROWS = 4_000_000
_UID_BYTES = 16


def enrich(
    members: Mapping[str, bytes], uid: str, caption: str, fields: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return a sample's members with ``uid`` and ``fields`` in its json; every other member is unchanged.

    The json keeps its own fields in their order; the new ones follow, and replace fields of the same name. A
    different ``uid`` of its own stays as ``original_uid``, unless that field exists. Values that json cannot
    represent become null (see to_json). A sample whose caption came from its json gets a ``txt`` member;
    without it open_clip skips the sample.
    """
    _, found = parse_object(members.get("json"))
    own = found or {}
    if own.get("uid") is not None and parse_uid(own["uid"]) != uid:
        own.setdefault("original_uid", own["uid"])
    enriched = {**members, "json": to_json({**own, "uid": uid, **fields}).encode()}
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
        copy_file(uids, ids)
    else:
        write_subset(uids, ids)
    with new_file(join_uri(folder, "__len__")) as file:
        file.write(str(sum(sizes)).encode())
    with new_file(join_uri(folder, SIZES)) as file:
        file.write(json.dumps({f"{i:08d}.tar": size for i, size in enumerate(sizes)}).encode())


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


def _read(path: Path) -> Iterator[np.ndarray]:
    with path.open("rb") as file:
        while raw := file.read(_SORT_ROWS * _UID_BYTES):
            yield np.frombuffer(raw, ">u8").reshape(-1, 2)


def _in_order(path: Path, depth: int) -> Iterator[np.ndarray]:
    """Yield the uids of a file, all equal in their first ``depth`` bytes, in ascending order; remove it."""
    if os.path.getsize(path) <= _SORT_ROWS * _UID_BYTES or depth == _UID_BYTES:
        for uid_N2 in _read(path):
            native_N2 = uid_N2.astype(np.uint64)
            yield native_N2[np.lexsort((native_N2[:, 1], native_N2[:, 0]))]
        path.unlink()
        return
    parts = [path.with_name(f"{path.name}-{byte:02x}") for byte in range(256)]
    for uid_N2 in _read(path):
        byte_N = uid_N2.view(np.uint8).reshape(-1, _UID_BYTES)[:, depth]
        order_N = np.argsort(byte_N, kind="stable")
        edges = np.searchsorted(byte_N[order_N], np.arange(257))
        for byte in np.unique(byte_N).tolist():
            with parts[byte].open("ab") as file:
                _append(file, uid_N2[order_N[edges[byte] : edges[byte + 1]]])
    path.unlink()
    for part in parts:
        if part.exists():
            yield from _in_order(part, depth + 1)
