"""Digests of everything that commands write: an oracle for rewrites.

    python -m bench.digests BEFORE.csv                          # the table of this commit
    python -m bench.digests AFTER.csv --against BEFORE.csv      # and the lines that differ; exit 1 if any
    python -m bench.digests AFTER.csv --only curate,select      # some commands, and the runs they read
    python -m bench.digests AFTER.csv --set cluster.num_cpus=8  # an option for every command that has it

Runs the command lines of ``bench.digest_cases``, each as a process of its own and on CPUs, below a temporary
folder, and writes a line (case, command, file, bytes, sha256) for every input and every result file, and one
for the exit code. OUT_times.csv holds the seconds and CPU seconds of each command with all its processes,
which are sampled from /proc (Linux). ``--only`` takes names of cases, too.

What counts of a file and what does not:

- result files byte by byte: scores, subsets, shards, negatives, exports, weights, tables, figures. Where the
  temporary folder's path stands in a file, it is taken out first;
- of json and jsonl lines without the keys that are times or name folders (``UNSTEADY``), of ``continual.csv``
  without the rows of seconds, of ``trials.parquet`` the values of the other columns;
- of run.json the section ``funnel``, and of ``fingerprint`` models and their like (``FINGERPRINTS``) and a
  curation's input; the digests of other runs and of files' times have absolute paths and clocks in them;
- what ``show`` and ``explain`` print, without times and without the table of phases; of it and of a txt file
  the words;
- left out, since they hold times: report.html, logs/, tensorboard/; since they are for the run alone: work/,
  checkpoints/ (states to resume from); since it follows from the other files: manifest.json.

All lines repeated in two runs, below other folders and with other processes at work. Weights do so only with
small batches (``bench.digest_cases`` says why). ``demo`` is left out, it takes minutes, and ``plan``,
which prints times alone.

Cost: 1,770 CPU seconds, a quarter of them the sweep's; 44 minutes on 2 cores that others used, too; at best
some 15. bench/results/digests_times.csv has each command's.
"""

import argparse
import csv
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from bench.digest_cases import CASES, PHOTOS, Case, has_photos, write_inputs

ROOT = Path(__file__).resolve().parents[1]
TIME_COLUMNS = ("case", "command", "seconds", "cpu_seconds")
LEFT_OUT = re.compile(r"^(logs|tensorboard|work|checkpoints)/|^(report\.html|manifest\.json|run\.json)$")
UNSTEADY = {"seconds", "train_s", "samples_per_s", "begun", "config"}
FINGERPRINTS = set("shards scorer model parser lexicon nonces preprocessing architecture".split())
EXIT_CODE, STDOUT = "exit code", "stdout"
TIMEOUT_S = 1800.0
_SAMPLE_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


class Line(NamedTuple):
    """A result file as it was written."""

    case: str
    command: str
    file: str
    bytes: str
    sha256: str


@dataclass(frozen=True)
class Place:
    """Where the commands are run, and what all of them are given."""

    folder: Path
    settings: tuple[str, ...]

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the folder, as a user of this checkout would, without a GPU."""
        changes = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **changes}
        for name in ("RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE"):
            environment.pop(name, None)
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )


def run_case(case: Case, place: Place) -> tuple[list[Line], float, float]:
    """Run one case; return its lines, its seconds and its CPU seconds."""
    with CpuMeter() as meter:
        started = time.perf_counter()
        done = place.run(make_command(case, place))
        seconds = time.perf_counter() - started
    if done.returncode != case.exit_code:
        print(f"{case.name}: exit code {done.returncode}\n{done.stderr.decode()[-3000:]}", file=sys.stderr)
    ended = Line(case.name, case.command, EXIT_CODE, "", str(done.returncode))
    results = {} if case.is_text else read_results(place.folder / case.name)
    found = {STDOUT: strip_times(done.stdout)} if case.is_text else results
    lines = [digest(case, name, data, place.folder) for name, data in sorted(found.items())]
    return [ended, *lines], seconds, meter.seconds


def digest(case: Case, name: str, data: bytes, folder: Path) -> Line:
    """Return the line of a file; the temporary folder's own path does not count."""
    data = data.replace(str(folder).encode(), b"")
    if name.endswith(".txt") or name == STDOUT:
        data = b" ".join(data.split())  # where lines break follows from the path's length
    return Line(case.name, case.command, name, str(len(data)), hashlib.sha256(data).hexdigest())


