"""Every command by name, found in its own package; a command's modules are imported only when it is named.

Another package has commands of its own as raycomp has them: a ``Program``, which ``add_program`` makes known
and ``raycomp.cli.main`` runs.
"""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Every command by what it is for, in the order of help, and the package whose ``COMMANDS`` holds it.
PURPOSES = {
    "look at data and runs": dict.fromkeys("audit show list explain explore card".split(), "raycomp.look"),
    "choose pairs": {"curate": "raycomp.curation", "select": "raycomp.curation"},
    "hard negatives": {"negatives": "raycomp.negatives"},
    "train and test": {
        "train": "raycomp.training",
        "evaluate": "raycomp.evaluation",
        "continual": "raycomp.continual",
        "publish": "raycomp.training",
    },
    "compare and search": {
        "compare": "raycomp.evaluation",
        "diff": "raycomp.look",
        "probe": "raycomp.probe",
        "sweep": "raycomp.sweep",
    },
    "maintain": {
        "update": "raycomp.curation",
        "verify": "raycomp.curation",
        "index-eval": "raycomp.evaluation",
    },
}
FOLDERS = {name: folder for commands in PURPOSES.values() for name, folder in commands.items()}

# What a command works on, in place of options: how it is typed, and what it is.
WORDS = {
    "input": ("INPUT...", "shards, folders, lists or globs of pairs; or a run's folder"),
    "job": ("[CONFIG]", "FILE.yaml, FILE.json, or FILE.py[:FUNCTION]"),
    "probe": ("PROBE", "overlap, composition or pas"),
    "source": ("DIR", "a folder that a run wrote"),
    "first": ("A", "a folder that raycomp curate or select wrote"),
    "second": ("B", "another one, of the same rows, compared with A"),
    "parent": ("DIR", "a folder with runs at any depth"),
    "runs": ("[NAME=]DIR...", "folders that raycomp evaluate wrote; the first is the reference"),
    "uid": ("UID", "a uid, or a key, a file name, a url or a caption"),
}
# The flags that are no option of a config: what stands after them ("" for nothing), and what they do.
FLAGS = {
    "--out": ("DIR", "where results go: a folder, s3://, gs:// or az://; also -o"),
    "--set": ("OPTION=VALUE", "an option, as --OPTION VALUE and the word OPTION=VALUE"),
    "--preset": ("NAME", "start from a config of the package"),
    "--atlas": ("FILE", "a Parquet file of the rows for other viewers; --out DIR may then be left out"),
    "--add": ("SHARDS", "another input to take up: paths, globs, uris, optionally NAME="),
    "--remove": (
        "FILE",
        "an opt-out, erased from DIR: a file (.txt) with a uid, key or file name, url, SHA-256, domain or "
        "shard name in each line, or a table (.csv, .tsv, .parquet)",
    ),
    "--table": (
        "FILE",
        "a paper's figures (figure,metric,needs,ROW,...): print means over seeds of ROW=DIR next to them",
    ),
    "--verify": ("", "compare the SHA-256 of every file of the runs that are read, not only their sizes"),
    "--dry-run": ("", "check options, inputs and DIR, say the cost, write nothing; DIR may be left out"),
    "--save-config": (
        "FILE",
        "write all options to FILE.yaml or FILE.json, each with its value; run nothing",
    ),
    "--help-all": ("", "list every option"),
}


