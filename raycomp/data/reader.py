"""Reads any input shard as rows, and the original members of chosen samples.

Single images, listed in a CSV, TSV or json file or each with a text of its own name, are read here: a list
row by row; images are opened by a few threads ahead of the reader. The key of a sample is its
image's path as it is written, with ``#1`` and so on for further captions of the image, so that a uid depends
neither on the order of the rows nor on the other files. Pairs of a list that have one image have one
``image_id``, made of its path: a field of their json, unless the list has a column of this name.
"""

import csv
import io
import json
import os
import posixpath
import re
import tarfile
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, groupby, islice
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from raycomp import words
from raycomp.data import samples
from raycomp.data.files import Folder, resolve
from raycomp.data.inputs import FOLDER, IMAGE_EXTENSIONS, LIST, LISTS, ShardPath, pair_texts, refuse_input
from raycomp.data.parquet import read_columns
from raycomp.data.parquet_input import add_embeddings, extract_table, read_table
from raycomp.data.samples import CAPTION_COLUMNS, decode_text, find_column, parse_object
from raycomp.words import OFFSET

# Bytes requested from the storage at once while a tar is streamed: requests to S3 cost time; on a disk memory
# beyond the processor's cache does.
_DISK_BUFFER_BYTES = 512 << 10
_S3_BUFFER_BYTES = 8 << 20
_END_OF_TAR = bytes(1024)
Offsets = Sequence[int | None]
"""The column ``offset`` of a shard's rows."""
Item = TypeVar("Item")
Shards = Sequence[ShardPath]
# Two more attempts: an error arrives here only after the storage's own retries failed.
READ_ATTEMPTS = 3
# Doubled before the last attempt: a hung disk or mount is back within some seconds.
READ_PAUSE_S = 5.0
# Waiting does not fix these.
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
_THREADS = 8
_AHEAD = 64
_LARGEST_LIST = 1 << 28
_LONGEST_FIELD = 1 << 24
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][-+]?\d{1,3})?")
_ROWS, _MEMBERS, _SHARDS, _HEAD_BYTES = 16, 64, 4, 512
# What files are whose name says something else, by their first bytes.
_KINDS: dict[tuple[bytes, ...], str] = {
    (b"version https://git-lfs",): "is a git-lfs pointer, not the file itself; fetch it: git lfs pull",
    (b"\x1f\x8b", b"(\xb5/\xfd", b"\xfd7zXZ", b"BZh"): "is compressed; unpack it (gunzip, unzstd, unxz)",
    (b"PK\3\4", b"7z\xbc\xaf"): "is a zip or 7z archive; unpack it and name its folder",
    (b"ARROW1", b"\xff" * 4): "is an Arrow IPC file; write it as Parquet",
    (b"PAR1",): "is Parquet without its end, or of another name; download it again, or name it .parquet",
    (b"\xff\xfe", b"\xfe\xff"): "is UTF-16, must be UTF-8; convert it: iconv -f utf-16 -t utf-8",
    (b"<",): "is html or xml, such as the error page of a download; download it again",
}
_LINK = "is a link to {}, out of its folder; copy the folder: cp -rL FOLDER NEW"
_JSON = "a .jsonl has an object in each line; a .json a list of them, captions by file, or COCO's format"


