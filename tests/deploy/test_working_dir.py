"""What ``ray job submit --working-dir .`` sends: the code, and nothing that runs leave in a checkout."""

import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = [
    *("raycomp/cli.py", "jobs/mine.py", "pyproject.toml", "raycomp/models/data/parser/config.cfg"),
    *("raycomp/report/page.html.jinja", "raycomp/report/style.css"),
]
OTHER = [
    *(".venv/bin/python", "out/demo/run.json", "runs/a/run.json", "data/00000.tar", "mine.tar", "a.parquet"),
    *("tests/test_cli.py", "docs/report.png", "bench/RESULTS.md", ".git/HEAD", "raycomp/__pycache__/cli.pyc"),
    *(".mypy_cache/a.json", ".ruff_cache/a", "raycomp.egg-info/PKG-INFO"),
]


def pack(folder: Path, into: Path) -> Path:
    """Return the package that Ray makes of a working directory, with its own default excludes."""
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    create_package(str(folder), into, include_gitignore=True, excludes=get_runtime_env_default_excludes())
    return into


def test_the_code_is_sent_and_nothing_else(tmp_path):
    checkout = tmp_path / "checkout"
    for name in (*CODE, *OTHER):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(name)
    for name in (".gitignore", ".rayignore"):
        (checkout / name).write_text((ROOT / name).read_text())
    with zipfile.ZipFile(pack(checkout, tmp_path / "a.zip")) as package:
        files = {name for name in package.namelist() if not name.endswith("/")}
    assert files == {*CODE, ".gitignore", ".rayignore"}
