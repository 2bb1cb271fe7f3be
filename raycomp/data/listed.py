"""Single images as input: listed in a CSV, TSV or json file, or each with a text of its own name.

A list is read row by row; images are opened by a few threads ahead of the reader. The key of a sample is its
image's path as it is written, with ``#1`` and so on for further captions of the image, so that a uid depends
neither on the order of the rows nor on the other files. Pairs of a list that
have one image have one ``image_id``, made of its path: a field of their json, unless the list has a column of
this name.
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
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from raycomp import words
from raycomp.data.files import list_folder
from raycomp.data.paths import ShardPath, join_uri, resolve
from raycomp.data.rows import (
    SampleRow,
    cut_blocks,
    decode_text,
    find_sample_status,
    parse_object,
    sample_uid,
    to_json,
)
from raycomp.data.tar import MAX_MEMBER_BYTES

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
_MAGIC = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


class Fault(Enum):
    """Why a file was not opened."""

    MISSING = "missing"
    """Not a regular file."""
    REFUSED = "refused"
    """Outside the folders that images may lie in, links followed."""
    TOO_LARGE = "too_large"


MISSING, REFUSED, TOO_LARGE = Fault.MISSING, Fault.REFUSED, Fault.TOO_LARGE
Opened = bytes | Fault


def open_image(filesystem: fs.FileSystem, folder: str, path: str, root: str | None) -> Opened:
    """Return the bytes of a file, or why there are none.

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
        return REFUSED
    try:
        if isinstance(filesystem, fs.LocalFileSystem):
            return _read_local(whole, bases)
        with filesystem.open_input_file(whole) as file:
            return file.read() if file.size() <= MAX_MEMBER_BYTES else TOO_LARGE
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) or error.errno in _NO_FILE
        if is_missing or filesystem.get_file_info(whole).type == fs.FileType.Directory:
            return MISSING
        raise


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _read_local(path: str, bases: list[str]) -> Opened:
    """Opening a pipe would wait forever; opening a device may have any effect."""
    real = _resolve_links(path)
    if not any(_is_below(real, _resolve_folder(base)) for base in bases):
        return REFUSED if os.path.exists(real) else MISSING
    info = os.stat(real)
    if not stat.S_ISREG(info.st_mode):
        return MISSING
    if info.st_size > MAX_MEMBER_BYTES:
        return TOO_LARGE
    with open(real, "rb", buffering=0) as file:
        return file.read()


def _resolve_links(path: str) -> str:
    """Return the real path; that of a folder is resolved once, as most files of a list share a few."""
    folder, name = posixpath.split(path)
    if name in ("", ".", "..") or os.path.islink(path):
        return os.path.realpath(path)
    return posixpath.join(_resolve_folder(folder), name)


@lru_cache(maxsize=4096)
def _resolve_folder(folder: str) -> str:
    return os.path.realpath(folder)


def sniff(image: bytes) -> str:
    """Return the file extension of an image by its first bytes, else jpg."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "webp"
    if image[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    return next((extension for magic, extension in _MAGIC.items() if image.startswith(magic)), "jpg")


LISTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
# Of each list the first column that a file has is used.
IMAGE_COLUMNS = ("image", "image_path", "filepath", "file_name", "filename", "file", "path", "jpg", "png")
CAPTION_COLUMNS = ("caption", "text", "txt", "TEXT", "captions", "title")
_THREADS = 8
_AHEAD = 64
_LARGEST_LIST = 1 << 28
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][-+]?\d{1,3})?")
_FAULTS = {MISSING: words.IMAGE_FILE_MISSING, REFUSED: words.IMAGE_PATH_REFUSED}


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
    return cut_blocks(_read_rows(shard), shard, block_rows)


def extract_listed(shard: ShardPath, positions: Collection[int]) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (position, {extension: bytes}) of the samples at ``positions``: image, txt and json members."""
    for position, row in enumerate(_read_rows(shard, set(positions))):
        if position in positions:
            members = {} if row.image is None else {sniff(row.image): row.image}
            if row.caption is not None:
                members["txt"] = row.caption.encode()
            yield position, {**members, "json": (row.json or "{}").encode()}


def _read_rows(shard: ShardPath, wanted: set[int] | None = None) -> Iterator[SampleRow]:
    """Yield the samples; with ``wanted``, images of other positions are not opened."""
    names = _list_names(shard)
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[tuple[Any, Any]] = deque()
        opened: Any = (None, None)  # the last entry, and its image: further captions do not read it again
        for position, sample in enumerate(_list_samples(shard)):
            is_read = wanted is None or position in wanted
            if is_read and opened[0] is not sample.entry:
                opened = sample.entry, pool.submit(_open, shard, sample.entry, names)
            waiting.append((sample, opened[1] if is_read else None))
            if len(waiting) > _AHEAD:
                yield _make_row(shard, *waiting.popleft())
        while waiting:
            yield _make_row(shard, *waiting.popleft())


class _Sample(NamedTuple):
    key: str
    caption: Any
    entry: Entry


