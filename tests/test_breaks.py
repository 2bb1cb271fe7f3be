"""The breaks of tests/breaks still fit the code: each says what it breaks, names its tests and applies."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.breaks.run import FOLDER, ROOT, list_breaks, read_break

PATCHES = sorted(FOLDER.glob("*.patch"))
by_name = pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)


@by_name
def test_a_break_says_what_it_breaks_and_names_tests_that_there_are(patch: Path):
    one = read_break(patch)
    assert re.fullmatch(r"\d\d_[a-z0-9_]+", patch.stem) and one.contract and one.tests
    assert one.marked in ("", "slow", "chaos")
    for test in one.tests:
        file, _, name = test.partition("::")
        assert f"\ndef {name.partition('[')[0]}(" in (ROOT / file).read_text(), test


@by_name
def test_a_break_applies_to_the_code_alone(patch: Path):
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    files = re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(), re.MULTILINE)
    assert files and all(file.startswith("raycomp/") for file in files)
    done = subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_most_breaks_are_caught_by_the_default_tests():
    breaks = list_breaks()
    assert sum(bool(one.marked) for one in breaks) <= 5
    assert [one.file.stem[:2] for one in breaks] == [f"{n:02d}" for n in range(1, len(breaks) + 1)]
