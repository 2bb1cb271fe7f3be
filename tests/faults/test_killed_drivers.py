"""A driver that is killed at any moment, or whose disk is full, and started again."""

import signal
import time
from contextlib import ExitStack
from itertools import cycle, product

import pytest

import raycomp
from raycomp.cli import STORAGE_FAILED
from raycomp.data.files import Folder
from tests.faults.harness import (
    ENDS,
    NUM_SHARDS,
    NUM_WAVES,
    PER_SHARD,
    Run,
    check_promise,
    finish,
    kill_at,
    mount,
    num_files,
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


def plant_leftovers(out: Folder) -> None:
    """Leave what killed writers can leave, and worse: files cut short wherever nothing is committed."""
    cut = out.read_bytes("work", "aligned", out.list_names("work", "aligned")[0])[:1000]
    waves = (out.read_json("work", "waves", name) for name in out.list_names("work", "waves"))
    committed = {ordinal for wave in waves for ordinal in wave["shards"]}
    assert len(committed) < NUM_SHARDS
    for ordinal in {*range(NUM_SHARDS)} - committed:
        out.write_bytes(cut, "work", "aligned", f"{ordinal:05d}.parquet")
    out.write_bytes(cut, "work", "parts", "align", "00007", f"00000000-{PER_SHARD}.parquet")
    for folder in (("work",), ("work", "aligned"), ("scores",), ("subset",), ("shards",), ()):
        out.write_bytes(cut, *folder, ".00007.parquet.0123456789abcdef0123456789abcdef.tmp")


def end_after(calm, out: Folder, number: signal.Signals, moment: str, delay_s: float, *more: str) -> None:
    """End a run by a signal some time after a moment, and see that it says so."""
    with start(calm[0], out.uri, *more) as run:
        until = time.monotonic() + delay_s
        # Before it holds the folder it may not have got as far as to heed a signal.
        run.reach(lambda: out.exists("lease.json") and MOMENTS[moment](out) and time.monotonic() >= until)
        run.end(number)


def refuse_second(calm, out: Folder, first: Run, *more: str) -> None:
    """Start the same run in the same folder while the first holds it; see that it is told so."""
    first.process.send_signal(signal.SIGSTOP)  # else it may end before the second begins
    with start(calm[0], out.uri, *more) as second:
        second.end_in_a_line(2, "raycomp: out=")
    first.process.send_signal(signal.SIGCONT)


def test_an_interrupted_a_terminated_and_a_killed_run_go_on_to_the_same_bytes(calm, out):
    (config, expected), local = calm, "cluster.executor=local"
    for number in ENDS:
        end_after(calm, out, number, "the run begins", 0.0, local)
    with start(config, out.uri, local) as run:
        run.reach(lambda: MOMENTS["a first part is staged"](out))
        refuse_second(calm, out, run, local)
        assert kill_at(run, lambda: MOMENTS["a first wave is aligned"](out), 0.0)
    plant_leftovers(out)
    finish(config, out, expected, local)
    out.write_bytes(b"", "work", "aligned", "00000.parquet")  # killed before it tidied up
    assert raycomp.curate(config, out.uri)["status"] == "finished"
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
@pytest.mark.parametrize("where", ["own cluster", "joined", "local"])
def test_kills_in_every_phase_change_no_byte(calm, out, request, where):
    """One moment after the other, and started again at once; at last at another size."""
    config, expected = calm
    size = ("cluster.block_rows=7", "waves.shards_per_wave=3", "scorer.batch_size=5")
    size = size if where == "local" else ("cluster.scorers=2", *size)
    more = {"own cluster": [], "local": ["cluster.executor=local"]}.get(where)
    more = [request.getfixturevalue("joined")] if more is None else more
    random, kills = seeded(len(where)), 0
    with ExitStack() as stack:  # what a killed driver leaves behind lives on while its successors run
        for moment in MOMENTS.values():
            run = stack.enter_context(start(config, out.uri, *more))
            if not kill_at(run, lambda moment=moment: moment(out), random.uniform(0, 0.3)):
                run.end_well()
                break
            kills += 1
        finish(config, out, expected, *more, *size)
    assert kills >= len(MOMENTS) - 1


# What the whole output takes is about 1 MB, its work as much again.
@pytest.mark.slow
@pytest.mark.parametrize("size_kb", [48, 160, 400])
def test_a_full_disk_is_one_line_and_a_restart_goes_on(calm, disk, joined, size_kb):
    config, expected = calm
    out = Folder(str(disk / "out"))
    mount(disk, f"remount,size={size_kb}k")
    with start(config, out.uri, joined) as run:
        assert out.uri in run.end_in_a_line(STORAGE_FAILED, "raycomp: ")
    mount(disk, "remount,size=64m")
    finish(config, out, expected, joined)
