"""Versions of a run: copy one into a folder, remove old ones."""

from collections.abc import Callable

from raycomp.config import DryRun
from raycomp.data.files import check_writable, copy_file, is_dry_run
from raycomp.data.folder import Folder
from raycomp.data.manifest import MANIFEST, OBJECTS, read_manifest
from raycomp.data.paths import RUN, VERSIONS, absolute_uri
from raycomp.data.runs import read_finished
from raycomp.data.versions import NUMBER, drop_objects, list_versions
from raycomp.run.lease import hold_lease
from raycomp.update.publish import finish
from raycomp.update.purge import purge_run


def checkout(source: str, out: str, say: Callable[[str], object] = print) -> None:
    """Copy the finished run or version in ``source`` (DIR@3) into the new folder ``out``.

    Raises ValueError where ``out`` holds files, or a file of the version is not as it was written.
    """
    place, target = Folder(absolute_uri(source)), Folder(absolute_uri(out))
    run = read_finished(place.uri)
    check_writable(target.uri)
    if target.list_names():
        raise ValueError(f"out={out!r}: holds other files; name a folder that is empty or new")
    files = read_manifest(place)
    if is_dry_run():
        raise DryRun(f"dry run of checkout: all checks passed; {len(files):,} files would be copied")
    for name, file in files.items():
        copy_file(file.uri, target.at(name))
    target.write_bytes(place.read_bytes(MANIFEST), MANIFEST)
    record = {name: value for name, value in run.items() if name != OBJECTS}
    if "scores" in record and run["kind"] == "curate":
        record["scores"] = target.at("scores")
    target.write_json(record, RUN)
    say(f"{target.uri}: holds version {run.get(NUMBER, 1)}, {run['headline']}")


def prune(source: str, keep: int | None = None, removed: bool = False) -> str:
    """Remove versions of the run in ``source`` before the last ``keep``; with ``removed`` also what versions
    hold of rows that were removed since. Returns a line on what was removed.

    Raises ValueError where there is nothing to do, or another process works in the folder.
    """
    folder = Folder(absolute_uri(source))
    run = read_finished(folder.uri)
    if keep is None and not removed:
        raise ValueError("prune: give --keep N, the number of versions that stay, or --removed")
    if keep is not None and keep < 1:
        raise ValueError(f"--keep {keep}: must be at least 1; the present version stays")
    with hold_lease(folder) as lease:
        finish(folder, lease.check)
        versions = list_versions(folder)
        gone = versions[: max(0, len(versions) - keep)] if keep else []
        for number in gone:
            lease.check()
            folder.remove(VERSIONS, str(number))
        rows = purge_run(folder, run, lease.check) if removed else 0
        files = drop_objects(folder)
    return f"{folder.uri}: removed {len(gone)} versions, {rows:,} rows of others and {files:,} files"
