"""Change random lines of raycomp/ and see which changes the tests notice.

    python -m bench.mutants draw [--seed 0] [--count 120]
    python -m bench.mutants run --coverage coverage.sqlite --durations durations.csv [NUMBER ...] [--jobs 2]

``draw`` writes bench/results/mutants.csv. A mutant is one line within a function, changed by one operator
that is drawn among those of bench/line_edits.py that apply to a drawn line. The packages get mutants in
proportion to their statements, without imports and docstrings.

``run`` finds each mutant again in the last commit, by its function's name and its line, in whatever file;
it applies the mutant to a copy and runs the tests that reach the line, as the coverage data say
(coverage.py with a context for each test: its node id). First come tests in the folder of the module's
package, then others, then those with Ray; of each file the cheapest, so that the seconds of durations.csv
(nodeid, seconds) fit --most-s. What runs in a fixture is known of the first test alone that needed it, so a
mutant that survives is tried by more tests of the same files and the package's folder, before those with
Ray. The same tests, up to the one that fails, must pass without the mutant; otherwise it does not count.
Results, in bench/results/mutants_run.csv: caught, survived, unreached, not caught in time, not found,
ambiguous. Mutants that have a result are passed over.

Rows of the table whose code was rewritten since the draw were carried over by hand to the statement that does
their job today, with a change of the same effect; where that statement now serves further cases, the change
is confined to the old one if one line allows it. Rows whose code left the packages are in mutants_gone.csv.
"""

import argparse
import ast
import csv
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

from bench.line_edits import Edit, Editor, change_line, is_other
from bench.mutations import AMBIGUOUS, CAUGHT, LATE, NOT_FOUND, ROOT, copy_commit, run_tests, squeeze

