"""The command line: ``raycomp COMMAND [jobs/FILE.py[:VARIANT]] [--set a.b=value ...] --out DIR``.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NoReturn

from raycomp.config import (
    ClusterFailed,
    LeaseLost,
    Terminated,
    TooMuchBadData,
    UserError,
    describe_options,
    load_job,
    override_all,
    read_space,
)
from raycomp.config.commands import FOLDERS, Command, find_command, find_name

USER_ERROR, BAD_DATA, STORAGE_FAILED, INTERRUPTED = 2, 3, 4, 130

COMMANDS = {name: find_command(name) for name in FOLDERS}


class _Set(argparse.Action):
    """Collects values by the path of their option; errors at once, as a space starts another argument."""

    def __call__(self, parser: Any, namespace: Any, pair: Any, option: str | None = None) -> None:
        path, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair!r}: must be --set OPTION=VALUE, with = and no space")
        namespace.set = {**namespace.set, path: value}


class _Space(argparse.Action):
    """Collects entries of the space, which replace those of the config file."""

    def __call__(self, parser: Any, namespace: Any, entry: Any, option: str | None = None) -> None:
        read_space(entry)  # an invalid entry is reported as it was typed
        before = namespace.set.get("space", "")
        namespace.set = {**namespace.set, "space": f"{before} {entry}".strip()}


class _ReportVersion(argparse.Action):
    """Prints the version and exits; the version is looked up only on request."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"raycomp {version('raycomp')}")
        parser.exit()


_ARGUMENTS: dict[str, dict[str, Any]] = {
    "job": {"nargs": "?", "help": "jobs/FILE.py[:VARIANT], a function that returns the config"},
    "probe": {"choices": ("overlap", "composition", "theory", "pas")},
    "source": {"metavar": "DIR", "help": "a folder that a run wrote"},
    "first": {"metavar": "DIR_A", "help": "a folder that raycomp evaluate wrote"},
    "second": {"metavar": "DIR_B", "help": "another one, of the same examples by another model"},
    "uid": {"metavar": "UID"},
    "--set": {"action": _Set, "default": {}, "metavar": "OPTION=VALUE", "help": "an option, as listed below"},
    "--space": {
        "action": _Space,
        "dest": "set",
        "default": {},
        "metavar": "OPTION=VALUES",
        "help": "what is tried: grid(A,B,...), choice(A,B,...), uniform(A,B) or loguniform(A,B); or a value",
    },
    "--verify": {
        "action": "store_true",
        "help": "compare the SHA-256 of every file of the finished runs that are read, not only their sizes",
    },
    "--seed": {"type": int, "default": 0, "help": "draws the world and what is learned of it"},
    "--out": {"required": True, "metavar": "DIR", "help": "a folder, or an s3://, gs:// or az:// uri"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        args = _build_parser().parse_args(argv)
        with _ended_by_signals():
            _run(args.command, args)
    except KeyboardInterrupt as interrupt:
        how = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        _complain(f"{how}; {_name_rest(interrupt)}")
        return interrupt.exit_code if isinstance(interrupt, Terminated) else INTERRUPTED
    except ValueError as error:
        # A library's own type, or a plain one that a remote task raised, is our mistake.
        if type(error) is not ValueError and not isinstance(getattr(error, "cause", error), UserError):
            raise
        _complain(getattr(error, "cause", error))
        return USER_ERROR
    except TooMuchBadData as error:
        _complain(error)
        return BAD_DATA
    except (OSError, LeaseLost, ClusterFailed) as error:
        # A failure in a remote task is wrapped, with its traceback in its message.
        _complain(f"{getattr(error, 'cause', error)}; once that is fixed: {_name_rest(error)}")
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


def _complain(error: object) -> None:
    """Print an error in one line."""
    print(f"raycomp: {_printable(' '.join(str(error).split()))}", file=sys.stderr)


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


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="raycomp", description="Curate image-text data for composition on Ray, and train on it."
    )
    parser.add_argument("--version", action=_ReportVersion, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.text, description=command.text).take(command)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """The arguments of one command; its help also lists the command's options."""

    def take(self, command: Command) -> None:
        """Add the arguments of a command."""
        self.set_defaults(command=command)
        for name in command.arguments.split():
            self.add_argument(name, **_ARGUMENTS[name])

    def format_help(self) -> str:
        """Return the help; only this method describes the options, as that reads their source."""
        text, command = super().format_help(), self.get_default("command")
        if "--set" not in command.arguments:
            return text
        width = min(110, max(80, shutil.get_terminal_size().columns))
        heading = "dials, each as the run in DIR had it unless it is set:" if command.mark else "dials:"
        return f"{text}\n{heading}\n{describe_options(command.config, command.mark, width)}\n"


def _run(command: Command, args: argparse.Namespace) -> None:
    values = list(_read_values(command, args))
    function = find_name(command.function)
    from raycomp.data.manifest import verify_whole  # PyArrow, which the command needs anyway
    from raycomp.data.no_pandas import keep_pandas_out

    keep_pandas_out()
    with verify_whole(getattr(args, "verify", False)):
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
            yield args.set if command.mark else override_all(_start_config(command, args), args.set)
        elif name not in ("job", "--space", "--verify"):
            yield getattr(args, name.removeprefix("--"))


def _start_config(command: Command, args: argparse.Namespace) -> Any:
    """Return the config of the config file, or the defaults where none is named."""
    if not getattr(args, "job", None):
        return command.config()
    config = load_job(args.job)
    if not isinstance(config, command.config):
        wanted = command.config.__name__
        raise ValueError(f"{args.job}: returned {type(config).__name__}, must return a {wanted}")
    return config
