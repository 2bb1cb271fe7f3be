"""The size of each package: files, lines, imports, statements and functions, at any commit.

    python -m bench.sizes before=99f0179 now=HEAD --csv bench/results/sizes.csv

Statements are those of the syntax tree without imports and docstrings; lines of imports are those that an
import statement covers. Each package of ``raycomp/`` has a line; ``lab``, ``tests``, ``tests/lab`` one each.
"""

import argparse
import ast
import csv
import statistics
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Size(NamedTuple):
    """What is counted of a group of files; sums, but for the median."""

    files: int
    lines: int
    import_lines: int
    statements: int
    functions: int
    private_functions: int
    median_lines_of_functions: float
    docstring_lines_per_public_function: float
    characters_per_line: float


def read_sources(commit: str) -> dict[str, str]:
    """Return every Python file of a commit by its path."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        names = [name for name in tar.getnames() if name.endswith(".py")]
        return {name: tar.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]


def name_group(path: str) -> str | None:
    """Return the group that a file is counted in; None for files of no package."""
    parts = path.split("/")
    if parts[0] == "raycomp":
        return f"raycomp/{parts[1]}" if len(parts) > 2 else "raycomp/*.py"
    if parts[:2] == ["tests", "lab"]:
        return "tests/lab"
    return parts[0] if parts[0] in ("lab", "tests", "bench", "jobs", "makers") else None


def measure(texts: list[str]) -> Size:
    """Count what a group of files holds."""
    trees = [ast.parse(text) for text in texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [one for one in functions if not one.name.startswith("_")]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes) - len(imports)
    statements -= sum(1 for _ in list_docstrings(nodes))
    code = [line for text in texts for line in text.splitlines() if line.strip()]
    said = sum((ast.get_docstring(one) or "").count("\n") + 1 for one in public if ast.get_docstring(one))
    return Size(
        len(texts),
        sum(text.count("\n") for text in texts),
        sum((node.end_lineno or 0) - node.lineno + 1 for node in imports),
        statements,
        len(functions),
        len(functions) - len(public),
        statistics.median([(one.end_lineno or 0) - one.lineno + 1 for one in functions] or [0]),
        round(said / max(1, len(public)), 2),
        round(sum(map(len, code)) / max(1, len(code)), 1),
    )


def list_docstrings(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """Yield each statement that is only a string."""
    for node in nodes:
        is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_constant and isinstance(node.value.value, str):
            yield node


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commits", nargs="+", metavar="NAME=COMMIT")
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    rows = []
    for entry in args.commits:
        name, _, commit = entry.partition("=")
        groups: dict[str, list[str]] = {}
        for path, text in read_sources(commit or name).items():
            group = name_group(path)
            if group is not None:
                groups.setdefault(group, []).append(text)
                if group.startswith("raycomp/"):
                    groups.setdefault("raycomp", []).append(text)
        rows += [(name, group, *measure(texts)) for group, texts in sorted(groups.items())]
    head = ("commit", "group", *Size._fields)
    for row in [head, *rows]:
        print("\t".join(map(str, row)))
    if args.csv:
        with args.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *rows])


if __name__ == "__main__":
    main()
