"""Writes a training's steps in TensorBoard's format."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import RecordWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from raycomp.training.journal import STEP

_FLUSH_S = 30.0


class Events:
    """A file of TensorBoard events. It records its first step, and TensorBoard drops that step and later ones
    of earlier files. tensorboardX's own SummaryWriter would write in a thread that flushing does not wait
    for.
    """

    def __init__(self, folder: Path, first_step: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.name = f"events.out.tfevents.{time.time_ns():019d}"  # read in the order of their names
        self._records = RecordWriter(str(folder / self.name))
        self._flushed = time.monotonic()
        self._add(Event(wall_time=time.time(), step=first_step, file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=time.time(), step=first_step, session_log=start))

    def write(self, reported: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=reported[name]) for name in reported if name != STEP]
        self._add(Event(wall_time=time.time(), step=int(reported[STEP]), summary=Summary(value=values)))
        if time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def _add(self, event: Event) -> None:
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        self._records.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        self._records.close()
