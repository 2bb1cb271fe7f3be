"""The command line: ``raycomp COMMAND [jobs/FILE.py[:VARIANT]] [--set a.b=value ...] --out DIR``.

Exit codes: 0; 2 the user's mistake; 3 too much bad data; 4 the storage failed or another run took the output
over; 130 interrupted; 143 terminated.
"""

import argparse
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from raycomp.config import (
    CurateConfig,
    LeaseLost,
    NegativesConfig,
    ProbeConfig,
    Terminated,
    TooMuchBadData,
    UserError,
    override_all,
)

Config = TypeVar("Config")
USER_ERROR, BAD_DATA, STORAGE_FAILED, INTERRUPTED = 2, 3, 4, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    args = _build_parser().parse_args(argv)
    try:
        with _ended_by_signals():
            args.run(args)
    except KeyboardInterrupt as interrupt:
        how = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        _complain(f"{how}; the same command goes on from what is finished")
        return interrupt.exit_code if isinstance(interrupt, Terminated) else INTERRUPTED
    except ValueError as error:
        # A library's own kind, or a plain one that a remote task raised, is our mistake.
        if type(error) is not ValueError and not isinstance(getattr(error, "cause", error), UserError):
            raise
        _complain(getattr(error, "cause", error))
        return USER_ERROR
    except TooMuchBadData as error:
        _complain(error)
        return BAD_DATA
    except (OSError, LeaseLost) as error:
        # What failed in a remote task comes wrapped, with its traceback in its words.
        _complain(f"{getattr(error, 'cause', error)}; once that is mended, the same command goes on")
        return STORAGE_FAILED
    return 0


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM, which clusters send, and a closed terminal end the block as Ctrl-C does."""

    def end(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one would break off the clearing up
        raise Terminated(number)

    # What was set to be ignored, as nohup does, stays so; only the main thread may set any.
    is_main = threading.current_thread() is threading.main_thread()
    signals = [
        s for s in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(s) == signal.SIG_DFL
    ]
    for number in signals:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _complain(error: object) -> None:
    """Say what went wrong in one line."""
    print(f"raycomp: {_printable(' '.join(str(error).split()))}", file=sys.stderr)


def _tell(text: str) -> None:
    """Print text that may hold anybody's captions and names, as long as anybody reads it."""
    try:
        print(_printable(text), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _printable(text: str) -> str:
    """Return the text with everything escaped that a terminal would obey rather than show."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="raycomp", description="Curate image-text data for composition on Ray."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    curate = _add(commands, "curate", _curate, "score shards and choose a subset")
    curate.add_argument("job", nargs="?", help="jobs/FILE.py[:VARIANT], a function that returns the config")
    _add_settings(curate)
    _add_out(curate)
    plan = _add(commands, "plan", _plan, "time each stage on part of one shard; writes nothing")
    plan.add_argument("job", nargs="?", help="jobs/FILE.py[:VARIANT]")
    _add_settings(plan)
    select = _add(commands, "select", _select, "choose again from the scores of a curation; loads no model")
    select.add_argument("source", metavar="DIR", help="a folder that raycomp curate wrote")
    _add_settings(select)
    _add_out(select)
    negatives = _add(commands, "negatives", _negatives, "write hard negatives of captions")
    negatives.add_argument("job", nargs="?", help="jobs/FILE.py[:VARIANT]")
    _add_settings(negatives)
    _add_out(negatives)
    show = _add(commands, "show", _show, "print the funnel of a run")
    show.add_argument("source", metavar="DIR")
    explain = _add(commands, "explain", _explain, "print every score and gate of one sample")
    explain.add_argument("source", metavar="DIR")
    explain.add_argument("uid", metavar="UID")
    probe = _add(commands, "probe", _probe, "measure composition: overlap, composition, theory; or PAS: pas")
    probe.add_argument("probe", choices=("overlap", "composition", "theory", "pas"))
    _add_settings(probe)
    _add_out(probe)
    demo = _add(commands, "demo", _demo, "make a little world, train on it, curate it, report")
    _add_out(demo)
    return parser


def _add(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--set", action="append", default=[], metavar="DIAL=VALUE", dest="settings")


def _add_out(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", required=True, metavar="DIR", help="a folder or s3:// uri")


def _read_settings(pairs: Sequence[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        path, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair!r}: must be DIAL=VALUE")
        settings[path] = value
    return settings


def _read_config(args: argparse.Namespace, kind: type[Config]) -> Config:
    config = load_job(args.job) if args.job else kind()
    if not isinstance(config, kind):
        raise ValueError(f"{args.job}: returned {type(config).__name__}, must return a {kind.__name__}")
    return override_all(config, _read_settings(args.settings))


def load_job(name: str) -> Any:
    """Return what ``FILE.py:VARIANT`` returns; without a variant, its function ``config``.

    Raises ValueError where there is no such file or function, or the job itself fails.
    """
    path, _, variant = name.partition(":")
    variant = variant or "config"
    if not Path(path).is_file() or Path(path).suffix != ".py":
        raise ValueError(f"{path}: no such job file; it must be a Python file, FILE.py or FILE.py:VARIANT")
    spec = importlib.util.spec_from_file_location(f"job_{Path(path).stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass of the job looks its types up
    try:
        spec.loader.exec_module(module)
        make = getattr(module, variant, None)
        config = make() if callable(make) else None
    except Exception as error:
        if type(error) is ValueError:
            raise
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from error
    if not callable(make):
        raise ValueError(f"{name}: {path} has no function {variant!r}")
    return config


def _curate(args: argparse.Namespace) -> None:
    from raycomp.cluster.curate.command import curate

    curate(_read_config(args, CurateConfig), args.out, _tell)


def _select(args: argparse.Namespace) -> None:
    from raycomp.cluster.curate.command import select

    select(args.source, _read_settings(args.settings), args.out, _tell)


def _plan(args: argparse.Namespace) -> None:
    from raycomp.loops.curate.plan import plan

    _tell(plan(_read_config(args, CurateConfig)))


def _negatives(args: argparse.Namespace) -> None:
    from raycomp.cluster.negatives.command import negatives

    negatives(_read_config(args, NegativesConfig), args.out, _tell)


def _show(args: argparse.Namespace) -> None:
    from raycomp.loops.inspect import show

    _tell(show(args.source))


def _explain(args: argparse.Namespace) -> None:
    from raycomp.loops.inspect import explain

    _tell(explain(args.source, args.uid))


def _probe(args: argparse.Namespace) -> None:
    from raycomp.loops.probes import commands as probes

    run = {
        "overlap": probes.probe_overlap,
        "composition": probes.probe_composition_of,
        "theory": probes.probe_theory,
        "pas": probes.probe_pas,
    }[args.probe]
    _tell(run(override_all(ProbeConfig(), _read_settings(args.settings)), args.out))


def _demo(args: argparse.Namespace) -> None:
    from raycomp.cluster.demo.command import demo

    demo(args.out, say=_tell)
