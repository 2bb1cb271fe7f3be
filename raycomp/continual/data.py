"""A stream of tasks as arrays, training and test samples; and its runs by method and seed, in order.

N samples, T texts, V names of primitives, K candidates, L tokens of context, H x W pixels, D dims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from raycomp.config import override_all
from raycomp.config.change import is_own, name_own
from raycomp.continual.config import STREAMS, ContinualConfig
from raycomp.continual.method import HEAD, METHODS, TUNE, Method, get_method

# A language model's method, here adapted to ranking answers.
_OF_QUESTIONS = "cl-moe"


@dataclass(frozen=True)
class StreamRun:
    """One method on one stream."""

    stream: str
    method: str
    seed: int
    rate: float | None = None
    """In development, the multiple of the learning rate to try; none for reported runs."""

    @property
    def is_tuned(self) -> bool:
        """Whether its method trains the model."""
        return get_method(self.method).trains == TUNE

    @property
    def name(self) -> str:
        """stream-method-seed, in development followed by -xRATE. Names are unique: a name is read from its
        end with the longest method that fits. If that would be another method, a dot, which no method has,
        precedes the run's own method: a-joint.finetune-00 is of stream a-joint, a-joint-finetune-00 of stream
        a. A dot also precedes the name of a class of the user's."""
        stream, end = name_stream(self.stream), "" if self.rate is None else f"-x{self.rate}"
        if is_own(self.method):
            return f"{stream}.{name_own(self.method)}-{self.seed:02d}{end}"
        ends = tuple(f"{mark}{one}" for one in METHODS if len(one) > len(self.method) for mark in "-.")
        mark = "." if f"{stream}-{self.method}".endswith(ends) else "-"
        return f"{stream}{mark}{self.method}-{self.seed:02d}{end}"


class Choice(NamedTuple):
    """Values selected for a method in development."""

    rate: float = 1.0
    """Multiple of its learning rate."""
    weight: float | None = None
    """w of the fused score; none = the config's."""


def name_stream(stream: str) -> str:
    """Return the name of a stream: that of its json file without the extension, or NAME of FILE.py:NAME."""
    return PurePosixPath(name_own(stream)).name.removesuffix(".json")


def list_runs(config: ContinualConfig) -> list[StreamRun]:
    """Return the runs, all methods of a seed in sequence. Raises ValueError if there is no stream, two
    streams have the same name, a method's settings are not valid, or zscl has no reference."""
    if not config.stream:
        raise ValueError(f"stream=: name {STREAMS}")
    names = [name_stream(stream) for stream in config.stream]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"stream={','.join(config.stream)!r}: {name} occurs twice; name each stream once"
            )
    runs, files = [], [stream for stream in config.stream if not is_own(stream)]
    for stream in config.stream:
        for name in list_methods(config):
            method = get_method(name)
            if method.learner == "zscl" and files and config.reference is None:
                raise ValueError(
                    f"reference=None: must be set for zscl on stream={files[0]}; name image-text pairs"
                )
            if is_own(name):
                try:
                    override_all(config, dict(method.settings))
                except ValueError as error:
                    raise ValueError(f"method={name}: {error}") from error
            num = config.tune_seeds if method.trains == TUNE and config.tune_seeds else config.seeds
            seeds = range(config.first_seed, config.first_seed + num)
            runs += [StreamRun(stream, name, seed) for seed in seeds]
    return sorted(runs, key=lambda one_run: one_run.seed)


def list_methods(config: ContinualConfig) -> list[str]:
    """Return the named methods, each once, in the order of METHODS, then the user's."""
    every = "all" in config.method
    known = [name for name in METHODS if name in config.method or (every and name != _OF_QUESTIONS)]
    return [*known, *dict.fromkeys(filter(is_own, config.method))]


def make_config(config: ContinualConfig, method: Method, choice: Choice = Choice()) -> ContinualConfig:  # noqa: B008
    """Return the config with the method's options, its learning rate multiplied."""
    own = override_all(config, dict(method.settings))
    times = {HEAD: choice.rate, TUNE: choice.rate * method.times}.get(method.trains or "", 1.0)
    changes = {} if choice.weight is None else {"weight": choice.weight}
    if times != 1:
        group = own.tune if method.trains == TUNE else own.head
        changes[f"{method.trains}.learning_rate"] = times * group.learning_rate
    return override_all(own, changes)


def count_steps(config: ContinualConfig, method: Method) -> tuple[int, int]:
    """Return the steps of a task, and the batch of a step."""
    if method.trains is None:
        return 0, 1
    group = config.tune if method.trains == TUNE else config.head
    return group.steps, group.batch_size


@dataclass(frozen=True)
class Pixels:
    """The pictures of samples, memory-mapped; a picture that several samples share is stored once.

    Index rows as in an array: by a slice, or by an array of row numbers.
    """

    files: tuple[np.ndarray, ...]
    """uint8 (P, H, W, 3) each, as preprocessed for the model."""
    file_N: np.ndarray
    """Index of the part that has a sample's picture."""
    row_N: np.ndarray
    """Row of the picture in that part."""

    def __len__(self) -> int:
        return len(self.row_N)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        file_B, row_B = self.file_N[which], self.row_N[which]
        found = np.empty((len(row_B), *self.files[0].shape[1:]), np.uint8)
        for number in np.unique(file_B):
            found[file_B == number] = self.files[number][row_B[file_B == number]]
        return found


