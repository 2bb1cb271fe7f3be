"""Single images as input: listed in a CSV, TSV or json file, or each with a text of its own name.

A list is read row by row; images are opened by a few threads ahead of the reader. The key of a sample is its
image's path as it is written, with ``#1`` and so on for further captions of the image, so that a uid depends
neither on the order of the rows nor on the other files. Pairs of a list that have one image have one
``image_id``, made of its path: a field of their json, unless the list has a column of this name.
"""

import csv
import errno
import io
import json
import os
import posixpath
import re
import stat
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from raycomp import words
from raycomp.data import samples
from raycomp.data.files import list_folder
from raycomp.data.samples import MAX_MEMBER_BYTES
from raycomp.data.stores import ShardPath, join_uri, resolve

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_MAGIC = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}
LISTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
# Of each list the first column that a file has is used.
IMAGE_COLUMNS = ("image", "image_path", "filepath", "file_name", "filename", "file", "path", "jpg", "png")
CAPTION_COLUMNS = ("caption", "text", "txt", "TEXT", "captions", "title")
_THREADS = 8
_AHEAD = 64
_LARGEST_LIST = 1 << 28
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][-+]?\d{1,3})?")


def open_image(filesystem: fs.FileSystem, folder: str, path: str, root: str | None) -> bytes | str:
    """Return the bytes of a file, or the status of the sample where it cannot be read.

    A relative ``path`` is taken from ``root`` if there is one, else from ``folder``. It must resolve, links
    followed, to a regular file below ``folder`` or ``root``; larger than MAX_MEMBER_BYTES it is too large.
    OSErrors of the storage pass through.
    """
    bases = [folder]
    if root is not None:
        filesystem, base = resolve(root)
        bases = [base, folder]
    whole = posixpath.normpath(posixpath.join(bases[0], path))
    if "\0" in path or not any(_is_below(whole, base) for base in bases):
        return words.IMAGE_PATH_REFUSED
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            return _read_local(whole, bases)
        with filesystem.open_input_file(whole) as file:
            return file.read() if file.size() <= MAX_MEMBER_BYTES else words.IMAGE_TOO_LARGE
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) or error.errno in _NO_FILE
        if is_missing or filesystem.get_file_info(whole).type == fs.FileType.Directory:
            return words.IMAGE_FILE_MISSING
        raise


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _read_local(path: str, bases: list[str]) -> bytes | str:
    """Opening a pipe would wait forever; opening a device may have any effect."""
    folder, name = posixpath.split(path)
    # The real path of a folder is found once, as most files of a list share a few.
    is_odd = name in ("", ".", "..") or os.path.islink(path)
    real = os.path.realpath(path) if is_odd else posixpath.join(_resolve_folder(folder), name)
    if not any(_is_below(real, _resolve_folder(base)) for base in bases):
        return words.IMAGE_PATH_REFUSED if os.path.exists(real) else words.IMAGE_FILE_MISSING
    info = os.stat(real)
    if not stat.S_ISREG(info.st_mode):
        return words.IMAGE_FILE_MISSING
    if info.st_size > MAX_MEMBER_BYTES:
        return words.IMAGE_TOO_LARGE
    with open(real, "rb", buffering=0) as file:
        return file.read()


@lru_cache(maxsize=4096)
def _resolve_folder(folder: str) -> str:
    return os.path.realpath(folder)


def make_members(row: samples.SampleRow) -> dict[str, bytes]:
    """Return the members {extension: bytes} of a row in a tar: image, txt and json."""
    members = {} if row.image is None else {_sniff(row.image): row.image}
    if row.caption is not None:
        members["txt"] = row.caption.encode()
    return {**members, "json": (row.json or "{}").encode()}


def _sniff(image: bytes) -> str:
    """Return the file extension of an image by its first bytes, else jpg."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "webp"
    if image[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    return next((extension for magic, extension in _MAGIC.items() if image.startswith(magic)), "jpg")


class Entry(NamedTuple):
    """A row of a list: an image's path, its captions, and all its fields. ``fault``: its status, if bad."""

    path: str | None
    captions: Sequence[Any]
    fields: dict[str, Any]
    fault: str | None = None
    names: tuple[str, ...] = ()
    """The columns of the row."""


