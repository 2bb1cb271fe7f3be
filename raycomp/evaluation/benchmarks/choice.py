"""The row of every benchmark: an image, true and false captions; and the defects of rows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import UnionType
from typing import Any, NamedTuple

from raycomp.config.commands import parse_json
from raycomp.data.files import Folder
from raycomp.table import Cell, Table, group_by

EQUAL = "equal"
DUPLICATE = "duplicate"
UNCONFIRMED = "unconfirmed"
DEFECTS = {
    EQUAL: "a caption is among its own negatives, so the row cannot be right",
    DUPLICATE: "an earlier row of the split has the same image and captions",
    UNCONFIRMED: "fewer than two of three annotators preferred the caption",
}

_MOST_PIXELS = 1_000_000


class Choice(NamedTuple):
    """Is every positive nearer to the image than every negative?"""

    benchmark: str
    split: str
    id: str
    """As in the file, or the row's place in it; unique within the split."""
    image: str
    """The image's file name, relative to the folder that the benchmark's images are published in."""
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    op: str = ""
    """The operation (``words.OPERATIONS``) that made the negatives, by the benchmark; "" if none."""
    kind: str = ""
    """The edited kind of concept (``words.CONCEPT_KINDS``), by the benchmark; "" if none."""
    defects: tuple[str, ...] = ()
    """A subset of ``DEFECTS``; empty for a sound row. Code that excludes such rows reports their number."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, width, height in pixels: the part of the image that the row is about; None for all."""
    group: str = ""
    """The item of several images that contains the row; "" if none. An item of images i0, i1 and captions
    c0, c1 is two rows: (i0, c0 against c1) and (i1, c1 against c0)."""


def read_json(folder: Folder, name: str, shape: type) -> Any:
    """Return the content of a file.

    Raises ValueError where there is no file, no JSON, an object with a repeated key, not a ``shape``, or
    nothing in it.
    """
    found = parse_text(_read_text(folder, name), folder.at(name))
    if not isinstance(found, shape):
        kinds = shape.__name__, type(found).__name__
        raise ValueError(f"{folder.at(name)}: must hold a JSON {kinds[0]}, holds a {kinds[1]}")
    if not found:
        raise ValueError(f"{folder.at(name)}: holds no row")
    return found


def read_lines(folder: Folder, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the content of every line that is not blank. Raises as ``read_json``."""
    text = _read_text(folder, name)
    if not text.strip():
        raise ValueError(f"{folder.at(name)}: holds no row")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{folder.at(name)}: line {number}"
            yield where, parse_text(line, where)


def _read_text(folder: Folder, name: str) -> str:
    try:
        return folder.read_bytes(name).decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{folder.uri}: has no file {name}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder.at(name)}: cannot be read as JSON: {error}") from error


def read_text(uri: str, said: str) -> str:
    """Return a text file; ValueError, starting with ``said``, where it cannot be read or is not UTF-8."""
    try:
        return Folder(uri).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{said}: no such file") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{said}: cannot be read as UTF-8 ({' '.join(str(error).split())})") from error


def parse_text(text: str, where: str) -> Any:
    """Return the content of a JSON text. Raises ValueError, starting with ``where``."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: cannot be read as JSON: {error}") from error


def take(record: Any, name: str, shape: type | UnionType, where: str) -> Any:
    """Return the field of a record. Raises ValueError, starting with ``where``, if it is not a ``shape``."""
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"{where}: has no field {name!r}")
    value = record[name]
    if not isinstance(value, shape) or (isinstance(value, str) and not is_text(value)):
        kind = getattr(shape, "__name__", str(shape).replace(" | ", " or "))
        raise ValueError(f"{where}: {name}={value!r:.80}: must be a {kind} that is not empty")
    return value


def take_pixels(record: Any, name: str, where: str) -> int:
    """Return a field that counts pixels, as a whole number. Raises ValueError as ``take``."""
    value = take(record, name, int | float, where)
    if isinstance(value, bool) or not abs(value) < _MOST_PIXELS:
        raise ValueError(f"{where}: {name}={value!r:.80}: must be a number of pixels below {_MOST_PIXELS:,}")
    return int(value)