def digest_inputs(folder: Path) -> list[Line]:
    """Return a line for each input: where these differ, all else does."""
    lines = []
    for place in sorted((folder / "in").iterdir()):
        files = sorted(path for path in place.rglob("*") if path.is_file()) or [place]
        data = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)
        lines.append(digest(Case(f"in/{place.name}", "inputs"), "all", data, folder))
    return lines


def make_command(case: Case, place: Place) -> list[str]:
    """Return what to run for a case."""
    words = shlex.split(case.line)
    if "{uid}" in words:
        words[words.index("{uid}")] = find_uid(place.folder)
    known = [one for one in place.settings if has_option(words[0], one.partition("=")[0])]
    out = [] if case.is_text else ["--out", case.name]
    sets = [word for one in known for word in ("--set", one)]
    return [sys.executable, "-m", "raycomp", *words, *sets, *out]


def find_uid(folder: Path) -> str:
    """Return the first uid that ``curate-world`` kept."""
    return pq.read_table(folder / "curate-world" / "subset" / "kept.parquet")["uid"][0].as_py()


@cache
def has_option(command: str, path: str) -> bool:
    """Whether a command's help names an option that ``--set`` takes."""
    line = [sys.executable, "-m", "raycomp", command, "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    reported = subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout
    return re.search(rf"^\s+{re.escape(path)} \(", reported, re.MULTILINE) is not None


def read_results(folder: Path) -> dict[str, bytes]:
    """Return what counts of a run's folder by name: result files, and two sections of run.json."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    found = {name: read_file(path) for name, path in names.items() if not LEFT_OUT.search(name)}
    if "run.json" in names:
        run = json.loads(names["run.json"].read_bytes())
        kept = FINGERPRINTS | ({"input"} if run["kind"] == "curate" else set())
        marks = {name: value for name, value in run.get("fingerprint", {}).items() if name in kept}
        found["run.json: funnel"] = write_json(run.get("funnel"))
        found["run.json: fingerprint"] = write_json(marks)
    return found


def read_file(path: Path) -> bytes:
    """Return the bytes of a file that repeat."""
    data = path.read_bytes()
    if path.suffix == ".json" and any(f'"{key}"'.encode() in data for key in UNSTEADY):
        return write_json(json.loads(data))
    if path.suffix == ".jsonl":
        return b"\n".join(write_json(json.loads(line)) for line in data.splitlines())
    if path.name == "continual.csv":
        return b"\n".join(line for line in data.splitlines() if b",seconds," not in line)
    if path.name == "trials.parquet":
        table = pq.read_table(path).drop_columns(["seconds"])
        return f"{table.schema}{table.to_pylist()}".encode()
    return data


def write_json(content: Any) -> bytes:
    """Return content as json, without the keys that are not the same again."""
    return json.dumps(drop_unsteady(content), sort_keys=True).encode()


def drop_unsteady(content: Any) -> Any:
    """Return what json holds without UNSTEADY keys, at any depth."""
    if isinstance(content, dict):
        return {key: drop_unsteady(value) for key, value in content.items() if key not in UNSTEADY}
    return [drop_unsteady(one) for one in content] if isinstance(content, list) else content


def strip_times(data: bytes) -> bytes:
    """Return printed text without clocks and without the table of phases."""
    blocks = re.sub(rb"\d{4}-\d\d-\d\dT[\d:]+\+00:00", b"", data).split(b"\n\n")
    return b"\n\n".join(block for block in blocks if not block.startswith(b"phase"))


class CpuMeter:
    """CPU seconds of all processes that descend from this one while the block runs.

    Each is sampled every 0.2 s: the time after the last sample is missing. (wait() would not include Ray's
    workers, because their parent does not wait for them.)
    """

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, int], int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def seconds(self) -> float:
        """Of all that were seen."""
        return sum(self._ticks.values()) / _TICKS

    def __enter__(self) -> "CpuMeter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(_SAMPLE_S):
            self._check()

    def _check(self) -> None:
        found = {process.pid: process for process in list_processes()}
        for process in found.values():
            if self._is_ours(process, found):
                self._ticks[process.pid, process.started] = process.ticks

    def _is_ours(self, process: "Process", found: dict[int, "Process"]) -> bool:
        while (process.pid, process.started) not in self._ticks:
            if process.parent == os.getpid():
                return True
            if process.parent not in found:
                return False
            process = found[process.parent]
        return True


@dataclass(frozen=True)
class Process:
    """A line of /proc."""

    pid: int
    parent: int
    started: int
    ticks: int


def list_processes() -> Iterator[Process]:
    """Yield the processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield Process(int(path.parent.name), int(words[1]), int(words[19]), int(words[11]) + int(words[12]))


def choose_cases(only: Sequence[str], with_photos: bool) -> tuple[list[Case], set[str]]:
    """Return the cases to run in their order, and the names of those whose lines are wanted."""
    cases = [case for case in CASES if with_photos or not case.needs_photos]
    names = {case.name for case in cases}
    cases = [case for case in cases if {one.name for one in case.needs(CASES)} <= names]
    wanted = {case.name for case in cases if not only or case.command in only or case.name in only}
    needed = set(wanted)
    for case in reversed(cases):
        if case.name in needed:
            needed |= {one.name for one in case.needs(cases)}
            needed |= {"curate-world"} if "{uid}" in case.line else set()
    return [case for case in cases if case.name in needed], wanted


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def read_table(path: Path, skipped: Collection[str] = ()) -> dict[tuple[str, str], Line]:
    """Return the lines of a table by case and file, but for the cases that are ``skipped``."""
    with path.open(newline="") as file:
        lines = [Line(*row) for row in csv.reader(file)][1:]
    return {(line.case, line.file): line for line in lines if line.case not in skipped}


def compare(before: dict[tuple[str, str], Line], after: dict[tuple[str, str], Line]) -> list[str]:
    """Return a line for each file that is missing, new or changed."""
    reported = []
    for key in sorted(before.keys() | after.keys()):
        how = "missing" if key not in after else "new" if key not in before else "changed"
        if before.get(key) != after.get(key):
            reported.append(f"{how:8}{key[0]}: {key[1]}")
    return reported


def make_table(cases: Iterable[Case], wanted: Collection[str], place: Place, out: Path) -> bool:
    """Run the cases and write both tables, anew after each; return whether all ended as they should."""
    lines, times, is_well = digest_inputs(place.folder), [], True
    for case in cases:
        found, seconds, cpu = run_case(case, place)
        print(f"{case.name}: {len(found)} lines, {seconds:.1f} s, {cpu:.1f} CPU s", flush=True)
        is_well &= found[0].sha256 == str(case.exit_code)
        times.append((case.name, case.command, f"{seconds:.1f}", f"{cpu:.1f}"))
        lines += found if case.name in wanted else []
        write_rows(out, Line._fields, lines)
        write_rows(out.with_name(f"{out.stem}_times.csv"), TIME_COLUMNS, times)
    return is_well


def main() -> int:
    """Read the command line, make the table, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--against", type=Path, metavar="BEFORE.csv", help="a table to compare with")
    parser.add_argument("--only", default="", help="commands or cases, joined with commas")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs in this new folder")
    args = parser.parse_args()
    shared = Path(os.environ.get("RAYCOMP_SHARED", ROOT.parent / "shared"))
    cases, wanted = choose_cases([name for name in args.only.split(",") if name], has_photos(shared))
    folder = Path(tempfile.mkdtemp(prefix="raycomp_digests_")) if args.keep is None else args.keep.resolve()
    try:
        write_inputs(folder / "in", shared)
        is_well = make_table(cases, wanted, Place(folder, tuple(args.set)), args.out)
    finally:
        if args.keep is None:
            shutil.rmtree(folder)
    if args.against is None:
        return 0 if is_well else 1
    skipped = ({case.name for case in CASES} | {PHOTOS}) - wanted
    skipped -= {PHOTOS} if has_photos(shared) else set()
    before = read_table(args.against, skipped)
    reported = compare(before, read_table(args.out))
    print("\n".join([*reported, f"{len(reported)} lines differ, of {len(before)} before"]))
    return 0 if is_well and not reported else 1


if __name__ == "__main__":
    sys.exit(main())
