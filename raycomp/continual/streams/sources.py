"""Sources of a stream's tasks: a json file lists them."""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from raycomp.config import UserError
from raycomp.config.check import check_choice
from raycomp.config.json_text import parse_json
from raycomp.config.own_code import find_file, is_own, name_own
from raycomp.config.shared import ColumnsConfig
from raycomp.continual.layouts.row import Edit
from raycomp.continual.streams.layouts import LAYOUTS, OF_OWN, OPTIONS, PAIRS, read_layout
from raycomp.data.inputs import place_input
from raycomp.data.paths import ShardPath, absolute_uri
from raycomp.evaluation.benchmarks.choice import take
from raycomp.evaluation.config import RetrievalConfig
from raycomp.evaluation.evaluation import Picture, read_text
from raycomp.evaluation.retrieval import open_retrieval
from raycomp.words import TEST, TRAIN

_FIELDS = ("tasks", "zero_shot")
_COLUMNS = "columns"
_TASK_FIELDS = ("name", TRAIN, TEST, _COLUMNS, *OPTIONS)


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
    content = _parse(read_text(absolute_uri(file), said), said)
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


def _parse(text: str, said: str) -> Any:
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{said}: cannot be read as JSON: {error}") from error


def _check_fields(record: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(record, dict):
        raise UserError(f"{where}: must be a JSON object, is a {type(record).__name__}")
    for name in record:
        check_choice(f"{where}: field", name, known)


def _read_tasks(content: Mapping[str, Any], field: str, folder: str, said: str) -> tuple[TaskSource, ...]:
    if field not in content:
        return ()
    records = take(content, field, list, said)
    return tuple(_read_task(one, field, folder, f"{said}: {field}[{i}]") for i, one in enumerate(records))


def _read_task(record: Any, field: str, folder: str, where: str) -> TaskSource:
    _check_fields(record, [name for name in _TASK_FIELDS if field == "tasks" or name != TRAIN], where)
    name = take(record, "name", str, where)
    halves = {}
    for half in (TRAIN, TEST) if field == "tasks" else (TEST,):
        halves[half] = _open(record, half, folder, where)
    return TaskSource(name, halves.get(TRAIN), halves[TEST])


def _open(record: Mapping[str, Any], half: str, folder: str, where: str) -> Source:
    spec = place_input(take(record, half, str, where), folder)
    options = {name: take(record, name, str, where) for name in OPTIONS if name in record}
    layout = options.pop("layout", PAIRS)
    if is_own(layout):
        layout = f"{place_input(find_file(layout), folder)}:{name_own(layout)}"
    else:
        check_choice(f"{where}: layout", layout, (PAIRS, *LAYOUTS), ", or FILE.py:NAME")
    for name in options:
        if name not in (OF_OWN if is_own(layout) else LAYOUTS.get(layout, ())):
            raise UserError(f"{where}: {name}: unknown for layout={layout}")
    if layout == PAIRS:
        return _open_pairs(spec, f"{where}: {half}", half == TEST, _read_columns(record, folder, where))
    if _COLUMNS in record:
        raise UserError(f"{where}: {_COLUMNS}: unknown for layout={layout}")
    if "images" in options:
        options["images"] = place_input(options["images"], folder)
    said = f"{where}: {half}={spec!r}"
    try:
        rows = read_layout(layout, spec, half, **options)
    except ValueError as error:
        raise UserError(f"{said}: {error}") from error
    samples = tuple(
        StreamSample(
            Picture(uri, row.box) if uri else None,
            row.caption,
            row.primitives,
            row.candidates,
            kind=row.kind,
            edits=row.edits,
        )
        for row, uri in rows
    )
    return Source(said, samples=samples, is_test=half == TEST)


def _read_columns(record: Mapping[str, Any], folder: str, where: str) -> ColumnsConfig | None:
    if _COLUMNS not in record:
        return None
    fields = dict(take(record, _COLUMNS, dict, where))
    _check_fields(fields, [one.name for one in dataclasses.fields(ColumnsConfig)], f"{where}: {_COLUMNS}")
    for name in fields:
        take(fields, name, str, f"{where}: {_COLUMNS}")
    if "root" in fields:
        fields["root"] = place_input(fields["root"], folder)
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
    places = {item.image: found.uris.get(item.image) for item in found.items}
    samples = [
        StreamSample(Picture(uri) if (uri := places[item.image]) else None, text)
        for item in found.items
        for text in (item.captions[:1] if is_test else item.captions)
    ]
    return Source(said, samples=tuple(samples), is_test=is_test)
