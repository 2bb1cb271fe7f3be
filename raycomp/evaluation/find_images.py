"""Finds the images of a benchmark: published names, searched below one folder."""

import os
import posixpath
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from raycomp.data.files import Folder
from raycomp.data.paths import resolve
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.evaluation import Evaluation, Pictures
from raycomp.run.bad_data import check_bad_pictures, describe_dropped


@dataclass(frozen=True)
class FoundImages:
    """The result for each image name: it is in one of the first three fields, in the order requested."""

    uris: dict[str, str]
    """Name found -> its file."""
    missing: tuple[str, ...]
    ambiguous: tuple[str, ...]
    """Names that match several files, or several names that match one file; none of them is used."""
    by_base_name: tuple[str, ...] = ()
    """Names found by base name: their folder is missing, and one file of the same base name exists."""

    def warn_by_base_name(self, said: str) -> list[str]:
        """Return a line on names that were found by base name alone; no line where there are none."""
        if not self.by_base_name:
            return []
        num_all = len(self.uris) + len(self.missing) + len(self.ambiguous)
        counts = f"{len(self.by_base_name):,} of {num_all:,} images"
        return [f"{said}: {counts} were matched by base name only, such as {self.by_base_name[0]}"]


def find_images(folder: Folder, names: Iterable[str]) -> FoundImages:
    """Find image names, such as ``VG_100K/2.jpg``, below a folder on a disk or a store, listed once.

    A name matches the file of exactly this path; else the one file whose path ends so; else the one file of
    that base name, unless another name matches that file, too. So the published layout works at any depth,
    and a flat folder works, too. A name that is absolute or contains ``..`` matches only the file of exactly
    that path, below the folder. Extensions may be upper case. Hidden files and folders (``.name``) are
    skipped, and several links to a file count as one file. Raises ValueError where the folder is missing,
    cannot be listed, or has none of the files.
    """
    wanted = list(dict.fromkeys(names))
    paths = _list_paths(folder)
    named, alike = _match(folder, wanted, paths)
    taken = {_find_file(folder, path) for found in named.values() if alike for path in found}
    wants = Counter(_find_file(folder, found[0]) for found in alike.values() if len(found) == 1)
    uris: dict[str, str] = {}
    missing, ambiguous = [], []
    for name in wanted:
        found = named.get(name) or alike.get(name, [])
        file = _find_file(folder, found[0]) if name in alike else ""
        if len(found) > 1 or wants[file] > 1:
            ambiguous.append(name)
        elif not found or file in taken:
            missing.append(name)
        else:
            uris[name] = folder.at(found[0])
    if wanted and not uris:
        reported = f"none of {len(wanted):,} named images was found, such as {wanted[0]}"
        several = f"; {len(ambiguous):,} names match several files" if ambiguous else ""
        raise ValueError(f"{folder.uri}: {reported}, among its {len(paths):,} files{several}")
    by_base_name = tuple(name for name in uris if name in alike)
    return FoundImages(uris, tuple(missing), tuple(ambiguous), by_base_name)


def _match(
    folder: Folder, names: Sequence[str], paths: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the files that names match by their whole path, and for other names those of the same base name.

    A name without any match is in neither.
    """
    exact = set(paths)
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        by_name[_fold(path).rpartition("/")[2]].append(path)
    named, alike = {}, {}
    for name in names:
        place, is_bound = _place(folder, name)
        others = [] if is_bound else by_name.get(_fold(place).rpartition("/")[2], [])
        ends = [path for path in others if f"/{_fold(path)}".endswith(f"/{_fold(place)}")]
        if place in exact:
            named[name] = [place]
        elif ends:
            named[name] = _drop_links(folder, ends)
        elif others:
            alike[name] = _drop_links(folder, others)
    return named, alike


def _place(folder: Folder, name: str) -> tuple[str, bool]:
    """Return the path of a name below the folder, and whether only exactly that path may match.

    That holds for a name that is absolute or contains ``..``; where it leaves the folder its path is empty.
    """
    if not (name.startswith("/") or "://" in name or ".." in name.split("/")):
        return posixpath.normpath(name), False
    top = resolve(folder.uri)[1].rstrip("/") + "/"
    whole = posixpath.normpath(posixpath.join(top, name.removeprefix(f"{folder.uri.rstrip('/')}/")))
    return whole.removeprefix(top) if whole.startswith(top) else "", True


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


def _drop_links(folder: Folder, paths: list[str]) -> list[str]:
    """Return paths without those that link to the file of an earlier one."""
    if len(paths) < 2 or not folder.is_local:
        return paths
    files: dict[str, str] = {}
    for path in paths:
        files.setdefault(_find_file(folder, path), path)
    return list(files.values())


def _find_file(folder: Folder, path: str) -> str:
    """Return the one file that a path leads to, through links on a disk."""
    return os.path.realpath(folder.at(path)) if folder.is_local else path


def _fold(path: str) -> str:
    """Return the path with its extension in lower case."""
    stem, extension = posixpath.splitext(path)
    return stem + extension.lower()


def check_images(
    evaluations: Iterable[Evaluation], pictures: Pictures, config: EvaluateConfig, say: Callable[[str], None]
) -> list[str]:
    """Report and return a line for every status whose images are left out, per benchmark.

    Raises TooMuchBadData above ``max_missing_fraction`` or ``max_bad_fraction``, after all lines are
    reported, and ValueError where a shard has no sample.
    """
    lines: list[str] = []
    counted: dict[str, Counter[str]] = {}
    for evaluation in evaluations:
        for said, statuses in evaluation.find_statuses(pictures).items():
            counted[said] = Counter(status for _, status in statuses)
            examples = {status: image for image, status in reversed(statuses)}
            lines += describe_dropped(said, counted[said], "images", examples)
    for line in lines:
        say(line)
    for said, counts in counted.items():
        check_bad_pictures(said, counts, config.max_bad_fraction, config.max_missing_fraction)
    return lines
