"""Every command by name, looked up in its own folder; nothing of a command is imported before it is named."""

import importlib
from dataclasses import dataclass
from typing import Any

# Every command, in the order of ``raycomp --help``, and the folder whose ``COMMANDS`` has it.
FOLDERS = {
    "curate": "curate",
    "plan": "curate",
    "select": "curate",
    "negatives": "negatives",
    "train": "train",
    "publish": "train",
    "evaluate": "evaluate",
    "continual": "continual",
    "compare": "evaluate",
    "show": "inspect",
    "explain": "inspect",
    "probe": "probe",
    "study": "study",
    "screen": "screen",
    "slope": "screen",
    "sweep": "sweep",
    "demo": "demo",
}


@dataclass(frozen=True)
class Command:
    """One command: ``function``, MODULE:NAME within raycomp, takes its arguments in their order.

    A job and ``--set`` are one argument, its config; with a ``mark`` only dials that have it may be set, and
    the function takes them by path. With ``--out`` it also takes ``say``, which prints what it tells as it
    goes; without, it returns the text to print, or yields it. ``--verify`` is no argument of the function.
    """

    text: str
    function: str
    arguments: str
    config_class: str | None = None
    """MODULE:NAME of its config within raycomp; run.json of what the command writes holds one."""
    mark: str | None = None

    @property
    def config(self) -> Any:
        """The class of its config, None where it has none."""
        return self.config_class and find_name(self.config_class)


def find_name(place: str) -> Any:
    """Return what "curate.command:curate" names within raycomp."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"raycomp.{module}"), name)


def find_command(name: str) -> Command:
    """Return a command by name. Raises KeyError where there is none."""
    return importlib.import_module(f"raycomp.{FOLDERS[name]}").COMMANDS[name]


def list_kinds() -> list[str]:
    """Return the kinds of runs that hold a config, which are the commands that write one."""
    commands = {name: find_command(name) for name in FOLDERS}
    return [name for name, one in commands.items() if one.config_class and "--out" in one.arguments]


def find_config(kind: str) -> Any:
    """Return the config that run.json of a kind of run holds ("probe pas" is a probe), None of no kind.

    No option of a kind that is not known is free.
    """
    name = kind.partition(" ")[0]
    return find_command(name).config if name in FOLDERS else None
