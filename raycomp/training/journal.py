"""Records the metrics of every training step: a line in ``metrics.jsonl``, a point in TensorBoard.

The file holds step s in line s + 1, each step once, also after kills: a run that resumes from the checkpoint
of step s keeps the first s lines. On a disk the file grows by a line per step, which ``tail -f`` follows. S3
cannot append, so there the file grows in temporary space and ``keep`` writes all of it at each checkpoint. A
line has about 120 bytes, so the checkpoint of step 1,000,000 writes 120 MB of lines and 90 MB of events, in
addition to 1.8 GB of a ViT-B/32 and its optimizer. Parts would avoid that but would have to be joined.
"""

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json

from raycomp.data.files import name_place
from raycomp.data.folder import Folder
from raycomp.data.paths import resolve
from raycomp.data.written import forget_written
from raycomp.training.training import STEP

METRICS = "metrics.jsonl"
EVENTS = "tensorboard"


class MetricsLog:
    """The lines and curves of a training from ``first_step`` on; one process writes them.

    Raises ValueError where the folder lacks a step before ``first_step``.
    """

    def __init__(self, folder: Folder, first_step: int):
        self._folder, self._next = folder, first_step
        from raycomp.training.events import Events  # tensorboardX imports boto3

        written = _read_lines(folder, first_step)
        self._spool = None if folder.is_local else tempfile.TemporaryDirectory(prefix="raycomp-")
        self._near = folder if self._spool is None else Folder(self._spool.name)
        self._near.write_bytes(written, METRICS)
        forget_written(self._near.at(METRICS))  # it grows from here on
        path = Path(resolve(self._near.uri)[1])
        self._lines = (path / METRICS).open("ab")
        self._events = Events(path / EVENTS, first_step)

    def write(self, reported: Mapping[str, float]) -> None:
        """Record the next step: ``step``, ``loss`` and any further numbers, floats exactly. NaN and infinity
        become null in JSON."""
        assert reported[STEP] == self._next, f"step {reported[STEP]}: must be {self._next}"
        line = {name: value if math.isfinite(value) else None for name, value in reported.items()}
        with name_place(self._near.uri):
            self._lines.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._lines.flush()
            self._events.write(reported)
        self._next += 1

    def note_start(self, values: Mapping[str, float]) -> None:
        """Draw values of the model before its first step, on TensorBoard alone: they are no step's."""
        self._events.write({**values, STEP: 0})

    def keep(self) -> Callable[[], None]:
        """Flush all steps so far; return what stores them on the disk or on S3, in any thread. It must be
        called before the state of the same step is written, so that every state has all its lines."""
        with name_place(self._near.uri):
            self._lines.flush()
            self._events.flush()
        if self._spool is None:
            return self._sync
        names = ((METRICS,), (EVENTS, self._events.name))
        return partial(self._upload, {name: self._near.read_bytes(*name) for name in names})

    def _sync(self) -> None:
        with name_place(self._near.uri):
            os.fsync(self._lines.fileno())

    def _upload(self, files: Mapping[tuple[str, ...], bytes]) -> None:
        for names, content in files.items():
            self._folder.write_bytes(content, *names)

    def close(self) -> None:
        """Flush all steps and close."""
        self.keep()()
        self._lines.close()
        self._events.close()
        if self._spool is not None:
            self._spool.cleanup()


def _read_lines(folder: Folder, count: int) -> bytes:
    """Return the lines of the first ``count`` steps; ValueError where they are not all there."""
    if not count:
        return b""
    data = folder.read_bytes(METRICS) if folder.exists(METRICS) else b""
    lines = data.split(b"\n")
    try:
        is_whole = len(lines) > count and json.loads(lines[count - 1])[STEP] == count - 1
    except (ValueError, TypeError, KeyError):
        is_whole = False
    if not is_whole:
        raise ValueError(
            f"{folder.at(METRICS)}: must hold the {count:,} steps before the checkpoint to resume from; "
            "restore the file, or start in another folder"
        )
    return b"\n".join(lines[:count]) + b"\n"


def read_metrics(folder: Folder) -> dict[str, np.ndarray]:
    """Return ``metrics.jsonl`` by name of the metric: float64, one for each step, NaN where there is none.

    ``step`` is int64. Raises ValueError where it is not what a ``MetricsLog`` wrote.
    """
    try:
        table = pyarrow.json.read_json(pa.BufferReader(folder.read_bytes(METRICS)))
        steps = table[STEP].to_numpy()
        columns = {name: table[name].cast(pa.float64()) for name in table.column_names}
    except (pa.ArrowException, KeyError) as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"{folder.at(METRICS)}: was not written by a training ({line})") from error
    return {name: column.to_numpy() for name, column in columns.items()} | {STEP: steps}
