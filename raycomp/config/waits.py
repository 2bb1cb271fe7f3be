"""A line about what takes long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Timer
from typing import TextIO

_AFTER_S = 3.0


@contextmanager
def say_if_slow(what: str) -> Iterator[None]:
    """Print ``what`` to standard error once the block takes longer than three seconds."""
    timer = Timer(_AFTER_S, lambda: write_line(f"{what} ...", sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def write_line(text: str, stream: TextIO) -> None:
    """Print a line above the open progress bars, if there are any."""
    bars = sys.modules.get("tqdm")  # imported once a phase may have a bar
    with bars.tqdm.external_write_mode(stream) if bars else nullcontext():
        print(text, file=stream, flush=True)
