"""Mutations are found by their code, wherever it was moved, and leave code that is indented as it was."""

from pathlib import Path

import pytest

from bench.mutations import find_lines, find_tests, judge, read_breaks, replace_lines

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


def test_lines_are_looked_for_as_a_whole_and_in_order(tmp_path):
    write(tmp_path, "a.py", "x = 1\ny = 2\n")
    write(tmp_path, "b.py", "y = 2\nx = 1\nx = 10\n")
    assert [place.file.name for place in find_lines(tmp_path, "x = 1")] == ["a.py", "b.py"]
    assert [place.file.name for place in find_lines(tmp_path, "x = 1\ny = 2")] == ["a.py"]
    assert find_lines(tmp_path, "x =") == []


def test_without_a_replacement_lines_are_deleted(tmp_path):
    file = write(tmp_path, "a.py", "x = 1\ny = 2\nif y:\n    z = 3\n")
    assert replace_lines(find_lines(tmp_path, "y = 2")[0], "")
    assert file.read_text() == "x = 1\nif y:\n    z = 3\n"
    assert not replace_lines(find_lines(tmp_path, "z = 3")[0], "")  # an empty block


def test_tests_are_found_by_their_whole_name_in_any_file(tmp_path):
    (tmp_path / "tests/deep").mkdir(parents=True)
    (tmp_path / "tests/test_a.py").write_text("import os\ndef test_one(x):\n    pass\n")
    (tmp_path / "tests/deep/test_b.py").write_text("import os\ndef test_one_more():\n    pass\n")
    assert find_tests(tmp_path, ["test_one", "test_one_more"]) == [
        "tests/test_a.py::test_one",
        "tests/deep/test_b.py::test_one_more",
    ]
    assert find_tests(tmp_path, ["test_one", "test_gone"]) == []


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