def join_pixels(parts: Sequence[Pixels]) -> Pixels:
    """Return the pictures of all parts concatenated, still memory-mapped."""
    starts = np.cumsum([0, *(len(one.files) for one in parts)])
    return Pixels(
        tuple(file for one in parts for file in one.files),
        np.concatenate([one.file_N + start for one, start in zip(parts, starts, strict=False)]),
        np.concatenate([one.row_N for one in parts]),
    )


@dataclass(frozen=True)
class Split:
    """Training or test samples of a task; embeddings are the frozen model's."""

    image_ND: np.ndarray
    """fp32, of length 1."""
    own_N: np.ndarray
    """Index of the right text in ``texts``, int64."""
    texts: tuple[str, ...]
    """Unique texts."""
    text_TD: np.ndarray
    """fp32, of length 1."""
    primitives: tuple[tuple[str, ...], ...]
    """Primitives of every text, at least one."""
    candidate_NK: np.ndarray | None = None
    """Questions: indices in ``texts`` of the candidate answers, the right one included, -1 = padding; none if
    all texts are candidates."""
    kind_N: np.ndarray | None = None
    """Questions: an integer for the kind of question; same kind, same integer."""
    pixels: Pixels | None = None
    """Only for methods that train the model."""
    token_TL: np.ndarray | None = None
    """int32; only for methods that train the model."""

    def __len__(self) -> int:
        return len(self.own_N)


@dataclass(frozen=True)
class Edits:
    """False texts of test samples, each one edit away from the right text."""

    split: Split
    """An empty set of edits."""
    row_M: np.ndarray
    """Index of the sample, int64."""
    text_M: np.ndarray
    """Index of the text in ``split.texts``."""
    category_M: np.ndarray
    """Operation and kind of the edit."""


@dataclass(frozen=True)
class Task:
    """One task of a stream."""

    name: str
    train: Split
    test: Split
    edits: Edits | None = None
    """Only where the rows of the stream have some."""


@dataclass(frozen=True)
class Stream:
    """Tasks in training order."""

    name: str
    tasks: tuple[Task, ...]
    zero_shot: tuple[Task, ...]
    """Tasks that are only evaluated; their ``train`` may be empty."""
    names: tuple[str, ...]
    """All primitives of all tasks, sorted."""
    name_VD: np.ndarray
    """Embeddings of the names by the frozen model, fp32, of length 1."""
    reference: Split | None = None
    """Images and texts like those of the model's training, for methods that preserve its outputs on them; the
    texts have no primitives and no embeddings."""


class Keys(NamedTuple):
    """A split as embedded by a method; all embeddings have length 1."""

    image_ND: np.ndarray
    text_TD: np.ndarray
    composed_ETD: np.ndarray | None = None
    """e^_c of every text by each of E heads; none for methods without compositions."""
    expert_N: np.ndarray | None = None
    """Index of the head whose composition each image is compared with, 0 to E - 1; none if there is one
    head."""


def join_splits(splits: Sequence[Split]) -> Split:
    """Return the samples of all splits with unique texts; ValueError unless all are of one kind."""
    places: dict[str, int] = {}
    first: list[tuple[int, int]] = []  # (split, index of the text in it)
    moved = []
    for number, split in enumerate(splits):
        for place, text in enumerate(split.texts):
            if text not in places:
                places[text] = len(places)
                first.append((number, place))
        moved.append(np.array([places[text] for text in split.texts], np.int64))

    pixels = [split.pixels for split in splits if split.pixels is not None]
    kinds = [split.kind_N for split in splits if split.kind_N is not None]
    tokens = [split.token_TL for split in splits if split.token_TL is not None]
    num = len(splits)
    return Split(
        image_ND=np.concatenate([split.image_ND for split in splits]),
        own_N=np.concatenate([move[split.own_N] for move, split in zip(moved, splits, strict=True)]),
        texts=tuple(places),
        text_TD=np.stack([splits[number].text_TD[place] for number, place in first]),
        primitives=tuple(splits[number].primitives[place] for number, place in first),
        candidate_NK=_join_candidates(splits, moved),
        kind_N=np.concatenate(kinds) if len(kinds) == num else None,
        pixels=join_pixels(pixels) if len(pixels) == num else None,
        token_TL=np.stack([tokens[number][place] for number, place in first]) if len(tokens) == num else None,
    )


def _join_candidates(splits: Sequence[Split], moved: Sequence[np.ndarray]) -> np.ndarray | None:
    some = [split.candidate_NK for split in splits if split.candidate_NK is not None]
    if not some:
        return None
    if len(some) < len(splits):
        raise ValueError("tasks: must all have candidates or none of them")
    width = max(one.shape[1] for one in some)
    parts = []
    for one, move in zip(some, moved, strict=True):
        wide_NK = np.full((len(one), width), -1, np.int64)
        wide_NK[:, : one.shape[1]] = np.where(one >= 0, move[one], -1)
        parts.append(wide_NK)
    return np.concatenate(parts)
