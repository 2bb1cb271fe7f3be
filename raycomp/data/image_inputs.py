"""Inputs that are no shards: lists of single images, and folders of images with texts of their own names."""

import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.config.shared import ColumnsConfig
from raycomp.data import listed, table
from raycomp.data.listed import LISTS, find_column, list_entries
from raycomp.data.paths import ShardPath, resolve
from raycomp.data.single import open_image
from raycomp.data.tar import IMAGE_EXTENSIONS
from raycomp.table import group_by

# Formats of shards: a list of images, or a part of a folder whose images have texts of their own names.
LIST, FOLDER = "list", "folder"
PART_IMAGES = 1000
"""Images of a folder that make a shard."""
_TEXTS = (".txt", ".json")
_ROWS = 16


def is_list(uri: str) -> bool:
    """Return whether a file lists images by its name; other json files may be anything."""
    stem, extension = posixpath.splitext(posixpath.basename(uri).lower())
    return extension in LISTS and (extension != ".json" or stem.startswith(("captions", "metadata")))


def list_images(files: Iterable[str]) -> list[str]:
    """Return the files that have the extension of an image."""
    return [file for file in files if posixpath.splitext(file)[1].lower()[1:] in IMAGE_EXTENSIONS]


def describe_files(item: str, files: Sequence[str], wanted: Iterable[str]) -> str:
    """Return what lies in ``item`` instead of files that end in one of ``wanted``."""
    kinds = Counter(posixpath.splitext(file)[1].lower() or "no extension" for file in files)
    there = ", ".join(f"{count:,} of {kind}" for kind, count in kinds.most_common(4))
    found = f"there are {there}" if there else "it is empty"
    return f"{item} names no file that ends in one of {', '.join([*wanted, *LISTS[:-1]])}; {found}"


def part_images(
    pattern: str, uri: str, files: Iterable[str], prefix: str, columns: ColumnsConfig
) -> list[ShardPath]:
    """Return shards of the images among ``files``, names below the folder ``uri``, by sub-folder.

    Uids are made of the input's name and the image's path; they do not depend on the other files. Raises
    ValueError where no image has a text of its own name.
    """
    names = sorted(files)
    images = list_images(names)
    texts = {name for name in names if name.endswith(_TEXTS)}
    if not any(f"{posixpath.splitext(name)[0]}.txt" in texts for name in images):
        raise ValueError(
            f"input={pattern!r}: holds {len(images):,} images and no captions; write captions.csv with the "
            f"columns file_name and caption, or a .txt of the same name next to each image"
        )
    shards = []
    for folder, inside in group_by(images, posixpath.dirname).items():
        for start in range(0, len(inside), PART_IMAGES):
            name = posixpath.join(prefix + folder, f"images-{start // PART_IMAGES:05d}")
            members = tuple(inside[start : start + PART_IMAGES])
            stems = dict.fromkeys(posixpath.splitext(member)[0] for member in members)
            own = tuple(f"{stem}{kind}" for stem in stems for kind in _TEXTS if f"{stem}{kind}" in texts)
            base = f"{prefix}images"
            shards.append(ShardPath(0, uri, name, FOLDER, None, None, columns, members, own, base))
    return shards


def check_tables(shards: Sequence[ShardPath], needs_captions: bool = True) -> None:
    """Raise ValueError where the first table of a kind lacks a column, or its images are urls.

    It reads the first rows of one file of each kind.
    """
    tables: dict[str, ShardPath] = {}
    for shard in shards:
        if shard.format in (LIST, "parquet") and shard.embeddings is None:
            tables.setdefault(posixpath.splitext(shard.uri)[1].lower(), shard)
    for shard in tables.values():
        names, images = _read_list(shard) if shard.format == LIST else _read_parquet(shard)
        if not names:
            continue  # an empty or unreadable table has a status of its own
        known = listed if shard.format == LIST else table
        _check_column(shard, "image", shard.columns.image, known.IMAGE_COLUMNS, names)
        if needs_captions:
            _check_column(shard, "caption", shard.columns.caption, known.CAPTION_COLUMNS, names)
        url = next((image for image in images if image.startswith(("http://", "https://"))), None)
        if url is not None:
            said = f"its images are urls, such as {url[:80]!r}"
            raise ValueError(f"input={shard.uri!r}: {said}; download first, for instance with img2dataset")
        _check_paths(shard, images)


def _check_paths(shard: ShardPath, images: Sequence[str]) -> None:
    """Raise ValueError where none of the images is there."""
    filesystem, path = resolve(shard.uri)
    folder, root = posixpath.dirname(path), shard.columns.root
    opened = (open_image(filesystem, folder, image, root) for image in images)
    if images and not any(isinstance(one, bytes) for one in opened):
        raise ValueError(
            f"input={shard.uri!r}: none of its first images is there, such as {images[0][:80]!r} below "
            f"{root or folder}; set columns.root to their folder"
        )


def _check_column(
    shard: ShardPath, what: str, own: str | None, known: Sequence[str], names: Sequence[str]
) -> None:
    if find_column(names, own, known) is None:
        missing = f"no column {own}" if own else f"none of the columns {', '.join(known)}"
        raise ValueError(
            f"input={shard.uri!r}: has {missing}; name the {what} column by columns.{what}, its columns are "
            f"{', '.join(names)[:300]}"
        )


def _read_list(shard: ShardPath) -> tuple[list[str], list[str]]:
    """Return the columns of the first rows of a list, and the paths of their images."""
    entries = [entry for entry in islice(list_entries(shard), _ROWS) if entry.fault is None]
    return list(dict.fromkeys(name for entry in entries for name in entry.names)), [
        entry.path for entry in entries if entry.path
    ]


def _read_parquet(shard: ShardPath) -> tuple[list[str], list[str]]:
    """Return a file's columns, and the paths of its first images, if they are paths."""
    filesystem, path = resolve(shard.uri)
    try:
        with filesystem.open_input_file(path) as file:
            parquet = pq.ParquetFile(file)
            names = parquet.schema_arrow.names
            image = find_column(names, shard.columns.image, table.IMAGE_COLUMNS)
            is_text = image and pa.types.is_string(parquet.schema_arrow.field(image).type)
            first = next(parquet.iter_batches(_ROWS, columns=[image]), None) if is_text else None
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return [], []
    return names, [] if first is None else [path for path in first.column(0).to_pylist() if path]
