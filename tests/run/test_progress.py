"""Which stage holds the others up, and the lines and the bar that say so."""

import io
import math
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from raycomp.config.options import write_line
from raycomp.run import progress
from raycomp.run.executor import WorkerPool, use
from raycomp.run.local import Local
from raycomp.run.progress import Progress, is_notebook, name_bottleneck

WORKER_POOLS = {
    "read": WorkerPool("", 4, "cpus"),
    "decode": WorkerPool("", 8, "cpus"),
    "parse": WorkerPool("", 8, "cpus"),
    "align": WorkerPool("", 2, "scorers"),
    "attribute": WorkerPool("", 2, "scorers"),
    "device": WorkerPool("", 2, "gpus"),
    "write": WorkerPool("", 1, "cpus"),
}


def test_the_longest_stage_of_the_busiest_workers_is_the_bottleneck():
    for busy, stage in [
        ({"decode": 0.7, "align": 0.5, "attribute": 0.4}, "align"),  # scorers are busy for 0.9 of the time
        ({"read": 0.3, "decode": 0.35, "write": 0.3, "align": 0.8}, "decode"),  # the other CPUs for 0.95
        ({"parse": 0.2, "attribute": 0.3, "device": 5.0}, "attribute"),
        ({"write": 0.1}, "write"),
        ({}, None),
    ]:
        assert name_bottleneck(busy, WORKER_POOLS) == stage


