"""Sources of a stream's tasks: a json file lists them; files of published data sets as rows."""

import dataclasses
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction
from typing import Any, NamedTuple
from zlib import crc32

from raycomp.config import UserError
from raycomp.config.commands import call_own, find_file, is_own, load_own, name_own, parse_json
from raycomp.config.options import ColumnsConfig, check_choice
from raycomp.continual.layouts import OF_FILES, OF_FOLDERS, Edit, Row
from raycomp.data.files import Folder, absolute_uri, join_uri
from raycomp.data.inputs import ShardPath, absolute_input, list_classes
from raycomp.evaluation.benchmarks.choice import read_text, take
from raycomp.evaluation.choices import Picture
from raycomp.evaluation.config import RetrievalConfig
from raycomp.evaluation.embed import find_images
from raycomp.evaluation.retrieval import open_retrieval
from raycomp.words import TEST, TRAIN

PAIRS, CLASSES = "pairs", "classes"
OPTIONS = ("layout", "images", "part", "template")
"""Optional fields of a json file's task, in addition to its name and inputs."""
_OF_FILE = ("images", "part")
LAYOUTS: dict[str, tuple[str, ...]] = {
    CLASSES: ("template", "part"),
    **dict.fromkeys(OF_FILES, _OF_FILE),
    **dict.fromkeys(OF_FOLDERS, ("part",)),
}
"""By the name of a layout, its own fields. ``images``: the folder of the images; by default the folder of the
file. ``template``: the caption of a class, where {} stands for its name. ``part``: I/N, the I-th of N tasks
into which one data set is split by its objects."""
_PART = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})", re.ASCII)
Placed = tuple[Row, str | None]
"""A row and its image file; None if the file is missing."""


def _read_layout(layout: str, spec: str, half: str, options: Mapping[str, str]) -> list[Placed]:
    """Return the rows of a layout with its ``options``, the fields of LAYOUTS.

    Raises ValueError if a file, a field or all images are missing, the user's function fails or yields
    something else than rows, or no row is left.
    """
    if layout == CLASSES:
        placed = _read_classes(spec, options.get("template", "a photo of a {}."))
    else:
        if layout in OF_FOLDERS:
            folder, name = Folder(spec), ""
            if not folder.is_folder():
                raise ValueError("is not a folder")
        else:
            folder, name = Folder(posixpath.dirname(spec)), posixpath.basename(spec)
        if is_own(layout):
            read = load_own("layout", layout)
            if not isfunction(read):
                raise ValueError(f"layout={layout}: must name a function in that file")
            rows = call_own("layout", layout, lambda: list(read(folder, name, half)))
            bad = [row for row in rows if not isinstance(row, Row)]
            if bad:
                raise ValueError(f"layout={layout}: must yield Row, yielded {bad[0]!r:.80}")
        else:
            rows = list({**OF_FILES, **OF_FOLDERS}[layout](folder, name, half))
        images = Folder(options.get("images") or folder.uri)
        uris = find_images(images, [row.image for row in rows]).uris
        placed = [(row, uris.get(row.image)) for row in rows]
    part = options.get("part")
    chosen = placed if part is None else _choose(placed, part)
    if not chosen:
        raise ValueError(f"has no {half} row" + (f" in part={part}" if part else ""))
    return chosen


def _read_classes(spec: str, template: str) -> list[Placed]:
    """Return the images of a folder for every class, whose name is the one primitive."""
    if template.count("{}") != 1:
        raise ValueError(f"template={template!r}: must have {{}} once, where the name of a class belongs")
    try:
        classes = list_classes(spec)
    except OSError as error:
        raise ValueError(f"cannot be listed: {' '.join(str(error).split())}") from error
    if not classes:
        raise ValueError("must be a folder with a folder of images for every class")
    named = [(own.replace("_", " "), path) for own, paths in classes.items() for path in paths]
    return [(Row(path, template.replace("{}", name), (name,)), join_uri(spec, path)) for name, path in named]


