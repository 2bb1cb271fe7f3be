"""Make a finished run the next version of a folder.

First the present content is kept as a version, then the new one. Its record is written last: with it the
version is there. Then the folder's own files are replaced, and its run.json last of all. A process that was
killed in between leaves a finished run in ``versions/next``; the next update publishes it first.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from raycomp.data.files import link_file
from raycomp.data.folder import Folder
from raycomp.data.manifest import MANIFEST, OBJECTS, name_object, read_manifest
from raycomp.data.paths import REPORT, RUN, VERSIONS
from raycomp.data.runs import FINISHED, read_run
from raycomp.data.versions import NEXT, NUMBER, find_place, keep_version


def find_next(folder: Folder) -> Folder:
    """Return the folder in which the next version is made."""
    return Folder(folder.at(VERSIONS, NEXT))


def publish(folder: Folder, check: Callable[[], None]) -> dict[str, Any]:
    """Make the finished run in ``versions/next`` the next version of ``folder``; return its record.

    ``check`` raises where another process took the folder over. Safe to repeat after a kill at any moment.
    """
    staged, present = find_next(folder), folder.read_json(RUN)
    record = _move(staged, folder, staged.read_json(RUN))
    number = present.get(NUMBER, 1)
    if present["id"] != record["id"]:
        if number == 1 and not find_place(folder, 1).exists(RUN):
            check()
            keep_version(folder, folder, {**present, NUMBER: 1})
        record[NUMBER] = number + 1
        check()
        keep_version(folder, staged, record)
        _show(folder, record, check)
    check()
    folder.remove(VERSIONS, NEXT)
    return folder.read_json(RUN)


def finish(folder: Folder, check: Callable[[], None]) -> None:
    """Publish what a killed update had finished."""
    staged = find_next(folder)
    run = read_run(staged) if staged.exists(RUN) else None
    if run is not None and run["status"] == FINISHED:
        publish(folder, check)


def _move(staged: Folder, folder: Folder, record: Any) -> Any:
    """Return a record that names the place of the run where it named the place in which it was made."""
    return json.loads(json.dumps(record).replace(json.dumps(staged.uri)[1:-1], json.dumps(folder.uri)[1:-1]))


def _show(folder: Folder, record: Mapping[str, Any], check: Callable[[], None]) -> None:
    """Replace the files of ``folder`` by those of its newest version."""
    staged, before = find_next(folder), read_manifest(find_place(folder, record[NUMBER] - 1))
    files = read_manifest(staged)
    for name, file in files.items():
        if name not in before or before[name].sha256 != file.sha256:
            link_file(file._replace(uri=folder.at(VERSIONS, OBJECTS, name_object(file))), folder.at(name))
    for name in set(before) - set(files):
        folder.remove(name)
    if staged.exists(REPORT):
        page = staged.read_bytes(REPORT).replace(staged.uri.encode(), folder.uri.encode())
        folder.write_bytes(page, REPORT)
    folder.write_bytes(staged.read_bytes(MANIFEST), MANIFEST)
    check()
    folder.write_json(record, RUN)
