"""``raycomp compare``: two evaluations of the same examples, paired. Starts no Ray: it only reads."""

from functools import partial
from typing import Any

import pyarrow as pa

from raycomp.cluster.evaluate.command import TABLE, read_losses
from raycomp.cluster.run import Run, Say, begin, command_line
from raycomp.config import CompareConfig, EvaluateConfig, from_dict
from raycomp.loops.evaluate.compare import (
    Line,
    Parting,
    compare_tables,
    count_sure,
    find_partings,
    tell_lines,
)
from raycomp.loops.evaluate.images import find_images
from raycomp.loops.evaluate.table import write_lines
from raycomp.report.pages.compare import render_compare
from raycomp.shards.files import check_writable
from raycomp.shards.folder import Folder
from raycomp.shards.parquet import read_columns
from raycomp.shards.paths import absolute_uri, join_uri
from raycomp.shards.runs import identify, read_finished
from raycomp.shards.whole import with_absolute_paths
from raycomp.words import OK

_NAMES = ("first", "second")


def compare(first: str, second: str, out: str, say: Say = print) -> dict[str, Any]:
    """Compare the evaluations in two folders into the folder ``out``; return what run.json holds.

    Raises ValueError for what the user can mend.
    """
    out = absolute_uri(str(out))
    config = with_absolute_paths(CompareConfig(first, second))
    check_writable(out)
    runs = [_read_evaluation(config.first), _read_evaluation(config.second)]
    names = [name for name in runs[0]["config"]["benchmarks"] if name in runs[1]["config"]["benchmarks"]]
    if not names:
        raise ValueError(f"{config.first} and {config.second}: were evaluated on no common benchmark")
    rerun = command_line(f"raycomp compare {config.first} {config.second}", {}, out)
    with begin("compare", config, partial(_fingerprint, config), out, say, rerun, rooms=(TABLE,)) as run:
        if not run.is_finished:
            _compare(run, config, runs, names)
    return run.record


def _read_evaluation(source: str) -> dict[str, Any]:
    run = read_finished(source)
    if run["kind"] != "evaluate":
        raise ValueError(f"{source}: holds {run['kind']}, must hold an evaluation")
    return run


def _fingerprint(config: CompareConfig) -> dict[str, str]:
    return {name: identify(_read_evaluation(getattr(config, name))) for name in _NAMES}


def _compare(run: Run, config: CompareConfig, runs: list[dict[str, Any]], names: list[str]) -> None:
    lines: list[Line] = []
    partings: list[Parting] = []
    num_read = num_compared = 0
    for name in names:
        first, second = (_read_scores(source, name) for source in (config.first, config.second))
        own = compare_tables(name, first, second)
        lines += own
        partings += find_partings(name, first, second, config.examples)
        num_read += len(first)
        num_compared += _count_common(first, second)
    run.folder.write_bytes(write_lines(Line._fields, lines), TABLE)
    read = {OK: num_read}
    run.close(read, {OK: num_compared, "not_in_both": num_read - num_compared}, OK)
    alone = sorted({*runs[0]["config"]["benchmarks"]} ^ {*runs[1]["config"]["benchmarks"]})
    run.record["warnings"] = [f"{name}: only one of the two was evaluated on it" for name in alone]
    sure, num = count_sure(lines)
    said = f"{num_compared:,} common examples; in {sure} of {num} splits the accuracies differ for sure"
    losses = [read_losses(one["config"]["model"]["weights"]) for one in runs]
    models = [one["config"]["model"] for one in runs]
    photos = _read_photos(runs[0], partings)
    run.tell(said, render_compare(run.record, models, tell_lines(lines), partings, photos, losses))


def _read_scores(source: str, name: str) -> pa.Table:
    return read_columns(join_uri(source, "scores", f"{name}.parquet"))


def _count_common(first: pa.Table, second: pa.Table) -> int:
    statuses = zip(first["status"].to_pylist(), second["status"].to_pylist(), strict=True)
    return sum(one == other == OK for one, other in statuses)


def _read_photos(run: dict[str, Any], partings: list[Parting]) -> dict[tuple[str, str], bytes]:
    """Return the images of examples by benchmark and name, of those that still lie where they did."""
    config = from_dict(EvaluateConfig(), run["config"])
    photos = {}
    for benchmark in dict.fromkeys(parting.benchmark for parting in partings):
        dials = getattr(config, benchmark)
        folder = Folder(dials.images or dials.annotations)
        names = [parting.image for parting in partings if parting.benchmark == benchmark]
        for name, uri in (find_images(folder, names).uris if folder.exists() else {}).items():
            photos[benchmark, name] = Folder(uri).read_bytes()
    return photos
