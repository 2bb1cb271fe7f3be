"""``raycomp compare``: a paired comparison of two evaluations of the same examples. Does not start Ray."""

import shlex
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import from_dict
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.parquet import read_columns
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import identify, read_finished
from raycomp.data.whole import with_absolute_paths
from raycomp.evaluate.command import TABLE, read_losses
from raycomp.evaluate.compare import (
    Line,
    Parting,
    compare_tables,
    count_apart,
    find_partings,
    report_lines,
    warn_other_targets,
)
from raycomp.evaluate.config import CompareConfig, EvaluateConfig
from raycomp.evaluate.images import find_images
from raycomp.evaluate.outcomes import list_controls, name_statuses
from raycomp.report.markup import Html
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.schema import CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA, example_schema
from raycomp.table import group_by, write_csv
from raycomp.train.page import LOSS, draw_metric
from raycomp.words import OK, STATUS

_NAMES = ("first", "second")
# Columns of a table of scores that every row with status ok must have.
_NUMBERS = {"rank", "ties", "num_own", "num_targets", "num_classes"}
_AGAIN = "evaluate again, into another folder"


class _Compared(NamedTuple):
    """A benchmark's part of the comparison."""

    lines: list[Line]
    partings: list[Parting]
    came: Counter[str]
    """Rows by their status in the comparison."""
    warnings: list[str]


def compare(first: str, second: str, out: str, say: Say = print) -> dict[str, Any]:
    """Compare the evaluations in two folders into the folder ``out``; return what run.json holds.

    Raises ValueError for errors that the user can fix.
    """
    out = absolute_uri(str(out))
    config = with_absolute_paths(CompareConfig(first, second))
    check_writable(out)
    runs = [_read_evaluation(config.first), _read_evaluation(config.second)]
    names = [name for name in runs[0]["config"]["benchmarks"] if name in runs[1]["config"]["benchmarks"]]
    if not names:
        raise ValueError(f"{config.first} and {config.second}: were evaluated on no common benchmark")
    found = [_compare_scores(name, config) for name in names]  # before anything is written to the folder
    start = shlex.join(["raycomp", "compare", config.first, config.second])
    rerun = command_line(start, {}, out)
    with start_run(
        "compare", config, partial(_fingerprint, config), out, say, rerun, outputs=(TABLE,)
    ) as run:
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
    return _Compared(lines, partings, _count(first, second), warn_other_targets(name, first, second))


def _read_scores(source: str, name: str) -> pa.Table:
    files = check_results(Folder(source), _read_evaluation(source), "scores")
    uri = files.get(f"scores/{name}.parquet")
    if uri is None:
        raise ValueError(f"{source}: has no scores of {name}; {_AGAIN}")
    table = read_columns(uri)
    check_table(table, uri)
    return table


def _count(first: pa.Table, second: pa.Table) -> Counter[str]:
    """Return how many rows both models have scores for, and the other rows by the reason of exclusion."""
    parts = zip(name_statuses(first), name_statuses(second), strict=True)
    return Counter(one if one == other else "not_in_both" for one, other in parts)


def _close(run: Run, runs: list[dict[str, Any]], found: list[_Compared]) -> None:
    """Write the table; record the counts and the results."""
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
    reported = f"in {apart} of {num} splits the difference's interval excludes 0"
    said = f"{came[OK]:,}{some} common examples; {reported}"
    page = render_page(
        "evaluate/compare_page.html.jinja",
        run=run.record,
        models=[one["config"]["model"] for one in runs],
        figures=report_lines(lines),
        partings=group_by(partings, _name_side),
        photos=photos,
        losses=_draw_losses(runs),
    )
    run.report(said, page)


def _name_side(parting: Parting) -> str:
    """Return the benchmark and the model that is right."""
    which = "first" if parting.first > 0 else "second"
    return f"{parting.benchmark}: only the {which} is right"


def _draw_losses(runs: list[dict[str, Any]]) -> list[Html]:
    """Return the losses of each model's own training, where they are known."""
    losses = [read_losses(one["config"]["model"]["weights"]) for one in runs]
    named = zip(("first", "second"), losses, strict=True)
    return [draw_metric(f"Loss of the {which}", "", loss, LOSS) for which, loss in named if loss]


def _read_photos(
    run: dict[str, Any], partings: list[Parting]
) -> tuple[dict[tuple[str, str], bytes], list[str]]:
    """Return the images of examples by benchmark and name, and lines on why others cannot be shown."""
    config = from_dict(EvaluateConfig(), run["config"])
    photos, lost = {}, []
    for benchmark in dict.fromkeys(parting.benchmark for parting in partings):
        options = getattr(config, benchmark)
        names = [parting.image for parting in partings if parting.benchmark == benchmark]
        try:
            for name, uri in find_images(Folder(options.images or options.annotations), names).uris.items():
                photos[benchmark, name] = Folder(uri).read_bytes()
        except (ValueError, OSError) as error:
            lost.append(f"{benchmark}: images cannot be shown: {' '.join(str(error).split())}")
    return photos, lost


def check_table(table: pa.Table, said: str) -> None:
    """Raise ValueError naming the file ``said`` unless ``find_outcomes`` can evaluate its rows."""
    schema = _find_schema(table)
    for field in schema:
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            raise ValueError(f"{said}: has no column {field.name} of {field.type}; {_AGAIN}")
    scored = table.filter(pc.equal(table[STATUS], OK))
    for name in _NUMBERS & {*schema.names}:
        if scored[name].null_count:
            raise ValueError(f"{said}: a row with status ok has no {name}; {_AGAIN}")
    for field in schema:
        if not _is_finite(scored[field.name]):
            raise ValueError(f"{said}: {field.name} must be finite numbers, holds NaN or infinity; {_AGAIN}")
    for side in {"positives", "negatives"} & {*schema.names}:
        for name in (f"{side[:-1]}_scores", *(f"{control}_{side}" for control in list_controls(table))):
            if not _is_one_each(scored[name], scored[side]):
                raise ValueError(f"{said}: {name} must have a number for each of {side}; {_AGAIN}")


def _find_schema(table: pa.Table) -> pa.Schema:
    if "num_classes" in table.column_names:
        return CLASSIFIED_SCHEMA
    return RETRIEVED_SCHEMA if "num_targets" in table.column_names else example_schema(list_controls(table))


def _is_finite(column: pa.ChunkedArray) -> bool:
    """Return whether a column's numbers are all finite; nulls and other types are allowed."""
    values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
    is_number = pa.types.is_floating(values.type)
    return not is_number or bool(pc.all(pc.is_finite(values), min_count=0).as_py())


def _is_one_each(scores: pa.ChunkedArray, texts: pa.ChunkedArray) -> bool:
    """Return whether every row has texts and as many scores."""
    counts = pc.fill_null(pc.list_value_length(texts), 0)
    is_same = pc.fill_null(pc.equal(pc.list_value_length(scores), counts), False)
    return bool(pc.all(pc.and_(is_same, pc.greater(counts, 0)), min_count=0).as_py())
