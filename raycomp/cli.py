"""The command line: ``raycomp COMMAND [CONFIG] [--set a.b=value ...] --out DIR``, or another program's.

Exit codes: 0; 2 the user's mistake; 3 too much bad data; 4 the storage failed or another run took the output
over; 5 the cluster failed: Ray did not start, or workers were lost repeatedly; 130 interrupted; 143
terminated.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from raycomp.arguments import parse_arguments
from raycomp.config import (
    ClusterFailed,
    DryRun,
    LeaseLost,
    Terminated,
    TooMuchBadData,
    UserError,
    load_config,
    override_all,
    save_config,
)
from raycomp.config.commands import RAYCOMP, Command, Program, import_object
from raycomp.models import deferred

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
    from raycomp.data.manifest import verify_whole  # PyArrow, which the command needs anyway
    from raycomp.data.parquet import keep_pandas_out

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