@dataclass(frozen=True)
class Command:
    """One command: ``function``, MODULE:NAME, takes its arguments in their order.

    ``arguments`` are words of ``WORDS`` and flags of ``FLAGS``. A config (``job``, ``--preset``) and the
    options form one argument, the config, at the place of ``--set``; the words of ``input`` are its option of
    that name. With a ``mark`` only options that have it may be set, and the function takes them by path. With
    ``--out`` it also takes ``say``, which prints messages during the run. Without, it returns or yields the
    text to print. ``--verify`` is not passed on.
    """

    text: str
    function: str
    arguments: str
    config_class: str | None = None
    """MODULE:NAME of its config; the command's run.json holds a config of this class."""
    mark: str | None = None
    short: Mapping[str, str] = field(default_factory=dict)
    """Short names of options, at most 15: {"--epochs": "train.epochs"}."""
    matter: str = ""
    """Paths of the six to ten options that its help shows."""
    example: str = ""
    """What is typed after the command's name."""
    writes: str = ""
    """The files that it writes into DIR."""

    @property
    def config(self) -> Any:
        """The class of its config, None if it has none."""
        return self.config_class and import_object(self.config_class)

    @property
    def flags(self) -> list[str]:
        """The flags that it takes, but for options."""
        words = self.arguments.split()
        more = ["--dry-run"] * ("--out" in words)
        more += ["--save-config"] * ("job" in words) + ["--help-all"] * ("--set" in words)
        return list(dict.fromkeys([*(word for word in words if word.startswith("--")), *more]))


@dataclass(frozen=True)
class Program:
    """A command line: how it is typed ("raycomp", "python -m mine"), what it does, and its commands.

    ``folders`` has by command the package whose ``COMMANDS`` holds it; ``purposes`` has the names of
    commands by what they are for.
    """

    name: str
    text: str
    folders: Mapping[str, str]
    purposes: Mapping[str, Iterable[str]] = field(default_factory=dict)
    examples: tuple[str, ...] = ()

    @property
    def commands(self) -> dict[str, Command]:
        """The commands by name."""
        return {name: import_command(name) for name in self.folders}


RAYCOMP = Program(
    "raycomp",
    "Curate image-text data for composition on Ray, and train on it.",
    FOLDERS,
    PURPOSES,
    (
        "raycomp audit photos --out out/audit",
        "raycomp curate photos --out out/photos --align.keep 0.6",
        "raycomp train out/photos --out out/clip --epochs 3",
        "raycomp explore out/photos --out out/pages",
    ),
)
_PROGRAMS = [RAYCOMP]


def add_program(program: Program) -> Program:
    """Make another package's commands known in this process, and return them.

    Their runs can then be started, resumed and read. Raises ValueError where a name is taken.
    """
    for name in program.folders:
        if any(name in other.folders for other in _PROGRAMS):
            raise ValueError(f"{program.name} {name}: another program has a command of this name; rename it")
    _PROGRAMS.append(program)
    return program


def get_program(name: str) -> Program | None:
    """Return the program that has a command of this name."""
    return next((program for program in _PROGRAMS if name in program.folders), None)


def list_presets(name: str) -> dict[str, str]:
    """Return the config files of a command that come with the package, by name."""
    folder = Path(__file__).parents[1] / "presets" / name
    return {path.stem: str(path) for path in sorted(folder.glob("*.yaml"))}


def import_object(place: str) -> Any:
    """Return the object that MODULE:NAME names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def import_command(name: str) -> Command:
    """Return a command of any known program. Raises KeyError if there is none."""
    program = get_program(name)
    if program is None:
        raise KeyError(name)
    return importlib.import_module(program.folders[name]).COMMANDS[name]


def list_kinds() -> list[str]:
    """Return the kinds of raycomp's runs that hold a config: the commands that write one."""
    return [name for name, one in RAYCOMP.commands.items() if one.config_class and "--out" in one.arguments]


def get_config(kind: str) -> Any:
    """Return the config class for the run.json of a kind of run ("probe pas" is a probe), None for no kind.

    For an unknown kind no option is free.
    """
    name = kind.partition(" ")[0]
    return import_command(name).config if get_program(name) else None


def name_command(kind: str) -> str:
    """Return how the command for a kind of run is typed, "raycomp probe pas"."""
    program = get_program(kind.partition(" ")[0])
    return f"{(program or RAYCOMP).name} {kind}"