def _list_samples(shard: ShardPath) -> Iterator[_Sample]:
    """Yield a sample for each caption that is used, with its key."""
    seen: Counter[str] = Counter()
    for number, entry in enumerate(list_entries(shard)):
        name = entry.path or f"row-{number:09d}"
        for caption in choose_captions(entry.captions, shard.columns.captions):
            count, seen[name] = seen[name], seen[name] + 1
            yield _Sample(f"{name}#{count}" if count else name, caption, entry)


def choose_captions(captions: Sequence[Any], how: str) -> list[Any]:
    """Return the captions that make pairs: the first, the longest or all; one None where there is none."""
    texts: list[Any] = [text for text in captions if isinstance(text, str)] or [None]
    if how == "all":
        return texts
    return [max(texts, key=lambda text: len(text or ""))] if how == "longest" else texts[:1]


def _list_names(shard: ShardPath) -> frozenset[str]:
    """Return the files in the folders of a shard's images, relative to its folder: one listing for each."""
    folders = dict.fromkeys(map(posixpath.dirname, shard.members))
    return frozenset(
        posixpath.join(folder, name)
        for folder in folders
        for name in list_folder(join_uri(shard.uri, folder))
    )


def _open(
    shard: ShardPath, entry: Entry, names: frozenset[str]
) -> tuple[Opened, Sequence[Any] | None, dict[str, Any]]:
    """Return the image, and for images with texts the caption and the fields of their own files."""
    filesystem, folder = _find_folder(shard)
    image = MISSING if entry.path is None else open_image(filesystem, folder, entry.path, shard.columns.root)
    if not shard.members or entry.path is None:
        return image, None, entry.fields
    stem = posixpath.splitext(entry.path)[0]
    text, own = (
        open_image(filesystem, folder, name, None) if name in names else MISSING
        for name in (f"{stem}.txt", f"{stem}.json")
    )
    _, fields = parse_object(own) if isinstance(own, bytes) else (None, {})
    return image, [text if isinstance(text, bytes) else None], {} if fields is None else fields


def _make_row(shard: ShardPath, sample: _Sample, opened: Any) -> SampleRow:
    entry, image = sample.entry, None
    captions, fields, fault = [sample.caption], entry.fields, entry.fault
    if opened is not None:
        found, own, fields = opened.result()
        captions = captions if own is None else own
        image = found if isinstance(found, bytes) else None
        if fault is None and image is None:
            is_large = found is not MISSING and found is not REFUSED
            fault = words.IMAGE_TOO_LARGE if is_large else _FAULTS[found] if entry.path else words.NO_IMAGE
    caption = decode_text(captions[0])
    status = find_sample_status(image is not None, captions[0] is not None, caption, False)
    base = shard.base or shard.name
    if entry.path is not None and not shard.members:
        fields = {words.IMAGE_ID: sample_uid(base, entry.path), **fields}
    return SampleRow(
        sample.key,
        fault or status,
        sample_uid(base, sample.key, fields.get("uid")),
        decode_text(fields.get("url", fields.get("URL"))),
        caption,
        image,
        to_json(fields),
    )


def _find_folder(shard: ShardPath) -> tuple[fs.FileSystem, str]:
    filesystem, path = resolve(shard.uri)
    return filesystem, path if shard.members else posixpath.dirname(path)


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
    except (_NotAList, csv.Error):
        yield Entry(None, [None], {}, words.UNREADABLE_SHARD)


class _NotAList(Exception):
    pass


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
            _, fields = parse_object(line.removeprefix(b"\xef\xbb\xbf"))
            yield Entry(None, [None], {}, words.BAD_JSON) if fields is None else _to_entry(fields, shard)


def _read_json(stream: Any, shard: ShardPath) -> Iterator[Entry]:
    """A list of objects, an object of captions by file, or COCO's images and annotations."""
    data = stream.read(_LARGEST_LIST)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _NotAList from error
    records = list_records(found)
    if records is None:
        raise _NotAList
    for fields in records:
        is_object = isinstance(fields, dict)
        yield _to_entry(fields, shard) if is_object else Entry(None, [None], {}, words.BAD_JSON)


def list_records(found: Any) -> list[Any] | None:
    """Return the rows of a json file: a list, captions by image, or COCO's format; None for another form."""
    if isinstance(found, dict) and isinstance(found.get("annotations"), list):
        return join_coco(found)
    if isinstance(found, dict):
        return [{"file_name": name, "caption": value} for name, value in found.items()]
    return found if isinstance(found, list) else None


def join_coco(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each image of COCO's format, with all its captions."""
    captions: dict[Any, list[Any]] = {}
    for one in found["annotations"]:
        if isinstance(one, dict):
            captions.setdefault(one.get("image_id"), []).append(one.get("caption"))
    images = [one for one in found.get("images", ()) if isinstance(one, dict)]
    return [{**one, "caption": captions.get(one.get("id"), [])} for one in images]


def _to_entry(fields: dict[str, Any], shard: ShardPath) -> Entry:
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
