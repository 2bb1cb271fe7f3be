"""Files of published data sets as rows, with the location of each row's image."""

import posixpath
import re
from collections.abc import Callable, Iterator
from inspect import isfunction
from zlib import crc32

from raycomp.config.own_code import call_own, is_own, load_own
from raycomp.continual.layouts import clevr, clove, construct_vl, mit_states, vaw, vqacl
from raycomp.continual.layouts.row import Row
from raycomp.data.folder import Folder
from raycomp.data.image_folder import list_classes
from raycomp.data.paths import join_uri
from raycomp.evaluation.images import find_images

Read = Callable[[Folder, str, str], Iterator[Row]]
OF_FILES: dict[str, Read] = {one.NAME: one.read for one in (clevr, vaw, construct_vl, clove, vqacl)}
"""Layouts that are one file; the images are in the file's folder unless another folder is named."""
OF_FOLDERS: dict[str, Read] = {mit_states.NAME: mit_states.read}
"""Layouts that are a folder with all their files."""
PAIRS, CLASSES = "pairs", "classes"
TEMPLATE = "a photo of a {}."
OPTIONS = ("layout", "images", "part", "template")
"""Optional fields of a json file's task, in addition to its name and inputs."""
LAYOUTS: dict[str, tuple[str, ...]] = {
    CLASSES: ("template", "part"),
    **dict.fromkeys(OF_FILES, ("images", "part")),
    **dict.fromkeys(OF_FOLDERS, ("part",)),
}
"""By the name of a layout, its own fields. ``images``: the folder of the images; by default the folder of the
file. ``template``: the caption of a class, where {} stands for its name. ``part``: I/N, the I-th of N tasks
into which one data set is split by its objects."""
OF_OWN = ("images", "part")
"""Fields of a layout of the user's own, FILE.py:NAME."""
_PART = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})", re.ASCII)
Placed = tuple[Row, str | None]
"""A row and its image file; None if the file is missing."""


def read_layout(
    layout: str,
    spec: str,
    half: str,
    images: str | None = None,
    part: str | None = None,
    template: str = TEMPLATE,
) -> list[Placed]:
    """Return the rows of a layout. ``half``: train or test, where one place has both.

    Raises ValueError if a file, a field or all images are missing, or no row is left.
    """
    if layout == CLASSES:
        placed = _read_classes(spec, template)
    elif layout in OF_FOLDERS:
        folder = Folder(spec)
        if not folder.is_folder():
            raise ValueError("is not a folder")
        placed = _place(list(OF_FOLDERS[layout](folder, "", half)), folder)
    else:
        folder, name = Folder(posixpath.dirname(spec)), posixpath.basename(spec)
        rows = (_read_own if is_own(layout) else _read_file)(layout, folder, name, half)
        placed = _place(rows, Folder(images or folder.uri))
    chosen = placed if part is None else _choose(placed, part)
    if not chosen:
        raise ValueError(f"has no {half} row" + (f" in part={part}" if part else ""))
    return chosen


def _read_file(layout: str, folder: Folder, name: str, half: str) -> list[Row]:
    return list(OF_FILES[layout](folder, name, half))


def _read_own(layout: str, folder: Folder, name: str, half: str) -> list[Row]:
    """Return the rows that the user's function yields for a file of ``folder``. Raises ValueError, one line,
    where the function fails or yields something else."""
    read = load_own("layout", layout)
    if not isfunction(read):
        raise ValueError(f"layout={layout}: must name a function in that file")
    rows = call_own("layout", layout, lambda: list(read(folder, name, half)))
    for row in rows:
        if not isinstance(row, Row):
            raise ValueError(f"layout={layout}: must yield Row, yielded {row!r:.80}")
    return rows


def _place(rows: list[Row], folder: Folder) -> list[Placed]:
    uris = find_images(folder, [row.image for row in rows]).uris
    return [(row, uris.get(row.image)) for row in rows]


def _read_classes(spec: str, template: str) -> list[Placed]:
    """Return the images of a folder for every class, whose name is the one primitive."""
    if template.count("{}") != 1:
        raise ValueError(f"template={template!r}: must have {{}} once, where the name of a class belongs")
    try:
        classes = list_classes(spec)
    except OSError as error:
        raise ValueError(f"cannot be listed: {' '.join(str(error).split())}") from error
    if not classes:
        raise ValueError("must be a folder with a folder of images for every class")
    return [
        (Row(path, template.replace("{}", name), (name,)), join_uri(spec, path))
        for own, paths in classes.items()
        for name in (own.replace("_", " "),)
        for path in paths
    ]


def _choose(placed: list[Placed], part: str) -> list[Placed]:
    """Return the rows whose last primitive, the object they describe, belongs to a part; the same in both
    halves."""
    match = _PART.fullmatch(part)
    number, num = map(int, match.groups()) if match else (1, 0)
    if not 1 <= number <= num:
        raise ValueError(f"part={part!r}: must be I/N with I from 1 to N, as in 2/4")
    if any(row.primitives is None for row, _ in placed):
        raise ValueError(f"part={part!r}: only layouts that name their primitives have parts; remove part")
    return [
        (row, uri)
        for row, uri in placed
        if row.primitives and crc32(row.primitives[-1].encode()) % num == number - 1
    ]
