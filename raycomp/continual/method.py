"""Registry of methods and of streams that the user's code makes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from raycomp.config.commands import is_own, load_own, name_own
from raycomp.config.options import ModelConfig, check_choice

MOST_VARIANTS = 100


class MadeStream(NamedTuple):
    """One variant of a stream, on disk."""

    file: str
    """Its json file, as ``stream`` takes it."""
    model: ModelConfig
    """Its backbone."""
    reference: str | None = None
    """Pairs whose similarities zscl preserves where the run's ``reference`` is none."""


class StreamMaker(NamedTuple):
    """A stream of which each variant has its own tasks and its own backbone."""

    make: Callable[[str, int, int], MadeStream]
    """Called with an empty folder, the variant's number and the run's ``seed``, once for each variant that a
    seed uses, in a process with one CPU. All variants and streams of a run have the same parent folder: what
    they share may be there. The run keeps paths below that folder also when it is moved."""
    variants: int = 1
    """Seed s learns variant s modulo ``variants``. Intervals are over variants if there are several."""


def find_maker(stream: str) -> StreamMaker:
    """Return the maker that FILE.py:NAME names. Raises ValueError, one line, for anything else."""
    maker = load_own("stream", stream)
    if not isinstance(maker, StreamMaker):
        raise ValueError(f"stream={stream}: must name a StreamMaker of raycomp.continual.method in that file")
    if not 1 <= maker.variants <= MOST_VARIANTS:
        raise ValueError(f"stream={stream}: variants={maker.variants}: must be between 1 and {MOST_VARIANTS}")
    return maker


def find_variant(stream: str, seed: int) -> int:
    """Return the variant of a stream that a seed learns; 0 for a json file."""
    return seed % find_maker(stream).variants if is_own(stream) else 0


HEAD, TUNE = "head", "tune"
FULL = "compo-realign"


class Method(NamedTuple):
    """A learner with settings."""

    learner: str | type
    """That of a method of ``METHODS``, by its name there; or your own class."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Options that the method sets; they override the config."""
    trains: str | None = HEAD
    """The option group that has its steps: a head's on frozen embeddings, or the model's own; none if nothing
    is trained. Of your own method it is that of the learner."""
    times: float = 1.0
    """Factor on ``tune.learning_rate``, in addition to the learner's own ``times``. Methods whose weights are
    new (adapters, prompts, experts) have ten times the learning rate of whole models."""


_PLAIN = {"buffer.kind": "none", "trust.mode": "off"}
METHODS = {
    "frozen": Method("frozen", trains=None),
    "sequential": Method("head", _PLAIN),
    "replay-text": Method("head", {"buffer.reading": "literal", "trust.mode": "off"}),
    "image-buffer": Method("head", {"buffer.kind": "image", "trust.mode": "off"}),
    FULL: Method("head"),
    "no-synthetic": Method("head", {"head.synthetic": False}),
    "no-trust": Method("head", {"trust.mode": "off"}),
    "no-buffer": Method("head", {"buffer.kind": "none"}),
    "linear-mix": Method("head", {"head.mix": "linear"}),
    "identity-mix": Method("head", {"head.mix": "identity"}),
    "attention-pool": Method("head", {"head.pool": "attention"}),
    "no-shaper": Method("head", {"head.shaped": False}),
    "joint": Method("head", _PLAIN),
    "finetune": Method("finetune", trains=TUNE),
    "joint-finetune": Method("finetune", trains=TUNE),
    "zscl": Method("zscl", trains=TUNE),
    "c-clip": Method("c-clip", trains=TUNE, times=10.0),
    "diki": Method("diki", trains=TUNE),
    "cl-moe": Method("cl-moe", trains=TUNE),
}
JOINT = ("joint", "joint-finetune")
"""Methods that train on all tasks jointly, for as many steps as the others take over all tasks."""
# The interface of every method: ``Learner`` of methods/head.py.
_LEARNER = ("start_task", "step", "end", "find_keys", "state", "restore")
_SHOWN = {"cl-moe": "cl-moe (adapted)"}


def get_method(name: str) -> Method:
    """Return a method of ``METHODS``, or the user's FILE.py:NAME: a ``Method``, or the class of a learner.

    A class with ``group = "tune"``, as every ``Tuner``, trains the model; another class trains a head. Raises
    ValueError, one line, for an unknown method or learner, and for a class that is not a ``Learner``.
    """
    if not is_own(name):
        check_choice("method", name, ("all", *METHODS), ", or FILE.py:NAME")
        return METHODS[name]
    own = load_own("method", name)
    own = own if isinstance(own, Method) else Method(own)
    if isinstance(own.learner, str):
        known = {str(one.learner): one.trains for one in METHODS.values()}
        check_choice(f"method={name}: learner", own.learner, tuple(known))
        return own._replace(trains=known[own.learner])
    missing = [one for one in _LEARNER if not callable(getattr(own.learner, one, None))]
    if not isinstance(own.learner, type) or missing:
        raise ValueError(
            f"method={name}: must name a Method, or a class with {', '.join(_LEARNER)}, in that file"
        )
    return own._replace(trains=TUNE if getattr(own.learner, "group", HEAD) == TUNE else HEAD)


def name_method(method: str) -> str:
    """Return the name of a method in tables; of the user's FILE.py:NAME it is NAME. An adaptation of a
    published method is marked as such."""
    return _SHOWN.get(method, name_own(method))
