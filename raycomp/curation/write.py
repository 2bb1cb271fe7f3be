"""Write the kept, scored samples as shards that open_clip reads: enriched json, DataComp layout.

open_clip's reader (webdataset) takes one image named jpg, png, jpeg or webp, in this order. It skips a sample
without an image. It decodes every member that it has a decoder for, and loses the sample if decoding fails.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby, islice
from typing import Any

from raycomp.config import UserError
from raycomp.curation import outputs
from raycomp.curation.outputs import Output, commit_output
from raycomp.curation.score.reuse import OUTPUTS, STATE, Reuse
from raycomp.curation.select.select import SUBSET, Chosen, read_kept
from raycomp.data.files import Folder, Written
from raycomp.data.inputs import IMAGE_EXTENSIONS, ShardPath
from raycomp.data.parquet import read_columns
from raycomp.data.reader import extract, read_offsets
from raycomp.data.samples import decode_text, find_caption, find_image, parse_object
from raycomp.models.images import decode_image, describe_image, encode_png
from raycomp.words import ALIGNMENT, CAPTION, IMAGE_SHA256, MEAN_PAS, POSITION, SCORE, UID

TRAINED_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
# Suffixes for the bytes of a format that were stored under another suffix.
_NAMES = {"jpeg": "jpg", "mpo": "jpg", "png": "png", "webp": "webp"}
# Changes where the same rows are written as other members.
_LAYOUT = 2
# An image whose hash matches its scores has passed prepare.max_pixels.
_NO_LIMIT = sys.maxsize

# Suffixes (after the last dot) that webdataset decodes; the first ones as plain text.
_READS: dict[str, Callable[[bytes], object]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
}
DECODED = frozenset(
    (
        "json jsn pkl pickle pyd pth ten tb mp msg npy npz cbor gz "
        "blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib h5 hdf png apng jp2 "
        "j2k jpc jpf jpx j2c icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm "
        "psd bw rgb rgba sgi ras tga icb vda vst webp wmf emf xbm xpm"
    ).split()
)


def is_scored(members: Mapping[str, bytes], image_sha256: str | None, caption: str) -> bool:
    """Return whether members hold the image (None = none) and the caption that were scored."""
    return hash_image(members) == image_sha256 and read_caption(members) == caption


def hash_image(members: Mapping[str, bytes]) -> str | None:
    """Return the SHA-256 of the image that a reader of the members takes, None without one."""
    name = find_image(members)
    return None if name is None else hashlib.sha256(members[name]).hexdigest()


def read_caption(members: Mapping[str, bytes]) -> str | None:
    """Return the caption that a reader of the members scores, None without one."""
    _, own = parse_object(members.get("json")) if "txt" not in members else (None, None)
    return decode_text(find_caption(members, own or {}))


def rewrite(members: Mapping[str, bytes], as_png: bool = False) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return a scored sample's members as open_clip reads them, and the fields that its json gains.

    The image keeps its bytes if open_clip decodes them to the scored picture, under a suffix that it accepts.
    Else, or with ``as_png`` always, it becomes a PNG of that picture. Every json gains ``original_sha256``
    and ``original_format`` of the image as read: some readers take all columns from the first samples. Other
    images are removed. Another member that open_clip would decode gets the suffix ``.bytes``, so that
    decoding cannot fail, unless it is a readable text or whole number.
    """
    scored = find_image(members)
    written: dict[str, bytes] = {}
    fields: dict[str, Any] = {}
    for name, data in members.items():
        if name == scored:
            form, is_alike = describe_image(data, _NO_LIMIT)
            fields = {"original_sha256": hashlib.sha256(data).hexdigest(), "original_format": form}
            if is_alike and as_png and form == "png":
                name = "png"
            elif is_alike and not as_png and (name in TRAINED_EXTENSIONS or form in _NAMES):
                name = name if name in TRAINED_EXTENSIONS else _NAMES[form]
            else:
                name, data = "png", encode_png(decode_image(data, _NO_LIMIT))
        elif name in IMAGE_EXTENSIONS:
            continue
        elif name != "json":
            last = name.rpartition(".")[2]
            may_fail = last in DECODED or name.startswith("__")
            try:
                _READS.get(last, bytes)(data)
            except ValueError:
                may_fail = True
            name += ".bytes" * may_fail
        while name in written:
            name += ".bytes"
        written[name] = data
    return written, fields


