"""Random mutants: which changes of a line there are, where it is found again, which tests are run for it."""

from pathlib import Path

from bench.line_edits import Editor, is_other
from bench.mutants import (
    Index,
    Mutant,
    choose,
    find_failure,
    to_test,
)

CODE = '''
"""A file with 1 docstring."""
LIMIT = 3

class Sum:
    """Add up < 3 numbers."""
    most: int = 4

    def take(self, value: int = 2) -> list[int]:
        """Return 1 + 2."""
        {line}
        self.total = value
        value = value
        return self.most
'''


def list_changes(line: str) -> dict[str, list[str]]:
    """Return the mutated forms of a line in a method, by operator."""
    text = CODE.replace("{line}", line)
    number = text[: text.index(line)].count("\n") + 1
    edits = [edit for edit in Editor(text).edits if edit.line == number]
    assert all(is_other(text.splitlines(), edit) and edit.function == "Sum.take" for edit in edits)
    changes: dict[str, list[str]] = {}
    for edit in edits:
        changes.setdefault(edit.operator, []).append(edit.mutated)
    return changes


def test_an_operator_changes_its_part_of_the_line():
    for line, operator, changes in [
        ("if a < b <= c: return", "comparison", ["if a <= b <= c: return", "if a < b < c: return"]),
        ("x(a is not None)", "comparison", ["x(a is None)"]),
        ("x(a not in b)", "comparison", ["x(a in b)"]),
        ("x(a - (b) * c)", "arithmetic", ["x(a + (b) * c)", "x(a - (b) / c)"]),
        ("total += 1", "arithmetic", ["total -= 1"]),
        ("x(a and b or c)", "and, or", ["x(a and b and c)", "x(a or b or c)"]),
        ("x(not a)", "remove not", ["x(a)"]),
        ("x(1_000, 0.5)", "constant", ["x(1001, 0.5)", "x(1_000, 1.5)"]),
        ("x(True, 'a')", "constant", ["x(False, 'a')"]),
        ("return value", "return None", ["return None"]),
        ("value = LIMIT", "delete statement", ["pass"]),
        ("self.add(value)  # now", "delete statement", ["pass  # now"]),
        ("x(min(a, b))", "min, max", ["x(max(a, b))"]),
        ("x(np.maximum(a, b))", "min, max", ["x(np.minimum(a, b))"]),
        ("x(a[i:j + 2])", "off by one", ["x(a[i + 1:j + 2])", "x(a[i:(j + 2) - 1])"]),
        ("x(a[:3, -1])", "off by one", ["x(a[:2, -1])", "x(a[:3, 0])"]),
        ("x(a, f(b), *c)", "swap arguments", ["x(f(b), a, *c)"]),
        ("if a in b: return", "negate condition", ["if not (a in b): return"]),
        ("x(a if b else c)", "negate condition", ["x(a if not (b) else c)"]),
    ]:
        assert sorted(list_changes(line)[operator]) == sorted(changes)


def test_reports_errors_and_annotations_are_left_alone():
    for line in [
        "raise ValueError(f'{1 + 2}', a < b)",
        "self.say(1 + 2)",
        "log_event('x', rows=3)",
        "x = f'{a + 1}'",
        "x: int = y",
        "def _say_count(n=1): return n + 1",
    ]:
        assert list_changes(line) == {}


FUNCTION = "def run(rows):\n    if rows:\n        total = len(rows)\n    return total\n"
MUTANT = Mutant(1, "raycomp/a.py", "run", "total = len(rows)", "pass", "delete statement", 0)


def find(root: Path, mutant: Mutant = MUTANT, **files: str) -> object:
    for name, text in files.items():
        file = root / "raycomp" / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Index.read(root).find(mutant)


def test_a_mutant_is_found_where_its_function_was_moved(tmp_path):
    inner = "class Runs:\n" + "".join(f"    {line}\n" for line in FUNCTION.splitlines())
    assert find(tmp_path / "same", a=FUNCTION, b="x = 1\n") == ("raycomp/a.py", 3)
    assert find(tmp_path / "moved", deep__er__c="import os\n" + FUNCTION, b="") == ("raycomp/deep/er/c.py", 4)
    assert find(tmp_path / "method", b=inner) == ("raycomp/b.py", 4)
    # Of two functions of that name, that of its qualified name, then of its file.
    assert find(tmp_path / "two", b=inner, c=FUNCTION) == ("raycomp/c.py", 3)
    assert find(tmp_path / "both", a=FUNCTION, c=FUNCTION) == ("raycomp/a.py", 3)
    assert find(tmp_path / "unclear", b=FUNCTION, c=FUNCTION) == "ambiguous"


def test_tests_of_the_modules_package_come_first_and_cheap_ones_before_dear_ones():
    cost = {"curation/test_a.py::x": 3.0, "curation/test_a.py::y": 9.0, "curation/test_b.py::x": 1.0}
    cost |= {"run/test_c.py::x": 0.1, "run/test_c.py::y": 0.2, "run/test_d.py::z": 500.0}
    seconds = {f"tests/{test}": value for test, value in cost.items()}

    def names(most_s: float) -> list[str]:
        return [
            test.removeprefix("tests/") for test in choose(seconds, seconds, "raycomp/curation/x.py", most_s)
        ]

    both = ["curation/test_b.py::x", "curation/test_a.py::x"]
    assert names(100.0) == [*both, "curation/test_a.py::y", "run/test_c.py::x", "run/test_c.py::y"]
    assert names(5.0) == [*both, "run/test_c.py::x", "run/test_c.py::y"]
    assert names(0.5) == ["curation/test_b.py::x"]
    assert choose([], seconds, "raycomp/curation/x.py", 9.0) == []


def test_a_context_is_a_test_and_a_failure_names_one():
    test = "tests/a.py::test_x[a|b - c]"
    assert [to_test(c) for c in (test, f"{test}|run", f"ray-worker|{test}")] == [test] * 3
    said = f"..F\nFAILED {test} - assert 1 == 2\n"
    assert find_failure(said, ["tests/a.py::test_x", test]) == (test, "assert 1 == 2")
    assert find_failure("ERROR tests/b.py - NameError: x\n", [test]) == ("tests/b.py", "NameError: x")
