"""``raycomp compare``: two evaluations of the same examples, paired. Starts no Ray: it only reads."""

import shlex
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from raycomp.config import from_dict
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.parquet import read_columns
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import identify, read_finished
from raycomp.data.whole import with_absolute_paths
from raycomp.evaluate.check import check_table
from raycomp.evaluate.command import TABLE, read_losses
from raycomp.evaluate.compare import (
    Line,
    Parting,
    compare_tables,
    count_apart,
    find_partings,
    tell_lines,
    tell_other_targets,
)
from raycomp.evaluate.config import CompareConfig, EvaluateConfig
from raycomp.evaluate.images import find_images
from raycomp.evaluate.outcomes import tell_parts
from raycomp.report.markup import Html
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, begin, command_line
from raycomp.table import write_csv
from raycomp.train.page import LOSS, draw_metric
from raycomp.words import OK

_NAMES = ("first", "second")


class _Compared(NamedTuple):
    """A benchmark's part of the comparison."""

    lines: list[Line]
    partings: list[Parting]
    came: Counter[str]
    """Rows by what became of them."""
    warnings: list[str]


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
    found = [_compare_scores(name, config) for name in names]  # before anything is begun in the folder
    start = shlex.join(["raycomp", "compare", config.first, config.second])
    rerun = command_line(start, {}, out)
    with begin("compare", config, partial(_fingerprint, config), out, say, rerun, rooms=(TABLE,)) as run:
        if not run.is_finished:
            _close(run, runs, found)
    return run.record


def _read_evaluation(source: str) -> dict[str, Any]:
    run = read_finished(source)
    if run["kind"] != "evaluate":
        raise ValueError(f"{source}: holds {run['kind']}, must hold an evaluation")
    return run


def _fingerprint(config: CompareConfig) -> dict[str, str]:
    return {name: identify(_read_evaluation(getattr(config, name))) for name in _NAMES}


def _compare_scores(name: str, config: CompareConfig) -> _Compared:
    first, second = (_read_scores(source, name) for source in (config.first, config.second))
    lines = compare_tables(name, first, second)
    partings = find_partings(name, first, second, config.examples)
    return _Compared(lines, partings, _count(first, second), tell_other_targets(name, first, second))


def _read_scores(source: str, name: str) -> pa.Table:
    files = check_results(Folder(source), _read_evaluation(source), "scores")
    uri = files.get(f"scores/{name}.parquet")
    if uri is None:
        raise ValueError(f"{source}: has no scores of {name}; evaluate again, into another folder")
    table = read_columns(uri)
    check_table(table, uri)
    return table


def _count(first: pa.Table, second: pa.Table) -> Counter[str]:
    """Return how many rows both have scores of, and of the others why they take no part."""
    parts = zip(tell_parts(first), tell_parts(second), strict=True)
    return Counter(one if one == other else "not_in_both" for one, other in parts)


def _close(run: Run, runs: list[dict[str, Any]], found: list[_Compared]) -> None:
    """Write the table; take down what came of it."""
    lines = [line for one in found for line in one.lines]
    partings = [parting for one in found for parting in one.partings]
    came = sum((one.came for one in found), Counter())
    run.folder.write_bytes(write_csv([Line._fields, *lines]).encode(), TABLE)
    run.close({OK: came.total()}, came, OK)
    alone = sorted({*runs[0]["config"]["benchmarks"]} ^ {*runs[1]["config"]["benchmarks"]})
    photos, lost = _read_photos(runs[0], partings)
    run.record["warnings"] = [
        *(f"{name}: only one of the two was evaluated on it" for name in alone),
        *(warning for one in found for warning in one.warnings),
        *lost,
    ]
    apart, num = count_apart(lines)
    some = "" if came[OK] == came.total() else f" of {came.total():,}"
    told = f"in {apart} of {num} splits the difference's interval excludes 0"
    said = f"{came[OK]:,}{some} common examples; {told}"
    page = render_page(
        "evaluate/compare_page.html.jinja",
        run=run.record,
        models=[one["config"]["model"] for one in runs],
        figures=tell_lines(lines),
        partings=_group(partings),
        photos=photos,
        losses=_draw_losses(runs),
    )
    run.tell(said, page)


def _group(partings: list[Parting]) -> dict[str, list[Parting]]:
    """Return examples by benchmark and by the model that is right."""
    groups: dict[str, list[Parting]] = {}
    for parting in partings:
        which = "first" if parting.first > 0 else "second"
        groups.setdefault(f"{parting.benchmark}: only the {which} is right", []).append(parting)
    return groups


def _draw_losses(runs: list[dict[str, Any]]) -> list[Html]:
    """Return the losses of each model's own training, where they are known."""
    losses = [read_losses(one["config"]["model"]["weights"]) for one in runs]
    named = zip(("first", "second"), losses, strict=True)
    return [draw_metric(f"Loss of the {which}", "", loss, LOSS) for which, loss in named if loss]


def _read_photos(
    run: dict[str, Any], partings: list[Parting]
) -> tuple[dict[tuple[str, str], bytes], list[str]]:
    """Return the images of examples by benchmark and name, and in lines why others cannot be shown."""
    config = from_dict(EvaluateConfig(), run["config"])
    photos, lost = {}, []
    for benchmark in dict.fromkeys(parting.benchmark for parting in partings):
        dials = getattr(config, benchmark)
        names = [parting.image for parting in partings if parting.benchmark == benchmark]
        try:
            for name, uri in find_images(Folder(dials.images or dials.annotations), names).uris.items():
                photos[benchmark, name] = Folder(uri).read_bytes()
        except (ValueError, OSError) as error:
            lost.append(f"{benchmark}: images cannot be shown: {' '.join(str(error).split())}")
    return photos, lost
