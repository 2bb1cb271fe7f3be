"""The lines and branches of raycomp/ that the tests cover: in pytest, and in every process that tests start.

    python -m bench.covered run FOLDER [-- PYTEST ARGUMENTS]    # writes FOLDER/coverage.sqlite, durations.csv
    python -m bench.covered table FOLDER      # writes bench/results/covered.csv, uncovered.csv
    python -m bench.covered compare FOLDER    # what was covered and is no more; exit 1 if any

``run`` is the whole default suite unless pytest's arguments say otherwise; it takes some twice the suite's
time. coverage.sqlite has a context for every test (its node id), which bench.mutants reads, and "worker of
Ray|TEST" for workers of a cluster that TEST started.

covered.csv counts statements and branches by file. uncovered.csv has each line that no test runs, and each
line from which a branch is never taken, by the function that it stands in and its text: line numbers and
files change. ``compare`` reports lines of now that no test covers and that uncovered.csv does not have: lines
that were covered, or that are new.
"""

import argparse
import ast
import csv
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
COVERED, UNCOVERED = (ROOT / "bench" / "results" / name for name in ("covered.csv", "uncovered.csv"))
DATA, DURATIONS, CONFIG = "coverage.sqlite", "durations.csv", "coveragerc"
LINE, BRANCH = "line", "branch"


class Gap(NamedTuple):
    """A line that no test runs, or from which not every branch is taken."""

    kind: str
    function: str
    text: str


class Plugin:
    """Measures pytest's own process test by test, and writes how long each test took."""

    def __init__(self, folder: Path):
        self.measured = coverage.Coverage(config_file=str(folder / CONFIG))
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.folder = folder

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count what a test covers, its fixtures included, as its own."""
        self.measured.switch_context(item.nodeid)
        result = yield
        self.measured.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a test's seconds."""
        self.seconds[report.nodeid] += report.duration

    def pytest_unconfigure(self) -> None:
        """Save what was measured; in the process that leads, the seconds too."""
        self.measured.stop()
        self.measured.save()
        if "PYTEST_XDIST_WORKER" not in os.environ:
            rows = [(name, f"{seconds:.3f}") for name, seconds in sorted(self.seconds.items())]
            write_rows(self.folder / DURATIONS, [("nodeid", "seconds"), *rows])


def pytest_configure(config: pytest.Config) -> None:
    """Start to measure: this module is pytest's plugin in each of its processes."""
    plugin = Plugin(Path(os.environ["COVERED_CONFIG"]).parent)
    plugin.measured.start()
    config.pluginmanager.register(plugin)


def run(folder: Path, arguments: list[str]) -> int:
    """Run the tests and join what all processes measured; return pytest's exit code."""
    parts = folder.resolve() / "parts"
    parts.mkdir(parents=True)
    warnings = "no-data-collected,module-not-imported,already-imported,module-not-measured"
    text = f"[run]\nbranch = true\nsource = raycomp\nparallel = true\ndata_file = {parts}/c\n"
    (folder / CONFIG).write_text(f"{text}disable_warnings = {warnings}\n")
    path = f"{ROOT / 'bench' / 'covering'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    env = {"COVERED_CONFIG": str(folder.resolve() / CONFIG), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pytest", "-p", "bench.covered", "-q"]
    words += arguments or ["-n", "3", "--no-loadscope-reorder"]
    code = subprocess.run(words, cwd=ROOT, env=os.environ | env, check=False).returncode
    whole = coverage.Coverage(data_file=str(folder / DATA), config_file=str(folder / CONFIG))
    whole.combine([str(path) for path in parts.glob("c.*")], keep=True)
    whole.save()
    return code


def list_gaps(folder: Path) -> tuple[list[tuple[Any, ...]], Counter[Gap]]:
    """Return a row of counts for each file, and all gaps with their numbers."""
    measured = coverage.Coverage(data_file=str(folder / DATA), branch=True, source=["raycomp"])
    measured.load()
    measured.json_report(outfile=str(folder / "coverage.json"))
    rows, gaps = [], Counter[Gap]()
    for name, found in sorted(json.loads((folder / "coverage.json").read_text())["files"].items()):
        source = (ROOT / name).read_text()
        lines, functions, counts = source.splitlines(), name_functions(source), found["summary"]
        names = ("num_statements", "missing_lines", "num_branches", "missing_branches")
        rows.append((name, *(counts[one] for one in names)))
        missed = [(LINE, line) for line in found["missing_lines"]]
        missed += [(BRANCH, line) for line, _ in found["missing_branches"]]
        for kind, line in missed:
            gaps[Gap(kind, functions.get(line, ""), " ".join(lines[line - 1].split()))] += 1
    return rows, gaps


def name_functions(source: str) -> dict[int, str]:
    """Return the name of the innermost function of each line that is in one."""
    found = {}
    for node in ast.walk(ast.parse(source)):  # outer ones first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {line: node.name for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    return found


def write_rows(path: Path, rows: list[tuple[Any, ...]]) -> None:
    """Write a CSV file."""
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> int:
    """Do what the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("arguments", nargs="*", help="pytest's")
    asked = parser.parse_args()
    if asked.what == "run":
        return run(asked.folder, asked.arguments)
    rows, gaps = list_gaps(asked.folder)
    totals = [sum(row[place] for row in rows) for place in range(1, 5)]
    print("statements {}, missed {}; branches {}, missed {}".format(*totals))
    if asked.what == "table":
        head = ("file", "statements", "missed", "branches", "branches_missed")
        write_rows(COVERED, [head, *rows, ("all", *totals)])
        write_rows(UNCOVERED, [(*Gap._fields, "times"), *((*gap, gaps[gap]) for gap in sorted(gaps))])
        return 0
    with UNCOVERED.open(newline="") as file:
        before = Counter({Gap(*row[:3]): int(row[3]) for row in list(csv.reader(file))[1:]})
    new = gaps - before
    for gap in sorted(new):
        print(*gap, sep="\t")
    print(f"{new.total()} lines and branches that uncovered.csv does not have")
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
