"""The layers and the tree of docs/architecture.md, written from the files.

    python -m lab.makers.architecture

Rewrites what is between the markers ``<!-- layers -->`` and ``<!-- tree -->`` and their ends. A package or
file is described by the first sentence of its docstring. Layers, and the imports that a package may make in
addition, are those that ``tests/test_layers.py`` enforces. A test fails where the page differs.

Cost: a second. Result: docs/architecture.md, the page that lab/makers/architecture.py writes.
"""

import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
_WIDTH = 22
# A longer sentence is shortened in the tree.
_LONGEST = 84


def write_page(page: str) -> str:
    """Return the page with its two written parts up to date. Raises ValueError where a marker is missing."""
    tree = [line for package in ("raycomp", "lab") for line in _list_files(ROOT / package, "")]
    for name, text in {
        "layers": "\n".join(_list_layers()),
        "tree": "\n".join(["```", *tree, "```"]),
    }.items():
        found = re.search(rf"<!-- {name} -->\n(.*)<!-- end of {name} -->", page, re.DOTALL)
        if not found:
            raise ValueError(f"docs/architecture.md: has no <!-- {name} --> with <!-- end of {name} -->")
        page = f"{page[: found.start(1)]}{text}\n{page[found.end(1) :]}"
    return page


def _list_layers() -> Iterator[str]:
    """Yield a table: each package, from the highest layer down, its size, and its imports."""
    rules = importlib.import_module("tests.test_layers")
    yield "| layer | package | content | files | lines | may import, in addition to lower layers |"
    yield "| --- | --- | --- | --- | --- | --- |"
    packages = sorted({rules.package_of(path) for path in rules.FILES})
    for name in sorted(packages, key=rules.LAYERS.__getitem__, reverse=True):
        path = ROOT / "raycomp" / name
        shown = f"`{name}/`" if path.is_dir() else f"`{name}.py`"
        path = path if path.is_dir() else path.with_suffix(".py")
        others = rules.NEIGHBOURS.get(name, set()) | rules.EXCEPTIONS.get(name, set())
        yield _write_row(rules.LAYERS[name], shown, path, ", ".join(f"`{one}`" for one in sorted(others)))
    yield _write_row("", "all of `raycomp/`", ROOT / "raycomp", "")
    yield _write_row("above", "`lab/`", ROOT / "lab", "all of raycomp, which never imports `lab`")


def _write_row(layer: object, name: str, path: Path, others: str) -> str:
    files = _find_sources(path)
    return f"| {layer} | {name} | {_describe(path)} | {len(files)} | {_count_lines(files)} | {others} |"


def _list_files(folder: Path, indent: str) -> Iterator[str]:
    """Yield a line for a package and its files, then the packages within it."""
    sources = _find_sources(folder)
    size = f"{len(sources)} files, {_count_lines(sources)} lines"
    yield f"{f'{indent}{folder.name}/':{_WIDTH}} {_shorten(_describe(folder))} ({size})"
    inner = f"{indent}  "
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.name != "__init__.py":
            yield f"{f'{inner}{path.name}':{_WIDTH}} {_shorten(_describe(path))}"
    for path in sorted(folder.iterdir()):
        if path.is_dir() and any(path.glob("*.py")):
            yield from _list_files(path, inner)


def _find_sources(path: Path) -> list[Path]:
    """Return a file, or the Python files of a package."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _count_lines(files: Iterable[Path]) -> str:
    """Return the number of lines to two digits, so that the page seldom changes with them."""
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    return f"{float(f'{lines:.2g}'):,.0f}"


def _describe(path: Path) -> str:
    """Return the first sentence of the docstring of a file or a package, without its point."""
    file = path / "__init__.py" if path.is_dir() else path
    docstring = re.match(
        r'"""(.+?)(?:\n\n|""")', file.read_text("utf-8") if file.is_file() else "", re.DOTALL
    )
    first = " ".join(docstring[1].split()).replace("``", "`") if docstring else ""
    return re.split(r"(?<!\bal)(?<!\bEqs)\.(?: (?=[A-Z`])|$)", first)[0]


def _shorten(sentence: str) -> str:
    """Return the sentence, or, of a long one, what comes before its colon or its last commas."""
    colon = re.match(r"(.{24,}?)[:;] ", sentence)
    if colon and len(sentence) > _LONGEST:
        sentence = colon[1]
    while len(sentence) > _LONGEST and ", " in sentence:
        sentence = sentence.rpartition(", ")[0]
    return sentence.rpartition(" (")[0] if sentence.count("(") > sentence.count(")") else sentence


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text("utf-8")), "utf-8")
