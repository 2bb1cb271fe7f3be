"""Versions of a run's folder: what it held after each update.

``DIR@3`` is the third version of the run in ``DIR``. Its record and manifest are in ``DIR/versions/3``. The
files are in ``DIR/versions/objects``, by SHA-256 and name, each once for all versions that have it: on a disk
as a hard link to the file in ``DIR``, in a store as a copy. So readers of a version are not disturbed by an
update.
"""

from collections.abc import Mapping
from typing import Any

from raycomp.data.files import link_file
from raycomp.data.folder import Folder
from raycomp.data.manifest import MANIFEST, OBJECTS, name_object, read_manifest
from raycomp.data.paths import RUN, VERSIONS
from raycomp.data.written import Written

NUMBER = "version"
"""In run.json: the number of the version that the folder holds, from 1; absent before the first update."""
NEXT = "next"
"""The folder below ``versions`` in which an update works."""


def list_versions(folder: Folder) -> list[int]:
    """Return the numbers of the complete versions of a run's folder, in order."""
    names = Folder(folder.at(VERSIONS)).list_folders()
    numbers = sorted(int(name) for name in names if name.isdigit())
    return [number for number in numbers if folder.exists(VERSIONS, str(number), RUN)]


def find_place(folder: Folder, number: int) -> Folder:
    """Return the folder of a version's record and manifest."""
    return Folder(folder.at(VERSIONS, str(number)))


def keep_version(folder: Folder, source: Folder, record: Mapping[str, Any]) -> None:
    """Keep the finished run in ``source`` as a version of ``folder``: its files, then manifest and record.

    ``record``: its run.json with the number of the version. Safe to repeat.
    """
    place = find_place(folder, record[NUMBER])
    there = set(Folder(folder.at(VERSIONS, OBJECTS)).list_folders())
    for file in read_manifest(source).values():
        if file.sha256 not in there or not folder.exists(VERSIONS, OBJECTS, name_object(file)):
            link_file(file, folder.at(VERSIONS, OBJECTS, name_object(file)))
    place.write_bytes(source.read_bytes(MANIFEST), MANIFEST)
    place.write_json({**record, OBJECTS: f"../{OBJECTS}"}, RUN)


def list_objects(folder: Folder) -> dict[str, Written]:
    """Return the files of all versions by the name of their object."""
    found: dict[str, Written] = {}
    for number in list_versions(folder):
        files = read_manifest(find_place(folder, number)).values()
        found |= {name_object(file): file for file in files}
    return found


def drop_objects(folder: Folder) -> int:
    """Remove the files that no version has; return their number."""
    wanted = set(list_objects(folder))
    objects = Folder(folder.at(VERSIONS, OBJECTS))
    unused = [name for name in objects.find_names() if name not in wanted]
    for name in unused:
        objects.remove(name)
    for name in {name.partition("/")[0] for name in unused} - {name.partition("/")[0] for name in wanted}:
        objects.remove(name)
    return len(unused)
