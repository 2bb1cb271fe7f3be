"""Where the images of a benchmark lie: published names looked for below one folder."""

import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from raycomp.shards.folder import Folder


@dataclass(frozen=True)
class FoundImages:
    """What became of each image name: each is in one of the three, in the order asked for."""

    uris: dict[str, str]
    """The file that each name found stands for."""
    missing: tuple[str, ...]
    ambiguous: tuple[str, ...]
    """Names that several files could be meant by; none of them is taken."""


def find_images(folder: Folder, names: Iterable[str]) -> FoundImages:
    """Look for image names, such as ``VG_100K/2.jpg``, below a folder on a disk or a store, listed once.

    A name is the file of just this path; else the one whose path ends so; else the one of that base name.
    So the published layout will do, at any depth, and so will a flat folder. Extensions may be upper case.
    Hidden files and folders (``.name``) are passed over, and a file that links lead to, too, is one. Raises
    ValueError where there is no folder, it cannot be listed, or none of the files is there.
    """
    wanted = list(dict.fromkeys(names))
    paths = _list_paths(folder)
    exact = set(paths)
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        by_name[_fold(path).rpartition("/")[2]].append(path)
    matches = {
        name: [name] if name in exact else _drop_links(folder, _match(name, by_name)) for name in wanted
    }
    uris = {name: folder.at(found[0]) for name, found in matches.items() if len(found) == 1}
    ambiguous = tuple(name for name, found in matches.items() if len(found) > 1)
    if wanted and not uris:
        told = f"has none of the {len(wanted):,} images looked for, such as {wanted[0]}"
        several = f"; of {len(ambiguous):,} there is more than one file" if ambiguous else ""
        raise ValueError(f"{folder.uri}: {told}, among its {len(paths):,} files{several}")
    return FoundImages(uris, tuple(name for name, found in matches.items() if not found), ambiguous)


def _list_paths(folder: Folder) -> list[str]:
    try:
        if not folder.exists():
            raise ValueError(f"{folder.uri}: is not a folder; it should hold the images")
        names = folder.find_names()
    except NotADirectoryError:
        raise ValueError(f"{folder.uri}: is a file; images are read from a folder, so unpack it") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{folder.uri}: holds a file whose name is not UTF-8: {error.object!r:.200}"
        ) from error
    except OSError as error:
        raise ValueError(f"{folder.uri}: cannot be listed: {error}") from error
    return [name for name in names if not any(part.startswith(".") for part in name.split("/"))]


def _match(name: str, by_name: dict[str, list[str]]) -> list[str]:
    """Return the files that a name may mean: those whose path ends with all of it, else its last part."""
    folded = _fold(name)
    candidates = by_name.get(folded.rpartition("/")[2], [])
    return [path for path in candidates if f"/{_fold(path)}".endswith(f"/{folded}")] or candidates


def _drop_links(folder: Folder, paths: list[str]) -> list[str]:
    """Return paths without those that lead to the file of an earlier one."""
    if len(paths) < 2 or not folder.is_local:
        return paths
    files: dict[str, str] = {}
    for path in paths:
        files.setdefault(os.path.realpath(folder.at(path)), path)
    return list(files.values())


def _fold(path: str) -> str:
    """Return the path with its extension in lower case."""
    stem, extension = posixpath.splitext(path)
    return stem + extension.lower()