class Log(io.StringIO):
    """What stands where no terminal does; tells when it is written to."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


class Terminal(Log):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(monkeypatch) -> Log:
    log = Log()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=log, modules=sys.modules))
    monkeypatch.setattr(progress, "_SAID_AFTER_S", 3.0)  # as outside tests
    return log


def test_a_line_names_rows_time_left_and_the_bottleneck_by_worker(log):
    with Progress("align", 4, WORKER_POOLS, every_s=3600) as shown:  # no line but those that are asked for
        shown.started = time.monotonic() - 100
        shown.add(50_000, {"decode": 12.0, "align": 4.0, "device": 3.0})
        shown.finish_one()
        shown.report()  # 1.5 s of each decoder, 2 s of each scorer
        shown.add(0, {"write": 9.0})
        shown.report()
    first, second, last = log.getvalue().splitlines()
    assert last == "align: 50,000 rows in 100 s, 500 rows/s"
    assert first == "align: shard 1 of 4, 50,000 rows, 500 rows/s, 05:00 left, bottleneck align"
    assert second.endswith(", bottleneck write")
    assert "\x1b" not in log.getvalue() and "\r" not in log.getvalue()


def test_time_left_goes_by_rows_where_their_number_is_known(log):
    with Progress("attribute", 1, WORKER_POOLS, num_rows=400) as shown:
        shown.started = time.monotonic() - 60
        shown.add(100, {"parse": 1.0})
        shown.report()
    assert "shard 0 of 1, 100 rows, 1.7 rows/s, 03:00 left" in log.getvalue()


def test_a_slow_phase_says_its_advice_once(log):
    with Progress("align", 1, WORKER_POOLS, num_rows=400, advice="take a smaller model") as shown:
        for spent_s, rows, times in ((20, 9, 0), (60, 200, 0), (60, 20, 1), (90, 20, 1)):
            shown.started, shown.rows = time.monotonic() - spent_s, rows
            shown.report()
            assert log.getvalue().count("align: take a smaller model\n") == times


def test_a_training_that_has_taken_no_step_loads_its_model(log):
    with Progress("train", 9, unit="step") as shown:
        shown.start_at(3)
        shown.report()
        shown.finish_one()
        shown.started -= 60
    first, last = log.getvalue().splitlines()
    assert first == "train: step 3 of 9, time left unknown, loading the model and first batch for 0 s"
    assert last == "train: 1 step in 60 s"


def test_a_notebook_shows_a_line_that_is_written_anew(log, monkeypatch):
    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert not is_notebook()  # IPython in a terminal
    shell.kernel = object()
    monkeypatch.setattr(progress, "_BAR_AFTER_S", 0.01)
    with Progress("score", 2, unit="pair") as shown:
        shown.reach(1, 1)
        assert log.written.wait(30)
    assert log.getvalue().startswith("\rscore:") and " of 2 pairs" in log.getvalue()
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not is_notebook()


def test_a_line_comes_while_nothing_else_does_and_its_thread_ends_with_the_work(log):
    with pytest.raises(KeyError), Progress("align", 3, WORKER_POOLS, every_s=0.01) as shown:
        assert log.written.wait(30)
        raise KeyError
    assert not shown.reporter.is_alive()
    said = log.getvalue().splitlines()[0]
    assert said.startswith("align: shard 0 of 3, time left unknown, loading the model and first rows for 0 s")


def test_what_comes_no_more_is_waited_for(log):
    with Progress("align", 3, WORKER_POOLS) as shown:
        shown.add(10, {"decode": 1.0})
        assert shown.name_wait() == "bottleneck decode"
        shown.status_at -= 100
        assert shown.name_wait() == "waiting for the next rows for 100 s"


def test_what_a_cluster_lacks_is_named():
    """A phase takes all CPUs itself, so that none is there says nothing."""
    for there, lack in [
        ({"CPU": 0.0}, "GPUs (0 of 2 available)"),
        ({"CPU": 0.0, "GPU": 1.0}, "GPUs (1 of 2 available)"),
        ({"CPU": 0.0, "GPU": 2.0}, None),
        ({"CPU": 0.0, "GPU": math.inf}, None),  # a cluster that cannot be asked
    ]:
        with use(There(there)):
            assert progress._name_lack(WORKER_POOLS) == lack
            assert progress._name_lack({name: WORKER_POOLS[name] for name in ("read", "align")}) is None


class There(Local):
    """An executor with so much of each resource, which keeps what a phase measures."""

    def __init__(self, there: dict[str, float]):
        super().__init__(1)
        self.there, self.reported = there, []

    def count(self, resource: str) -> float:
        return self.there.get(resource, 0)

    def open_meter(self, phase: str) -> "There":
        self.reported.append(("phase", phase))
        return self

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        self.reported.append((name, value, labels))

    def put(self, name: str, value: float, **labels: str) -> None:
        self.reported.append((name, value, labels))


def test_what_a_phase_measures_goes_to_the_executor(log):
    with use(There({"GPU": 2.0})), Progress("align", 3, WORKER_POOLS) as shown:
        shown.add(10, {"decode": 1.5}, {"ok": 9, "bad": 1})
        shown._put_gauges()
    reported = shown.meter.reported
    assert reported[0] == ("phase", "align") and ("raycomp_rows", 1, {"status": "bad"}) in reported
    assert ("raycomp_busy_seconds", 1.5, {"stage": "decode", "where": "cpus"}) in reported
    assert ("raycomp_planned", 3, {"unit": "shard"}) in reported
    assert ("raycomp_workers", 2, {"stage": "align", "where": "scorers"}) in reported


def test_short_phases_do_not_add_up_to_a_long_silence(log, monkeypatch):
    monkeypatch.setattr(Progress, "_reported_at", time.monotonic() - 29)
    with Progress("a", 1) as first:
        assert first._name_pause() <= 1
    assert log.getvalue() == ""
    monkeypatch.setattr(Progress, "_reported_at", time.monotonic() - 31)
    with Progress("b", 1):
        assert log.written.wait(30)
    assert log.getvalue().startswith("b: shard 0 of 1")


def test_on_a_terminal_a_bar_is_drawn_unless_the_phase_is_short(monkeypatch):
    before = set(threading.enumerate())
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal, modules=sys.modules))
    with Progress("check", 4, unit="file") as shown:
        shown.finish_one()
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "_BAR_AFTER_S", 0.01)
    with Progress("align", 4, WORKER_POOLS) as shown:
        shown.add(50, {"decode": 12.0})
        shown.finish_one()
        assert terminal.written.wait(30)
    assert "align:  25%|" in terminal.getvalue() and "50 rows" in terminal.getvalue()
    assert "bottleneck decode" in terminal.getvalue()
    with Progress("align", 1, WORKER_POOLS, num_rows=60) as shown:  # an estimate
        terminal.written.clear()
        shown.add(50, {"decode": 12.0})
        assert terminal.written.wait(30)
    assert " 50 of 60 rows" in terminal.getvalue() and " 50 of 50 rows" in terminal.getvalue()
    assert set(threading.enumerate()) == before


def test_a_line_is_written_above_open_bars_and_an_inner_bar_is_not_left(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal, modules=sys.modules))
    monkeypatch.setattr(progress, "_BAR_AFTER_S", 0.01)
    with Progress("outer", 2, unit="run") as outer:
        assert terminal.written.wait(30)
        with Progress("inner", 3, unit="step") as inner:
            while "inner: " not in terminal.getvalue():
                time.sleep(0.01)
            write_line("a result", terminal)
            before = terminal.getvalue().partition("a result\n")[0]
            assert outer.bar.leave and not inner.bar.leave
    assert before.rpartition("\r")[2].replace("\x1b[A", "") == "", "the line does not start behind a bar"


def test_a_stream_that_is_closed_ends_no_work(log):
    with Progress("align", 1) as shown:
        shown.report()
        log.close()
        shown.report()
        shown.finish_one()
    assert shown.shards == 1


def test_a_phase_within_another_speaks_alone(monkeypatch, capsys):
    """Of one thread; when it has ended the outer one speaks again."""
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.02)
    Progress.forget()

    def hear(until: str) -> str:
        said, ends = "", time.monotonic() + 10
        while until not in said and time.monotonic() < ends:
            time.sleep(0.01)
            said += capsys.readouterr().err
        return said

    with Progress("outer", 2, unit="run"):
        assert "outer: run 0 of 2" in hear("outer:")
        with Progress("inner", 3, unit="step"):
            hear("inner:")
            time.sleep(0.1)
            assert "outer" not in capsys.readouterr().err
        assert "outer: run 0 of 2" in hear("outer:")
