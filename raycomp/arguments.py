"""The arguments of the command line: parsing, help, the nearest right word for a wrong one, completion."""

import argparse
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, NoReturn

from raycomp.config import describe_options, list_options, read_space
from raycomp.config.commands import Command, Program


class _Set(argparse.Action):
    """Collects values by the path of their option; errors at once, as a space starts another argument.

    ``--where`` sets the option of this name, each ``--space`` adds an entry to the option ``space``.
    """

    def __call__(self, parser: Any, namespace: Any, value: Any, option: str | None = None) -> None:
        path = str(option).removeprefix("--")
        if path == "set":
            path, equals, rest = value.partition("=")
            if not equals:
                raise ValueError(f"--set {value!r}: must be --set OPTION=VALUE, with = and no space")
            value = rest
        elif path == "space":
            read_space(value)  # an invalid entry is reported as it was typed
            value = f"{namespace.set.get('space', '')} {value}".strip()
        namespace.set = {**namespace.set, path: value}


class _ReportVersion(argparse.Action):
    """Prints the version and exits; the version is looked up only on request."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"raycomp {version('raycomp')}")
        parser.exit()


_ARGUMENTS: dict[str, dict[str, Any]] = {
    "job": {
        "nargs": "?",
        "metavar": "CONFIG",
        "help": "a config: FILE.yaml, FILE.json or FILE.py[:VARIANT], a function that returns it",
    },
    "probe": {"choices": ("overlap", "composition", "pas")},
    "source": {"metavar": "DIR", "help": "a folder that a run wrote"},
    "first": {"metavar": "A", "help": "a folder that raycomp curate or select wrote"},
    "second": {"metavar": "B", "help": "another one, of the same rows, which is compared with A"},
    "parent": {"metavar": "DIR", "help": "a folder with runs at any depth"},
    "runs": {
        "nargs": "+",
        "metavar": "[NAME=]DIR",
        "help": "two or more folders that raycomp evaluate wrote, of the same examples; the first is the "
        "reference",
    },
    "uid": {"metavar": "UID", "help": "or a key, a file name, a url or a caption"},
    "--set": {"action": _Set, "default": {}, "metavar": "OPTION=VALUE", "help": "an option, as listed below"},
    "--space": {
        "action": _Set,
        "dest": "set",
        "default": {},
        "metavar": "OPTION=VALUES",
        "help": "what is tried: grid(A,B,...), choice(A,B,...), uniform(A,B) or loguniform(A,B); or a value",
    },
    "--where": {
        "action": _Set,
        "dest": "set",
        "default": {},
        "metavar": "CONDITION",
        "help": "only rows for which this is true: SQL on their columns and outcome; as --set where=...",
    },
    "--atlas": {
        "metavar": "FILE",
        "help": "a Parquet file of the same rows to write, for other viewers; --out may then be left out",
    },
    "--verify": {
        "action": "store_true",
        "help": "compare the SHA-256 of every file of the finished runs that are read, not only their sizes",
    },
    "--add": {"metavar": "SHARDS", "help": "another input to take up: paths, globs, uris, optionally NAME="},
    "--remove": {
        "metavar": "FILE",
        "help": "rows and shards that must not be used any more: a uid, SHA-256, url, domain or shard name "
        "in each line, or a table",
    },
    "--rows": {"type": int, "default": 300, "metavar": "N", "help": "random rows to score again"},
    "--seed": {"type": int, "default": 0, "help": "draws the rows"},
    "--out": {"metavar": "DIR", "help": "the folder of the results, or an s3://, gs:// or az:// uri"},
    "--dry-run": {
        "action": "store_true",
        "help": "check the options, the inputs and DIR, report the cost, write nothing",
    },
    "--save-config": {
        "metavar": "FILE",
        "help": "write all options to FILE.yaml or FILE.json, each with its value; run nothing",
    },
}


def parse_arguments(argv: Sequence[str], program: Program) -> argparse.Namespace:
    """Return the arguments of one command of a program; ``command`` is what runs them.

    Raises ValueError with the nearest right word where a command or an argument is misspelt, and SystemExit
    as argparse does: 2 after an error, 0 after help or version.
    """
    name = next((word for word in argv if not word.startswith("-")), None)
    if name is not None and name not in program.folders:
        nearest = _name_nearest(name, program.folders)
        raise ValueError(f"{name!r}: must be a command{nearest}; see {program.name} --help")
    parser = argparse.ArgumentParser(prog=program.name, description=program.text)
    parser.add_argument("--version", action=_ReportVersion, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)
    for known, command in program.commands.items():
        own = commands.add_parser(known, help=command.text, description=command.text, allow_abbrev=False)
        own.take(command)
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # only a shell that completes a word needs it

        argcomplete.autocomplete(parser, default_completer=argcomplete.completers.FilesCompleter())
    args, rest = parser.parse_known_args(argv)
    if rest:
        raise ValueError(_describe_unknown(args.command, rest[0], argv))
    lacks_out = "--out" in args.command.arguments and args.out is None
    if lacks_out and getattr(args, "save_config", None) is None and getattr(args, "atlas", None) is None:
        raise ValueError("--out: is missing; name the folder of the results, --out DIR")
    return args


def _name_nearest(word: str, known: Iterable[str]) -> str:
    return "".join(f", the nearest is {one}" for one in get_close_matches(word, list(known), 1))


def _describe_unknown(command: Command, argument: str, argv: Sequence[str]) -> str:
    """Return the message for an argument of ``argv`` that the command does not have."""
    flag, equals, value = argument.partition("=")
    name = flag.lstrip("-").replace("-", "_")
    if flag.startswith("-") and "--set" in command.arguments:
        paths = [option.path for option in list_options(command.config, command.mark)]
        if name in paths:
            after = [*argv, "VALUE"][list(argv).index(argument) + 1]
            wanted = value if equals else "VALUE" if after.startswith("-") else after
            return f"{flag}: is an option; write --set {name}={wanted}"
    known = [one for one in _list_arguments(command) if one.startswith("-")]
    if not flag.startswith("-"):
        return f"{argument!r}: is one argument too many; see --help"
    return f"{flag}: must be an argument of this command{_name_nearest(flag, known)}; see its --help"


def _list_arguments(command: Command) -> Iterator[str]:
    """Yield the arguments of a command by their keys in ``_ARGUMENTS``."""
    yield from command.arguments.split()
    if "--out" in command.arguments:
        yield "--dry-run"
    if "job" in command.arguments:
        yield "--save-config"


class _CommandParser(argparse.ArgumentParser):
    """The arguments of one command; its help also lists the command's options."""

    def take(self, command: Command) -> None:
        """Add the arguments of a command."""
        self.set_defaults(command=command, name=self.prog.split()[-1])
        for name in _list_arguments(command):
            argument: Any = self.add_argument(name, **_ARGUMENTS[name])
            if name == "--set":
                argument.completer = lambda **_: [
                    f"{option.path}=" for option in list_options(command.config, command.mark)
                ]

    def format_help(self) -> str:
        """Return the help; only this method describes the options, as that reads their source."""
        text, command = super().format_help(), self.get_default("command")
        if "--set" not in command.arguments:
            return text
        width = min(110, max(80, shutil.get_terminal_size().columns))
        heading = "OPTION of --set" + ", each as the run in DIR had it unless it is set" * bool(command.mark)
        return f"{text}\n{heading}:\n{describe_options(command.config, command.mark, width)}\n"
