"""The command line: ``raycomp COMMAND INPUT --option value`` or ``--set option=value``, one table of
commands.

Exit codes: 0; 2 the user's mistake; 3 too much bad data; 4 the storage failed or another run took the output
over; 5 the cluster failed: Ray did not start, or workers were lost repeatedly; 130 interrupted; 143
terminated.
"""

import argparse
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, NoReturn

from raycomp.config import (
    ClusterFailed,
    DryRun,
    LeaseLost,
    Terminated,
    TooMuchBadData,
    UserError,
    describe_options,
    list_options,
    load_config,
    override_all,
    read_space,
    save_config,
)
from raycomp.config.commands import RAYCOMP, Command, Program, import_object
from raycomp.models import deferred


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


USER_ERROR, BAD_DATA, STORAGE_FAILED, INTERRUPTED = 2, 3, 4, 130


def main(argv: Sequence[str] | None = None, program: Program = RAYCOMP) -> int:
    """Run one command of a program; return its exit code."""
    deferred.install()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        args = parse_arguments(sys.argv[1:] if argv is None else argv, program)
        with _ended_by_signals():
            _run(program, args.command, args)
    except DryRun as checked:
        _print(str(checked))
    except KeyboardInterrupt as interrupt:
        how = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        _complain(program, f"{how}; {_name_rest(interrupt)}")
        return interrupt.exit_code if isinstance(interrupt, Terminated) else INTERRUPTED
    except ValueError as error:
        # A library's own type, or a plain one that a remote task raised, is our mistake.
        if type(error) is not ValueError and not isinstance(getattr(error, "cause", error), UserError):
            raise
        _complain(program, getattr(error, "cause", error))
        return USER_ERROR
    except TooMuchBadData as error:
        _complain(program, error)
        return BAD_DATA
    except (OSError, LeaseLost, ClusterFailed) as error:
        # A failure in a remote task is wrapped, with its traceback in its message.
        _complain(program, f"{getattr(error, 'cause', error)}; once that is fixed: {_name_rest(error)}")
        return error.exit_code if isinstance(error, ClusterFailed) else STORAGE_FAILED
    return 0


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, which clusters send, and a closed terminal end the block as Ctrl-C does."""
    arrived = []

    def end(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one would interrupt the clean-up
        arrived.append(number)
        raise Terminated(number)

    # A signal that was set to be ignored, as nohup does, stays so; only the main thread may set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    signals = [
        s for s in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(s) == signal.SIG_DFL
    ]
    for number in signals:
        signal.signal(number, end)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # Where Ray's native code waits, it replaces a signal's exception by one of its own.
        if not arrived or isinstance(interrupt, Terminated):
            raise
        ended = Terminated(arrived[0])
        for note in getattr(interrupt, "__notes__", []):
            ended.add_note(note)
        raise ended from interrupt
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _name_rest(error: BaseException) -> str:
    """Return the run's note on where and how it resumes."""
    return "; ".join(getattr(error, "__notes__", ["the same command resumes from what is finished"]))


def _complain(program: Program, error: object) -> None:
    """Print an error in one line."""
    print(f"{program.name}: {_printable(' '.join(str(error).split()))}", file=sys.stderr)


def _print(text: str) -> None:
    """Print text with user captions and names, while the output is open."""
    try:
        print(_printable(text), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable(text: str) -> str:
    """Return the text with all characters escaped that a terminal would interpret."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )


def _run(program: Program, command: Command, args: argparse.Namespace) -> None:
    values = list(_read_values(command, args))
    if getattr(args, "save_config", None):
        config = next(value for value in values if isinstance(value, command.config))
        save_config(config, args.save_config)
        again = f"{program.name} {args.name} {args.save_config} --out DIR"
        _print(f"{args.save_config}: holds every option; run {again}")
        return
    function = import_object(command.function)
    from raycomp.data.files import dry_run
    from raycomp.data.parquet import keep_pandas_out
    from raycomp.data.runs import verify_whole  # PyArrow, which the command needs anyway

    keep_pandas_out()
    with verify_whole(getattr(args, "verify", False)), dry_run(getattr(args, "dry_run", False)):
        if "--out" in command.arguments:
            function(*values, say=_print)
            return
        texts = function(*values)
        for text in [texts] if isinstance(texts, str) else texts:
            _print(text)


def _read_values(command: Command, args: argparse.Namespace) -> Iterator[Any]:
    """Yield the arguments of the command's function."""
    for name in command.arguments.split():
        if name == "--set":
            if command.mark:
                yield args.set
                continue
            named = getattr(args, "job", None)
            yield override_all(load_config(named, command.config) if named else command.config(), args.set)
        elif name not in ("job", "--space", "--where", "--verify", "--dry-run"):
            yield getattr(args, name.removeprefix("--"))
