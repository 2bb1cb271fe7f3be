"""Break the code on purpose, one contract at a time, and see that the tests catch it.

    python -m bench.mutations [NAME ...] [--baseline] [--csv bench/results/breaks.csv]

bench/breaks.toml names lines of raycomp/ and the lines that replace them. They are searched in every file and
compared without indentation, so a break outlives moved code; so do its tests, named by their functions.
Each break is applied to a copy of the last commit, where its tests must fail: a failure of a test, no error
of a fixture or an import. With --baseline they must first pass without it. Prints a line for each; exits with
1 unless all are caught. Results: caught, missed, not found, ambiguous (found more than once), no test, does
not compile, fails without it.
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
import textwrap
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
BREAKS = ROOT / "bench" / "breaks.toml"
CAUGHT, MISSED, NOT_FOUND, AMBIGUOUS, NO_TEST = "caught", "missed", "not found", "ambiguous", "no test"
LATE = -1
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
_ERROR = re.compile(r"^ERROR tests/", re.MULTILINE)  # lines of a log have more spaces
_MOST_S = 900.0
_COLUMNS = ("name", "contract", "result", "seconds", "failing_test")


@dataclass(frozen=True)
class Break:
    """An entry of breaks.toml, which explains the fields."""

    name: str
    contract: str
    find: str
    caught_by: Sequence[str]
    replace: str = ""


@dataclass(frozen=True)
class Place:
    """Consecutive lines of a file: ``first`` counts from 0, ``last`` is not one of them."""

    file: Path
    first: int
    last: int


def read_breaks(names: Sequence[str] = (), file: Path = BREAKS) -> list[Break]:
    """Return the breaks of these names (none = all). Raises ValueError where there is none of a name."""
    known = {name: Break(name, **entry) for name, entry in tomllib.loads(file.read_text()).items()}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{unknown[0]}: not in {file.name}, which has {', '.join(known)}")
    return [known[name] for name in names or known]


def squeeze(line: str) -> str:
    """Return a line as it is compared: without indentation, each white space one blank."""
    return " ".join(line.split())


def find_lines(root: Path, find: str) -> list[Place]:
    """Return the places of ``raycomp/**/*.py`` below ``root`` where these consecutive lines stand."""
    wanted = [squeeze(line) for line in find.strip().splitlines()]
    places = []
    for file in sorted((root / "raycomp").rglob("*.py")):
        lines = [squeeze(line) for line in file.read_text().splitlines()]
        for first in range(len(lines) - len(wanted) + 1):
            if lines[first : first + len(wanted)] == wanted:
                places.append(Place(file, first, first + len(wanted)))
    return places


def replace_lines(place: Place, replace: str) -> bool:
    """Write other lines to a place, indented as its first line was; return whether the file compiles."""
    lines = place.file.read_text().splitlines()
    old = lines[place.first]
    new = textwrap.indent(textwrap.dedent(replace).strip("\n"), old[: len(old) - len(old.lstrip())])
    text = "\n".join([*lines[: place.first], *new.splitlines(), *lines[place.last :], ""])
    place.file.write_text(text)
    try:
        compile(text, str(place.file), "exec")
    except SyntaxError:
        return False
    return True


def find_tests(root: Path, names: Sequence[str]) -> list[str]:
    """Return node ids of the test functions of these names, in whatever file; none where one is missing."""
    texts = {file: file.read_text() for file in sorted((root / "tests").rglob("test_*.py"))}
    found = {
        name: [
            f"{file.relative_to(root)}::{name}" for file, text in texts.items() if f"\ndef {name}(" in text
        ]
        for name in names
    }
    return [node for nodes in found.values() for node in nodes] if all(found.values()) else []


@contextmanager
def copy_commit() -> Iterator[Path]:
    """Extract the last commit into a folder for the block; the tests' files lie next to it."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="mutation-") as above:
        folder = Path(above) / "tree"
        with tarfile.open(fileobj=BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        yield folder


def run_tests(folder: Path, line: Sequence[str], most_s: float = _MOST_S) -> tuple[int, str]:
    """Return pytest's exit code, LATE where it took too long, and what it printed."""
    # A mutation may fill the memory: each process gets 6 GB.
    whole = ["sh", "-c", 'ulimit -d 6000000; exec "$@"', "sh"]
    whole += [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *line]
    whole.append(f"--basetemp={folder.parent / 'tmp'}")
    env = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    env |= {"BUILD_NUMBER": "0"}  # pytest prints whole messages
    # In a session of its own: Ray's processes end with it.
    tests = subprocess.Popen(
        whole, cwd=folder, env=os.environ | env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, _ = tests.communicate(timeout=most_s)
        return tests.returncode, said
    except subprocess.TimeoutExpired:
        return LATE, ""
    finally:
        if tests.poll() is None:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.wait()


def judge(code: int, said: str) -> tuple[str, str]:
    """Return what pytest's exit code and output say: the result and the test that failed."""
    failed = _FAILED.search(said)
    if code == 1 and failed and not _ERROR.search(said):
        return CAUGHT, failed[1]
    if code == 0:
        return MISSED, ""
    return f"{MISSED}: {'late' if code == LATE else f'pytest exit {code}'}", ""


def try_break(one: Break, is_applied: bool = True) -> tuple[str, str]:
    """Run the tests of a break on a copy of the last commit; return the result and the failing test."""
    with copy_commit() as folder:
        tests, places = find_tests(folder, one.caught_by), find_lines(folder, one.find)
        if not tests:
            return NO_TEST, ""
        if len(places) != 1:
            return AMBIGUOUS if places else NOT_FOUND, ""
        if is_applied and not replace_lines(places[0], one.replace):
            return "does not compile", ""
        return judge(*run_tests(folder, [*tests, "-m", ""]))


def main() -> int:
    """Try the breaks that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="in breaks.toml; none: all")
    parser.add_argument("--baseline", action="store_true", help="first see that the tests pass without it")
    parser.add_argument("--csv", type=Path, help="write the results there, too")
    asked = parser.parse_args()
    try:
        breaks = read_breaks(asked.names)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    results = []
    for one in breaks:
        started, result, failed = time.monotonic(), MISSED, ""
        if asked.baseline:
            result, _ = try_break(one, is_applied=False)
            if result not in (MISSED, NOT_FOUND, AMBIGUOUS, NO_TEST):
                result = "fails without it"
            started = time.monotonic()
        if result == MISSED:
            result, failed = try_break(one)
        seconds = round(time.monotonic() - started, 1)
        print(f"{one.name}: {result}, {seconds} s {failed}".rstrip(), flush=True)
        results.append(result)
        if asked.csv:
            _note(asked.csv, [one.name, one.contract, result, str(seconds), failed])
    return int(any(result != CAUGHT for result in results))


def _note(table: Path, row: list[str]) -> None:
    """Put a break's row into a table, which keeps those of other breaks."""
    lines = list(csv.reader(table.read_text().splitlines()))[1:] if table.exists() else []
    known = {line[0]: line for line in [*lines, row]}
    with table.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *known.values()])


if __name__ == "__main__":
    sys.exit(main())
