"""A training's journal: each step once, to the last bit, whatever was killed; the same on disk and on S3."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from raycomp.data.files import Folder
from raycomp.training.journal import EVENTS, METRICS, MetricsLog, read_metrics


def reported(step: int, start: int = 0) -> dict[str, float]:
    """A step's numbers, other ones after each start."""
    loss = float(np.random.default_rng([start, step]).normal())
    more = {"recall": step / 7} if step % 4 == 3 else {}
    return {"step": step, "loss": loss, "learning_rate": 5e-4 / (step + 1), "samples_per_s": 33.3, **more}


def write(folder: Folder, first: int, last: int, start: int = 0) -> MetricsLog:
    journal = MetricsLog(folder, first)
    for step in range(first, last):
        journal.write(reported(step, start))
    return journal


def read_events(folder: Folder) -> list[Event]:
    """Read as TensorBoard does: files by name; a start forgets the steps from its own on."""
    found: list[Event] = []
    for name in folder.list_names(EVENTS):
        data = folder.read_bytes(EVENTS, name)
        while len(data) >= 12:
            (size,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            if event.session_log.status == SessionLog.START:
                found = [one for one in found if one.step < event.step]
            found += [event] if event.summary.value else []
            data = data[16 + size :]
    return found


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.stores)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "disk":
        return Folder(str(tmp_path))
    return Folder(f"{request.getfixturevalue('bucket')}/run")


def test_after_a_kill_each_step_stands_once_in_order(folder):
    """Killed at 8 after the checkpoint of 5, then at 6 before another: 0 to 4, then the last start's."""
    killed = write(folder, 0, 5)
    killed.keep()()
    for step in range(5, 8):
        killed.write(reported(step))
    if folder.is_local:  # a line stands there as soon as it is written
        assert folder.read_bytes(METRICS).count(b"\n") == 8
    write(folder, 5, 6, start=1)
    write(folder, 5, 9, start=2).close()
    lines = [json.loads(line) for line in folder.read_bytes(METRICS).splitlines()]
    wanted = [reported(step) for step in range(5)] + [reported(step, 2) for step in range(5, 9)]
    assert lines == wanted, "floats to the last bit"
    metrics = read_metrics(folder)
    assert metrics["step"].dtype == np.int64
    for name in ("step", "loss", "learning_rate", "samples_per_s"):
        assert metrics[name].tolist() == [line[name] for line in wanted]
    np.testing.assert_array_equal(metrics["recall"], [line.get("recall", np.nan) for line in wanted])
    curve = [(event.step, event.summary.value[0].simple_value) for event in read_events(folder)]
    assert curve == [(line["step"], float(np.float32(line["loss"]))) for line in wanted]
    assert [v.tag for v in read_events(folder)[3].summary.value] == [*wanted[3]][1:]


def test_what_is_no_number_is_null_and_read_as_nan(tmp_path):
    folder = Folder(str(tmp_path))
    journal = MetricsLog(folder, 0)
    for step, value in enumerate((float("nan"), float("-inf"), 2.5, 3)):
        journal.write({"step": step, "loss": 1e-320, "score": value, "none": float("nan")})
    journal.close()
    lines = folder.read_bytes(METRICS).decode().splitlines()
    read = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [line["score"] for line in read] == [None, None, 2.5, 3]
    metrics = read_metrics(folder)
    np.testing.assert_array_equal(metrics["score"], [np.nan, np.nan, 2.5, 3])
    assert np.isnan(metrics["none"]).all() and metrics["loss"].tolist() == [1e-320] * 4


def test_what_is_no_journal_is_named_and_one_that_lacks_steps_not_gone_on_with(tmp_path):
    folder = Folder(str(tmp_path))
    for data in [None, b'{"step": 0}\n{"step": 1}', b'{"step": 0}\n{"step": 5}\n', b"a\nb\n"]:
        if data is not None:
            folder.write_bytes(data, METRICS)
        with pytest.raises(ValueError, match="must hold the 2 steps before the checkpoint"):
            MetricsLog(folder, 2)
        assert folder.list_names() == ([] if data is None else [METRICS]), "nothing was written"
    for data in [b"", b"[1]\n", b'{"loss": 1}\n', b'{"step": 0, "loss": {"a": 1}}\n', b"{\n"]:
        folder.write_bytes(data, METRICS)
        with pytest.raises(ValueError, match="was not written by a training"):
            read_metrics(folder)
