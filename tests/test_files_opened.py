"""The hook of bench.files_opened notes the functions that run, and not those that an import calls."""

import os
import subprocess
import sys
from pathlib import Path

HOOK = Path(__file__).parents[1] / "bench" / "opened"
MODULE = '''
from threading import Thread

def decorate(function):
    return function

class Sum:
    @decorate
    def add(self):
        """Say what it does."""

def never():
    return 1

def numbers():
    yield from (1, 2)

TABLE = list(numbers())

def work():
    thread = Thread(target=Sum().add)
    thread.start()
    thread.join()
    return Sum.add.__doc__
'''


def test_functions_that_run_are_noted_and_imports_are_not(tmp_path):
    (tmp_path / "raycomp").mkdir()
    (tmp_path / "raycomp/__init__.py").write_text("def unused(): return 0\n")
    (tmp_path / "raycomp/sums.py").write_text(MODULE)
    (tmp_path / "notes").mkdir()
    path = os.pathsep.join([str(HOOK), str(tmp_path)])
    env = {**os.environ, "PYTHONPATH": path, "FILES_OPENED": str(tmp_path / "notes")}
    line = [sys.executable, "-c", "import raycomp.sums; print(raycomp.sums.work())"]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "Say what it does.\n"
    (notes,) = (tmp_path / "notes").iterdir()
    assert notes.read_text() == "raycomp/sums.py\twork\nraycomp/sums.py\tSum.add\n"
