"""Mistakes made on purpose: which there are in a line, where their code is found, which tests are run."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.line_edits import Editor, is_other
from bench.mutants import Index, Mutant
from bench.mutations import find_lines, judge, read_breaks, replace_lines

CODE = '''
class Sum:
    """Add up < 3 numbers."""
    most: int = 4

    def take(self, value: int = 2) -> list[int]:
        """Return 1 + 2."""
        {line}
        self.total = value
        return self.most
'''
FUNCTION = "def run(rows):\n    if rows:\n        total = len(rows)\n    return total\n"
MUTANT = Mutant(1, "raycomp/a.py", "run", "total = len(rows)", "pass", "delete statement", 0)


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
        ("x(a - (b) * c)", "arithmetic", ["x(a + (b) * c)", "x(a - (b) / c)"]),
        ("x(a and b or c)", "and, or", ["x(a and b and c)", "x(a or b or c)"]),
        ("x(not a)", "remove not", ["x(a)"]),
        ("x(1_000, 0.5)", "constant", ["x(1001, 0.5)", "x(1_000, 1.5)"]),
        ("return value", "return None", ["return None"]),
        ("self.add(value)  # now", "delete statement", ["pass  # now"]),
        ("x(np.maximum(a, b))", "min, max", ["x(np.minimum(a, b))"]),
        ("x(a[i:j + 2])", "off by one", ["x(a[i + 1:j + 2])", "x(a[i:(j + 2) - 1])"]),
        ("x(a, f(b), *c)", "swap arguments", ["x(f(b), a, *c)"]),
        ("x(a if b else c)", "negate condition", ["x(a if not (b) else c)"]),
    ]:
        assert sorted(list_changes(line)[operator]) == sorted(changes)
    for line in ["raise ValueError(f'{1 + 2}', a < b)", "self.say(1 + 2)", "x = f'{a + 1}'", "x: int = y"]:
        assert list_changes(line) == {}, line


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / "raycomp" / (name.replace("__", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_code_is_found_where_it_was_moved_and_replaced_at_its_indentation(tmp_path):
    inner = "class Runs:\n" + "".join(f"    {line}\n" for line in FUNCTION.splitlines())
    for number, (files, place) in enumerate([
        ({"a": FUNCTION, "c": FUNCTION}, ("raycomp/a.py", 3)),
        ({"deep__er__c": "import os\n" + FUNCTION, "b": ""}, ("raycomp/deep/er/c.py", 4)),
        ({"b": inner, "c": FUNCTION}, ("raycomp/c.py", 3)),
        ({"b": FUNCTION, "c": FUNCTION}, "ambiguous"),
    ]):  # fmt: skip
        assert Index.read(write(tmp_path / str(number), **files)).find(MUTANT) == place
    twice = FUNCTION.replace("    if rows:", "    total = len(rows)\n    if rows:")
    index = Index.read(write(tmp_path / "twice", a=twice))
    assert index.find(MUTANT) == "ambiguous"
    for indentation, number in (("    ", 2), ("        ", 4)):
        assert index.find(replace(MUTANT, line=indentation + MUTANT.line)) == ("raycomp/a.py", number)
    root = write(tmp_path / "lines", deep__er__sums=inner, other="total = 0\n")
    (place,) = find_lines(root, "if rows:\n        total   = len(rows)")
    assert replace_lines(place, "if rows:\n    if 1:\n        total = 2")
    changed = inner.replace("        total = len(rows)", "        if 1:\n                total = 2")
    assert place.file.read_text() == changed


def test_a_test_that_fails_catches_and_an_error_does_not():
    assert judge(1, "FAILED tests/a.py::test_x[1 2] - assert 1\n") == ("caught", "tests/a.py::test_x[1 2]")
    logged = "ERROR    ray.data:a.py:3 an actor died\nFAILED tests/a.py::test_x\n"
    assert judge(1, logged) == ("caught", "tests/a.py::test_x")
    assert judge(1, "FAILED tests/a.py::test_x\nERROR tests/a.py::test_y\n")[0] == "missed: pytest exit 1"
    assert (judge(0, "2 passed")[0], judge(-1, "")[0]) == ("missed", "missed: late")


def test_a_break_says_what_it_breaks_and_who_catches_it():
    breaks = read_breaks()
    assert len({one.find for one in breaks}) == len(breaks) and all(one.contract for one in breaks)
    assert all(one.find.strip() != one.replace.strip() and one.caught_by for one in breaks)
    with pytest.raises(ValueError, match="no_such"):
        read_breaks(["no_such"])
