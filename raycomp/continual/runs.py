"""The runs of a stream, a method and a seed, in their order."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from raycomp.config import override_all
from raycomp.config.own_code import is_own, name_own
from raycomp.continual.config import ContinualConfig
from raycomp.continual.method import CLIPPED, FULL, HEAD, METHODS, TUNE, Method, find_method
from raycomp.words import FUNCTION, SCENE, WORLD_STREAMS

# A language model's method, here adapted to ranking answers.
_OF_QUESTIONS = ("cl-moe",)


@dataclass(frozen=True)
class StreamRun:
    """One method on one stream."""

    stream: str
    method: str
    seed: int
    rate: float | None = None
    """In development, the multiple of the learning rate to try; none for reported runs."""

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
    """Return the name of a stream: its own, or that of its file without the extension."""
    return PurePosixPath(stream).name.removesuffix(".json")


def list_runs(config: ContinualConfig) -> list[StreamRun]:
    """Return the runs, all methods of a seed in sequence; fixed-clip comes last, because it uses
    compo-realign's step scale. Raises ValueError if compo-realign is not among them, or two streams have the
    same name."""
    names = [name_stream(stream) for stream in config.stream]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"stream={','.join(config.stream)!r}: {name} occurs twice; name each stream once"
            )
    runs = sorted(_list_all(config), key=lambda one_run: (one_run.method == CLIPPED, one_run.seed))
    needs = CLIPPED in config.method and config.trust.alpha is None
    if needs and not {"all", FULL} & set(config.method):
        raise ValueError(f"trust.alpha=None: must be set for {CLIPPED}; set it, or add {FULL} to methods")
    own = [
        one_run.stream for one_run in runs if one_run.method == "zscl" and one_run.stream not in WORLD_STREAMS
    ]
    if own and config.reference is None:
        raise ValueError(f"reference=None: must be set for zscl on stream={own[0]}; name image-text pairs")
    return runs


def _list_all(config: ContinualConfig) -> Iterator[StreamRun]:
    for stream in config.stream:
        for name in list_methods(config, stream):
            tuned = find_method(name).trains == TUNE
            num = (config.tune_seeds or config.seeds) if tuned else config.seeds
            for seed in range(config.first_seed, config.first_seed + num):
                yield StreamRun(stream, name, seed)


def list_methods(config: ContinualConfig, stream: str) -> list[str]:
    """Return the methods of a stream: the named ones, each once, in the order of METHODS, then the user's."""
    every = "all" in config.method
    has_questions = stream in (SCENE, FUNCTION)
    known = [
        name
        for name in METHODS
        if name in config.method or (every and (has_questions or name not in _OF_QUESTIONS))
    ]
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
