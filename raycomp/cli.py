"""The command line: ``raycomp COMMAND [jobs/FILE.py[:VARIANT]] [--set a.b=value ...] --out DIR``.

Exit codes: 0; 2 the user's mistake; 3 too much bad data; 4 the storage failed or another run took the output
over; 130 interrupted.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from raycomp.config import CurateConfig, LeaseLost, NegativesConfig, ProbeConfig, TooMuchBadData, override_all

Config = TypeVar("Config")
USER_ERROR, BAD_DATA, STORAGE_FAILED, INTERRUPTED = 2, 3, 4, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    args = _build_parser().parse_args(argv)
    try:
        args.run(args)
    except KeyboardInterrupt:
        print("raycomp: interrupted; the same command goes on from what is finished", file=sys.stderr)
        return INTERRUPTED
    except ValueError as error:
        # A library's own kind, or one that a remote task raised, is our mistake.
        if type(error) is not ValueError:
            raise
        print(f"raycomp: {error}", file=sys.stderr)
        return USER_ERROR
    except TooMuchBadData as error:
        print(f"raycomp: {error}", file=sys.stderr)
        return BAD_DATA
    except (OSError, LeaseLost) as error:
        # What failed in a remote task comes wrapped, with its traceback in its words.
        line = " ".join(str(getattr(error, "cause", error)).split())
        where = f"out={args.out!r}: " if "out" in args else ""
        print(f"raycomp: {where}{line}; once that is mended, the same command goes on", file=sys.stderr)
        return STORAGE_FAILED
    return 0


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
    probe = _add(commands, "probe", _probe, "measure composition: overlap, composition or theory")
    probe.add_argument("probe", choices=("overlap", "composition", "theory"))
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
            raise ValueError(f"--set {pair}: must be DIAL=VALUE")
        settings[path] = value
    return settings


def _read_config(args: argparse.Namespace, kind: type[Config]) -> Config:
    config = load_job(args.job) if args.job else kind()
    if not isinstance(config, kind):
        raise ValueError(f"{args.job}: returned {type(config).__name__}, must return a {kind.__name__}")
    return override_all(config, _read_settings(args.settings))


def load_job(name: str) -> Any:
    """Return what ``FILE.py:VARIANT`` returns; without a variant, its function ``config``.

    Raises ValueError where there is no such file or function.
    """
    path, _, variant = name.partition(":")
    variant = variant or "config"
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such job file")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, variant, None)):
        raise ValueError(f"{name}: {path} has no function {variant!r}")
    return getattr(module, variant)()


def _curate(args: argparse.Namespace) -> None:
    from raycomp.cluster.curate import curate

    curate(_read_config(args, CurateConfig), args.out)


def _select(args: argparse.Namespace) -> None:
    from raycomp.cluster.curate import select

    select(args.source, _read_settings(args.settings), args.out)


def _plan(args: argparse.Namespace) -> None:
    from raycomp.loops.plan import plan

    print(plan(_read_config(args, CurateConfig)))


def _negatives(args: argparse.Namespace) -> None:
    from raycomp.cluster.negatives import negatives

    negatives(_read_config(args, NegativesConfig), args.out)


def _show(args: argparse.Namespace) -> None:
    from raycomp.loops.inspect import show

    print(show(args.source))


def _explain(args: argparse.Namespace) -> None:
    from raycomp.loops.inspect import explain

    print(explain(args.source, args.uid))


def _probe(args: argparse.Namespace) -> None:
    from raycomp.loops import probes

    run = {
        "overlap": probes.probe_overlap,
        "composition": probes.probe_composition_of,
        "theory": probes.probe_theory,
    }[args.probe]
    print(run(override_all(ProbeConfig(), _read_settings(args.settings)), args.out))


def _demo(args: argparse.Namespace) -> None:
    from raycomp.cluster.demo import demo

    demo(args.out)