def read_shard(shard: ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield every sample of a shard, good or bad, as tables of SAMPLE_SCHEMA; see read_tar and read_table.

    Stored embeddings add a column ``image_embedding``; see add_embeddings. Of a list a row whose json does
    not parse is ``bad_json``; an image outside the folder of the list, and of ``columns.root``, is
    ``image_path_refused``, one that is not there ``image_file_missing``. Columns of a CSV are text, or
    numbers where they are written as json writes them. A list that is not text, or json of another form,
    gives one unreadable_shard row. Repeated calls yield equal tables. Raises OSError where the storage fails.
    """
    if shard.format in (LIST, FOLDER):
        yield from samples.cut_blocks(_read_rows(shard), shard, block_rows)
        return
    filesystem, path = resolve(shard.uri)
    if shard.format == "tar":
        with filesystem.open_input_stream(path, buffer_size=_buffer_bytes(filesystem)) as stream:
            yield from samples.read_tar(stream, shard, block_rows)
    else:
        with filesystem.open_input_file(path) as file:
            tables = read_table(file, shard, block_rows, filesystem)
            yield from tables if shard.embeddings is None else add_embeddings(tables, shard)


def extract(
    shard: ShardPath, positions: Collection[int], offsets: Offsets | None = None
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (position, {extension: original bytes}) of the samples at ``positions``, in order of position.

    A sample of a Parquet shard gets the members it would have in a tar: image, txt, json. Of a tar whose
    ``offsets`` are known only the bytes of these samples are read, and gaps that are cheaper to read than to
    pass over; a tar of which more than half is wanted is read from its start.
    """
    if shard.format in (LIST, FOLDER):
        rows = enumerate(_read_rows(shard, set(positions)))
        yield from ((place, samples.make_members(row)) for place, row in rows if place in positions)
        return
    filesystem, path = resolve(shard.uri)
    with filesystem.open_input_file(path) as file:
        if shard.format != "tar":
            yield from extract_table(file, shard, positions, filesystem)
            return
        size, buffer_bytes = file.size(), _buffer_bytes(filesystem)
        ranges = [] if offsets is None else plan_ranges(positions, offsets, buffer_bytes // 2)
        lengths = [(size if end is None else min(end, size)) - start for _, start, end, _ in ranges]
        if offsets is None or sum(lengths) > size / 2:
            yield from samples.extract_tar(
                pa.BufferedInputStream(file.get_stream(0, size), buffer_bytes), positions
            )
            return
        for (first, start, end, wanted), length in zip(ranges, lengths, strict=True):
            if length > 0:
                part = pa.BufferedInputStream(file.get_stream(start, length), min(buffer_bytes, length))
                yield from samples.extract_tar(part if end is None else _Ended(part), wanted, first)


def read_offsets(scores: str) -> Offsets | None:
    """Return the offsets of a scores file's rows; None without a tar."""
    column = read_columns(scores, [OFFSET])[OFFSET]
    return column.to_pylist() if column.null_count < len(column) else None


def plan_ranges(
    positions: Collection[int], offsets: Offsets, gap_bytes: int
) -> list[tuple[int, int, int | None, list[int]]]:
    """Return the ranges of a tar with the samples at ``positions``: (first sample, start, end, positions).

    Samples are read together where less than ``gap_bytes`` lie between them. The last sample of a tar ends at
    its end (None). Whether it is whole may depend on the sample before it, which is read as well.
    """
    found: list[tuple[int, int, int | None, list[int]]] = []
    known = len(offsets) - sum(offset is None for offset in offsets)
    for position in sorted(position for position in positions if position < known):
        is_last = position == known - 1
        first = max(0, position - is_last)
        start, end = offsets[first], None if is_last else offsets[position + 1]
        assert start is not None, "samples come before the rows without offset"
        if found and found[-1][2] is not None and start - found[-1][2] < gap_bytes:
            found[-1][3].append(position)
            found[-1] = (*found[-1][:2], end, found[-1][3])
        else:
            found.append((first, start, end, [position]))
    return found


class _Ended:
    """A part of a tar that ends between two samples, followed by the end marker of a tar."""

    def __init__(self, part: Any):
        self.part, self.end = part, _END_OF_TAR

    def read(self, num_bytes: int) -> bytes:
        data = self.part.read(num_bytes)
        if len(data) < num_bytes:
            data, self.end = data + self.end[: num_bytes - len(data)], self.end[num_bytes - len(data) :]
        return data


def _buffer_bytes(filesystem: fs.FileSystem) -> int:
    return _DISK_BUFFER_BYTES if isinstance(filesystem, fs.LocalFileSystem) else _S3_BUFFER_BYTES


def read_again(
    read: Callable[[Item], Iterator[pa.Table]], item: Item, first_pause_s: float = READ_PAUSE_S
) -> Iterator[pa.Table]:
    """Yield the tables of ``read(item)``; after an OSError read again, skipping the yielded tables."""
    num_yielded = 0
    for attempt in range(READ_ATTEMPTS):
        try:
            for i, table in enumerate(read(item)):
                if i >= num_yielded:
                    num_yielded += 1
                    yield table
            return
        except _FINAL:
            raise
        except OSError:
            if attempt == READ_ATTEMPTS - 1:
                raise
            time.sleep(first_pause_s * 2**attempt)


class Entry(NamedTuple):
    """A row of a list: an image's path, its captions, and all its fields. ``fault``: its status, if bad."""

    path: str | None
    captions: Sequence[Any]
    fields: dict[str, Any]
    fault: str | None = None
    names: tuple[str, ...] = ()
    """The columns of the row."""
    line: int | None = None
    """The line of the list, where it is all that names a row."""


def _read_rows(shard: ShardPath, wanted: set[int] | None = None) -> Iterator[samples.SampleRow]:
    """Yield the samples; with ``wanted``, images of other positions are not opened."""
    texts = pair_texts(shard.texts, shard.members)
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[tuple[Any, ...]] = deque()
        opened: Any = (None, None)  # the last entry, and its image: further captions do not read it again
        for position, (key, caption, entry) in enumerate(_list_samples(shard)):
            is_read = wanted is None or position in wanted
            if is_read and opened[0] is not entry:
                opened = entry, pool.submit(_open, shard, entry, texts)
            waiting.append((key, caption, entry, opened[1] if is_read else None))
            if len(waiting) > _AHEAD:
                yield _make_row(shard, *waiting.popleft())
        while waiting:
            yield _make_row(shard, *waiting.popleft())


def _list_samples(shard: ShardPath) -> Iterator[tuple[str, Any, Entry]]:
    """Yield (key, caption, entry) of each caption that is used."""
    seen: Counter[str] = Counter()
    how = shard.columns.captions
    for number, entry in enumerate(list_entries(shard)):
        name = entry.path or (f"line-{entry.line:09d}" if entry.line else f"row-{number:09d}")
        texts: list[Any] = [text for text in entry.captions if isinstance(text, str)]
        used = (
            texts
            if how == "all"
            else [samples.find_longest(texts)]
            if how == "longest" and texts
            else texts[:1]
        )
        for caption in used or [None]:
            count, seen[name] = seen[name], seen[name] + 1
            yield f"{name}#{count}" if count else name, caption, entry


def count_samples(shards: Sequence[ShardPath]) -> dict[int, int] | None:
    """Return the number of samples of each shard by its ordinal, None where one is in a store or damaged.

    Nothing but names, headers and lists is read.
    """
    counts = {}
    for shard in shards:
        filesystem, path = resolve(shard.uri)
        if not isinstance(filesystem, fs.LocalFileSystem):
            return None
        try:
            if shard.format == "parquet":
                counts[shard.ordinal] = pq.read_metadata(path).num_rows
            elif shard.format == "tar":
                counts[shard.ordinal] = samples.count_tar(path)
            else:
                counts[shard.ordinal] = sum(1 for _ in _list_samples(shard))
        except (OSError, ValueError, tarfile.TarError, pa.ArrowException):
            return None
    return counts


class _Opened(NamedTuple):
    """The image of an entry, or its status; of an image with texts also what its own files hold."""

    image: bytes | str
    captions: Sequence[Any] | None
    fields: dict[str, Any]
    has_bad_json: bool = False


def _open(shard: ShardPath, entry: Entry, texts: Mapping[str, list[str]]) -> _Opened:
    if entry.path is None:
        return _Opened(words.NO_IMAGE, None, entry.fields)
    filesystem, path = resolve(shard.uri)
    if not shard.members:
        folder = posixpath.dirname(path)
        return _Opened(
            samples.open_image(filesystem, folder, entry.path, shard.columns.root), None, entry.fields
        )

    def read(name: str) -> bytes | str:
        return samples.open_image(filesystem, path, name, None)

    is_text = entry.path.lower().endswith(".txt")
    own = {posixpath.splitext(name)[1].lower(): read(name) for name in texts[entry.path]}
    text = read(entry.path) if is_text else own.get(".txt")
    described = own.get(".json")
    fields = samples.parse_object(described)[1] if isinstance(described, bytes) else {}
    image = words.NO_IMAGE if is_text else read(entry.path)
    return _Opened(image, [text if isinstance(text, bytes) else None], fields or {}, fields is None)


def _make_row(shard: ShardPath, key: str, caption: Any, entry: Entry, opened: Any) -> samples.SampleRow:
    fields, image, is_bad = entry.fields, entry.fault, False
    if opened is not None:
        found, own, fields, is_bad = opened.result()
        image = image or found
        caption = caption if own is None else own[0]
    if entry.path is not None and not shard.members:
        fields = {words.IMAGE_ID: samples.sample_uid(shard.base or shard.name, entry.path), **fields}
    return samples.make_row(shard, key, fields, caption, image, is_bad)


def list_entries(shard: ShardPath) -> Iterator[Entry]:
    """Yield the rows of a list, or an entry for every image with a text."""
    if shard.members:
        yield from (Entry(name, [None], {}) for name in shard.members)
        return
    filesystem, path = resolve(shard.uri)
    extension = posixpath.splitext(path)[1].lower()
    with filesystem.open_input_stream(path) as stream:
        for entry in _READERS[extension](stream, shard):
            is_bad = bool(entry.path) and samples.decode_text(entry.path) is None
            yield entry._replace(path=None, fault=words.BAD_ENCODING) if is_bad else entry


class _Lines:
    """The lines of a text, with those that were taken since the last record began, and can be given back."""

    def __init__(self, text: Iterator[str]):
        self.text, self.back = text, deque[str]()
        self.taken: list[str] = []
        self.number = 0
        """Lines that belong to finished records."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.back.popleft() if self.back else next(self.text)
        self.taken.append(line)
        return line

    def end_record(self, num_lines: int) -> None:
        """Count lines of a record, and give back those after them."""
        self.number += num_lines
        self.back.extendleft(reversed(self.taken[num_lines:]))
        self.taken = []


def _split_records(text: Iterator[str], has_quotes: bool, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, fields) of each record that is not blank; no fields for a line whose
    quote is not closed. The line after that is a record again: no row is swallowed."""
    quoting: Any = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    lines = _Lines(text)
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            if not lines.taken:
                return
            yield lines.number + 1, []
            lines.end_record(1)
            reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
            continue
        if row:
            yield lines.number + 1, row
        lines.end_record(len(lines.taken))


def _read_csv(stream: Any, shard: ShardPath) -> Iterator[Entry]:
    """Bytes that are not UTF-8 stay in the text as halves of surrogate pairs, which no caption may have."""
    is_csv, has_quotes = shard.uri.lower().endswith(".csv"), shard.columns.quotes
    text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    first = next(text, "").lstrip("\ufeff")
    # open_clip's lists have tabs, and a spreadsheet of a country with decimal commas has semicolons.
    delimiter = next((one for one in ",\t;" if one in first), ",") if is_csv else "\t"
    records = _split_records(chain([first], text), is_csv if has_quotes is None else has_quotes, delimiter)
    _, header = next(records, (0, []))
    columns = [number for number, name in enumerate(header) if name]
    names = tuple(header[number] for number in columns)
    image = samples.find_column(names, shard.columns.image, samples.IMAGE_COLUMNS)
    caption = samples.find_column(names, shard.columns.caption, samples.CAPTION_COLUMNS)
    for line, row in records:
        if len(row) != len(header):
            yield Entry(None, [None], {}, words.BAD_ROW, line=line)
            continue
        values = {header[number]: row[number] for number in columns}
        fields: dict[str, Any] = {name: value or None for name, value in values.items() if name != image}
        for name, value in fields.items():
            if value and _NUMBER.fullmatch(value):
                fields[name] = json.loads(value)
        yield Entry(values.get(image or "") or None, [values.get(caption or "")], fields, names=names)


def _read_lines(stream: Any, shard: ShardPath) -> Iterator[Entry]:
    for line in io.BufferedReader(stream):
        if line.strip():
            yield _to_entry(samples.parse_object(line)[1], shard)


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
    """Return the rows of a json file: a list, captions by image, COCO's format or that of Karpathy's splits;
    None for another form.

    In COCO's format each image is a row with all its captions; so are those of an image that is not listed.
    In Karpathy's, images have sentences, and a ``split``.
    """
    if not isinstance(found, dict):
        return found if isinstance(found, list) else None
    images = found["images"] if isinstance(found.get("images"), list) else []
    if any(isinstance(one, dict) and isinstance(one.get("sentences"), list) for one in images):
        return [_from_karpathy(one) if isinstance(one, dict) else one for one in images]
    if not isinstance(found.get("annotations"), list):
        rows = {name: one if isinstance(one, dict) else {"caption": one} for name, one in found.items()}
        return [{"file_name": name, **row} for name, row in rows.items()]
    captions: dict[Any, list[Any]] = {}
    for one in found["annotations"]:
        if isinstance(one, dict):
            captions.setdefault(str(one.get("image_id")), []).append(one.get("caption"))
    images = [one for one in found.get("images", ()) if isinstance(one, dict)]
    listed = {str(one.get("id")) for one in images}
    lost = [{"image_id": name, "caption": texts} for name, texts in captions.items() if name not in listed]
    return [*({**one, "caption": captions.get(str(one.get("id")), [])} for one in images), *lost]


def _from_karpathy(image: dict[str, Any]) -> dict[str, Any]:
    folder, name = image.get("filepath"), image.get("filename")
    path = posixpath.join(folder, name) if isinstance(folder, str) and isinstance(name, str) else name
    said = [one.get("raw") for one in image.get("sentences") or () if isinstance(one, dict)]
    own = {key: value for key, value in image.items() if key not in ("filepath", "filename", "sentences")}
    return {"file_name": path, "caption": said, **own}


def _to_entry(fields: Any, shard: ShardPath) -> Entry:
    if not isinstance(fields, dict):
        return Entry(None, [None], {}, words.BAD_JSON)
    image = samples.find_column(fields, shard.columns.image, samples.IMAGE_COLUMNS)
    caption = fields.get(samples.find_column(fields, shard.columns.caption, samples.CAPTION_COLUMNS) or "")
    path = fields.get(image or "")
    path = path[0] if isinstance(path, list) and len(path) == 1 else path
    own = {name: value for name, value in fields.items() if name != image}
    captions = caption if isinstance(caption, list) else [caption]
    return Entry(path if isinstance(path, str) and path else None, captions, own, names=tuple(fields))


_READERS = dict(zip(LISTS, (_read_csv, _read_csv, _read_lines, _read_lines, _read_json), strict=True))


def explain_faults(shards: Shards) -> str:
    """Return what is wrong with one of the first shards, after "; "; nothing where it cannot be seen."""
    with suppress(OSError, samples.BrokenShard):
        return next((f"; {cause}" for shard in shards[:_SHARDS] if (cause := _explain_shard(shard))), "")
    return ""


def _name_kind(head: bytes) -> str | None:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return next((said for magic, said in _KINDS.items() if start.startswith(magic)), None)


def _explain_shard(shard: ShardPath) -> str | None:
    filesystem, path = resolve(shard.uri)
    statuses, folder = set(), path if shard.members else posixpath.dirname(path)
    for row in next(read_shard(shard, _ROWS)).to_pylist():
        place = posixpath.join(folder, row[words.KEY])
        if row[words.STATUS] == words.IMAGE_PATH_REFUSED and os.path.islink(place):
            return f"image {row[words.KEY]} {_LINK.format(os.readlink(place))}"
        if row[words.IMAGE] and (said := _name_kind(row[words.IMAGE])):
            return f"image {row[words.KEY]} {said}"
        statuses.add(row[words.STATUS])
    if shard.members or words.OK in statuses:
        return None
    with filesystem.open_input_stream(path) as file:
        if not statuses.isdisjoint((*words.SHARD_STATUSES, words.BAD_JSON, words.BAD_ROW)):
            line, *_ = head = bytes(file.read(_HEAD_BYTES)).lstrip().split(b"\n")
            start = f"starts with {line[:20] + b' ... ' + line[-9:]!r}" if any(head) else "is empty, 0 bytes"
            more = f"; {_JSON}" if "json" in shard.name else ""
            return f"{shard.name} {_name_kind(line) or start}{more}"
        if shard.format != "tar":
            return None
        names = [name for name, *_ in islice(samples.iter_members(file), _MEMBERS)]
    if max(Counter(key for key, _ in groupby(posixpath.splitext(name)[0] for name in names)).values()) > 1:
        said = "sort them: mkdir NEW; tar -xf OLD.tar -C NEW; tar --sort=name -cf NEW.tar -C NEW ."
        return f"{shard.name} has the members of a sample, such as {names[0]}, not in a row; {said}"
    said = f"a sample is an image ({', '.join(IMAGE_EXTENSIONS[:4])} ...) and its .txt or .json, next to it"
    return f"{shard.name} starts with {', '.join(names[:3])}; {said}, of one name up to the first dot"


def _explain_paths(shard: ShardPath, images: Sequence[str]) -> str | None:
    """Return why no image is at the paths of a list, and the cure; None where one is there."""
    filesystem, path = resolve(shard.uri)
    folder, root = posixpath.dirname(path), shard.columns.root
    is_there = lambda one: isinstance(samples.open_image(filesystem, folder, one, root), bytes)  # noqa: E731
    if any(map(is_there, images)):
        return None
    image, place = images[0], posixpath.join(root or folder, images[0])
    if isinstance(filesystem, fs.LocalFileSystem) and os.path.islink(place):
        return f"{image!r} {_LINK.format(os.readlink(place))}"
    if "." not in image and (len(image) > 200 or shard.uri.lower().endswith(".json")):
        return f"{image[:24]!r} is not a path; images are bytes, or paths of files; {_JSON}"
    for other in (image.replace("\\", "/"), image.strip(), re.sub(r"#\d+$", "", image)):
        if other != image and is_there(other):
            return f"such as {image!r}, but {other!r} is; write its paths so"
    there = Folder(posixpath.dirname(shard.uri))
    inner = [there.at(name) for name in there.list_folders() if there.exists(name, image)]
    cure = f"add --columns.root {inner[0]}" if len(inner) == 1 else "set columns.root to their folder"
    return f"such as {image[:80]!r} below {root or folder}; {cure}"


def _explain_names(shard: ShardPath, names: Sequence[str]) -> str | None:
    """Return why a table has no column of images or captions, where that can be seen."""
    if any(re.search(r"\||^https?://|\.(jpe?g|png|webp|gif)$", name, re.IGNORECASE) for name in names):
        return f"its first line is {', '.join(names)[:60]}; write a header such as image,caption"
    folder, name = posixpath.split(posixpath.splitext(shard.uri)[0])
    if name in Folder(folder).list_folders():
        return f"it describes images of its folder, input={folder}/{name}"
    is_stored = shard.format != LIST and Folder(folder).exists(f"{name}.npz")
    said = f"its embeddings are in {name}.npz: set prepare.stored_embeddings to the name of their array"
    return said if is_stored else None


def _say_column(name: str) -> str:
    """Return a column's name, in quotes where white space belongs to it."""
    return name if name == name.strip() and name.isprintable() else repr(name)


def check_tables(shards: Sequence[ShardPath], needs_captions: bool = True) -> None:
    """Raise ValueError where the first table of a kind lacks a column, or its images are urls.

    It reads the first rows of one file of each kind.
    """
    tables: dict[str, ShardPath] = {}
    for shard in shards:
        if shard.format in (LIST, "parquet") and shard.embeddings is None:
            tables.setdefault(posixpath.splitext(shard.uri)[1].lower(), shard)
    for shard in tables.values():
        if shard.format == LIST:
            entries = [entry for entry in islice(list_entries(shard), _ROWS) if entry.fault is None]
            names = list(dict.fromkeys(name for entry in entries for name in entry.names))
            images = [entry.path for entry in entries if entry.path]
        else:
            entries, (names, images) = [], _read_parquet(shard)
        if not names:
            continue  # an empty or unreadable table has a status of its own
        is_csv = shard.uri.lower().endswith((".csv", ".tsv"))
        if is_csv and (kind := _name_kind(names[0].encode(errors="surrogateescape"))):
            raise refuse_input(shard.uri, kind)
        columns = {"image": (shard.columns.image, samples.IMAGE_COLUMNS)}
        if needs_captions:
            columns["caption"] = shard.columns.caption, samples.CAPTION_COLUMNS
        for what, (own, usual) in columns.items():
            name = samples.find_column(names, own, usual)
            if name and entries and entries[0].names.count(name) > 1:
                raise refuse_input(shard.uri, f"has two columns {name}; rename one")
            if name is None:
                missing = f"no column {own}" if own else f"none of the columns {', '.join(usual)}"
                there = ", ".join(map(_say_column, names))[:300]
                said = f"name the {what} column by columns.{what}, its columns are {there}"
                raise refuse_input(shard.uri, f"has {missing}; {_explain_names(shard, names) or said}")
        url = next((image for image in images if image.startswith(("http://", "https://"))), None)
        if url is not None:
            said = f"its images are urls, such as {url[:80]!r}"
            raise refuse_input(shard.uri, f"{said}; download first, for instance with img2dataset")
        if images and (cause := _explain_paths(shard, images)):
            raise refuse_input(shard.uri, f"none of its first images is there, {cause}")


def _read_parquet(shard: ShardPath) -> tuple[list[str], list[str]]:
    """Return a file's columns, and the paths of its first images, if they are paths."""
    filesystem, path = resolve(shard.uri)
    try:
        with filesystem.open_input_file(path) as file:
            parquet = pq.ParquetFile(file)
            names = parquet.schema_arrow.names
            used = (
                shard.columns.image,
                shard.columns.caption,
                *samples.IMAGE_COLUMNS,
                *samples.CAPTION_COLUMNS,
            )
            if twice := next((name for name in names if name in used and names.count(name) > 1), None):
                raise refuse_input(shard.uri, f"has two columns {twice}; rename one")
            image = samples.find_column(names, shard.columns.image, samples.IMAGE_COLUMNS)
            kind = parquet.schema_arrow.field(image).type if image else pa.null()
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            is_text = str(kind) in ("string", "large_string", "string_view")
            first = next(parquet.iter_batches(_ROWS, columns=[image]), None) if is_text else None
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return [], []
    return names, [] if first is None else [path for path in first.column(0).to_pylist() if path]


def list_captions(caption: str, text: str | None, shard: ShardPath) -> list[str]:
    """Return the captions of an image: the json's ``captions``, else a table's list, else the caption.

    With ``columns.captions`` other than first, the caption is the one that makes the pair.
    """
    columns = shard.columns
    if (
        text is None
        or columns.captions != "first"
        or (shard.format == "tar" and f'"{words.CAPTIONS}"' not in text)
    ):
        return [caption]
    own = parse_object(text)[1] or {}
    lists = [own.get(words.CAPTIONS)]
    if shard.format in ("parquet", LIST):
        column = find_column(own, columns.caption, CAPTION_COLUMNS)
        lists = [own.get(column or "")] if columns.caption else [*lists, own.get(column or "")]
    for values in lists:
        texts = [decode_text(value) for value in values] if isinstance(values, list) else []
        found = [value for value in texts if value and value.strip()]
        if found:
            return found
    return [caption]
