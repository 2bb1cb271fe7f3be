"""Samples as rows of SAMPLE_SCHEMA: each sample's status and uid, and blocks with deterministic cuts.

WebDataset tars are read as rows with a status, and written so that equal samples give equal bytes. tarfile
takes about five times as long for web-sized images, nearly all of it on headers. This module reads plain
headers; tarfile's own parser reads the others.
"""

import errno
import hashlib
import html
import io
import json
import math
import os
import posixpath
import re
import stat
import tarfile
import unicodedata
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from raycomp import words
from raycomp.data.files import new_file, resolve
from raycomp.data.inputs import IMAGE_EXTENSIONS, ShardPath
from raycomp.schema import SAMPLE_SCHEMA
from raycomp.words import TRUNCATED_SHARD, UNREADABLE_SHARD

# A block ends at this many bytes, however few rows that is.
BLOCK_BYTES = 64 << 20
# Maximum nesting of lists and objects. Python's own json is limited by the stack, here and in every reader of
# the output; a sample's json has three or four levels.
MAX_DEPTH = 100
_UID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_UID_BYTES = 16
# A larger member is skipped and counts as broken: no file may exhaust the memory of a worker.
MAX_MEMBER_BYTES = 1 << 30
_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_PIECE = 16 << 20
_MAX_NAME_BYTES = 1 << 20
_REGULAR = (b"0", b"\0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")
_LINKS = _HARD_LINK, _SYMBOLIC_LINK = (b"1", b"2")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL, _PAX_SOLARIS = b"L", b"K", b"x", b"g", b"X"
_ABOUT_NEXT = (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL, _PAX_SOLARIS)
_PAX_LENGTH = re.compile(rb"(\d{1,9}) ")
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
# The file extension of an image by its first bytes.
_MAGIC = re.compile(
    rb"(?P<webp>RIFF.{4}WEBP)|(?P<avif>.{4}ftypavi[fs])|(?P<jpg>\xff\xd8\xff)|(?P<png>\x89PNG)|(?P<gif>GIF8)"
    rb"|(?P<bmp>BM)|(?P<tif>II\*\0|MM\0\*)",
    re.DOTALL,
)
# The real path of a folder is found once, as most files of a list share a few.
_resolve_folder = lru_cache(maxsize=4096)(os.path.realpath)
# Of each, in this order, the first column of a table that it has is used, whatever the table's format.
IMAGE_COLUMNS = tuple("image jpg jpeg png webp image_path filepath file_name filename file path".split())
CAPTION_COLUMNS = ("caption", "text", "txt", "TEXT", "captions", "title")


class SampleRow(NamedTuple):
    """One sample, good or bad, or (with key "") a shard-level error."""

    key: str
    status: str
    uid: str
    url: str | None = None
    caption: str | None = None
    image: bytes | None = None
    json: str | None = None
    offset: int | None = None
    """Of a tar: the byte at which the sample's headers begin."""


class BrokenShard(Exception):
    """A shard cannot be read further; ``status`` is that of the row which takes the place of the rest.

    Of a tar ``cut_member`` names the member whose data ends early, None where the cut is between members (or
    in a header, or absent). ``ended``: the end marker was read, so every member before it is complete.
    """

    def __init__(self, status: str, cut_member: str | None = None, ended: bool = False):
        super().__init__(status)
        self.status, self.cut_member, self.ended = status, cut_member, ended


def sample_uid(shard_name: str, key: str, own: Any = None) -> str:
    """Return the uid of a sample: 32 hex digits.

    ``own`` if it is a uid (see parse_uid), else the first 16 bytes of SHA-256 over ``shard_name``, one zero
    byte and ``key``, both in UTF-8.
    """
    return parse_uid(own) or hashlib.sha256(f"{shard_name}\0{key}".encode()).hexdigest()[:32]


