"""Start curations as processes of their own, hurt them, and see that the promise held."""

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from raycomp.curation.config import CurateConfig
from raycomp.data.files import Folder

NUM_SHARDS, PER_SHARD, PER_WAVE = 8, 20, 2
NUM_WAVES = NUM_SHARDS // PER_WAVE
PATIENCE_S = 240.0
ENDS = {signal.SIGINT: (130, "raycomp: interrupted"), signal.SIGTERM: (143, "raycomp: terminated")}
# What a slow machine tells of itself: "align: shard 0 of 6, ...", "align: 140 rows in 20 s, ...".
PROGRESS = re.compile(r"[a-z ]+: [a-z]+ [\d,]+ of [\d,]+|[a-z ]+: [\d,]+ [a-z]+ in |.* \.\.\.$")


def digests(out: Folder, *parts: str) -> dict[str, str]:
    """Return what the promise is about: the sha256 of every result, or of those in some folders."""
    names = [
        (part, name) for part in parts or ("scores", "subset", "shards") for name in out.list_names(part)
    ]
    return {"/".join(name): hashlib.sha256(out.read_bytes(*name)).hexdigest() for name in names}


def is_killable(pid: int, sid: int) -> bool:
    """Return whether the process still runs (a zombie does not) in the session ``sid``."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and int(session) == sid


def processes(sid: int) -> dict[int, str]:
    """Return the command line of every process in a session: workers leave their group, never that."""
    found = {}
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if is_killable(pid, sid):
            with suppress(FileNotFoundError, ProcessLookupError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


@dataclass
class Run:
    """A command that runs in a session of its own."""

    process: subprocess.Popen
    out: Folder
    printed: str = ""

    def kill(self) -> None:
        """Kill the driver, as a machine that takes its memory back would."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, number: signal.Signals) -> None:
        """Send the driver a signal, as Ctrl-C or a cluster does; see that it says so in one line."""
        os.kill(self.process.pid, number)
        self.end_in_a_line(*ENDS[number])
        assert not self.out.exists("lease.json")

    def kill_worker(self, name: str) -> str:
        """Kill a worker whose command line begins with ``name``; return it, or nothing if there is none."""
        for pid, line in processes(self.process.pid).items():
            if line.startswith(name):
                os.kill(pid, signal.SIGKILL)
                return line
        return ""

    def wait(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was said on stderr but for lines of progress."""
        self.printed, said = self.process.communicate(timeout=PATIENCE_S)
        lines = [line for line in said.splitlines(keepends=True) if not PROGRESS.match(line)]
        return self.process.returncode, "".join(lines)

    def end_well(self) -> None:
        """Wait for the end, which must be a good one that says nothing."""
        code, said = self.wait()
        assert code == 0 and not said, said

    def end_in_a_line(self, code: int, start: str) -> str:
        """Wait for the end, which must have this exit code and one line that starts so; return it."""
        found, said = self.wait()
        assert found == code and said.startswith(start) and said.count("\n") == 1, said
        return said

    def wait_for(self, moment: Callable[[], object]) -> bool:
        """Return whether the moment came while it ran."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            # The run may remove a folder just while it is looked into.
            with suppress(FileNotFoundError):
                if moment():
                    return True
            time.sleep(0.005)
        return False

    def reach(self, moment: Callable[[], object]) -> None:
        """Wait for a moment while it runs; fail with what it said where it ends before."""
        assert self.wait_for(moment), self.wait()


@contextmanager
def start(config: CurateConfig, out: str, *more: str, **environment: str) -> Iterator[Run]:
    """Start a curation; in the end kill what is left of its session."""
    options = [
        f"input={config.input}",
        f"scorer.model={config.scorer.model}",
        "scorer.weights=random:0",
        f"waves.shards_per_wave={PER_WAVE}",
        *more,
    ]
    with start_command("curate", options, out, **environment) as run:
        yield run


@contextmanager
def start_command(command: str, options: Iterable[str], out: str, **environment: str) -> Iterator[Run]:
    """Start a command on Ray with these options; in the end kill what is left of its session."""
    # A shell's background jobs are born deaf to Ctrl-C.
    line = ["env", "--default-signal=INT,TERM,HUP", sys.executable, "-m", "raycomp", command]
    process = subprocess.Popen(
        [*line, *(f"--set={option}" for option in ("cluster.executor=ray", *options)), "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )
    try:
        yield Run(process, Folder(out))
    finally:
        for pid in processes(process.pid):
            if is_killable(pid, process.pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def num_files(out: Folder, *parts: str, prefix: str = "") -> int:
    """Return how many files a folder of the output holds; none where it is removed meanwhile."""
    with suppress(FileNotFoundError):
        return sum(name.startswith(prefix) for name in out.list_names(*parts))
    return 0


def kill_at(run: Run, moment: Callable[[], object], delay_s: float) -> bool:
    """Kill the driver some time after a moment; return whether it ran until then."""
    if not run.wait_for(moment):
        return False
    until = time.monotonic() + delay_s
    if not run.wait_for(lambda: time.monotonic() >= until):
        return False
    run.kill()
    return True


def check_promise(out: Folder, expected: dict[str, str]) -> None:
    """Nothing lost, nothing doubled, nothing left: whatever happened before."""
    assert digests(out) == expected
    funnel = out.read_json("run.json")["funnel"]
    assert funnel["read"] == NUM_SHARDS * PER_SHARD == funnel["kept"] + sum(funnel["dropped"].values())
    assert not out.exists("work")
    assert sorted(name for name in os.listdir(out.uri) if name.startswith(".") or "lease" in name) == []


def finish(config: CurateConfig, out: Folder, expected: dict[str, str], *more: str) -> None:
    """Start once more, undisturbed, and check the promise."""
    with start(config, out.uri, *more) as run:
        run.end_well()
    check_promise(out, expected)


def find_parent(pid: int) -> int:
    """Return the process that started ``pid``."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def mount(folder: Path, options: str) -> None:
    """Mount a file system in memory on a folder, or mount it anew; skip the test where that may not be."""
    line = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")


def seeded(seed: int) -> random.Random:
    """Return a generator whose seed the output of a failed test shows."""
    print(f"seed {seed}")
    return random.Random(seed)
