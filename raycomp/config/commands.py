"""Every command by name, found in its own folder; a command's modules are imported only when it is named."""

import importlib
from dataclasses import dataclass
from typing import Any

# Every command, in the order of ``raycomp --help``, and the folder whose ``COMMANDS`` holds it.
FOLDERS = {
    "audit": "look.audit",
    "curate": "curation",
    "select": "curation",
    "negatives": "negatives",
    "update": "update",
    "checkout": "update",
    "prune": "update",
    "verify": "verify",
    "prove": "verify",
    "check": "verify",
    "train": "training",
    "publish": "training",
    "evaluate": "evaluation",
    "continual": "continual",
    "compare": "evaluation",
    "index-eval": "evaluation",
    "show": "look.show",
    "list": "look.show",
    "diff": "look.lineage",
    "card": "look.lineage",
    "explain": "look.show",
    "explore": "look.explore",
    "probe": "probe",
    "sweep": "sweep",
}


@dataclass(frozen=True)
class Command:
    """One command: ``function``, MODULE:NAME within raycomp, takes its arguments in their order.

    A config file and ``--set`` form one argument, the config. With a ``mark`` only options that have it may
    be set, and the function takes them by path. With ``--out`` it also takes ``say``, which prints messages
    during the run. Without, it returns or yields the text to print. ``--verify`` is not passed on.
    """

    text: str
    function: str
    arguments: str
    config_class: str | None = None
    """MODULE:NAME of its config within raycomp; the command's run.json holds a config of this class."""
    mark: str | None = None

    @property
    def config(self) -> Any:
        """The class of its config, None if it has none."""
        return self.config_class and find_name(self.config_class)


def find_name(place: str) -> Any:
    """Return the object named by "curation.command:curate" within raycomp."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"raycomp.{module}"), name)


def find_command(name: str) -> Command:
    """Return a command by name. Raises KeyError if there is none."""
    return importlib.import_module(f"raycomp.{FOLDERS[name]}").COMMANDS[name]


def list_kinds() -> list[str]:
    """Return the kinds of runs that hold a config: the commands that write one."""
    commands = {name: find_command(name) for name in FOLDERS}
    return [name for name, one in commands.items() if one.config_class and "--out" in one.arguments]


def find_config(kind: str) -> Any:
    """Return the config class for the run.json of a kind of run ("probe pas" is a probe), None for no kind.

    For an unknown kind no option is free.
    """
    name = kind.partition(" ")[0]
    return find_command(name).config if name in FOLDERS else None
