"""Every command by name, found in its own package; a command's modules are imported only when it is named.

Another package has commands of its own as raycomp has them: a ``Program``, which ``add_program`` makes known
and ``raycomp.cli.main`` runs.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Every command, in the order of ``raycomp --help``, and the package whose ``COMMANDS`` holds it.
FOLDERS = {
    "audit": "raycomp.look",
    "curate": "raycomp.curation",
    "select": "raycomp.curation",
    "negatives": "raycomp.negatives",
    "update": "raycomp.curation",
    "verify": "raycomp.curation",
    "train": "raycomp.training",
    "publish": "raycomp.training",
    "evaluate": "raycomp.evaluation",
    "continual": "raycomp.continual",
    "compare": "raycomp.evaluation",
    "index-eval": "raycomp.evaluation",
    "show": "raycomp.look",
    "list": "raycomp.look",
    "diff": "raycomp.look",
    "card": "raycomp.look",
    "explain": "raycomp.look",
    "explore": "raycomp.look",
    "probe": "raycomp.probe",
    "sweep": "raycomp.sweep",
}


@dataclass(frozen=True)
class Command:
    """One command: ``function``, MODULE:NAME, takes its arguments in their order.

    A config file and ``--set`` form one argument, the config. With a ``mark`` only options that have it may
    be set, and the function takes them by path. With ``--out`` it also takes ``say``, which prints messages
    during the run. Without, it returns or yields the text to print. ``--verify`` is not passed on.
    """

    text: str
    function: str
    arguments: str
    config_class: str | None = None
    """MODULE:NAME of its config; the command's run.json holds a config of this class."""
    mark: str | None = None

    @property
    def config(self) -> Any:
        """The class of its config, None if it has none."""
        return self.config_class and import_object(self.config_class)


@dataclass(frozen=True)
class Program:
    """A command line: how it is typed ("raycomp", "python -m mine"), what it does, and its commands.

    ``folders`` has by command the package whose ``COMMANDS`` holds it, in the order of ``--help``.
    """

    name: str
    text: str
    folders: Mapping[str, str]

    @property
    def commands(self) -> dict[str, Command]:
        """The commands by name."""
        return {name: import_command(name) for name in self.folders}


RAYCOMP = Program("raycomp", "Curate image-text data for composition on Ray, and train on it.", FOLDERS)
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
