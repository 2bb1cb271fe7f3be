"""A driver that is killed at any moment, and started again."""

import signal
import time
from contextlib import ExitStack
from itertools import cycle, product

import pytest

import raycomp
from raycomp.data.files import Folder
from tests.faults.harness import (
    NUM_SHARDS,
    NUM_WAVES,
    PER_SHARD,
    Run,
    check_promise,
    finish,
    kill_at,
    num_files,
    processes,
    report,
    report_progress,
    seeded,
    start,
)

# In the order in which a run comes by them.
MOMENTS = {
    "the run begins": lambda out: out.exists("run.json"),
    "a first part is staged": lambda out: out.list_names("work", "parts", "align"),
    "a first wave is aligned": lambda out: num_files(out, "work", "waves", prefix="align"),
    "all waves are aligned": lambda out: num_files(out, "work", "waves", prefix="align") == NUM_WAVES,
    "a first part is attributed": lambda out: out.list_names("work", "parts", "attribute"),
    "a first wave is attributed": lambda out: num_files(out, "work", "waves", prefix="attribute"),
    "all waves are attributed": lambda out: num_files(out, "work", "waves", prefix="attribute") == NUM_WAVES,
    "choosing": lambda out: out.list_names("work", "kept"),
    "the subset is written": lambda out: out.list_names("subset"),
    "materialising": lambda out: out.list_names("shards"),
    "the report is written": lambda out: out.exists("report.html"),
}


def kill_in_turn(calm, out: Folder, moments: list[str], seed: int, *more: str) -> int:
    """Kill the driver at one moment after the other, start it again at once; return the number of kills."""
    config, expected = calm
    random = seeded(seed)
    runs: list[Run] = []
    with ExitStack() as stack:  # what a killed driver leaves behind lives on while its successors run
        for name in moments:
            run = stack.enter_context(start(config, out.uri, *more))
            delay_s = random.uniform(0, 0.3)
            reached = kill_at(run, lambda name=name: MOMENTS[name](out), delay_s)
            report("driver killed", f"{name} + {delay_s:.2f} s", reached or "had ended before")
            if reached is None:
                assert run.wait()[0] == 0
                break
            runs.append(run)
        finish(config, out, expected, *more)
        left = sum(len(processes(run.process.pid)) for run in runs)
    report(f"{len(runs)} such kills", "the end", f"bytes as undisturbed; {left} processes of theirs left")
    return len(runs)


def plant_leftovers(out: Folder) -> None:
    """Leave what killed writers can leave, and worse: files cut short wherever nothing is committed."""
    cut = out.read_bytes("work", "aligned", out.list_names("work", "aligned")[0])[:1000]
    committed = {
        ordinal
        for name in out.list_names("work", "waves")
        for ordinal in out.read_json("work", "waves", name)["shards"]
    }
    uncommitted = [f"{o:05d}.parquet" for o in range(NUM_SHARDS) if o not in committed]
    assert uncommitted
    for name in uncommitted:
        out.write_bytes(cut, "work", "aligned", name)
    out.write_bytes(cut, "work", "parts", "align", "00007", f"00000000-{PER_SHARD}.parquet")
    for folder in (("work",), ("work", "aligned"), ("scores",), ("subset",), ("shards",), ()):
        out.write_bytes(cut, *folder, ".00007.parquet.0123456789abcdef0123456789abcdef.tmp")
    report(
        "cut parts, cut uncommitted and stray temporary files", "before a restart", f"{len(uncommitted)} cut"
    )


ENDS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}


def end_after(calm, out: Folder, number: signal.Signals, moment: str, delay_s: float, *more: str) -> None:
    """End a run by a signal some time after a moment, and see that it says so."""
    expected, word = ENDS[number]
    with start(calm[0], out.uri, *more) as run:
        until = time.monotonic() + delay_s
        # Before it holds the folder it may not have got as far as to heed a signal.
        run.reach(lambda: out.exists("lease.json") and MOMENTS[moment](out) and time.monotonic() >= until)
        reached = report_progress(out)
        code, said = run.end(number)
    report(f"{word} ({number.name})", reached, f"exit {code}: {said.strip()}")
    assert code == expected and said.startswith(f"raycomp: {word}") and said.count("\n") == 1, said
    assert not out.exists("lease.json")