PACKAGES = "core data run curation training evaluation negatives continual".split()
DRAWN, RESULTS = ROOT / "bench/results/mutants.csv", ROOT / "bench/results/mutants_run.csv"
SURVIVED, UNREACHED, IN_TIME = "survived", "unreached", "not caught in time"
MOST_TESTS = 200
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+)$", re.MULTILINE)
_GONE = re.compile(r"^ERROR: not found: \S*?(tests/.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A line of the table of mutants."""

    number: int
    file: str
    function: str
    """Qualified name."""
    line: str
    """Stripped; indented where its function has the same line at another indentation, too."""
    mutated: str
    operator: str
    seed: int


@dataclass(frozen=True)
class Result:
    """A line of the table of results."""

    number: int
    result: str
    by: str = ""
    why: str = ""
    reached_by: int = 0
    """Tests that reach the line."""
    run: int = 0
    """Those of them that were run, up to the one that failed."""
    more: int = 0
    """Tests of the same files and the package's folder that were run besides."""
    seconds: float = 0.0


def count_statements(text: str) -> int:
    """Return the statements of a file, without imports and docstrings."""
    left_out = (ast.Import, ast.ImportFrom)
    return sum(
        isinstance(node, ast.stmt)
        and not isinstance(node, left_out)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(ast.parse(text))
    )


@dataclass(frozen=True)
class Index:
    """Where the lines and functions of raycomp/ are."""

    texts: dict[str, str]
    functions: dict[str, list[tuple[str, str, int, int]]]
    """For each name: files, qualified names, first and last lines."""

    @classmethod
    def read(cls, root: Path) -> "Index":
        """Read every file below ``root/raycomp``."""
        files = sorted((root / "raycomp").rglob("*.py"))
        index = cls({str(file.relative_to(root)): file.read_text() for file in files}, defaultdict(list))
        for file, text in index.texts.items():
            for name, node in _list_functions(ast.parse(text), ""):
                index.functions[node.name].append((file, name, node.lineno, node.end_lineno or 0))
        return index

    def find(self, mutant: Mutant) -> tuple[str, int] | str:
        """Return file and line of a mutant, or why there is none.

        Of several functions of its name, those of its qualified name or its file come first; where no such
        function has the line, it may stand anywhere once.
        """
        found = [
            (name == mutant.function, file == mutant.file, file, number)
            for file, name, first, last in self.functions.get(mutant.function.rpartition(".")[2], [])
            for number in self._list_lines(file, mutant.line, first, last)
        ]
        best = {place[2:] for place in found if place[:2] == max(found)[:2]}
        if not found:
            best = {(f, n) for f in self.texts for n in self._list_lines(f, mutant.line, 1, sys.maxsize)}
        if len(best) == 1:
            return best.pop()
        return AMBIGUOUS if best else NOT_FOUND

    def _list_lines(self, file: str, line: str, first: int, last: int) -> Iterator[int]:
        lines = self.texts[file].splitlines()[first - 1 : last]
        same = (first + i for i, other in enumerate(lines) if squeeze(other) == squeeze(line))
        return (i for i in same if line == line.lstrip() or lines[i - first] == line)


def _list_functions(
    node: ast.AST, above: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{above}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield name, child
            yield from _list_functions(child, name)
        else:
            yield from _list_functions(child, above)


def share_out(count: int, sizes: dict[str, int]) -> dict[str, int]:
    """Divide a count in proportion to sizes, by largest remainders."""
    exact = {name: count * size / sum(sizes.values()) for name, size in sizes.items()}
    shares = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda name: shares[name] - exact[name])[: count - sum(shares.values())]:
        shares[name] += 1
    return shares


def draw(count: int, seed: int) -> list[Mutant]:
    """Draw mutants of the working tree; of a line at most one."""
    index, generator = Index.read(ROOT), random.Random(seed)
    texts = {p: {f: t for f, t in index.texts.items() if f.startswith(f"raycomp/{p}/")} for p in PACKAGES}
    sizes = {package: sum(map(count_statements, texts[package].values())) for package in PACKAGES}
    mutants: list[Mutant] = []
    for package, share in share_out(count, sizes).items():
        by_line: dict[tuple[str, int], dict[str, list[Edit]]] = defaultdict(lambda: defaultdict(list))
        for file, text in texts[package].items():
            for edit in Editor(text).edits:
                by_line[file, edit.line][edit.operator].append(edit)
        places = sorted(by_line)
        generator.shuffle(places)
        for file, number in places:
            if share == 0:
                break
            lines = texts[package][file].splitlines()
            edit = generator.choice(by_line[file, number][generator.choice(sorted(by_line[file, number]))])
            line = lines[number - 1].strip()
            one = Mutant(len(mutants) + 1, file, edit.function, line, edit.mutated, edit.operator, seed)
            if index.find(one) == (file, number) and is_other(lines, edit):
                mutants.append(one)
                share -= 1
    return mutants


class Reached:
    """Which tests reach a line, and what each costs."""

    def __init__(self, coverage_file: Path, durations: Path):
        from coverage import CoverageData

        self.data = CoverageData(str(coverage_file))
        self.data.read()
        self.files = {_below(file): file for file in self.data.measured_files()}
        self.seconds: dict[str, float] = defaultdict(float)
        with durations.open(newline="") as file:
            for row in csv.reader(file):
                if row[0].startswith("tests/"):
                    self.seconds[row[0]] += float(row[1])
        self.lock = Lock()

    def list_tests(self, file: str, lines: range) -> set[str] | None:
        """Return node ids of the tests that reach any of the lines, None where nothing does.

        A line that runs outside a test, as in an import, is reached by no test in particular.
        """
        if file not in self.files:
            return None
        with self.lock:
            contexts = self.data.contexts_by_lineno(self.files[file])
        found = {context for line in lines for context in contexts.get(line, ())}
        tests = {to_test(context) for context in found} & set(self.seconds)
        if any("ray-worker" in context for context in found):  # of which test a shared worker ran is unknown
            tests |= {test for test in self.seconds if is_of(test, file) and needs_ray(test)}
        return tests if found else None


def _below(file: str) -> str:
    return file[file.rfind("/raycomp/") + 1 :]


def to_test(context: str) -> str:
    """Return the node id of a context: without the kind of process and the phase."""
    return re.sub(r"\|(run|setup|teardown)$", "", context.removeprefix("ray-worker|"))


def is_of(test: str, file: str) -> bool:
    """Return whether a test lies in the folder of a module's package."""
    return test.startswith(f"tests/{file.split('/')[1]}/")


def needs_ray(test: str) -> bool:
    """Return whether a test's file starts Ray: tests/conftest.py has the same rule."""
    file = test.partition("::")[0]
    return "/test_ray_" in file or "/faults/" in file


def choose(tests: Iterable[str], seconds: dict[str, float], file: str, most_s: float) -> list[str]:
    """Return tests for at most so many seconds: the cheapest of each file, then the next, files of the
    module's package first. They come file by file, the cheapest file of the package first."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        by_file[test.partition("::")[0]].append(test)
    turns = sorted(
        (not is_of(test, file), i, seconds[test], test)
        for of_file in by_file.values()
        for i, test in enumerate(of_file)
    )
    chosen, total = list[str](), 0.0
    for *_, test in turns:
        if chosen and (total + seconds[test] > most_s or len(chosen) >= MOST_TESTS):
            continue
        chosen.append(test)
        total += seconds[test]
    cost: dict[str, float] = defaultdict(float)
    for test in chosen:
        cost[test.partition("::")[0]] += seconds[test]

    def rank(test: str) -> tuple[bool, float, str, float]:
        of = test.partition("::")[0]
        return not is_of(test, file), cost[of], of, seconds[test]

    return sorted(chosen, key=rank)


def sort_by_place(root: Path, tests: Sequence[str]) -> list[str]:
    """Return the tests that there are, those of a file in the order of its functions: some files need it."""
    files = [
        file for file in dict.fromkeys(test.partition("::")[0] for test in tests) if (root / file).exists()
    ]
    place = {
        f"{file}::{name}": i
        for file in files
        for i, name in enumerate(re.findall(r"^def (\w+)", (root / file).read_text(), re.MULTILINE))
    }
    there = [test for test in tests if test.partition("[")[0] in place]
    return sorted(
        there, key=lambda test: (files.index(test.partition("::")[0]), place[test.partition("[")[0]])
    )


def find_failure(said: str, tests: Sequence[str]) -> tuple[str, str]:
    """Return the test that pytest's summary names first, or what it names instead, and the message."""
    line = failure[1] if (failure := _FAILURE.search(said)) else ""
    named = max((test for test in tests if line.startswith(test)), key=len, default=line.partition(" - ")[0])
    return named, line[len(named) :].removeprefix(" - ")[:120]


def find_statement(text: str, number: int) -> range:
    """Return the lines of the innermost statement at a line; of one with a body, those before the body."""
    best = range(number, number + 1)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno <= number <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            end = body[0].lineno if body else (node.end_lineno or 0) + 1
            if number < end or not body:
                best = range(node.lineno, end)
    return best


class Trial:
    """A copy of the last commit in which one mutant after the other is tried."""

    def __init__(self, folder: Path, reached: Reached, most_s: float, wall_s: float):
        self.folder, self.reached = folder, reached
        self.most_s, self.wall_s = most_s, wall_s
        self.index = Index.read(folder)

    def try_mutant(self, mutant: Mutant) -> Result:
        """Run the tests of a mutant and leave the copy as it was."""
        place = self.index.find(mutant)
        if isinstance(place, str):
            return Result(mutant.number, place)
        name, number = place
        text = self.index.texts[name]
        tests = self.reached.list_tests(name, find_statement(text, number))
        if tests is None:
            return Result(mutant.number, UNREACHED)
        plain, ray = _part(tests)
        seconds = self.reached.seconds
        files = {test.partition("::")[0] for test in tests}
        near = [test for test in seconds if is_of(test, name) or test.partition("::")[0] in files]
        groups = [
            choose(plain, seconds, name, self.most_s / 2),
            choose(_part(set(near) - tests)[0], seconds, name, self.most_s / 4),
            choose(ray, seconds, name, self.most_s / 2),
        ]
        groups = [sort_by_place(self.folder, group) for group in groups]
        started = time.monotonic()
        code, failed, why, nums = 0, "", "", [0, 0, 0]
        for i, group in enumerate(groups):
            left_s = self.wall_s - (time.monotonic() - started)
            nums[i] = len(group)
            code, failed, why = self._run_group(self.folder / name, mutant, number, group, left_s)
            if code != 0:
                break
        result, took = {0: SURVIVED, LATE: IN_TIME}.get(code, CAUGHT), round(time.monotonic() - started, 1)
        return Result(mutant.number, result, failed, why, len(tests), nums[0] + nums[2], nums[1], took)

    def _run_group(
        self, file: Path, mutant: Mutant, number: int, tests: list[str], left_s: float
    ) -> tuple[int, str, str]:
        """Return an exit code, the failing test and its message; tests that fail anyway are passed over."""
        started, text = time.monotonic(), file.read_text()
        while tests:
            left = left_s - (time.monotonic() - started)
            if left <= 0:
                return LATE, "", ""
            self._write(file, change_line(text, number, mutant.mutated))
            code, said = run_tests(self.folder, [*tests, "-m", ""], left)
            self._write(file, text)
            gone = set(_GONE.findall(said)) & set(tests)
            if code in (0, 5, LATE):
                return (0 if code == 5 else code), "", ""
            failed, why = find_failure(said.replace(str(self.folder.parent), ""), tests)
            if code != 4 or not gone:
                before = tests[: tests.index(failed) + 1] if failed in tests else tests[:1]
                code_before, said = run_tests(self.folder, [*before, "-m", ""])
                if code_before in (0, 5):
                    return code, failed, why or f"pytest exit {code}"
                gone = {find_failure(said, tests)[0], failed} & set(tests) or set(tests)
            tests = [test for test in tests if test not in gone]
        return 0, "", ""

    @staticmethod
    def _write(file: Path, text: str) -> None:
        """Write a file without the byte code of what it was."""
        file.write_text(text)
        for code in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            code.unlink()


def _part(tests: Iterable[str]) -> tuple[list[str], list[str]]:
    ray = [test for test in tests if needs_ray(test)]
    return [test for test in tests if not needs_ray(test)], ray


def run(
    mutants: Sequence[Mutant], reached: Reached, out: Path, num_jobs: int, most_s: float, wall_s: float
) -> None:
    """Try mutants in copies of the last commit, with tests of ``most_s`` by their durations, each for at most
    ``wall_s``; write and print each result at once."""
    left, lock = iter(mutants), Lock()

    def work(_: int) -> None:
        with copy_commit() as folder:
            trial = Trial(folder, reached, most_s, wall_s)
            while True:
                with lock:
                    mutant = next(left, None)
                if mutant is None:
                    return
                result = trial.try_mutant(mutant)
                with lock:
                    write_rows(out, [*read_rows(out, Result), result])
                print(
                    f"{mutant.number} {mutant.file}: {mutant.mutated}: {result.result} {result.by}",
                    flush=True,
                )

    with ThreadPoolExecutor(num_jobs) as pool:
        list(pool.map(work, range(num_jobs)))


def read_rows(file: Path, kind: type) -> list[Any]:
    """Return the rows of a table, none where there is no file."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        types: dict[str, Any] = {field.name: field.type for field in fields(kind)}
        return [kind(**{k: types[k](v) for k, v in row.items()}) for row in csv.DictReader(lines)]


def write_rows(file: Path, rows: Sequence[Mutant] | Sequence[Result]) -> None:
    """Write a table, in the order of its numbers."""
    with file.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([field.name for field in fields(rows[0])])
        writer.writerows(astuple(row) for row in sorted(rows, key=lambda row: row.number))


def main() -> int:
    """Draw or run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--count", type=int, default=120)
    drawing.add_argument("--seed", type=int, default=0)
    running = commands.add_parser("run")
    running.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="of mutants.csv; none: all")
    running.add_argument("--coverage", type=Path, required=True, help="data of coverage.py with contexts")
    running.add_argument("--durations", type=Path, required=True, help="CSV: nodeid, seconds")
    running.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    running.add_argument("--most-s", type=float, default=240.0, help="for a mutant")
    running.add_argument("--slowness", type=float, default=1.0, help="of this machine against durations.csv")
    running.add_argument("--csv", type=Path, default=RESULTS, help="the results")
    asked = parser.parse_args()
    if asked.command == "draw":
        mutants = draw(asked.count, asked.seed)
        write_rows(DRAWN, mutants)
        print(Counter(one.file.split("/")[1] for one in mutants), Counter(one.operator for one in mutants))
        return 0
    done = {result.number for result in read_rows(asked.csv, Result)}
    wanted = set(asked.numbers)
    left = [
        m for m in read_rows(DRAWN, Mutant) if m.number not in done and (not wanted or m.number in wanted)
    ]
    reached = Reached(asked.coverage, asked.durations)
    run(left, reached, asked.csv, asked.jobs, asked.most_s, asked.most_s * asked.slowness)
    print(Counter(result.result for result in read_rows(asked.csv, Result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
