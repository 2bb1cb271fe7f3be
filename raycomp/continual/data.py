"""A stream of tasks as arrays, training and test samples; and its runs by method and seed, in order.

N samples, T texts, V names of primitives, K candidates, L tokens of context, H x W pixels, D dims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from raycomp.config import override_all
from raycomp.config.commands import is_own, name_own
from raycomp.continual.config import STREAMS, ContinualConfig
from raycomp.continual.method import HEAD, METHODS, TUNE, Method, get_method


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
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"stream={','.join(config.stream)!r}: {twice[0]} occurs twice; name each stream once"
        )
    runs, files = [], [stream for stream in config.stream if not is_own(stream)]
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
    for stream in config.stream:
        for name in list_methods(config):
            is_tuned = get_method(name).trains == TUNE
            num = config.tune_seeds if is_tuned and config.tune_seeds else config.seeds
            seeds = range(config.first_seed, config.first_seed + num)
            runs += [StreamRun(stream, name, seed) for seed in seeds]
    return sorted(runs, key=lambda one_run: one_run.seed)


def list_methods(config: ContinualConfig) -> list[str]:
    """Return the named methods, each once, in the order of METHODS, then the user's."""
    # cl-moe is a language model's method, here adapted to ranking answers.
    all_named = {*METHODS} - {"cl-moe"} if "all" in config.method else set()
    known = [name for name in METHODS if name in {*config.method, *all_named}]
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
    """Return the samples of all splits with unique texts, pictures still memory-mapped; ValueError unless all
    are of one kind."""
    places: dict[str, int] = {}
    first: list[tuple[int, int]] = []  # (split, index of the text in it)
    moved = []
    for number, split in enumerate(splits):
        for place, text in enumerate(split.texts):
            if text not in places:
                places[text] = len(places)
                first.append((number, place))
        moved.append(np.array([places[text] for text in split.texts], np.int64))

    num, candidate_NK, pixels = len(splits), None, None
    offered = [split.candidate_NK for split in splits if split.candidate_NK is not None]
    if offered:
        if len(offered) < num:
            raise ValueError("tasks: must all have candidates or none of them")
        width = max(one.shape[1] for one in offered)
        candidate_NK = np.concatenate([np.full((len(one), width), -1, np.int64) for one in offered])
        start = 0
        for one, move in zip(offered, moved, strict=True):
            candidate_NK[start : start + len(one), : one.shape[1]] = np.where(one >= 0, move[one], -1)
            start += len(one)
    pictures = [split.pixels for split in splits if split.pixels is not None]
    if len(pictures) == num:
        starts = np.cumsum([0, *(len(one.files) for one in pictures)])
        pixels = Pixels(
            tuple(file for one in pictures for file in one.files),
            np.concatenate([one.file_N + start for one, start in zip(pictures, starts, strict=False)]),
            np.concatenate([one.row_N for one in pictures]),
        )
    kinds = [split.kind_N for split in splits if split.kind_N is not None]
    tokens = [split.token_TL for split in splits if split.token_TL is not None]
    return Split(
        image_ND=np.concatenate([split.image_ND for split in splits]),
        own_N=np.concatenate([move[split.own_N] for move, split in zip(moved, splits, strict=True)]),
        texts=tuple(places),
        text_TD=np.stack([splits[number].text_TD[place] for number, place in first]),
        primitives=tuple(splits[number].primitives[place] for number, place in first),
        candidate_NK=candidate_NK,
        kind_N=np.concatenate(kinds) if len(kinds) == num else None,
        pixels=pixels,
        token_TL=np.stack([tokens[number][place] for number, place in first]) if len(tokens) == num else None,
    )
