"""Mutations are found by their code, wherever it was moved, and leave code that is indented as it was."""

from pathlib import Path

import pytest

from bench.mutations import find_lines, judge, read_breaks, replace_lines

LOOP = """
def add(values, first = 0):
    total = first
    for value in values:
        total += value
    return total
""".strip()


def write(root: Path, name: str, text: str) -> Path:
    file = root / "raycomp" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def move(text: str) -> str:
    """Return the function as a method of a class in a class, eight columns further in."""
    return "class A:\n    class B:\n" + "\n".join(f"        {line}" for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("text", [LOOP, move(LOOP)])
def test_lines_are_found_and_replaced_at_any_indentation(tmp_path, text):
    file = write(tmp_path, "deep/er/sums.py", "import os\n\n\n" + text + "\n\nprint(add([1]))\n")
    write(tmp_path, "other.py", "total = 0\n")
    (place,) = find_lines(tmp_path, "for value in values:\n        total   += value")
    assert place.file == file
    assert replace_lines(place, "for value in values:\n    if value > 0:\n        total += value")
    new = file.read_text()
    indent = " " * (new.index("for value") - new.rindex("\n", 0, new.index("for value")) - 1)
    assert (
        f"\n{indent}for value in values:\n{indent}    if value > 0:\n{indent}        total += value\n" in new
    )
    assert [line for line in new.splitlines() if "value" not in line] == [
        line
        for line in ("import os\n\n\n" + text + "\n\nprint(add([1]))").splitlines()
        if "value" not in line
    ]


def test_a_test_that_fails_catches_and_an_error_does_not():
    assert judge(1, "FAILED tests/a.py::test_x[1 2] - assert 1\n") == ("caught", "tests/a.py::test_x[1 2]")
    assert judge(1, "FAILED tests/a.py::test_x\nERROR tests/a.py::test_y\n")[0] == "missed: pytest exit 1"
    assert judge(0, "2 passed")[0] == "missed"
    assert judge(-1, "")[0] == "missed: late"


def test_a_break_says_what_it_breaks_and_who_catches_it():
    breaks = read_breaks()
    assert len({one.find for one in breaks}) == len(breaks) and all(one.contract for one in breaks)
    assert all(one.find.strip() != one.replace.strip() and one.caught_by for one in breaks)
    with pytest.raises(ValueError, match="no_such"):
        read_breaks(["no_such"])
