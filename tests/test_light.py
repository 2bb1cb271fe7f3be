"""Commands refuse wrong paths and options, and select works, before any heavy library is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raycomp.config import ClusterConfig, ScorerConfig
from raycomp.config.commands import FOLDERS, import_command
from raycomp.curation.command import curate
from raycomp.curation.config import AttributeConfig, CurateConfig
from tests.corpus import write_world_shards

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "open_clip", "spacy", "ray", "pandas", "transformers", "torchvision", "scipy"}
MODULES = sorted({import_command(name).function.partition(":")[0] for name in FOLDERS})
# Prints one line per refusal: exit code, heavy modules, what was said.
_RUN = """
import contextlib, io, json, sys
sys.modules["wandb"] = None  # as if not installed
from raycomp.cli import main
for command in json.loads(sys.argv[1]):
    errors, printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(printed):
        code = main(command)
    print(json.dumps([code, sorted(set(json.loads(sys.argv[2])) & set(sys.modules)), errors.getvalue()]))
"""


def run_commands(commands: list[list[str]], cwd: Path) -> list[tuple[int, list[str], str]]:
    """Run commands in one fresh process; return of each its exit code, heavy modules and what it said."""
    line = [sys.executable, "-c", _RUN, json.dumps(commands), json.dumps(sorted(HEAVY))]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(found)) for found in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def curated(tiny_scorer: ScorerConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished curation, made without Ray."""
    folder = tmp_path_factory.mktemp("light")
    config = CurateConfig(
        input=write_world_shards(folder / "in", 40, 20),
        scorer=tiny_scorer,
        attribute=AttributeConfig(pool=0.8),
        cluster=ClusterConfig(executor="local"),
        materialize=True,
    )
    curate(config, str(folder / "out"), say=lambda line: None)
    return folder / "out"


def test_importing_a_command_imports_nothing_heavy():
    code = f"import sys, importlib\nfor name in {MODULES}:\n    importlib.import_module(name)\n"
    code += f"    assert not (found := {HEAVY} & set(sys.modules)), (name, found)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def refused_anywhere(folder: Path) -> list[list[str]]:
    """Return commands that are refused without any run: an empty folder, a file and a stray folder."""
    (folder / "empty").mkdir()
    (folder / "stray").mkdir()
    (folder / "stray" / "notes.txt").write_text("mine")
    (folder / "file").write_text("mine")
    shards = write_world_shards(folder / "in", 4, 4)
    rows = {
        "curate": [
            ["--set", "input=nowhere", "--out", "out"],
            ["--set", "input=empty", "--out", "out"],
            ["--set", f"input={shards}", "--out", "stray"],
            ["--set", f"input={shards}", "--out", "file/out"],
            ["--set", "align.keep=2", "--out", "out"],
            ["--set", "align.kep=0.5", "--out", "out"],
        ],
        "audit": [["--set", "input=nowhere", "--out", "out"], ["--set", "dark=2", "--out", "out"]],
        "select": [["nowhere", "--out", "out"], ["empty", "--set", "align.keep=2", "--out", "out"]],
        "negatives": [
            ["--set", "input=nowhere", "--out", "out"],
            ["--set", "negatives.keep=0", "--out", "out"],
        ],
        "train": [
            ["--set", "input=nowhere", "--out", "out"],
            ["--set", "train.batch_size=0", "--out", "out"],
            ["--set", f"input={shards}", "--set", "train.log_to=wandb", "--out", "out"],
            ["--set", "train.held_out=0.6", "--out", "out"],
            ["--set", f"input={shards}", "--set", "train.held_out=nowhere", "--out", "out"],
            ["--set", f"input={shards}", "--out", "stray"],
        ],
        "publish": [["nowhere", "--out", "out"], ["empty", "--out", "out"]],
        "evaluate": [
            ["--set", "benchmarks=sugarcrepe", "--set", "sugarcrepe.annotations=nowhere", "--out", "out"],
            ["--set", "model.weights=nowhere/", "--out", "out"],
            ["--set", "benchmarks=sugarcrap", "--out", "out"],
        ],
        "index-eval": [
            ["--set", "benchmarks=sugarcrepe", "--set", "sugarcrepe.annotations=nowhere", "--out", "out"],
            ["--out", "out"],
        ],
        "continual": [["--set", "tasks=nowhere", "--out", "out"], ["--set", "seeds=0", "--out", "out"]],
        "compare": [["nowhere", "empty", "--out", "out"], ["empty", "empty", "--out", "stray"]],
        "show": [["nowhere"], ["empty"]],
        "list": [["nowhere"], ["empty"]],
        "explain": [["nowhere", "0" * 32], ["empty", "0" * 32]],
        "diff": [["nowhere", "empty", "--out", "out"]],
        "update": [["nowhere"], ["empty", "--add", "nowhere"], ["empty", "--set", "align.keep=2"]],
        "verify": [["nowhere"], ["empty", "--rows", "0"]],
        "card": [["nowhere", "--out", "out"], ["empty", "--out", "out"]],
        "explore": [["nowhere", "--out", "out"], ["empty", "--atlas", "rows.parquet"], ["empty"]],
        "probe": [
            ["overlap", "--set", "input=nowhere", "--out", "out"],
            ["pas", "--set", "input=nowhere", "--out", "out"],
            ["composition", "--set", "input=nowhere", "--out", "out"],
        ],
        "sweep": [
            ["--space", "train.learning_rate=chioce(1,2)", "--out", "out"],
            ["--set", "curated=nowhere", "--space", "align.keep=grid(0.3,0.5)", "--out", "out"],
        ],
    }
    assert set(rows) == set(FOLDERS)
    return [[name, *rest] for name, commands in rows.items() for rest in commands]


