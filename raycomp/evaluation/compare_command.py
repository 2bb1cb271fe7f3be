"""``raycomp compare``: paired comparisons of evaluations of the same examples. Does not start Ray."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import from_dict
from raycomp.config.change import name_own
from raycomp.data.files import Folder, absolute_uri, check_writable
from raycomp.data.parquet import read_columns
from raycomp.data.runs import check_results, identify, read_finished
from raycomp.evaluation.command import TABLE, read_losses
from raycomp.evaluation.compare import (
    Compared,
    Parting,
    answer_comparison,
    compare_tables,
    count_apart,
    find_partings,
    report_lines,
    warn_other_targets,
)
from raycomp.evaluation.config import CompareConfig, EvaluateConfig
from raycomp.evaluation.embed import find_images
from raycomp.evaluation.open import find_options
from raycomp.evaluation.results import (
    Margin,
    compute_margins,
    compute_outcomes,
    list_controls,
    name_statuses,
    report_margins,
)
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.schema import CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA, example_schema
from raycomp.table import group_by, plain, write_csv
from raycomp.training.page import LOSS, draw_metric
from raycomp.words import OK, STATUS

_NAMED = re.compile(r"([^=/]+)=(.+)", re.DOTALL)
# Columns of a table of scores that every row with status ok must have.
_NUMBERS = {"rank", "ties", "num_own", "num_targets", "num_classes"}
_AGAIN = "evaluate again, into another folder"


class _Compared(NamedTuple):
    """A benchmark's part of a run's comparison with the reference."""

    lines: list[Compared]
    partings: list[Parting]
    came: Counter[str]
    """Rows that both models have scores for, and the others by the reason of exclusion."""
    warnings: list[str]


def compare(runs: Sequence[str], out: str, say: Say = print) -> dict[str, Any]:
    """Compare evaluations with the first of them into the folder ``out``; return what run.json holds.

    ``runs``: two folders or more, each as FOLDER or NAME=FOLDER; the default name is the folder's. Raises
    ValueError for errors that the user can fix.
    """
    out = absolute_uri(str(out))
    config = _read_runs(runs)
    check_writable(out)
    records = [_read_evaluation(source) for source in config.runs]
    benchmarks = [one for one in _list_benchmarks(records[0]) if _has_all(records, one)]
    if not benchmarks:
        raise ValueError(f"{' and '.join(config.runs)}: share no benchmark; evaluate all on one")
    # All scores are read before anything is written to the folder.
    found = [_compare_scores(one, config, i) for i in range(1, len(records)) for one in benchmarks]
    named = list(zip(config.names, config.runs, strict=True))
    margins = {name: _compute_margins(source, benchmarks) for name, source in named}
    again = (source if source.endswith(f"/{name}") else f"{name}={source}" for name, source in named)
    start = shlex.join(["raycomp", "compare", *again])
    rerun = command_line(start, {}, out)
    with start_run(
        "compare", config, partial(_fingerprint, config), out, say, rerun, outputs=(TABLE,)
    ) as run:
        if not run.is_finished:
            _close(run, config, records, found, margins, say)
    return run.record


def _has_all(records: Sequence[Mapping[str, Any]], benchmark: str) -> bool:
    return all(benchmark in _list_benchmarks(one) for one in records)


def _list_benchmarks(record: Mapping[str, Any]) -> list[str]:
    return [name_own(name) for name in record["config"]["benchmarks"]]


def _read_runs(runs: Sequence[str]) -> CompareConfig:
    """Return the folders, absolute, and a name for each. Raises ValueError where two have the same."""
    found = []
    for text in map(str, runs):
        # An existing folder is not read as NAME=FOLDER.
        match = None if os.path.isdir(text) else _NAMED.fullmatch(text)
        found.append((match[1], match[2]) if match else ("", text))
    folders = tuple(absolute_uri(folder) for _, folder in found)
    if len(folders) < 2:
        raise ValueError(f"runs: must be two evaluations or more, are {len(folders)}")
    for folder in folders:
        _read_evaluation(folder)
    tails = iter(list_tails([folder for (name, _), folder in zip(found, folders, strict=True) if not name]))
    names = tuple(name or next(tails) for name, _ in found)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"runs: {twice!r} names two runs; name each, as in NAME=FOLDER")
    return CompareConfig(folders, names)


def list_tails(folders: Sequence[str]) -> list[str]:
    """Return the shortest ends of the paths, by whole folders, that differ; the whole paths if none do."""
    parts = [folder.rstrip("/").split("/") for folder in folders]
    for num in range(1, max(map(len, parts), default=0) + 1):
        tails = ["/".join(one[-num:]) for one in parts]
        if len({*tails}) == len(tails):
            return tails
    return list(folders)


def _read_evaluation(source: str) -> dict[str, Any]:
    run = read_finished(source)
    if run["kind"] != "evaluate":
        raise ValueError(f"{source}: holds {run['kind']}, must hold an evaluation")
    return run


def _fingerprint(config: CompareConfig) -> dict[str, str]:
    named = zip(config.names, config.runs, strict=True)
    return {name: identify(_read_evaluation(source)) for name, source in named}


def _compare_scores(benchmark: str, config: CompareConfig, place: int) -> _Compared:
    """Return the comparison of the run at ``place`` with the reference on one benchmark."""
    names = config.names[0], config.names[place]
    first, second = (_read_scores(source, benchmark) for source in (config.runs[0], config.runs[place]))
    lines = compare_tables(benchmark, first, second, names)
    partings = find_partings(benchmark, first, second, config.examples, names)
    statuses = zip(name_statuses(first), name_statuses(second), strict=True)
    came = Counter(one if one == other else "not_in_both" for one, other in statuses)
    return _Compared(lines, partings, came, warn_other_targets(benchmark, first, second, names))


def _compute_margins(source: str, benchmarks: Sequence[str]) -> list[Margin]:
    tables = ((name, _read_scores(source, name)) for name in benchmarks)
    return [margin for name, table in tables for margin in compute_margins(name, compute_outcomes(table))]


def _read_scores(source: str, name: str) -> pa.Table:
    files = check_results(Folder(source), _read_evaluation(source), "scores")
    uri = files.get(f"scores/{name}.parquet")
    if uri is None:
        raise ValueError(f"{source}: has no scores of {name}; {_AGAIN}")
    table = read_columns(uri)
    check_table(table, uri)
    return table


def _close(
    run: Run,
    config: CompareConfig,
    records: Sequence[dict[str, Any]],
    found: Sequence[_Compared],
    margins: Mapping[str, Sequence[Margin]],
    say: Say,
) -> None:
    """Write the table; record the counts and the results."""
    lines = [line for one in found for line in one.lines]
    partings = [parting for one in found for parting in one.partings]
    came = sum((one.came for one in found), Counter())
    run.folder.write_bytes(write_csv([Compared._fields, *lines]).encode(), TABLE)
    run.close({OK: came.total()}, came, OK)
    photos, lost = _read_photos(records[0], partings)
    every = sorted({name for one in records for name in _list_benchmarks(one)})
    run.record["warnings"] = [
        *(f"{name}: not every run was evaluated on it" for name in every if not _has_all(records, name)),
        *(warning for one in found for warning in one.warnings),
        *lost,
    ]
    answers = answer_comparison(lines, margins)
    for answer in answers:
        say(plain("\n  ".join([answer.head, *answer.details])))
    losses = [read_losses(one["config"]["model"]["weights"]) for one in records]
    named = zip(config.names, losses, strict=True)
    apart, num = count_apart(lines)
    some = "" if came[OK] == came.total() else f" of {came.total():,}"
    page = render_page(
        "evaluation/compare_page.html.jinja",
        run=run.record,
        names=config.names,
        models=[one["config"]["model"] for one in records],
        answers=answers,
        baselines=report_margins(margins),
        figures=report_lines(lines),
        partings=group_by(partings, _name_side),
        photos=photos,
        losses=[draw_metric(f"Loss of {name}", "", loss, LOSS) for name, loss in named if loss],
    )
    reported = f"in {apart} of {num} splits the difference's interval excludes 0"
    run.report(f"{came[OK]:,}{some} common examples; {reported}", page)


def _name_side(parting: Parting) -> str:
    """Return the benchmark and the model that is right."""
    right, wrong = parting.names if parting.first > 0 else parting.names[::-1]
    return f"{parting.benchmark}: {right} is right, {wrong} is wrong"


def _read_photos(
    run: dict[str, Any], partings: list[Parting]
) -> tuple[dict[tuple[str, str], bytes], list[str]]:
    """Return the images of examples by benchmark and name, and lines on why others cannot be shown."""
    config = from_dict(EvaluateConfig(), run["config"])
    named = {name_own(one): one for one in config.benchmarks}
    photos, lost = {}, []
    for benchmark in dict.fromkeys(parting.benchmark for parting in partings):
        options = find_options(named[benchmark], config)
        names = [parting.image for parting in partings if parting.benchmark == benchmark]
        try:
            folder = Folder(options.images or options.annotations or ".")
            for name, uri in find_images(folder, names).uris.items():
                photos[benchmark, name] = Folder(uri).read_bytes()
        except (ValueError, OSError) as error:
            lost.append(f"{benchmark}: images cannot be shown: {' '.join(str(error).split())}")
    return photos, lost


def check_table(table: pa.Table, said: str) -> None:
    """Raise ValueError naming the file ``said`` unless ``compute_outcomes`` can evaluate its rows."""
    if "num_classes" in table.column_names:
        schema = CLASSIFIED_SCHEMA
    elif "num_targets" in table.column_names:
        schema = RETRIEVED_SCHEMA
    else:
        schema = example_schema(list_controls(table))
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
