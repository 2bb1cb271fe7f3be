"""The house rules: imports go down, each foreign library has one home, the command line is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "raycomp"
FLOORS = {
    "words": 0,
    "schema": 0,
    "config": 0,
    "core": 1,
    "language": 1,
    "models": 2,
    "shards": 2,
    "benchmarks": 2,
    "worlds": 2,
    "loops": 3,
    "report": 3,
    "cluster": 4,
    "cli": 5,
    "__main__": 5,
    "__init__": 5,
}
# Rooms of one floor that a room may also use.
NEIGHBOURS: dict[str, set[str]] = {"schema": {"words"}, "config": {"words"}, "__main__": {"cli"}}
HOMES = {
    "ray": {"cluster"},
    "vllm": {"cluster"},
    "open_clip": {"models"},
    "spacy": {"models"},
    "s3fs": {"shards"},
    "fsspec": {"shards"},
    "torch": {"core", "models", "loops"},
}
FORBIDDEN_ON_FLOOR_1 = {"os", "pathlib", "io", "requests", "time", "tempfile", "random", "socket", "pyarrow"}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_every_room_is_on_a_floor():
    assert {room_of(path) for path in FILES} <= set(FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    room = room_of(path)
    for name in imported(path):
        if name.startswith("raycomp."):
            other = name.split(".")[1]
            if other in FLOORS and other != room:
                allowed = FLOORS[other] < FLOORS[room] or other in NEIGHBOURS.get(room, set())
                assert allowed, f"{path.name} on floor {FLOORS[room]} imports {name} of floor {FLOORS[other]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_foreign_library_has_one_home(path):
    roots = {name.split(".")[0] for name in imported(path)}
    for library, homes in HOMES.items():
        assert library not in roots or room_of(path) in homes, f"{library} has its home in {homes}"
    if room_of(path) in ("core", "language"):
        assert not roots & FORBIDDEN_ON_FLOOR_1, "arrays and English only"


@pytest.mark.parametrize("command", [["--help"], ["curate", "--help"]])
def test_help_imports_nothing_heavy(command):
    code = (
        "import sys\nfrom raycomp.cli import main\n"
        f"try:\n    main({command!r})\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'ray', 'torch', 'open_clip', 'spacy', 'numpy', 'vllm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


def test_every_job_says_what_it_is():
    for path in sorted((ROOT / "jobs").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text and len(text) > 100, f"{path.name}: what, command, cost, result"


def test_sources_are_ascii():
    for path in [*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "jobs").glob("*.py")]:
        assert path.read_text().isascii(), path
