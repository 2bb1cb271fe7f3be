"""Images in a folder for every class: the layout of torchvision's ImageFolder."""

import posixpath

from pyarrow import fs

from raycomp.data.files import list_below
from raycomp.data.inputs import FORMATS
from raycomp.data.paths import resolve
from raycomp.data.tar import IMAGE_EXTENSIONS


def list_classes(folder: str) -> dict[str, list[str]] | None:
    """Return by class the images anywhere below its folder, relative to ``folder``; both in order of name.

    Hidden files and folders, and files without an image extension, are skipped. None where ``folder`` is not
    a folder, or holds shards and no such images. One listing; raises OSError where it fails.
    """
    filesystem, path = resolve(folder)
    if filesystem.get_file_info(path).type != fs.FileType.Directory:
        return None
    classes: dict[str, list[str]] = {}
    has_shards = False
    for name, info in list_below(folder):
        extension = posixpath.splitext(name)[1].lower()
        own, _, file = name.partition("/")
        if name.startswith(".") or "/." in name:
            continue
        has_shards |= info.is_file and extension in FORMATS
        if info.type == fs.FileType.Directory:
            classes.setdefault(own, [])
        elif file and extension[1:] in IMAGE_EXTENSIONS:
            classes.setdefault(own, []).append(name)
    if has_shards and not any(classes.values()):
        return None
    return {own: sorted(classes[own]) for own in sorted(classes)}
