"""Break the code on purpose, one contract at a time, and see that the tests catch it.

    python tests/breaks/run.py [NAME ...] [--baseline] [--csv bench/results/breaks.csv]

Each ``NAME.patch`` of this folder breaks one contract of docs/architecture.md. It is applied to a copy of the
last commit, where the tests that it names must fail: a failure of a test, no error of a fixture or an import.
With --baseline they must first pass without it. Prints a line for each, exits with 1 unless all are caught.
"""

import argparse
import csv
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
CAUGHT = "caught"
_HEADER = re.compile(r"# (contract|caught by|marked): (.+)")
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
_ERROR = re.compile(r"^ERROR ", re.MULTILINE)
_MOST_S = 900.0
_COLUMNS = ("name", "contract", "result", "seconds", "failing_test")


@dataclass(frozen=True)
class Break:
    """A patch and what its header says."""

    file: Path
    contract: str
    tests: tuple[str, ...]
    """Node ids of the tests that catch it."""
    marked: str = ""
    """The mark of tests that ``make test`` leaves out: slow or chaos."""


def read_break(file: Path) -> Break:
    """Read the header of a patch. Raises KeyError where a line of it is missing."""
    head = file.read_text().partition("\ndiff --git ")[0]
    said = dict(found.groups() for found in map(_HEADER.fullmatch, head.splitlines()) if found)
    return Break(file, said["contract"], tuple(said["caught by"].split()), said.get("marked", ""))


def list_breaks(names: list[str] | None = None) -> list[Break]:
    """Return the breaks of these names (none = all), in the order of their numbers."""
    files = [FOLDER / f"{name}.patch" for name in names] if names else sorted(FOLDER.glob("*.patch"))
    return [read_break(file) for file in files]


def try_break(one: Break, is_applied: bool = True) -> tuple[str, str]:
    """Run the tests of a break on a copy of the last commit; return the result and the failing test."""
    with tempfile.TemporaryDirectory(prefix="break-") as folder:
        packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        if is_applied and subprocess.run(["git", "apply", one.file], cwd=folder).returncode:
            return "does not apply", ""
        code, said = _run_tests(one, folder)
    failed = _FAILED.search(said)
    if code == 1 and failed and not _ERROR.search(said):
        return CAUGHT, failed[1]
    if code == 0:
        return "missed", ""
    return f"missed: {'late' if code < 0 else f'pytest exit {code}'}", ""


def _run_tests(one: Break, folder: str) -> tuple[int, str]:
    """Return pytest's exit code, -1 where it took too long, and what it said."""
    line = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *one.tests]
    line += ["-m", one.marked] if one.marked else []
    env = {**os.environ, "PYTHONPATH": folder}
    # In a session of its own: Ray's processes end with it.
    tests = subprocess.Popen(
        line, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, _ = tests.communicate(timeout=_MOST_S)
        return tests.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(tests.pid, signal.SIGKILL)
        tests.wait()
        return -1, ""


def main() -> int:
    """Try the breaks that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a patch, without .patch; none: all")
    parser.add_argument("--baseline", action="store_true", help="first see that the tests pass without it")
    parser.add_argument("--csv", type=Path, help="write the results there, too")
    asked = parser.parse_args()
    results = []
    for one in list_breaks(asked.names):
        started, result, failed = time.monotonic(), "", ""
        if asked.baseline and try_break(one, is_applied=False)[0] != "missed":
            result = "fails without it"
        if not result:
            started = time.monotonic()
            result, failed = try_break(one)
        seconds = round(time.monotonic() - started, 1)
        print(f"{one.file.stem}: {result}, {seconds} s {failed}".rstrip(), flush=True)
        results.append(result)
        if asked.csv:
            _note(asked.csv, [one.file.stem, one.contract, result, str(seconds), failed])
    return int(any(result != CAUGHT for result in results))


def _note(table: Path, row: list[str]) -> None:
    """Put a break's row into a table, which keeps those of other breaks."""
    lines = list(csv.reader(table.read_text().splitlines()))[1:] if table.exists() else []
    known = {line[0]: line for line in [*lines, row]}
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([_COLUMNS, *(known[name] for name in sorted(known))])


if __name__ == "__main__":
    sys.exit(main())