def is_text(value: Any) -> bool:
    """Return whether a value is a non-blank text that UTF-8 can encode."""
    if not isinstance(value, str) or not value.strip():
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def take_texts(record: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a field that is a caption or a list of captions, stripped. Raises ValueError as ``take``."""
    values = take(record, name, str | list, where)
    texts = tuple([values] if isinstance(values, str) else values)
    if not texts or not all(map(is_text, texts)):
        raise ValueError(f"{where}: {name}={values!r:.80}: must be a caption or a list of captions")
    return tuple(text.strip() for text in texts)


def pair_up(
    benchmark: str,
    split: str,
    place: str,
    images: Sequence[str],
    captions: Sequence[tuple[str, ...]],
    op: str,
    kind: str,
) -> Iterator[Choice]:
    """Yield the two rows of an item: each image with its own caption against the other's."""
    for i, image in enumerate(images):
        own, other = captions[i], captions[1 - i]
        yield Choice(benchmark, split, f"{place}/{i}", image, own, other, op, kind, group=place)


def mark_defects(choices: Iterable[Choice]) -> Iterator[Choice]:
    """Yield every row, in order, with ``EQUAL`` and ``DUPLICATE`` added to its defects."""
    seen = set()
    for choice in choices:
        what = (choice.benchmark, choice.split, choice.image, choice.positives, choice.negatives, choice.box)
        equal = (EQUAL,) if set(choice.positives) & set(choice.negatives) else ()
        duplicate = (DUPLICATE,) if what in seen else ()
        seen.add(what)
        yield choice._replace(defects=choice.defects + equal + duplicate)


ALL = "all"
# Rows of a benchmark's splits as published, where that is known; two for each item of two images. Counted
# from the files; BiVLC's README states 2,933 items, Winoground's paper 400.
_REPLACED = {"replace_att": 788, "replace_obj": 1652, "replace_rel": 1406, "swap_att": 666, "swap_obj": 245}
ROWS: dict[str, dict[str, int]] = {
    "sugarcrepe": {"add_att": 692, "add_obj": 2062, **_REPLACED},
    "sugarcrepe_pp": _REPLACED,
    "valse": {
        "actant-swap": 1042,
        "action-replacement": 779,
        "coreference-hard": 141,
        "coreference-standard": 916,
        "counting-adversarial": 756,
        "counting-hard": 1000,
        "counting-small-quant": 1000,
        "existence": 534,
        "foil-it": 1000,
        "plurals": 1000,
        "relations": 614,
    },
    "hard_positives": {"attributes": 10575, "relations": 16868},
    "cola": {ALL: 2 * 210},
    "winoground": {ALL: 2 * 400},
    "bivlc": {ALL: 2 * 2933},
    "aro_order": {"coco": 25010, "flickr30k": 5000},
}


def warn_other_counts(choices: Iterable[Choice]) -> list[str]:
    """Return a line for every split whose number of rows is not the published one."""
    counts = Counter((choice.benchmark, split) for choice in choices for split in (choice.split, ALL))
    published = {place: ROWS.get(place[0], {}).get(place[1], count) for place, count in counts.items()}
    return [
        f"{name}: {split}: {count:,} rows, {published[name, split]:,} are published"
        for (name, split), count in counts.items()
        if count != published[name, split]
    ]


def report_defects(choices: Sequence[Choice]) -> Table:
    """Return rows, sound rows and rows by defect of every split; a row may have several defects.

    The note lists the splits whose number of rows differs from the published one.
    """
    lines: list[list[Cell]] = []
    for place, own in group_by(choices, lambda choice: (choice.benchmark, choice.split)).items():
        counts = Counter(name for choice in own for name in choice.defects or ("sound",))
        lines.append([*place, len(own), *(counts[name] for name in ("sound", *DEFECTS))])
    meanings = [f"{name}: {meaning}." for name, meaning in DEFECTS.items()]
    others = [f"{line}." for line in warn_other_counts(choices)]
    columns = ("benchmark", "split", "rows", "sound", *DEFECTS)
    return Table("Defects of the published rows", columns, lines, " ".join([*meanings, *others]))
