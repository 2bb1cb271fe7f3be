"""The runs of a stream, a method and a seed, in their order."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from raycomp.config import override_all
from raycomp.config.own_code import is_own, name_own
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
