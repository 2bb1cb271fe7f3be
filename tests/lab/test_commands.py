"""The commands of the laboratory: help, refusals that load nothing heavy, dry runs, what raycomp may know."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import LAB
from raycomp.cli import main
from raycomp.config import get_config, list_options, load_config, save_config
from raycomp.config.commands import RAYCOMP, import_object

ROOT = Path(__file__).parents[2]
WITH_CONFIG = [name for name, command in LAB.commands.items() if command.config_class]
HEAVY = {"torch", "open_clip", "spacy", "ray", "pandas", "transformers", "torchvision", "scipy"}


@pytest.mark.parametrize("name", LAB.folders)
def test_help_lists_the_options_that_a_command_has(name, capsys):
    assert main([name, "--help-all"], LAB) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"python -m lab {name} ")
    if name in WITH_CONFIG:
        known = [option.path for option in list_options(LAB.commands[name].config)]
        assert known and all(f"  --{path} (" in text for path in known)


@pytest.mark.parametrize("command", LAB.commands.values(), ids=LAB.folders)
def test_every_command_takes_what_the_table_says(command, tmp_path):
    given = [argument for argument in command.arguments.split() if argument != "job"]
    says = {"say": print} if "--out" in given else {}
    inspect.signature(import_object(command.function)).bind(*given, **says)
    if command.config is None:
        return
    save_config(command.config(), str(tmp_path / "all.yaml"))
    assert load_config(str(tmp_path / "all.yaml"), command.config) == command.config()


def test_its_commands_are_not_raycomps(capsys):
    assert not LAB.folders.keys() & RAYCOMP.folders.keys()
    assert main(["demo", "--out", "out"]) == 2
    assert "'demo': must be a command" in capsys.readouterr().err
    assert get_config("demo") is LAB.commands["demo"].config


REFUSED = [
    ["screen", "--set", "worlds=0", "--out", "out"],
    ["screen", "--out", "s3://bucket/screen"],
    ["screen", "--out", "stray"],
    ["demo", "--set", "seed=-1", "--out", "out"],
    ["demo", "--out", "s3://bucket/demo"],
    ["theory", "--set", "seeds=0", "--out", "out"],
    ["thoery", "--out", "out"],
]


def test_refusals_are_one_line(tmp_path):
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "notes.txt").write_text("mine")
    code = (
        "import json, sys\nfrom lab import LAB\nfrom raycomp.cli import main\n"
        f"codes = [main(command, LAB) for command in {REFUSED!r}]\n"
        f"print(json.dumps([codes, sorted({HEAVY!r} & set(sys.modules))]))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env)
    assert json.loads(done.stdout.splitlines()[-1]) == [[2] * len(REFUSED), []], done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(REFUSED) and all(line.startswith("python -m lab: ") for line in said)


@pytest.mark.parametrize("name", WITH_CONFIG)
def test_a_dry_run_writes_nothing(name, tmp_path, capsys):
    assert main([name, "--out", str(tmp_path / "out"), "--dry-run"], LAB) == 0
    assert f"\ndry run of {name}: all checks passed" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