def read_listed(shard: ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield the samples of a list, or of images with texts, as tables of SAMPLE_SCHEMA.

    A row whose json does not parse is ``bad_json``; an image outside the folder of the list, and of
    ``columns.root``, is ``image_path_refused``, one that is not there ``image_file_missing``. Columns of a
    CSV are text, or numbers where they are written as json writes them. A list that is not text, or json of
    another form, gives one unreadable_shard row. Errors of the file system pass through.
    """
    return samples.cut_blocks(_read_rows(shard), shard, block_rows)


def extract_listed(shard: ShardPath, positions: Collection[int]) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (position, {extension: bytes}) of the samples at ``positions``: image, txt and json members."""
    for position, row in enumerate(_read_rows(shard, set(positions))):
        if position in positions:
            yield position, make_members(row)


def _read_rows(shard: ShardPath, wanted: set[int] | None = None) -> Iterator[samples.SampleRow]:
    """Yield the samples; with ``wanted``, images of other positions are not opened."""
    folders = dict.fromkeys(map(posixpath.dirname, shard.members))
    # The files next to the images, relative to the shard's folder: one listing of each folder.
    names = {
        posixpath.join(folder, name)
        for folder in folders
        for name in list_folder(join_uri(shard.uri, folder))
    }
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[tuple[Any, ...]] = deque()
        opened: Any = (None, None)  # the last entry, and its image: further captions do not read it again
        for position, (key, caption, entry) in enumerate(_list_samples(shard)):
            is_read = wanted is None or position in wanted
            if is_read and opened[0] is not entry:
                opened = entry, pool.submit(_open, shard, entry, names)
            waiting.append((key, caption, entry, opened[1] if is_read else None))
            if len(waiting) > _AHEAD:
                yield _make_row(shard, *waiting.popleft())
        while waiting:
            yield _make_row(shard, *waiting.popleft())


def _list_samples(shard: ShardPath) -> Iterator[tuple[str, Any, Entry]]:
    """Yield (key, caption, entry) of each caption that is used."""
    seen: Counter[str] = Counter()
    for number, entry in enumerate(list_entries(shard)):
        name = entry.path or f"row-{number:09d}"
        for caption in choose_captions(entry.captions, shard.columns.captions):
            count, seen[name] = seen[name], seen[name] + 1
            yield f"{name}#{count}" if count else name, caption, entry


def choose_captions(captions: Sequence[Any], how: str) -> list[Any]:
    """Return the captions that make pairs: the first, the longest or all; one None where there is none."""
    texts: list[Any] = [text for text in captions if isinstance(text, str)] or [None]
    if how == "all":
        return texts
    return [max(texts, key=lambda text: len(text or ""))] if how == "longest" else texts[:1]


def _open(
    shard: ShardPath, entry: Entry, names: set[str]
) -> tuple[bytes | str, Sequence[Any] | None, dict[str, Any]]:
    """Return the image, and for images with texts the caption and the fields of their own files."""
    if entry.path is None:
        return words.NO_IMAGE, None, entry.fields
    filesystem, path = resolve(shard.uri)
    folder = path if shard.members else posixpath.dirname(path)
    image = open_image(filesystem, folder, entry.path, shard.columns.root)
    if not shard.members:
        return image, None, entry.fields
    stem = posixpath.splitext(entry.path)[0]
    found = [
        open_image(filesystem, folder, name, None) if name in names else None
        for name in (f"{stem}.txt", f"{stem}.json")
    ]
    text, own = (one if isinstance(one, bytes) else None for one in found)
    return image, [text], samples.parse_object(own)[1] or {}


def _make_row(shard: ShardPath, key: str, caption: Any, entry: Entry, opened: Any) -> samples.SampleRow:
    fields, image = entry.fields, entry.fault
    if opened is not None:
        found, own, fields = opened.result()
        image = image or found
        caption = caption if own is None else own[0]
    if entry.path is not None and not shard.members:
        fields = {words.IMAGE_ID: samples.sample_uid(shard.base or shard.name, entry.path), **fields}
    return samples.make_row(shard, key, fields, caption, image, False)


def list_entries(shard: ShardPath) -> Iterator[Entry]:
    """Yield the rows of a list, or an entry for every image with a text."""
    if shard.members:
        yield from (Entry(name, [None], {}) for name in shard.members)
        return
    filesystem, path = resolve(shard.uri)
    extension = posixpath.splitext(path)[1].lower()
    try:
        with filesystem.open_input_stream(path) as stream:
            yield from _READERS[extension](stream, shard)
    except csv.Error:
        yield Entry(None, [None], {}, words.UNREADABLE_SHARD)


def _read_csv(stream: Any, shard: ShardPath) -> Iterator[Entry]:
    """Bytes that are not UTF-8 stay in the text as halves of surrogate pairs, which no caption may have."""
    delimiter = "," if shard.uri.lower().endswith(".csv") else "\t"
    text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    csv.field_size_limit(1 << 24)
    for row in csv.DictReader(text, delimiter=delimiter, restkey="", restval=None):
        row.pop("", None)
        image = find_column(row, shard.columns.image, IMAGE_COLUMNS)
        fields = {name: _read_value(value) for name, value in row.items() if name != image}
        caption = find_column(row, shard.columns.caption, CAPTION_COLUMNS)
        yield Entry(row.get(image or "") or None, [row.get(caption or "")], fields, names=tuple(row))


def _read_value(text: str | None) -> Any:
    """Return a number that is written as json writes it, None for an empty text, else the text."""
    if not text:
        return None
    return json.loads(text) if _NUMBER.fullmatch(text) else text


def _read_lines(stream: Any, shard: ShardPath) -> Iterator[Entry]:
    for line in io.BufferedReader(stream):
        if line.strip():
            yield _to_entry(samples.parse_object(line.removeprefix(b"\xef\xbb\xbf"))[1], shard)


def _read_json(stream: Any, shard: ShardPath) -> Iterator[Entry]:
    """A list of objects, an object of captions by file, or COCO's images and annotations."""
    data = stream.read(_LARGEST_LIST)
    try:
        records = list_records(json.loads(data))
    except (ValueError, RecursionError):
        records = None
    if records is None:
        yield Entry(None, [None], {}, words.UNREADABLE_SHARD)
    yield from (_to_entry(fields, shard) for fields in records or ())


def list_records(found: Any) -> list[Any] | None:
    """Return the rows of a json file: a list, captions by image, or COCO's format; None for another form.

    In COCO's format each image is a row with all its captions.
    """
    if not isinstance(found, dict):
        return found if isinstance(found, list) else None
    if not isinstance(found.get("annotations"), list):
        return [{"file_name": name, "caption": value} for name, value in found.items()]
    captions: dict[Any, list[Any]] = {}
    for one in found["annotations"]:
        if isinstance(one, dict):
            captions.setdefault(one.get("image_id"), []).append(one.get("caption"))
    images = [one for one in found.get("images", ()) if isinstance(one, dict)]
    return [{**one, "caption": captions.get(one.get("id"), [])} for one in images]


def _to_entry(fields: Any, shard: ShardPath) -> Entry:
    if not isinstance(fields, dict):
        return Entry(None, [None], {}, words.BAD_JSON)
    image = find_column(fields, shard.columns.image, IMAGE_COLUMNS)
    caption = fields.get(find_column(fields, shard.columns.caption, CAPTION_COLUMNS) or "")
    path = fields.get(image or "")
    own = {name: value for name, value in fields.items() if name != image}
    captions = caption if isinstance(caption, list) else [caption]
    return Entry(path if isinstance(path, str) else None, captions, own, names=tuple(fields))


def find_column(names: Iterable[str], own: str | None, known: Sequence[str]) -> str | None:
    """Return the column that an option names, or else the first known one; None where it is not there."""
    there = set(names)
    return next((name for name in ([own] if own else known) if name in there), None)


_READERS = dict(zip(LISTS, (_read_csv, _read_csv, _read_lines, _read_lines, _read_json), strict=True))