def _choose(placed: list[Placed], part: str) -> list[Placed]:
    """Return the rows whose last primitive, the object they describe, belongs to a part; the same in both
    halves."""
    match = _PART.fullmatch(part)
    number, num = map(int, match.groups()) if match else (1, 0)
    if not 1 <= number <= num:
        raise ValueError(f"part={part!r}: must be I/N with I from 1 to N, as in 2/4")
    if any(row.primitives is None for row, _ in placed):
        raise ValueError(f"part={part!r}: only layouts that name their primitives have parts; remove part")
    own = [(row, uri) for row, uri in placed if row.primitives]
    return [one for one in own if crc32((one[0].primitives or ())[-1].encode()) % num == number - 1]


_FIELDS = ("tasks", "zero_shot")
_COLUMNS = "columns"


class Member(NamedTuple):
    """A sample of a shard."""

    uri: str
    position: int


class StreamSample(NamedTuple):
    """A picture and its caption, or its question."""

    picture: Picture | Member | None
    """None if the file is missing."""
    caption: str | None
    """For a question, the right answer, one of ``candidates``."""
    primitives: tuple[str, ...] | None = None
    """None if the source names none: they are then parsed."""
    candidates: tuple[str, ...] = ()
    candidate_primitives: tuple[tuple[str, ...], ...] | None = None
    kind: str = ""
    """Questions: the kind of question; same kind, same value."""
    edits: tuple[Edit, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The caption and the candidates of a good sample."""
        return str(self.caption), *self.candidates


@dataclass(frozen=True)
class Source:
    """Source of the samples of one half of a task: shards, or individual files."""

    said: str
    """The option and its value, as named in errors."""
    shards: tuple[ShardPath, ...] = ()
    samples: tuple[StreamSample, ...] = ()
    is_test: bool = False
    """Whether only the first caption of each picture is used, as the right one; else each caption makes a
    sample."""

    @property
    def pictures(self) -> list[Picture]:
        """Return its image files; may repeat."""
        return [one.picture for one in self.samples if isinstance(one.picture, Picture)]


@dataclass(frozen=True)
class TaskSource:
    """One task."""

    name: str
    train: Source | None
    """None for zero-shot sets."""
    test: Source

    @property
    def halves(self) -> list[Source]:
        return [self.train, self.test] if self.train else [self.test]


@dataclass(frozen=True)
class StreamSource:
    """Tasks in training order, and zero-shot sets."""

    name: str
    tasks: tuple[TaskSource, ...]
    zero_shot: tuple[TaskSource, ...] = ()

    @property
    def halves(self) -> list[Source]:
        """Return the train and test halves of all tasks, in their order."""
        return [half for task in (*self.tasks, *self.zero_shot) for half in task.halves]

    @property
    def pictures(self) -> list[Picture]:
        """Return its image files; may repeat."""
        return [picture for half in self.halves for picture in half.pictures]

    @property
    def shards(self) -> list[ShardPath]:
        """Return all its shards; may repeat."""
        return [shard for half in self.halves for shard in half.shards]


def read_stream(file: str) -> StreamSource:
    """Return the stream that a json file lists.

    {"tasks": [{"name", "train", "test"}], "zero_shot": [{"name", "test"}]}, where train and test are images
    with captions in the format of ``retrieval.input``, or the input of a ``layout``, with further fields of
    its own: see ``layouts``. ``columns`` of a task are those of ``raycomp curate``, an object. Relative paths
    start at the file's own folder. Raises ValueError, one line, with the location.
    """
    said = f"stream={file!r}"
    text = read_text(absolute_uri(file), said)
    try:
        content = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{said}: cannot be read as JSON: {error}") from error
    _check_fields(content, _FIELDS, said)
    folder = posixpath.dirname(absolute_uri(file))
    tasks, zero_shot = (_read_tasks(content, name, folder, said) for name in _FIELDS)
    if not tasks:
        raise UserError(f"{said}: tasks is empty; list at least one")
    names = [task.name for task in (*tasks, *zero_shot)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{said}: two tasks have the name {twice!r}; each needs one of its own")
    return StreamSource(posixpath.basename(file).removesuffix(".json"), tasks, zero_shot)


def open_reference(spec: str) -> Source:
    """Return pairs whose similarities are preserved. Raises ValueError as ``read_stream``."""
    return _open_pairs(spec, "reference", False)


def _check_fields(record: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(record, dict):
        raise UserError(f"{where}: must be a JSON object, is a {type(record).__name__}")
    for name in record:
        check_choice(f"{where}: field", name, known)


def _read_tasks(content: Mapping[str, Any], field: str, folder: str, said: str) -> tuple[TaskSource, ...]:
    records = take(content, field, list, said) if field in content else []
    parts = (TRAIN, TEST) if field == "tasks" else (TEST,)
    tasks = []
    for number, record in enumerate(records):
        where = f"{said}: {field}[{number}]"
        _check_fields(record, ("name", *parts, _COLUMNS, *OPTIONS), where)
        name = take(record, "name", str, where)
        halves = {half: _open(record, half, folder, where) for half in parts}
        tasks.append(TaskSource(name, halves.get(TRAIN), halves[TEST]))
    return tuple(tasks)


def _open(record: Mapping[str, Any], half: str, folder: str, where: str) -> Source:
    """Return one half of a task, as its record in the json file describes it."""
    spec = absolute_input(take(record, half, str, where), folder)
    options = {name: take(record, name, str, where) for name in OPTIONS if name in record}
    layout = options.pop("layout", PAIRS)
    known: tuple[str, ...]
    if is_own(layout):
        layout, known = f"{absolute_input(find_file(layout), folder)}:{name_own(layout)}", _OF_FILE
    else:
        check_choice(f"{where}: layout", layout, (PAIRS, *LAYOUTS), ", or FILE.py:NAME")
        known = LAYOUTS.get(layout, ())
    for name in options:
        if name not in known:
            raise UserError(f"{where}: {name}: unknown for layout={layout}")
    said = f"{where}: {half}"
    if layout == PAIRS:
        return _open_pairs(spec, said, half == TEST, _read_columns(record, folder, where))
    if _COLUMNS in record:
        raise UserError(f"{where}: {_COLUMNS}: unknown for layout={layout}")
    if "images" in options:
        options["images"] = absolute_input(options["images"], folder)
    said = f"{said}={spec!r}"
    try:
        placed = _read_layout(layout, spec, half, options)
    except ValueError as error:
        raise UserError(f"{said}: {error}") from error
    samples = []
    for row, uri in placed:
        picture = Picture(uri, row.box) if uri else None
        one = StreamSample(picture, row.caption, row.primitives, row.candidates)
        samples.append(one._replace(kind=row.kind, edits=row.edits))
    return Source(said, samples=tuple(samples), is_test=half == TEST)


def _read_columns(record: Mapping[str, Any], folder: str, where: str) -> ColumnsConfig | None:
    if _COLUMNS not in record:
        return None
    fields, at = dict(take(record, _COLUMNS, dict, where)), f"{where}: {_COLUMNS}"
    _check_fields(fields, [one.name for one in dataclasses.fields(ColumnsConfig)], at)
    for name in fields:
        take(fields, name, str, at)
    if "root" in fields:
        fields["root"] = absolute_input(fields["root"], folder)
    try:
        return ColumnsConfig(**fields)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _open_pairs(spec: str, option: str, is_test: bool, columns: ColumnsConfig | None = None) -> Source:
    """Open image files with their captions, or shards."""
    found = open_retrieval(RetrievalConfig(spec), option, columns)
    said = f"{option}={spec!r}"
    if found.shards:
        return Source(said, tuple(found.shards), is_test=is_test)
    samples = [
        StreamSample(Picture(uri) if (uri := found.uris.get(item.image)) else None, text)
        for item in found.items
        for text in (item.captions[:1] if is_test else item.captions)
    ]
    return Source(said, samples=tuple(samples), is_test=is_test)
