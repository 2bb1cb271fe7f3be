"""The hook of bench.files_opened notes the functions that run, and not those that an import calls."""

import os
import subprocess
import sys
from pathlib import Path

HOOK = Path(__file__).parents[1] / "bench" / "opened"
MODULE = '''
"""A file of raycomp."""

from functools import cache
from threading import Thread

def decorate(function):
    """Run while the module is imported."""
    return function

class Sum:
    def __init__(self):
        self.total = 0

    @decorate
    def add(self, value):
        """Say what it does."""
        def inner():
            return value
        self.total += inner()
        return self

@cache
def never():
    return 1

def numbers():
    yield from (1, 2)

TABLE = list(numbers())

def work():
    thread = Thread(target=Sum().add, args=(1,))
    thread.start()
    thread.join()
    return Sum.add.__doc__
'''


def test_functions_that_run_are_noted_and_imports_are_not(tmp_path):
    (tmp_path / "raycomp").mkdir()
    (tmp_path / "raycomp/__init__.py").write_text("def unused(): return 0\n")
    (tmp_path / "raycomp/sums.py").write_text(MODULE)
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['HIDDEN'] = 'ran'\n")
    (tmp_path / "notes").mkdir()
    code = "import os, raycomp.sums; print(raycomp.sums.work(), os.environ['HIDDEN'])"
    path = os.pathsep.join([str(HOOK), str(tmp_path)])
    env = {**os.environ, "PYTHONPATH": path, "FILES_OPENED": str(tmp_path / "notes")}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "Say what it does. ran\n"
    (notes,) = (tmp_path / "notes").iterdir()
    found = [line.split("\t") for line in notes.read_text().splitlines()]
    assert {file for file, _ in found} == {"raycomp/sums.py"}
    assert [function for _, function in found] == ["work", "Sum.__init__", "Sum.add"]
    assert not list((tmp_path / "raycomp").glob("**/*.pyc"))
