"""The house rules: imports go down, each foreign library has one home, the command line is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from raycomp.cli import load_job
from raycomp.config import override_all

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "raycomp"
FLOORS = {
    "words": 0,
    "schema": 0,
    "table": 0,
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
# Every library of others, and the rooms that know it.
HOMES = {
    "PIL": {"models", "worlds"},
    "aiohttp": {"cluster"},
    "fsspec": {"shards"},
    "gcsfs": {"shards"},
    "huggingface_hub": {"models"},
    "jinja2": {"models"},
    "numpy": {"core", "models", "shards", "worlds", "loops", "report", "cluster"},
    "open_clip": {"models"},
    "optuna": {"cluster"},
    "peft": {"models"},
    "pyarrow": {"schema", "shards", "loops", "report", "cluster"},
    "ray": {"cluster"},
    "safetensors": {"models", "loops"},
    "spacy": {"models"},
    "tensorboardX": {"loops"},
    "torch": {"core", "models", "loops"},
    "torchvision": {"models"},
    "tqdm": {"cluster"},
    "transformers": {"models"},
    "vllm": {"cluster"},
}
FORBIDDEN_ON_FLOOR_1 = {"os", "pathlib", "io", "requests", "time", "tempfile", "random", "socket", "pyarrow"}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    return names_in(ast.parse(path.read_text()))


def names_in(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
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
def test_each_foreign_library_has_its_home(path):
    roots = {name.split(".")[0] for name in imported(path)}
    for library in roots - sys.stdlib_module_names - {"raycomp"}:
        homes = HOMES.get(library, set())
        assert room_of(path) in homes, f"{library} has its home in {homes or 'no room: give it one'}"
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


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            "cluster.parts cluster.waves cluster.passes cluster.curate.choose cluster.curate.merge "
            "cluster.train.index cluster.train.shelf loops.evaluate.read loops.curate.parse",
            {"torch", "open_clip"},
        ),
        ("loops.curate.prepare models.tokens models.nonces", {"open_clip"}),
    ],
)
def test_what_reads_prepares_and_merges_loads_no_model_library(modules, heavy):
    """Processes on CPUs import these: open_clip is 5 s and 600 MB in every one of them, torch 2 s."""
    code = "import sys\n" + "".join(f"import raycomp.{name}\n" for name in modules.split())
    code += f"heavy = {heavy!r} & set(sys.modules)\nassert not heavy, heavy\n"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


TESTS = sorted((ROOT / "tests").rglob("*.py"))
WHOLE_RUNS = {"cluster", "faults", "fuzz", "jobs"}
BELOW_CLUSTER = [
    path for path in TESTS if path.name == "conftest.py" or not WHOLE_RUNS & {*path.relative_to(ROOT).parts}
]


@pytest.mark.parametrize("path", BELOW_CLUSTER, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_below_the_cluster_import_no_ray(path):
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    for name in names_in(ast.Module(top, [])):
        assert name.split(".")[0] != "ray" and not name.startswith("raycomp.cluster"), name


JOBS, MAKERS = sorted((ROOT / "jobs").glob("*.py")), sorted((ROOT / "makers").glob("*.py"))


@pytest.mark.parametrize("path", [*JOBS, *MAKERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_job_or_maker_says_what_it_is(path):
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text and len(text) > 100, "what it is"
    if "__main__" in path.read_text() or variants_of(path):
        assert f"{path.parent.name}/{path.name}" in text, "the command"
        assert "Cost: " in text, "the cost"
        assert "Result: " in text or "Expected" in text, "the result"


def variants_of(path: Path) -> list[str]:
    """Return the functions of a job that the command line can name: public ones that return a config."""
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [
        node.name
        for node in functions
        if not node.name.startswith("_") and node.returns and ast.unparse(node.returns).endswith("Config")
    ]


VARIANTS = [f"{path}:{name}" for path in JOBS for name in variants_of(path)]


@pytest.mark.parametrize("job", VARIANTS, ids=lambda job: job.removeprefix(f"{ROOT}/jobs/"))
def test_every_job_builds(job):
    """A config is checked at birth, so one that is returned is valid."""
    built = load_job(job)
    assert type(built).__module__.startswith("raycomp.config"), f"{job} returned {type(built).__name__}"
    assert override_all(built, {}) == built


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_a_job_is_configs_or_a_program(path):
    assert variants_of(path) or "__main__" in path.read_text()


def test_sources_are_ascii():
    for path in [*FILES, *TESTS, *JOBS, *MAKERS]:
        assert path.read_text().isascii(), path