def parse_uid(own: Any) -> str | None:
    """Return a uid as 32 lower-case hex digits; None where ``own`` is not a uid.

    A uid is 16 bytes, a UUID, or a text (bytes or str) of 32 hex digits, with a UUID's dashes or without.
    """
    if isinstance(own, uuid.UUID):
        return own.hex
    if isinstance(own, bytes) and len(own) == _UID_BYTES:
        return own.hex()
    text = decode_text(own) if own else None
    return text.replace("-", "").lower() if text and _UID.fullmatch(text) else None


def parse_object(text: bytes | str | None) -> tuple[str | None, dict[str, Any] | None]:
    """Return a json object as text and as dict; (None, None) where ``text`` is anything else.

    Numbers that json does not allow (NaN, Infinity, 1e400) are read as Python reads them; of a repeated key
    the last value counts; see to_json. Nesting deeper than MAX_DEPTH, or a whole number of more than 4,300
    digits, gives (None, None).
    """
    if text is None:
        return None, None
    try:
        text = (text.decode() if isinstance(text, bytes) else text).lstrip(_MARK)
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(fields, dict):
        return None, None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        level: list[Any] = [fields]
        for _ in range(MAX_DEPTH):
            nested = [inner for inner in level if isinstance(inner, dict | list)]
            level = [v for inner in nested for v in (inner.values() if isinstance(inner, dict) else inner)]
        if any(isinstance(inner, dict | list) for inner in level):
            return None, None
    return text, fields


def to_json(value: Any) -> str:
    """Return ``value`` as json that every reader accepts and UTF-8 can encode.

    Converted by plain; halves of surrogate pairs become ``?``.
    """
    return json.dumps(to_json_value(value), ensure_ascii=False).encode("utf-8", "replace").decode()


