"""WebDataset tars: read as rows with a status, and written so that equal samples give equal bytes."""

import io
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from raycomp import words
from raycomp.data.files import new_file
from raycomp.data.headers import BrokenTar, Link, iter_members
from raycomp.data.paths import ShardPath
from raycomp.data.rows import (
    SampleRow,
    cut_blocks,
    decode_text,
    find_sample_status,
    first_text,
    parse_object,
    sample_uid,
    shard_row,
    to_json,
)

# The first of these extensions that a sample has is its image.
IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jfif")

# Members of a sample by lower-case extension; None where a member is too large to load, a Link where it
# refers to another sample.
Members = dict[str, bytes | Link | None]


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
    return cut_blocks(_rows(stream, shard), shard, block_rows)


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
    except BrokenTar:
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


def _rows(stream: Any, shard: ShardPath) -> Iterator[SampleRow]:
    try:
        for key, members, offset in _samples(stream):
            yield _to_row(key, members, shard)._replace(offset=offset)
    except BrokenTar as broken:
        yield shard_row(shard, broken.status)


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
        status = find_sample_status(
            image is not None, has_caption, caption, "json" in members and fields is None
        )
    if status == words.NO_IMAGE and any(name.rpartition(".")[2] in IMAGE_EXTENSIONS for name in members):
        status = words.AMBIGUOUS_KEY
    uid = sample_uid(shard.name, key, own.get("uid"))
    label = decode_text(members.get("cls"))
    if label is not None:
        text = to_json({**own, "cls": label.strip()})
    return SampleRow(key, status, uid, decode_text(own.get("url")), caption, image, text)


def _samples(stream: Any) -> Iterator[tuple[str, Members, int]]:
    """Yield (key, members, offset) of every whole sample; raise BrokenTar after the last one of a broken tar.

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
            if split is None:
                continue
            if _starts_sample(split, key, members):
                if key is not None:
                    yield key, members, offset
                key, members, previous, offset = split[0], {}, members, start
            members[split[1]] = _follow(data, key, members) if isinstance(data, Link) else data
    except BrokenTar as broken:
        cut = _split(broken.cut_member or "")
        is_whole = _starts_sample(cut, key, members) if cut else members.keys() == previous.keys()
        if key is not None and (broken.ended or is_whole):
            yield key, members, offset
        raise
    if key is not None:
        yield key, members, offset


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


def _follow(link: Link, key: str | None, members: Members) -> bytes | Link | None:
    """Return the member of this sample that a link refers to, else the link."""
    target = _split(link.target)
    return members[target[1]] if target and target[0] == key and target[1] in members else link


def _starts_sample(split: tuple[str, str], key: str | None, members: Members) -> bool:
    return split[0] != key or split[1] in members
