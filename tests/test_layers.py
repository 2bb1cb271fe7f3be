"""The house rules: imports go down, each foreign library has its home, the command line is light."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from raycomp.config import load_job, override_all
from raycomp.config.commands import FOLDERS, RAYCOMP

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "raycomp"
# The folders of commands, and their packages: several commands share look/.
COMMAND_FOLDERS = {package.removeprefix("raycomp.") for package in FOLDERS.values()}
COMMANDS = {folder.split(".")[0] for folder in COMMAND_FOLDERS}
# A package imports packages of lower layers alone; a folder of a command is on layer 6.
LAYERS = {
    "words": 0,
    "schema": 0,
    "table": 0,
    "config": 0,
    "core": 1,
    "language": 1,
    "models": 2,
    "data": 3,
    "report": 4,
    "run": 5,
    **dict.fromkeys(COMMANDS, 6),
    "help": 6,
    "cli": 7,
    "__main__": 7,
    "__init__": 7,
}
# What else of its own layer a package may use.
NEIGHBOURS: dict[str, set[str]] = {
    "schema": {"words"},
    "config": {"words"},
    "__main__": {"cli"},
}
# A command imports another's ``__init__`` and ``config``. These import more, so far.
EXCEPTIONS = {
    "continual": {"evaluation", "training"},
    "evaluation": {"curation", "training"},
    "negatives": {"curation", "training"},
    "probe": {"curation", "evaluation", "negatives"},
    "sweep": {"continual", "curation", "evaluation", "training"},
    "training": {"curation"},
    "look": {"curation", "evaluation", "negatives", "probe"},
}
# Every library of others, and the packages that know it; "commands" are all folders of commands.
HOMES = {
    "PIL": {"models"},
    "argcomplete": {"help"},
    "yaml": {"config"},
    "aiohttp": {"negatives"},
    "duckdb": {"data"},
    "faiss": {"core"},
    "fsspec": {"data"},
    "gcsfs": {"data"},
    "huggingface_hub": {"models"},
    "jinja2": {"models", "report"},
    "numba": {"models"},
    "numpy": {"core", "models", "data", "report", "run", "commands"},
    "open_clip": {"models"},
    "optuna": {"sweep"},
    "peft": {"models"},
    "py3langid": {"models"},
    "pyarrow": {"schema", "data", "models", "report", "run", "commands", "__init__"},
    "ray": {"run", "commands"},
    "safetensors": {"models", "training"},
    "scipy": {"core", "models"},
    "spacy": {"models"},
    "tensorboardX": {"training"},
    "torch": {"core", "models", "commands"},
    "torchvision": {"models"},
    "tqdm": {"run"},
    "transformers": {"models"},
    "vllm": {"negatives"},
}
# Files of commands that import Ray are named ray_*.py; and these.
WITH_RAY = {"negatives/vllm.py"}
FORBIDDEN_ON_LAYER_1 = {"os", "pathlib", "io", "requests", "time", "tempfile", "random", "socket", "pyarrow"}
FILES = sorted(PACKAGE.rglob("*.py"))
LAB = sorted((ROOT / "lab").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def read_imports(path: Path) -> tuple[set[str], set[str]]:
    """Return the names that a file imports, and with their modules those that it imports at its top."""
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names, at_top = set(), set()
    for node in nodes:
        base = ""
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = f"{node.module}."
        own = {base + alias.name for alias in node.names}
        names |= own
        if node in tree.body:
            at_top |= own | {base.removesuffix(".")}
    return names, at_top - {""}


def imported(path: Path) -> set[str]:
    return read_imports(path)[0]


def test_imports_go_down():
    assert {package_of(path) for path in FILES} == set(LAYERS)
    for path in FILES:
        own = package_of(path)
        for name in imported(path):
            other = name.split(".")[1] if name.startswith("raycomp.") else ""
            if other in LAYERS and other != own and not {own, other} <= COMMANDS:
                allowed = LAYERS[other] < LAYERS[own] or other in NEIGHBOURS.get(own, set())
                assert allowed, f"{path.name} on layer {LAYERS[own]} imports {name} of {LAYERS[other]}"


def test_the_product_does_not_import_the_lab_nor_the_lab_tests_or_benches():
    """Tests of the product import it in conftest.py, or in a file without tests, such as tests/drawn.py."""
    with_tests = [
        path
        for path in TESTS
        if "\ndef test_" in path.read_text() and not path.is_relative_to(ROOT / "tests/lab")
    ]
    assert len(LAB) > 30
    for paths, others in (([*FILES, *with_tests], {"lab"}), (LAB, {"tests", "bench"})):
        for path in paths:
            assert not {name.split(".")[0] for name in imported(path)} & others, path


def test_sources_are_ascii_and_benches_import_what_is_there():
    """Types are not checked in bench/, and no test imports it all; a name that has moved would be missed."""
    for path in [*FILES, *LAB, *TESTS, *JOBS]:
        assert path.read_text().isascii(), path
    for path in (ROOT / "bench").rglob("*.py"):
        for name in imported(path):
            module, _, last = name.rpartition(".")
            if module.split(".")[0] in ("raycomp", "lab", "bench", "tests"):
                place = ROOT / module.replace(".", "/")
                file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
                own = {one.stem for one in place.glob("*")}
                assert last in own or re.search(rf"\b{last}\b", file.read_text()), f"{path}: {name}"


def pairs_of_commands() -> dict[str, set[str]]:
    """Return by command the commands of which it imports more than ``__init__`` and ``config``."""
    pairs: dict[str, set[str]] = {}
    for path in FILES:
        for name in imported(path):
            parts = [*name.split("."), ""]
            if parts[0] == "raycomp" and {package_of(path), parts[1]} <= COMMANDS:
                module = PACKAGE / parts[1] / parts[2]
                if parts[2] != "config" and (module.is_dir() or module.with_suffix(".py").is_file()):
                    pairs.setdefault(package_of(path), set()).add(parts[1])
    return {command: others - {command} for command, others in pairs.items() if others - {command}}


def test_a_command_imports_what_another_hands_out():
    """The list of exceptions is whole and has no pair that is gone."""
    assert pairs_of_commands() == EXCEPTIONS


def test_ray_is_imported_where_the_name_says_so():
    for path in FILES:
        if "ray" in {name.split(".")[0] for name in imported(path)}:
            place = path.relative_to(PACKAGE)
            assert path.name.startswith("ray_") or str(place) in WITH_RAY


def test_each_foreign_library_has_its_home():
    for path in FILES:
        roots = {name.split(".")[0] for name in imported(path)}
        for library in roots - sys.stdlib_module_names - {"raycomp"}:
            homes = HOMES.get(library, set())
            own = {package_of(path), *(["commands"] if package_of(path) in COMMANDS else [])}
            assert own & homes, f"{library} has its home in {homes or 'no package: give it one'}"
        if package_of(path) in ("core", "language"):
            assert not roots & FORBIDDEN_ON_LAYER_1, "arrays and English only"


def test_nothing_heavier_is_loaded_than_must_be():
    """Processes on CPUs read, prepare and merge: open_clip is 5 s and 600 MB in each, torch 2 s."""
    folders = [f"raycomp.{one}" for one in COMMAND_FOLDERS]
    folders += [f"{one}.config" for one in folders if (ROOT / one.replace(".", "/") / "config.py").is_file()]
    functions = {one.function.partition(":")[0] for one in RAYCOMP.commands.values()}
    works = "run.work curation.select.select curation.score.score training.pairs training.ray_feed"
    models = {"torch", "open_clip", "spacy", "transformers", "torchvision", "scipy"}
    code = "import importlib, sys\n"
    # One after the other in one process: each list is the larger, and what is heavy the less.
    for modules, heavy in [
        (["raycomp.cli", *folders], {*models, "numpy", "ray", "pyarrow", "pandas"}),
        (sorted(functions), {*models, "ray", "pandas"}),
        ([f"raycomp.{name}" for name in [*works.split(), "evaluation.embed"]], {"torch", "open_clip"}),
        (["raycomp.curation.score.stages", "raycomp.models.architecture"], {"torch", "open_clip"}),
    ]:
        code += f"for name in {modules}:\n    importlib.import_module(name)\n"
        code += f"    assert not (found := {heavy} & set(sys.modules)), (name, found)\n"
    # ``raycomp.train`` is a function, and was a folder: the function is what ``import raycomp`` gives.
    code += "import raycomp\nassert all(callable(getattr(raycomp, name)) for name in raycomp.__all__)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@cache
def loads_ray(name: str) -> bool:
    """Whether importing a module of ours imports Ray; by what stands at the top of files."""
    path = ROOT / f"{name.replace('.', '/')}.py"
    if name.split(".")[0] not in ("raycomp", "lab", "tests") or not path.is_file():
        return name.split(".")[0] == "ray"
    return any(loads_ray(one) for one in read_imports(path)[1])


def test_a_test_that_loads_ray_has_it_in_its_name():
    """Tests of one name share a cluster (conftest.py), and the others start at once."""
    for path in TESTS:
        place = path.relative_to(ROOT)
        # The tests of these folders run whole commands, most of them on Ray.
        if path.name.startswith(("test_", "conftest")) and not {"faults", "fuzz", "jobs"} & {*place.parts}:
            assert path.name.startswith("test_ray_") or not loads_ray(".".join(place.with_suffix("").parts))


JOBS = sorted([*(ROOT / "jobs").glob("*.py"), *(ROOT / "lab/jobs").glob("*.py")])
MAKERS = sorted((ROOT / "lab/makers").glob("[!_]*.py"))


def test_a_job_or_maker_says_what_it_is():
    for path in [*JOBS, *MAKERS]:
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text and len(text) > 100, "what it is"
        if "__main__" in path.read_text() or variants_of(path):
            assert str(path.relative_to(ROOT)) in text, "the command"
            assert "Cost: " in text, "the cost"
            assert "Result: " in text or "Expected" in text, "the result"


def variants_of(path: Path) -> list[str]:
    """Return the functions of a job that the command line can name: public ones that return a config."""
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and node.returns
        and ast.unparse(node.returns).endswith("Config")
    ]


def test_every_job_builds():
    """A config is checked at birth, so one that is returned is valid."""
    for job in [f"{path}:{name}" for path in JOBS for name in variants_of(path)]:
        built = load_job(job)
        assert type(built).__module__.endswith(".config"), f"{job} returned {type(built).__name__}"
        assert override_all(built, {}) == built
