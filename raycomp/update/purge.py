"""Removal overrides history: what older versions hold of removed rows is taken out of them.

A removed row of a version keeps its uid, shard and position, with the status ``removed``, and the commitment
that the version's root is made of (``leaves/``). Its caption, scores, salt and image are gone: from scores,
state, metadata, the subset and the written shards.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.selection import parse_uids
from raycomp.core.uids import find_keys, to_keys
from raycomp.curation.config import find_selection, read_config
from raycomp.curation.removal import Removal, blank_column, blank_rows, load_removed
from raycomp.curation.reuse import KEPT_COLUMNS
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, judge_file
from raycomp.curation.state import OUTPUTS, STATE
from raycomp.data.arrow import add_columns
from raycomp.data.datacomp import SIZES, write_index, write_shard, write_subset
from raycomp.data.files import link_file
from raycomp.data.folder import Folder
from raycomp.data.manifest import MANIFEST, OBJECTS, describe_manifest, name_object, read_manifest
from raycomp.data.parquet import read_columns, read_schema, write_table
from raycomp.data.paths import KEPT_FILE, RUN, VERSIONS, ShardPath
from raycomp.data.reader import extract
from raycomp.data.runs import digest
from raycomp.data.versions import NUMBER, drop_objects, find_place, list_versions
from raycomp.data.written import Written, call_watched
from raycomp.words import IMAGE_SHA256, KEPT, REMOVED, SHARD, STATUS, UID, URL

REMOVED_SINCE = "removed_since"
"""In the run.json of a version: rows that it has lost to later removals."""
_PENDING = "purged.json"
_LIST = "removed_list"
"""In the run.json of a version: which list of removals it was purged with."""
_NEW = "new"


@dataclass
class Version:
    """A version that is being purged: its files by name as they will be."""

    folder: Folder
    number: int
    run: dict[str, Any]
    files: dict[str, Written]
    reasons: Counter = field(default_factory=Counter)
    """Removed rows by the reason that they had."""
    uids: list[str] = field(default_factory=list)
    """Those of removed rows."""

    def put(self, name: str, write: Callable[..., Any], *args: Any) -> None:
        """Replace a file by what ``write(*args)`` writes at the uri that is put after the arguments."""
        new = Folder(self.folder.at(VERSIONS, OBJECTS, _NEW))
        uri = new.at(name.rpartition("/")[2])
        _, written = call_watched(write, [uri], *args, uri)
        (file,) = written
        place = self.folder.at(VERSIONS, OBJECTS, name_object(file))
        link_file(file, place)
        new.remove(name.rpartition("/")[2])
        self.files[name] = file._replace(uri=place)

    def save(self) -> None:
        """Write manifest and record; one file first, so that a kill leaves no half of them."""
        data, facts = describe_manifest(self.files)
        self.run["manifest"] = facts
        place = find_place(self.folder, self.number)
        place.write_json({MANIFEST: data.decode(), RUN: self.run}, _PENDING)
        _apply_pending(place)


def _apply_pending(place: Folder) -> None:
    if place.exists(_PENDING):
        pending = place.read_json(_PENDING)
        place.write_bytes(pending[MANIFEST].encode(), MANIFEST)
        place.write_json(pending[RUN], RUN)
        place.remove(_PENDING)


def purge_run(folder: Folder, run: Mapping[str, Any], check: Callable[[], None]) -> int:
    """Take removed rows out of the versions of a curation, or of negatives, but the present one.

    ``run``: its run.json. Returns the number of rows. ``check`` raises where another process took the folder
    over. Safe to repeat after a kill.
    """
    if run["kind"] == "negatives":
        return purge_negatives(folder, list_removed(str(run["config"].get("input"))), check)
    return purge(folder, load_removed(find_removed(folder, run)), check)


def find_removed(folder: Folder, run: Mapping[str, Any]) -> str | None:
    """Return the list of removed rows of a curation: its own one, also after a move; None without one."""
    uri = run["config"].get("removed")
    own = (VERSIONS, str(uri).rpartition("/")[2])
    return folder.at(*own) if uri is not None and folder.exists(*own) else uri


def purge(folder: Folder, removal: Removal | None, check: Callable[[], None]) -> int:
    """Take the rows of a list out of the versions of a curation but the present one; return their number.

    ``check`` raises where another process took the folder over. Safe to repeat after a kill.
    """
    if removal is None:
        return 0
    return _purge_all(folder, check, removal.digest(), lambda version: _purge_curation(version, removal))


def purge_negatives(folder: Folder, uids: Collection[str], check: Callable[[], None]) -> int:
    """Take captions out of the versions of a run of negatives but the present one; return their number.

    Exports of a version that loses a caption are removed from it.
    """
    if not uids:
        return 0
    return _purge_all(folder, check, digest(sorted(uids)), lambda version: _purge_captions(version, uids))


def list_removed(source: str) -> set[str]:
    """Return the uids that the curation in ``source`` has removed, in any of its versions; empty for another
    input."""
    folder, found = Folder(source), set[str]()
    if not folder.exists(RUN):
        return found
    for place in (folder, *(find_place(folder, number) for number in list_versions(folder))):
        for name, file in read_manifest(place).items():
            if name.startswith("scores/"):
                table = read_columns(file.uri, [UID, STATUS])
                found |= set(table.filter(pc.equal(table[STATUS], REMOVED))[UID].to_pylist())
    return found


def _purge_all(
    folder: Folder, check: Callable[[], None], name: str, purge_version: Callable[["Version"], None]
) -> int:
    """Purge each version but the present one, unless it was with the list of this ``name``."""
    present, num_rows = folder.read_json(RUN).get(NUMBER, 1), 0
    for number in list_versions(folder):
        place = find_place(folder, number)
        _apply_pending(place)
        run = place.read_json(RUN)
        if number == present or run.get(_LIST) == name:
            continue
        version = Version(folder, number, run, _read_files(folder, place))
        purge_version(version)
        check()
        count = version.reasons.total()
        version.run |= {_LIST: name, REMOVED_SINCE: run.get(REMOVED_SINCE, 0) + count}
        version.save()
        num_rows += count
    if num_rows:
        drop_objects(folder)
    return num_rows


def _read_files(folder: Folder, place: Folder) -> dict[str, Written]:
    files = {name: Written(name, *facts) for name, facts in place.read_json(MANIFEST).items()}
    return {
        name: file._replace(uri=folder.at(VERSIONS, OBJECTS, name_object(file)))
        for name, file in files.items()
    }


def _purge_curation(version: Version, removal: Removal) -> None:
    lost: dict[int, np.ndarray] = {}
    for name in sorted(name for name in version.files if name.startswith("scores/")):
        ordinal = int(name.removeprefix("scores/").removesuffix(".parquet"))
        is_removed_N = _purge_scores(version, name, removal)
        if is_removed_N.any():
            lost[ordinal] = np.flatnonzero(is_removed_N)
    if not lost:
        return
    for ordinal, position_M in lost.items():
        _purge_state(version, f"{ordinal:05d}.parquet", position_M)
    if version.reasons[KEPT]:
        _purge_subset(version, np.sort(to_keys(parse_uids(version.uids))))
    _count_removed(version)


def _purge_scores(version: Version, name: str, removal: Removal) -> np.ndarray:
    """Blank the removed rows of a scores file; return which they are, bool [N]."""
    uri, marks = version.files[name].uri, version.files.get(name.replace("scores/", "marks/"))
    table = read_columns(uri, [UID, SHARD, STATUS, URL, IMAGE_SHA256])
    is_removed_N = removal.find_rows(table) | removal.find_shards(table[SHARD].to_pylist())
    is_removed_N &= np.array(table[STATUS].to_pylist(), object) != REMOVED
    if is_removed_N.any():
        table = read_columns(uri)
        selection = find_selection(read_config(version.run["config"]))
        gates = Gates.from_dict(version.run["gates"])
        _, reason_N, _ = judge_file(ScoresFile(uri, marks and marks.uri), selection, gates)
        version.reasons.update(reason_N[is_removed_N].tolist())
        kept_N = is_removed_N & (reason_N == KEPT)
        version.uids += table[UID].filter(pa.array(kept_N.astype(bool))).to_pylist()
        columns = [column for column in table.column_names if column not in KEPT_COLUMNS]
        table = blank_rows(table, is_removed_N, columns)
        version.put(name, _write, table)
    return is_removed_N


def _write(table: pa.Table, uri: str) -> None:
    write_table(table, uri, table.schema.remove_metadata())


def _purge_state(version: Version, name: str, position_M: np.ndarray) -> None:
    """Blank the removed rows of a state file and of one of metadata."""
    for path in (f"{STATE}/{name}", f"metadata/{name}"):
        if path in version.files:
            table = read_columns(version.files[path].uri)
            is_removed_N = np.zeros(len(table), bool)
            is_removed_N[position_M] = True
            blank = {one: blank_column(table[one], is_removed_N) for one in table.column_names if one != UID}
            version.put(path, _write, add_columns(table, blank))


def _purge_subset(version: Version, key_M: np.ndarray) -> None:
    """Take kept rows out of the subset and the written shards."""
    kept = read_columns(version.files[KEPT_FILE].uri)
    uid_N2 = parse_uids(kept[UID])
    is_lost_N = find_keys(key_M, to_keys(uid_N2)) >= 0
    version.put(KEPT_FILE, _write, kept.filter(pa.array(~is_lost_N)))
    version.put("subset/subset.npy", lambda uri: write_subset([uid_N2[~is_lost_N]], uri))
    if f"shards/{SIZES}" in version.files:
        _purge_shards(version, is_lost_N, uid_N2[~is_lost_N])


def _purge_shards(version: Version, is_lost_N: np.ndarray, left_M2: np.ndarray) -> None:
    """Take samples out of the written shards, which have the order of the subset."""
    sizes: dict[str, int] = Folder(version.files[f"shards/{SIZES}"].uri).read_json()
    start = 0
    for name, size in sizes.items():
        lost = set(np.flatnonzero(is_lost_N[start : start + size]).tolist())
        start += size
        if not lost:
            continue
        sizes[name] = size - len(lost)
        samples = _read_samples(version.files[f"shards/{name}"].uri, set(range(size)) - lost)
        for part, write in _write_apart(version, int(name.removesuffix(".tar")), samples).items():
            version.put(f"shards/{part}", write)
    new = Folder(version.folder.at(VERSIONS, OBJECTS, _NEW))
    write_index(new.uri, list(sizes.values()), [left_M2])
    for part in ("__len__", SIZES, "sample_ids.npy"):
        data = new.read_bytes(part)
        version.put(f"shards/{part}", lambda uri, data=data: Folder(uri).write_bytes(data))
    keys = f"{STATE}/{OUTPUTS}"
    if keys in version.files:  # a sample of another format has its own hash there
        version.put(keys, lambda uri: Folder(uri).write_json({}))


def _read_samples(uri: str, positions: Collection[int]) -> Iterator[tuple[str, dict[str, bytes]]]:
    for _, members in extract(ShardPath(0, uri, "shard", "tar"), positions):
        yield json.loads(members["json"])[UID], members


def _write_apart(
    version: Version, number: int, samples: Iterator[tuple[str, dict[str, bytes]]]
) -> dict[str, Callable[[str], None]]:
    """Write a shard and its statistics; return for each of the two a function that links it to a uri."""
    new = version.folder.at(VERSIONS, OBJECTS, "written")
    names = [f"{number:08d}.tar", f"{number:08d}_stats.json"]
    _, written = call_watched(write_shard, [new], new, number, samples)
    files = {file.uri.rpartition("/")[2]: file for file in written}
    return {name: partial(link_file, files[name]) for name in names}


def _count_removed(version: Version) -> None:
    """Move the removed rows to their own reason in the counts of a version."""
    counts = version.run["funnel"]
    counts["kept"] -= version.reasons[KEPT]
    dropped = Counter(counts["dropped"])
    dropped.subtract({reason: n for reason, n in version.reasons.items() if reason != KEPT})
    dropped[REMOVED] += version.reasons.total()
    counts["dropped"] = {reason: count for reason, count in sorted(dropped.items()) if count}
    removed = version.run.get(REMOVED_SINCE, 0) + version.reasons.total()
    version.run["headline"] = (
        f"kept {counts['kept']:,} of {counts['read']:,} rows; {removed:,} were removed since"
    )


def _purge_captions(version: Version, uids: Collection[str]) -> None:
    is_there = pa.array(sorted(uids))
    for name, file in list(version.files.items()):
        if not name.endswith(".parquet") or UID not in read_schema(file.uri).names:
            continue
        table = read_columns(file.uri)
        is_lost = pc.is_in(table[UID], is_there)
        if pc.any(is_lost).as_py():
            version.reasons[name] += pc.sum(is_lost).as_py()
            version.put(name, _write, table.filter(pc.invert(is_lost)))
    if version.reasons:
        for name in [name for name in version.files if name.partition("/")[0] in ("exports", "shards")]:
            del version.files[name]