def materialize(
    choice: Chosen,
    shards: list[ShardPath],
    scores: list[str],
    out: Folder,
    work: Folder,
    reuse: Reuse | None = None,
    as_png: bool = False,
) -> int:
    """Write ``shards/``: the kept samples in the order of the input. Outputs of an earlier attempt stay.

    Only shards that hold a kept sample are read again. An output of the run that ``reuse`` names is linked if
    it is made of the same rows. Returns how many images were written in another format. Raises UserError, and
    leaves no ``shards/``, if an image or a caption differs from the scored one.
    """
    planned = outputs.plan_outputs(choice.rows_S, choice.pieces_S)
    folder = outputs.OutputFolder(out, work, planned)
    # A score of a rule with a fit depends on all rows: it would change every output with every update.
    fields = (ALIGNMENT, MEAN_PAS, *([SCORE] if choice.gates.fit is None else []))
    jobs = []
    # Pieces of one shard are written by one task, which reads it once.
    for _, group in groupby(folder.left, lambda output: (output.reads[0][0], output.reads[-1][0])):
        parts = list(group)
        named = {shard for one in parts for shard, _, _ in one.reads}
        jobs.append((parts, {shard: (shards[shard], scores[shard]) for shard in sorted(named)}))
    folder.write(_write_outputs, jobs, out.at(*SUBSET), fields, reuse or Reuse(), as_png)
    if reuse is not None:
        out.write_json(outputs.list_outputs(work), STATE, OUTPUTS)
    return folder.rewritten


def changed_error(shard: ShardPath, position: int) -> UserError:
    """Return the error for a sample that differs from the scored one."""
    return UserError(
        f"input={shard.uri!r}: changed after it was scored: sample {position} differs from the scored "
        f"one; curate it into a new folder"
    )


def _write_outputs(
    job: tuple[list[Output], dict[int, tuple[ShardPath, str]]],
    out: Folder,
    work: Folder,
    fields: Sequence[str],
    reuse: Reuse,
    as_png: bool,
) -> tuple[int, int]:
    """Return how many samples were written, and how many images in another format."""
    parts, files = job
    earlier = {} if reuse.outputs is None else read_keys(reuse.outputs)
    keys = {part.number: name_output(part, files, work, fields, as_png) for part in parts}
    count = num_images = 0
    left = []
    for part in parts:
        known = earlier.get(keys[part.number])
        if known is None or not reuse.has_output(shard for shard, _, _ in part.reads):
            left.append(part)
            continue
        found, key = reuse.find_output(known["number"]), keys[part.number]
        outputs.link_output(out, work, part.number, found, known["images"], key)
        count, num_images = count + part.size, num_images + len(known["images"])
    images: dict[str, str] = {}
    samples = chain.from_iterable(
        _read_samples(work, images, *files[ordinal], ordinal, [read[1:] for read in reads], fields, as_png)
        for ordinal, reads in groupby(chain.from_iterable(one.reads for one in left), lambda read: read[0])
    )
    for part in left:
        own = islice(samples, part.size)
        count += commit_output(out, work, part.number, own, images, keys[part.number])
        num_images += len(images)
        images.clear()
    return count, num_images


def name_output(
    output: Output,
    files: Mapping[int, tuple[ShardPath, str]],
    work: Folder,
    fields: Sequence[str],
    as_png: bool = False,
) -> str:
    """Return a digest of the rows that an output is made of: their places, content and fields."""
    digest = hashlib.sha256(repr((_LAYOUT, as_png)).encode())
    for ordinal, start, end in output.reads:
        kept = read_kept(work, ordinal).select([POSITION, UID, IMAGE_SHA256, CAPTION, *fields])
        rows = [row for row in kept.to_pylist() if start <= row[POSITION] < end]
        digest.update(repr((files[ordinal][0].name, rows)).encode())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def read_keys(file: Written) -> dict[str, dict[str, Any]]:
    """Return the outputs of an earlier run by what they are made of, as ``list_outputs`` gave them."""
    return Folder(file.uri).read_json()


def _read_samples(
    work: Folder,
    images: dict[str, str],
    shard: ShardPath,
    scores: str,
    ordinal: int,
    ranges: Sequence[tuple[int, int]],
    names: Sequence[str],
    as_png: bool,
) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield (uid, members) of the kept rows of a shard with positions in ranges; add to ``images``."""
    kept = read_kept(work, ordinal).to_pylist()
    rows = {row[POSITION]: row for row in kept if any(start <= row[POSITION] < end for start, end in ranges)}
    scored, offsets = read_columns(scores, [IMAGE_SHA256, CAPTION]), read_offsets(scores)
    left = set(rows)
    for position, members in extract(shard, rows, offsets):
        row, caption = rows[position], scored[CAPTION][position].as_py()
        if not is_scored(members, scored[IMAGE_SHA256][position].as_py(), caption):
            raise changed_error(shard, position)
        left.remove(position)
        as_read, said = rewrite(members, as_png)
        sha256 = hash_image(as_read)
        if sha256 is not None and sha256 != said["original_sha256"]:
            images[row[UID]] = sha256
        fields = {**said, **{name: row[name] for name in names}}
        yield row[UID], outputs.enrich(as_read, row[UID], caption, fields)
    if left:
        raise changed_error(shard, min(left))