def to_json_value(value: Any) -> Any:
    """Return ``value`` with null for bytes and numbers that are not finite, and text for types json lacks.

    Raises RecursionError where it is nested some hundred times.
    """
    if isinstance(value, dict):
        return {str(name): to_json_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def decode_text(text: Any) -> str | None:
    """Return ``text`` (UTF-8 bytes or str) as a str that UTF-8 can encode; None for any other value.

    Byte order marks at its start are left out.
    """
    try:
        if isinstance(text, bytes):
            return text.decode().lstrip(_MARK)
        text.encode()
    except (UnicodeError, AttributeError):
        return None
    return text.lstrip(_MARK)


def first_text(value: Any) -> str | bytes | None:
    """Return a text; for a list, as of an image with several captions, its first; None without one."""
    values = value if isinstance(value, list) else [value]
    return next((item for item in values if isinstance(item, str | bytes)), None)


def find_longest(texts: Iterable[Any]) -> str | bytes | None:
    """Return the text of most letters, None where there is no text."""
    found = (text for text in texts if isinstance(text, str | bytes))
    return max(found, key=lambda text: len(decode_text(text) or ""), default=None)


def shows_something(text: str) -> bool:
    """Whether a letter, number, sign or symbol of a text is seen once HTML's entities are read.

    Blanks of any kind, marks, controls and fillers show nothing.
    """
    if text[:1].isascii() and text[:1].isalnum():
        return True
    seen = html.unescape(html.unescape(text))
    return any(unicodedata.category(letter)[0] in "LNPS" and letter not in _FILLERS for letter in seen)


def check_sample(has_image: bool, has_caption: bool, caption: str | None, bad_json: bool) -> str:
    """Return the first fault of a sample: of its image, then its caption (None if undecodable), its json."""
    if not has_image:
        return words.NO_IMAGE
    if not has_caption:
        return words.NO_CAPTION
    if caption is None:
        return words.BAD_ENCODING
    if not shows_something(caption):
        return words.EMPTY_CAPTION
    return words.BAD_JSON if bad_json else words.OK


def make_row(
    shard: ShardPath, key: str, fields: dict[str, Any], found: Any, image: bytes | str | None, bad_json: bool
) -> SampleRow:
    """Return the row of a list or table: its ``fields``, its caption as it was ``found``, its image.

    ``image`` is a text, the sample's status, where it cannot be read. Where the shard's embeddings are stored
    none is needed.
    """
    caption = decode_text(found)
    if image in (None, words.NO_IMAGE) and str(fields.get("status")).startswith("failed_to_"):
        image = words.NOT_DOWNLOADED
    has_image = image is not None or shard.embeddings is not None
    status = check_sample(has_image, found is not None, caption, bad_json)
    return SampleRow(
        key,
        image if isinstance(image, str) else status,
        sample_uid(shard.base or shard.name, key, fields.get("uid")),
        find_url(fields),
        caption,
        image if isinstance(image, bytes) else None,
        to_json(fields),
    )


def cut_blocks(rows: Iterable[SampleRow], shard: ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield the rows of one shard as tables of SAMPLE_SCHEMA, numbered from 0, the last one marked.

    A block ends at ``block_rows`` rows or BLOCK_BYTES, never by time: a restarted reader yields equal blocks.
    Where ``rows`` raise BrokenShard a row of its status is the last one. A shard without rows gets one row
    with the status empty_shard.
    """

    def read_whole() -> Iterator[SampleRow]:
        status: str | None = words.EMPTY_SHARD
        try:
            for row in rows:
                status = None
                yield row
        except BrokenShard as broken:
            status = broken.status
        if status:
            yield SampleRow("", status, sample_uid(shard.name, ""))

    def to_table(is_last: bool) -> pa.Table:
        columns: dict[str, Any] = dict(zip(SampleRow._fields, zip(*block, strict=True), strict=True))
        columns[words.SHARD] = [shard.name] * len(block)
        columns[words.SHARD_ORDINAL] = [shard.ordinal] * len(block)
        columns[words.POSITION] = range(position, position + len(block))
        columns[words.IS_LAST] = [False] * (len(block) - 1) + [is_last]
        return pa.table({field.name: columns[field.name] for field in SAMPLE_SCHEMA}, schema=SAMPLE_SCHEMA)

    block: list[SampleRow] = []
    position, size = 0, 0
    for row in read_whole():
        if len(block) >= block_rows or size >= BLOCK_BYTES:
            yield to_table(False)
            position, size, block = position + len(block), 0, []
        block.append(row)
        size += len(row.image or b"") + len(row.json or "") + len(row.caption or "")
    yield to_table(True)


class Link(NamedTuple):
    """A link in the place of a member's data; ``target`` is the name of the member that it refers to."""

    target: str


# What some programs write at the start of a text in UTF-8.
_MARK = "\ufeff"
# Letters and symbols that are drawn as a blank: Hangul's fillers, Braille's blank.
_FILLERS = "\u115f\u1160\u3164\uffa0\u2800"
# Members of a sample by lower-case extension; None where a member is too large to load, a Link where it
# refers to another sample.
Members = dict[str, bytes | Link | None]


def iter_members(stream: Any) -> Iterator[tuple[str, bytes | Link | None, int]]:
    """Yield (name, data, end) of every regular file and link, data None beyond MAX_MEMBER_BYTES.

    ``end``: the byte behind the data and its padding, where the next member's headers begin. ``stream``
    needs ``read(n)`` only. Bytes of a name that are not UTF-8 become ``\\xNN``. Folders, devices and GNU's
    old sparse files are skipped. Raises BrokenShard unless the tar ends in two zero blocks (nothing else
    shows a cut between two members) with only zeros after them. An empty stream counts as an empty tar.
    """
    header = _read(stream, _BLOCK)
    if not header:
        return
    status = UNREADABLE_SHARD
    long_name = long_link = long_size = None
    end = 0
    while header != _ZEROS:
        own_header = header
        kind, name, size = _parse_header(header, status)
        status = TRUNCATED_SHARD
        if kind not in _ABOUT_NEXT:
            name, size = long_name or name, size if long_size is None else long_size
        size = 0 if kind in _WITHOUT_DATA else size
        data, header = _read_data(stream, name, size, kind)
        end += _BLOCK + -(-size // _BLOCK) * _BLOCK
        if kind == _LONG_NAME:
            long_name = _decode(data or b"")
        elif kind == _LONG_LINK:
            long_link = _decode(data or b"")
        elif kind in (_PAX, _PAX_SOLARIS):
            long_name, long_link, long_size = _parse_pax(data or b"", long_name, long_link)
        elif kind not in _ABOUT_NEXT:
            if kind in _REGULAR:
                yield name, data, end
            elif kind in _LINKS:
                target = long_link or _decode(own_header[157:257])
                if kind == _SYMBOLIC_LINK:
                    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
                yield name, Link(target), end
            long_name = long_link = long_size = None
    # The rest after the first zero block: one more must follow, and only zeros.
    num_zeros = num_others = 0
    while not num_others and (piece := stream.read(_PIECE)):
        num_zeros += piece.count(0)
        num_others += len(piece) - piece.count(0)
    if num_others or num_zeros < _BLOCK:
        raise BrokenShard(TRUNCATED_SHARD, ended=True)


def _parse_header(header: bytes, status: str) -> tuple[bytes, str, int]:
    """Return (type flag, name, size in bytes); raise BrokenShard(status) where this is not a header."""
    if len(header) < _BLOCK:
        raise BrokenShard(status)
    kind = header[156:157]
    # The usual form: no name prefix, and number fields that end as in ustar.
    if kind in _REGULAR and not header[345] and header[135] in b"\0 " and header[154] in b"\0 ":
        try:
            size, checksum = int(header[124:135], 8), int(header[148:154], 8)
        except ValueError:
            size = checksum = -1
        # The checksum adds all bytes, its own field as eight spaces; the lower half of Adler-32 is one more
        # than the sum of all bytes, modulo 65,521.
        total = checksum - 256 + sum(header[148:156])
        name = _decode(header[:100])
        if size >= 0 and zlib.adler32(header) & 0xFFFF == (total + 1) % 65_521 and not name.endswith("/"):
            return kind, name, size
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "backslashreplace")
    except tarfile.HeaderError as error:
        raise BrokenShard(status) from error
    if info.size < 0:
        raise BrokenShard(status)
    return info.type, info.name, info.size


def _read_data(stream: Any, name: str, size: int, kind: bytes) -> tuple[bytes | None, bytes]:
    """Return the data of a member (None where it is too large) and the header after it, short at a cut."""
    padded = -(-size // _BLOCK) * _BLOCK
    if size <= MAX_MEMBER_BYTES and kind not in _ABOUT_NEXT:
        both = _read(stream, padded + _BLOCK)
        if len(both) < size:
            raise BrokenShard(TRUNCATED_SHARD, cut_member=name)
        return both[:size], both[padded:]
    if kind in _ABOUT_NEXT:
        data = _read(stream, padded) if size <= _MAX_NAME_BYTES else b""
        if len(data) < padded:
            raise BrokenShard(TRUNCATED_SHARD)
        return data[:size], _read(stream, _BLOCK)
    while padded:
        piece = stream.read(min(padded, _PIECE))
        if not piece:
            raise BrokenShard(TRUNCATED_SHARD, cut_member=name)
        padded -= len(piece)
    return None, _read(stream, _BLOCK)


def _parse_pax(data: bytes, name: str | None, link: str | None) -> tuple[str | None, str | None, int | None]:
    """Return the path (else ``name``), link (else ``link``) and size that pax sets for the next member."""
    found, position = {}, 0
    while (match := _PAX_LENGTH.match(data, position)) and int(match[1]) > 0:
        key, equals, value = data[match.end() : position + int(match[1]) - 1].partition(b"=")
        if not equals:
            break
        found[key] = value
        position += int(match[1])
    size = found.get(b"size")
    if size is not None and not re.fullmatch(rb"\d{1,18}", size):
        raise BrokenShard(TRUNCATED_SHARD)
    name, link = (
        own if path is None else _decode(path)
        for own, path in ((name, found.get(b"path")), (link, found.get(b"linkpath")))
    )
    return name, link, None if size is None else int(size)


def _decode(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("utf-8", "backslashreplace")


def _read(stream: Any, size: int) -> bytes:
    """Read ``size`` bytes, fewer only at the end of the stream."""
    data = stream.read(min(size, _PIECE))
    if len(data) == size or not data:
        return data
    pieces, missing = [data], size - len(data)
    while missing and (piece := stream.read(min(missing, _PIECE))):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def read_tar(stream: Any, shard: ShardPath, block_rows: int) -> Iterator[pa.Table]:
    """Yield the samples of a tar as tables of SAMPLE_SCHEMA, holding one block at a time.

    ``stream`` is a file object at its start, of which only ``read(n)`` is used. Samples are grouped as
    WebDataset groups them; a repeated key or extension starts a new row. The caption is the ``txt`` member,
    else the json's ``caption``, of a list its first text; uid and url come from the json. A ``cls`` member,
    an image's class, becomes the json's ``cls``. A link to an earlier member of its sample is that member,
    any other makes the sample linked_member. A cut or damaged tar gives its complete samples and one
    truncated_shard row. A file that is not a tar gives one unreadable_shard row, a tar without samples one
    empty_shard row. Errors of the file system pass through.
    """
    samples = _samples(stream)
    found = (_to_row(key, members, shard)._replace(offset=offset) for key, members, offset in samples)
    return cut_blocks(found, shard, block_rows)


def extract_tar(
    stream: Any, positions: Collection[int], first: int = 0
) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Yield (position, {extension: bytes}) of the samples at ``positions``, members in the tar's order.

    The stream begins at the headers of the sample ``first``. Reads up to the last requested position; a
    position beyond the end is not yielded.
    """
    wanted = set(positions)
    last = max(wanted, default=-1)
    try:
        for position, (_, members, _) in enumerate(_samples(stream), first):
            if position in wanted:
                yield position, {name: data for name, data in members.items() if isinstance(data, bytes)}
            if position >= last:
                return
    except BrokenShard:
        return


def write_tar(uri: str, samples: Iterable[tuple[str, dict[str, bytes]]]) -> int:
    """Write (key, {extension: bytes}) samples as a WebDataset tar and return their number.

    Equal samples give equal bytes: no times, no owners. The file appears whole or not at all.
    """
    count = 0
    with new_file(uri) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for key, members in samples:
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            tar.getmembers().clear()  # frees memory: written members are not needed
            count += 1
    return count


def find_url(fields: Mapping[str, Any]) -> str | None:
    """Return the address that an image came from, the first of a list, by the name that has one."""
    url, other = (decode_text(first_text(fields.get(name))) for name in ("url", "URL"))
    return url if url or other is None else other


def find_image(members: Mapping[str, Any]) -> str | None:
    """Return the extension of the image that is scored, None without one."""
    return next((name for name in IMAGE_EXTENSIONS if name in members), None)


def find_caption(members: Mapping[str, Any], own: Mapping[str, Any]) -> str | bytes | None:
    """Return the caption that is scored: the ``txt`` member, else what the sample's json ``own`` says."""
    found = members["txt"] if "txt" in members else first_text(own.get("caption"))
    return found if isinstance(found, str | bytes) else None


def _to_row(key: str, members: Members, shard: ShardPath) -> SampleRow:
    extension = find_image(members)
    image, about = members[extension] if extension else None, members.get("json")
    if isinstance(image, Link) or isinstance(about, Link) or isinstance(members.get("txt"), Link):
        return SampleRow(key, words.LINKED_MEMBER, sample_uid(shard.name, key))
    text, fields = parse_object(about)
    own = fields or {}
    found = find_caption(members, own)
    caption = decode_text(found)
    if extension and image is None:
        status = words.IMAGE_TOO_LARGE
    else:
        has_caption = "txt" in members or found is not None
        status = check_sample(image is not None, has_caption, caption, "json" in members and fields is None)
    if status == words.NO_IMAGE and any(name.rpartition(".")[2] in IMAGE_EXTENSIONS for name in members):
        status = words.AMBIGUOUS_KEY
    uid = sample_uid(shard.name, key, own.get("uid"))
    label = decode_text(members.get("cls"))
    if label is not None:
        text = to_json({**own, "cls": label.strip()})
    return SampleRow(key, status, uid, find_url(own), caption, image, text)


def _samples(stream: Any) -> Iterator[tuple[str, Members, int]]:
    """Yield (key, members, offset) of every whole sample; raise BrokenShard after the last of a broken tar.

    The last sample of a tar that is cut inside a member is whole if that member is not its own. After a cut
    between two members it is whole if it has exactly the extensions of the sample before it.
    """
    key: str | None = None
    members: Members = {}
    previous: Members = {}
    offset = end = 0
    try:
        for name, data, next_end in iter_members(stream):
            start, end = end, next_end
            split = _split(name)
            if split is None or posixpath.basename(name).startswith("._"):
                continue  # of no sample, or of macOS, next to a file
            if split[0] != key or split[1] in members:
                if key is not None:
                    yield key, members, offset
                key, members, previous, offset = split[0], {}, members, start
            if isinstance(data, Link):
                target = _split(data.target)
                if target and target[0] == key and target[1] in members:
                    data = members[target[1]]
            members[split[1]] = data
    except BrokenShard as broken:
        cut = _split(broken.cut_member or "")
        is_next = cut is not None and (cut[0] != key or cut[1] in members)
        is_whole = is_next if cut else members.keys() == previous.keys()
        if key is not None and (broken.ended or is_whole):
            yield key, members, offset
        raise
    if key is not None:
        yield key, members, offset


def count_tar(path: str) -> int:
    """Return how many samples a tar on the disk has; reads headers alone. Raises tarfile.TarError."""
    with tarfile.open(path, "r:") as tar:
        found = [split for member in tar if member.isfile() and (split := _split(member.name))]
    count, last, seen = 0, None, set[str]()
    for key, extension in found:
        if key != last or extension in seen:
            count, last, seen = count + 1, key, set()
        seen.add(extension)
    return count


def _split(name: str) -> tuple[str, str] | None:
    """Return (key, lower-case extension) of a member name, None for one that belongs to no sample.

    WebDataset's rules: the key is all before the first dot of the file name; if the name starts with a dot
    it is the folder, if that has no dot. Names like __this__, or below a folder of such a name, are metadata.
    """
    if name.startswith("__") and (top := name.partition("/")[0]).endswith("__") and len(top) >= 4:
        return None
    folder, slash, file = name.rpartition("/")
    stem, dot, extension = file.partition(".")
    if not dot or not (stem or (slash and "." not in folder.rpartition("/")[2])):
        return None
    return f"{folder}{slash}{stem}", extension.lower()


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


def make_members(row: SampleRow) -> dict[str, bytes]:
    """Return the members {extension: bytes} of a row in a tar: image, txt and json.

    The image's extension follows from its first bytes, else jpg.
    """
    members = {}
    if row.image is not None:
        kind = _MAGIC.match(row.image)
        members[(kind and kind.lastgroup) or "jpg"] = row.image
    if row.caption is not None:
        members["txt"] = row.caption.encode()
    return {**members, "json": (row.json or "{}").encode()}


def find_column(names: Iterable[str], own: str | None, known: Sequence[str]) -> str | None:
    """Return the column that an option names, or else the first known one; None where it is not there."""
    there = set(names)
    return next((name for name in ([own] if own else known) if name in there), None)
