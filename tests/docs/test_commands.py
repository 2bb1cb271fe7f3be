"""Every command in the documents is one that raycomp or the laboratory takes, option by option."""

import re
from pathlib import Path

import pytest

from raycomp import cli
from raycomp.config import check_path, read_space, to_dict
from raycomp.config.commands import RAYCOMP, get_program
from raycomp.curation.config import CurateConfig, choose_config
from raycomp.sweep.config import SWEPT, SweepConfig
from tests.docs.documents import DOCUMENTS, ROOT, find_arguments, list_commands, list_inline

# What the recipes of CONTRIBUTING.md add stands for a name of the reader's.
NAMES = ("NAME", "commas")
# Code in a reader's file, by the option that names it.
OWN_CODE = {
    "train.loss": """
from raycomp.training.losses import Loss

class {name}(Loss):
    def __call__(self, batch, config):
        return batch.image_ND.sum()
""",
    "method": "from raycomp.continual.methods.tuner import Finetune as {name}",
    "select.rule": "def {name}(alignment): return alignment",
    "benchmarks": "def {name}(folder): return []",
    "scorers": "class {name}: pass",
}


def name_document(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.fixture
def parse(tmp_path, monkeypatch, capsys):
    """Return what runs a command line up to the command's own function, and no further."""
    for name in ("jobs", "lab"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)

    def check_values(*values, say=None):
        for value in values:
            if isinstance(value, SweepConfig):
                check_space(value)
            elif isinstance(value, dict):
                choose_config(to_dict(CurateConfig()), value)
        return ""

    monkeypatch.setattr(cli, "import_object", lambda place: check_values)

    def parse(arguments: list[str]) -> str | None:
        """Return the error, None where there is none."""
        named = re.findall(r"([\w.]+)[= ](?:[\w-]+,)*([\w/]+\.py):(\w+)", " ".join(arguments))
        for option, path, name in named:
            if option in OWN_CODE:
                Path(path).write_text(OWN_CODE[option].format(name=name))
        # A job that a command writes, as DIR/best.py, has the options of the defaults.
        arguments = [one for one in arguments if not re.match(r"(DIR|out)/.*\.py", one)]
        try:
            code = cli.main(arguments, get_program(arguments[0]) or RAYCOMP)
        except SystemExit as stop:
            code = stop.code
        return capsys.readouterr().err if code else None

    return parse


def check_space(config: SweepConfig) -> None:
    """Raise ValueError where an option of the space is of none of the commands that are swept."""
    for option in read_space(config.space) if config.space else ():
        errors = []
        for part in SWEPT[config.command]:
            try:
                check_path(part.config, option)
            except ValueError as error:
                errors.append(error)
        if len(errors) == len(SWEPT[config.command]):
            raise errors[0]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_document)
def test_commands_are_taken(path, parse):
    """A command that is shown to fail stands above its error; a sentence leaves out what does not matter."""
    shown = [(arguments, parse(arguments)) for arguments in list_commands(path)]
    assert [one for one in shown if one[1] is not None and one[1].strip() not in path.read_text()] == []
    for name, *rest in list_inline(path):
        program = get_program(name)
        assert program, name
        if any(word.startswith("--") for word in rest) and not any(one in " ".join(rest) for one in NAMES):
            wanted = program.commands[name].arguments.split()
            missing = ["--out", "out"] if "--out" in wanted and "--out" not in rest else []
            assert parse([name, *rest, *missing]) is None, rest


def test_commands_and_mistakes_in_them_are_found(parse):
    found = {path.name: len([*list_commands(path), *list_inline(path)]) for path in DOCUMENTS}
    assert found["README.md"] > 5 and found["cluster.md"] > 2 and found["quickstart.md"] > 3
    for line, arguments in [
        ("RAY_AUTH_MODE=token ray job submit -- python -m raycomp show out", ["show", "out"]),
        (".venv/bin/raycomp show 'a b' | head  # a comment", ["show", "a b"]),
        ("python -m lab theory --out a", ["theory", "--out", "a"]),
        ("ray up cluster.yaml", None),
    ]:
        assert find_arguments(line) == arguments
    for line in (
        "curate --set align.kep=0.5 --out x",
        "select x --set scorer.model=a --out x",
        "sweep --space train.learning_rat=grid(1,2) --out x",
        "curat --out x",
    ):
        assert parse(line.split()), line
