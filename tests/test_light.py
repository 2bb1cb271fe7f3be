"""Commands refuse wrong paths and options, and select works, before any heavy library is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

from raycomp.config.commands import FOLDERS
from tests.corpus import write_world_shards

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "open_clip", "spacy", "ray", "pandas", "transformers", "torchvision", "scipy"}
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
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(found)) for found in done.stdout.splitlines()]


def refused_anywhere(folder: Path) -> list[list[str]]:
    """Return commands that are refused without any run: an empty folder, a file and a stray folder."""
    (folder / "empty").mkdir()
    (folder / "stray").mkdir()
    (folder / "stray" / "notes.txt").write_text("mine")
    (folder / "file").write_text("mine")
    shards = write_world_shards(folder / "in", 4, 4)
    text = f"""
        curate --set input=nowhere --out out
        curate --set input={shards} --out stray
        curate --set input={shards} --out file/out
        curate --set align.keep=2 --out out
        curate --set align.kep=0.5 --out out
        audit --set input=nowhere --out out
        select nowhere --out out
        select empty --set align.keep=2 --out out
        negatives --set input=nowhere --out out
        train --set input=nowhere --out out
        train --set input={shards} --set train.log_to=wandb --out out
        train --set input={shards} --set train.held_out=nowhere --out out
        publish empty --out out
        evaluate --set benchmarks=sugarcrepe --set sugarcrepe.annotations=nowhere --out out
        evaluate --set model.weights=nowhere/ --out out
        index-eval --set benchmarks=sugarcrepe --set sugarcrepe.annotations=nowhere --out out
        continual --set tasks=nowhere --out out
        compare nowhere empty --out out
        show nowhere
        list empty
        explain empty {"0" * 32}
        diff nowhere empty --out out
        update empty --add nowhere
        verify empty --rows 0
        card empty --out out
        explore empty --atlas rows.parquet
        probe overlap --set input=nowhere --out out
        probe pas --set input=nowhere --out out
        probe composition --set input=nowhere --out out
        sweep --space train.learning_rate=chioce(1,2) --out out
        sweep --set curated=nowhere --space align.keep=grid(0.3,0.5) --out out
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert {name for name, *_ in lines} == {*FOLDERS}
    return lines


def refused_of_others(finished: Path) -> list[list[str]]:
    """Return commands that are refused for the run that lies where they read or write."""
    config = json.loads((finished / "run.json").read_text())["config"]
    text = f"""
        curate --set input={config["input"]} --set align.keep=0.123 --out {finished}
        select {finished} --set prepare.max_pixels=5 --out out
        select {finished} --out {finished}
        negatives --set input={finished} --out {finished}
        train --set input={finished} --out {finished}
        evaluate --set model.weights={finished} --out out
        publish {finished} --out out
        explain {finished} {"0" * 32}
        compare {finished} {finished} --out out
        probe overlap --set input={finished} --out {finished}
    """
    return [line.split() for line in text.splitlines() if line.strip()]


def test_refusals_select_and_show_import_nothing_heavy(tmp_path, curated):
    """In one process, so that what a command imports is seen at it or at the next."""
    finished = curated[1]
    refused = [*refused_anywhere(tmp_path), *refused_of_others(finished)]
    select = f"select {finished} --set cluster.executor=local --set align.keep=0.6 --out chosen"
    found = run_commands([*refused, select.split(), ["show", "chosen"]], tmp_path)
    for command, (code, heavy, said) in zip(refused, found, strict=False):
        assert code == 2, (command, said)
        assert said.startswith("raycomp: ") and said.count("\n") == 1, (command, said)
        assert not heavy, (command, heavy, said)
    assert [one[:2] for one in found[len(refused) :]] == [(0, [])] * 2, found[len(refused) :]
    assert json.loads((tmp_path / "chosen/run.json").read_text())["funnel"]["kept"]