def check_refused(commands: list[list[str]], cwd: Path) -> None:
    for command, (code, heavy, said) in zip(commands, run_commands(commands, cwd), strict=True):
        assert code == 2, (command, said)
        assert said.startswith("raycomp: ") and said.count("\n") == 1, (command, said)
        assert not heavy, (command, heavy, said)


def test_refusals_by_paths_and_options_import_nothing_heavy(tmp_path):
    check_refused(refused_anywhere(tmp_path), tmp_path)


def test_refusals_of_folders_of_other_runs_import_nothing_heavy(tmp_path, curated):
    source = str(curated)
    config = json.loads((curated / "run.json").read_text())["config"]
    shards = ["--set", f"input={config['input']}"]
    scorer = ["--set", f"scorer.model={config['scorer']['model']}"]
    others = [
        ["curate", *shards, *scorer, "--set", "scorer.weights=random:1", "--out", source],
        ["curate", *shards, "--set", "align.keep=0.123", "--out", source],
        ["select", source, "--set", "prepare.max_pixels=5", "--out", str(tmp_path / "out")],
        ["select", source, "--out", source],
        ["negatives", "--set", f"input={source}", "--out", source],
        ["train", "--set", f"input={source}", "--out", source],
        ["evaluate", "--set", f"model.weights={source}", "--out", str(tmp_path / "out")],
        ["publish", source, "--out", str(tmp_path / "out")],
        ["explain", source, "0" * 32],
        ["compare", source, source, "--out", str(tmp_path / "out")],
        ["probe", "overlap", "--set", f"input={source}", "--out", source],
    ]
    check_refused(others, tmp_path)


def test_select_and_show_import_nothing_heavy(tmp_path, curated):
    out = str(tmp_path / "out")
    local = ["--set", "cluster.executor=local", "--set", "align.keep=0.6"]
    for code, heavy, said in run_commands(
        [["select", str(curated), *local, "--out", out], ["show", out]], ROOT
    ):
        assert code == 0, said
        assert not heavy
    assert json.loads((tmp_path / "out" / "run.json").read_text())["funnel"]["kept"]
