"""The members of a tar stream, read from its 512-byte headers.

tarfile takes about five times as long for web-sized images, nearly all of it on headers. This module reads
plain headers; tarfile's own parser reads the others.
"""

import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from raycomp.words import TRUNCATED_SHARD, UNREADABLE_SHARD

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


class BrokenTar(Exception):
    """The stream is not a tar, or is damaged from some point on.

    ``cut_member`` names the member whose data ends early, None where the cut is between members (or in a
    header, or absent). ``ended``: the end marker was read, so every member before it is complete.
    """

    def __init__(self, status: str, cut_member: str | None = None, ended: bool = False):
        super().__init__(status)
        self.status = status
        self.cut_member = cut_member
        self.ended = ended


class Link(NamedTuple):
    """A link in the place of a member's data; ``target`` is the name of the member that it refers to."""

    target: str


def iter_members(stream: Any) -> Iterator[tuple[str, bytes | Link | None, int]]:
    """Yield (name, data, end) of every regular file and link, data None beyond MAX_MEMBER_BYTES.

    ``end``: the byte behind the data and its padding, where the next member's headers begin. ``stream``
    needs ``read(n)`` only. Bytes of a name that are not UTF-8 become ``\\xNN``. Folders, devices and GNU's
    old sparse files are skipped. Raises BrokenTar unless the tar ends in two zero blocks (nothing else shows
    a cut between two members) with only zeros after them. An empty stream counts as an empty tar.
    """
    header = _read(stream, _BLOCK)
    if not header:
        return
    status = UNREADABLE_SHARD
    long_name: str | None = None
    long_link: str | None = None
    long_size: int | None = None
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
                yield name, _find_target(kind, name, long_link or _decode(own_header[157:257])), end
            long_name = long_link = long_size = None
    _check_tail(stream)


def _parse_header(header: bytes, status: str) -> tuple[bytes, str, int]:
    """Return (type flag, name, size in bytes); raise BrokenTar(status) where this is not a header."""
    if len(header) < _BLOCK:
        raise BrokenTar(status)
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
        raise BrokenTar(status) from error
    if info.size < 0:
        raise BrokenTar(status)
    return info.type, info.name, info.size


def _read_data(stream: Any, name: str, size: int, kind: bytes) -> tuple[bytes | None, bytes]:
    """Return the data of a member (None where it is too large) and the header after it, short at a cut."""
    padded = -(-size // _BLOCK) * _BLOCK
    if size <= MAX_MEMBER_BYTES and kind not in _ABOUT_NEXT:
        both = _read(stream, padded + _BLOCK)
        if len(both) < size:
            raise BrokenTar(TRUNCATED_SHARD, cut_member=name)
        return both[:size], both[padded:]
    if kind in _ABOUT_NEXT:
        data = _read(stream, padded) if size <= _MAX_NAME_BYTES else b""
        if len(data) < padded:
            raise BrokenTar(TRUNCATED_SHARD)
        return data[:size], _read(stream, _BLOCK)
    while padded:
        piece = stream.read(min(padded, _PIECE))
        if not piece:
            raise BrokenTar(TRUNCATED_SHARD, cut_member=name)
        padded -= len(piece)
    return None, _read(stream, _BLOCK)


def _find_target(kind: bytes, name: str, target: str) -> Link:
    if kind == _SYMBOLIC_LINK:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return Link(target)


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
        raise BrokenTar(TRUNCATED_SHARD)
    name, link = (
        own if path is None else _decode(path)
        for own, path in ((name, found.get(b"path")), (link, found.get(b"linkpath")))
    )
    return name, link, None if size is None else int(size)


def _check_tail(stream: Any) -> None:
    """Read the rest after the first zero block: one more must follow, and only zeros."""
    num_zeros = 0
    while piece := stream.read(_PIECE):
        num_zeros += piece.count(0)
        if piece.count(0) < len(piece):
            raise BrokenTar(TRUNCATED_SHARD, ended=True)
    if num_zeros < _BLOCK:
        raise BrokenTar(TRUNCATED_SHARD, ended=True)


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