def refuse_second(calm, out: Folder, first: Run, *more: str) -> None:
    """Start the same run in the same folder while the first holds it; see that it is told so."""
    first.process.send_signal(signal.SIGSTOP)  # else it may end before the second begins
    with start(calm[0], out.uri, *more) as second:
        code, said = second.wait()
    first.process.send_signal(signal.SIGCONT)
    assert code == 2 and said.startswith("raycomp: out=") and said.count("\n") == 1, said
    report("second start in the same folder", report_progress(out), f"exit 2: {said.strip()}")


@pytest.mark.parametrize("executor", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_an_interrupted_a_terminated_and_a_killed_run_go_on_to_the_same_bytes(calm, out, request, executor):
    """On Ray the killed driver had a cluster of its own, the others have one that lives on."""
    config, expected = calm
    local = "cluster.executor=local"
    others = local if executor == "local" else request.getfixturevalue("joined")
    for number in ENDS:
        end_after(calm, out, number, "the run begins", 0.0, others)
    with start(config, out.uri, *([local] if executor == "local" else [])) as run:
        run.reach(lambda: MOMENTS["a first part is staged"](out))
        refuse_second(calm, out, run, others)
        reached = kill_at(run, lambda: MOMENTS["a first wave is aligned"](out), 0.0)
    assert reached, "it ended before its first wave"
    report("driver killed", "a first wave is aligned", reached)
    plant_leftovers(out)
    finish(config, out, expected, others)
    out.write_bytes(b"", "work", "aligned", "00000.parquet")  # killed before it tidied up
    assert raycomp.curate(config, out.uri)["status"] == "finished"
    check_promise(out, expected)


@pytest.mark.slow
def test_the_first_ends_well_where_a_second_is_refused(calm, out, joined):
    config, expected = calm
    with start(config, out.uri, joined) as first:
        first.reach(lambda: out.exists("run.json"))
        refuse_second(calm, out, first, joined)
        assert first.wait()[0] == 0
    check_promise(out, expected)


@pytest.mark.slow
def test_signals_at_any_time_change_no_byte(calm, out, joined):
    """The two signals in turn, with a cluster of their own and without."""
    random = seeded(4)
    moments = list(MOMENTS)[:-3]  # the last are too close to the end
    for moment, (number, more) in zip(moments, cycle(product(ENDS, ((), (joined,)))), strict=False):
        end_after(calm, out, number, moment, random.uniform(0, 0.3), *more)
    finish(calm[0], out, calm[1], joined)


@pytest.mark.slow
def test_kills_in_every_phase_change_no_byte(calm, out):
    assert kill_in_turn(calm, out, list(MOMENTS), 1) >= len(MOMENTS) - 1


@pytest.mark.slow
def test_kills_in_every_phase_without_ray_change_no_byte(calm, out):
    assert kill_in_turn(calm, out, list(MOMENTS), 5, "cluster.executor=local") >= len(MOMENTS) - 1


@pytest.mark.slow
def test_kills_in_every_phase_of_runs_in_one_cluster_change_no_byte(calm, out, joined):
    assert kill_in_turn(calm, out, list(MOMENTS), 2, joined) >= len(MOMENTS) - 1


@pytest.mark.slow
def test_kills_at_any_time_change_no_byte(calm, out, joined):
    config, expected = calm
    random = seeded(3)
    started = time.monotonic()
    with start(config, f"{out.uri}-timed", joined) as run:
        assert run.wait()[0] == 0
    whole_s = time.monotonic() - started
    for _ in range(6):
        after_s = random.uniform(0, whole_s)
        with start(config, out.uri, joined) as run:
            reached = kill_at(run, lambda: True, after_s)
            if reached is None:
                assert run.wait()[0] == 0
        report("driver killed", f"after {after_s:.1f} of {whole_s:.1f} s", reached or "had ended before")
        if not out.exists("work") and out.exists("report.html"):
            finish(config, out, expected, joined)
            out.remove()
    finish(config, out, expected, joined)


@pytest.mark.slow
def test_another_size_after_a_kill_changes_no_byte(calm, out, joined):
    config, expected = calm
    with start(config, out.uri, joined) as run:
        reached = kill_at(run, lambda: MOMENTS["a first wave is aligned"](out), 0.1)
    assert reached, "it ended before its first wave"
    other = ("cluster.scorers=2", "cluster.block_rows=7", "waves.shards_per_wave=3", "scorer.batch_size=5")
    finish(config, out, expected, joined, *other)
    report(f"driver killed, restart with {', '.join(other)}", reached, "exit 0, bytes as undisturbed")
