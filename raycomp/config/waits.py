"""A line about what takes long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

_AFTER_S = 3.0


@contextmanager
def say_if_slow(what: str) -> Iterator[None]:
    """Print ``what`` to standard error once the block takes longer than three seconds."""
    timer = Timer(_AFTER_S, lambda: print(f"{what} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
