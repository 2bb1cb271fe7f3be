"""Streams that your own code makes when a run starts: ``stream=FILE.py:NAME``, where NAME is a
``StreamMaker``."""

from collections.abc import Callable
from typing import NamedTuple

from raycomp.config.own_code import is_own, load_own
from raycomp.config.shared import ModelConfig

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
        raise ValueError(f"stream={stream}: must name a StreamMaker of raycomp.continual.maker in that file")
    if not 1 <= maker.variants <= MOST_VARIANTS:
        raise ValueError(f"stream={stream}: variants={maker.variants}: must be between 1 and {MOST_VARIANTS}")
    return maker


def find_variant(stream: str, seed: int) -> int:
    """Return the variant of a stream that a seed learns; 0 for a json file."""
    return seed % find_maker(stream).variants if is_own(stream) else 0
