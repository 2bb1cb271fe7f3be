"""``raycomp compare``: paired comparisons of evaluations of the same examples. Does not start Ray."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import from_dict
from raycomp.config.commands import flatten, is_own, name_own
from raycomp.config.options import as_setting
from raycomp.core import intervals
from raycomp.data.files import Folder, absolute_uri, check_writable
from raycomp.data.parquet import read_columns
from raycomp.data.runs import check_results, identify, read_finished, say_noise
from raycomp.evaluation import results
from raycomp.evaluation.command import TABLE, read_losses
from raycomp.evaluation.config import CompareConfig, EvaluateConfig
from raycomp.evaluation.embed import find_images
from raycomp.evaluation.open import find_options
from raycomp.evaluation.results import DIGITS, Answer, Margin, Outcome, compute_outcomes
from raycomp.evaluation.seeds import compare_to_paper
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.schema import CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA, example_schema
from raycomp.table import Cell, Column, Estimate, PValue, Table, group_by, number, write_cell, write_csv
from raycomp.training.command import LOSS, draw_metric
from raycomp.words import MACRO, OK, STATUS

NAMES = ("first", "second")
"""The names of the reference and the run where none are given."""
_AGAIN = "evaluate again, into another folder"
_NOT_ALONE = "the difference is not of the models alone"
# The columns that identify an example in two tables, for any benchmark.
_SAME = ("split", "id", "image", "positives", "negatives", "direction", "query")


class Compared(NamedTuple):
    """One row of a comparison's table.csv; figures are shares, NaN where not available."""

    benchmark: str
    split: str
    metric: str
    reference: str
    run: str
    """The names of the two evaluations."""
    reference_value: float
    run_value: float
    difference: float
    """The run's value minus the reference's."""
    low: float
    high: float
    """Ends of the difference's 95 % interval, with the examples of one image resampled together."""
    n: int
    """Examples that both have scores for."""
    only_reference: int
    only_run: int
    """Examples that exactly one of the two has right."""
    p: float
    """McNemar's exact test; NaN where images repeat, or for a mean of splits or of classes."""
    p_units: float
    """p of the difference against its standard error over images."""
    detectable: float
    num_all: int
    """All examples, with or without scores."""

    @property
    def side(self) -> int:
        """1 or -1 where the interval of the difference lies above or below 0; else 0."""
        return int(self.low > 0) - int(self.high < 0)


class Parting(NamedTuple):
    """An example that exactly one of the two models has right."""

    benchmark: str
    split: str
    id: str
    image: str
    positive: str
    negative: str
    """The false caption with the highest score, by the model that is wrong."""
    first: float
    second: float
    """Margin of the true caption for the reference and for the run, in cosines."""
    names: tuple[str, str] = NAMES

    @property
    def sides(self) -> tuple[str, str, str]:
        """The benchmark, the model that is right, and the one that is wrong."""
        return (self.benchmark, *(self.names if self.first > 0 else self.names[::-1]))


def compare_tables(
    benchmark: str, first: pa.Table, second: pa.Table, names: tuple[str, str] = NAMES
) -> list[Compared]:
    """Return the lines of a benchmark that two evaluations have, the first being the reference.

    Examples that only one of them has scores for are excluded. Raises ValueError where the two tables have
    different rows.
    """
    check_same(benchmark, first, second)
    others = {(o.split, o.metric): o for o in compute_outcomes(second, with_controls=False)}
    pairs = []  # the models' own outcomes of each split and metric, restricted to the examples of both
    for one in compute_outcomes(first, with_controls=False):
        other = others.get((one.split, one.metric))
        if other is not None:
            _, at, other_at = np.intersect1d(one.key_N, other.key_N, return_indices=True)
            pairs.append((results.take_examples(one, at), results.take_examples(other, other_at)))
    lines = [_make_line(benchmark, one.split, names, one, other) for one, other in pairs]
    if len({one.split for one, _ in pairs}) < 2:
        return lines
    for metric in dict.fromkeys(one.metric for one, _ in pairs):
        twins = {one.split: (one, other) for one, other in pairs if one.metric == metric}
        for name, is_macro, own in results.list_means(benchmark, [one for one, _ in twins.values()]):
            both = zip(*(twins[one.split] for one in own), strict=True)
            (joined, split_N), (other, _) = (results.join_splits(some) for some in both)
            lines.append(_make_line(benchmark, name, names, joined, other, split_N if is_macro else None))
    return lines


def check_same(benchmark: str, first: pa.Table, second: pa.Table) -> None:
    """Raise ValueError unless two tables hold the same examples, with or without scores."""
    names = [name for name in _SAME if name in first.column_names]
    if not first.select(names).equals(second.select(names)):
        counts = f"{len(first):,} and {len(second):,} rows"
        raise ValueError(f"{benchmark}: the two evaluations have different examples ({counts})")
    if "num_classes" not in first.column_names:
        return
    # The sets of classes must be the same; the names of the classes may differ.
    numbers = [_list_numbers(table, "num_classes") for table in (first, second)]
    columns = (column.to_pylist() for column in (first["split"], first["label"], second["label"]))
    pairs = {place for place in zip(*columns, strict=True) if None not in place}
    is_renamed = len(pairs) == len({one[:2] for one in pairs}) == len({one[::2] for one in pairs})
    if (all(numbers) and numbers[0] != numbers[1]) or not is_renamed:
        counts = " and ".join(", ".join(map(str, own)) for own in numbers)
        raise ValueError(f"{benchmark}: the two evaluations have different classes ({counts})")


def _list_numbers(table: pa.Table, name: str) -> list[int]:
    return sorted(set(table[name].drop_null().to_pylist()))


def warn_other_targets(
    benchmark: str, first: pa.Table, second: pa.Table, names: tuple[str, str] = NAMES
) -> list[str]:
    """Report where one evaluation had fewer targets to choose from, which is easier, or scored other rows."""
    lines, (one, other) = list[str](), names
    if "num_targets" in first.column_names:
        numbers = [_list_numbers(table, "num_targets") for table in (first, second)]
        reported = [" and ".join(f"{number:,}" for number in own) or "none" for own in numbers]
        if numbers[0] != numbers[1]:
            said = f"{benchmark}: {one} chose among {reported[0]} targets, {other} among {reported[1]}"
            lines.append(f"{said}; fewer targets are easier, {_NOT_ALONE}")
    scored = [[status == OK for status in results.name_statuses(table)] for table in (first, second)]
    counts = Counter(zip(*scored, strict=True))
    if scored[0] != scored[1]:
        own, others, both = (f"{counts[key]:,}" for key in ((True, False), (False, True), (True, True)))
        said = f"{benchmark}: {own} rows are scored in {one} alone, {others} in {other} alone"
        lines.append(f"{said}; the difference is over the {both} rows of both")
    return lines


def warn_other_options(
    named: str, first: dict[str, Any], second: dict[str, Any], names: tuple[str, str], is_same: bool
) -> list[str]:
    """Report the options of a benchmark that two records differ in, else whether its files do; ``is_same``:
    both scored the same rows."""
    name, group = name_own(named), "own" if is_own(named) else named
    groups = (group, "columns") if is_same else (group, "columns", "overlap", "max_pixels")
    own, others = (dict(flatten(one["config"])) for one in (first, second))
    lines = [
        f"{name}: {names[0]} has {path}={as_setting(own[path])}, {names[1]} has "
        f"{path}={as_setting(others.get(path))}; {_NOT_ALONE}"
        for path in own
        if path.partition(".")[0] in groups and own[path] != others.get(path)
    ]
    if lines or first["fingerprint"].get(name) == second["fingerprint"].get(name):
        return lines
    return [f"{name}: the files that {names[0]} and {names[1]} read differ; {_NOT_ALONE}"]


def _make_line(
    benchmark: str,
    split: str,
    names: tuple[str, str],
    first: Outcome,
    second: Outcome,
    split_N: np.ndarray | None = None,
) -> Compared:
    split_N = first.class_N if split_N is None else split_N
    found = intervals.compare_paired(first.right_N, second.right_N, first.unit_N, split_N)
    one, other = (intervals.compute_share(o.right_N, o.unit_N, split_N).value for o in (first, second))
    values = one, other, found.difference, found.low, found.high
    counts = len(first.key_N), found.only_first, found.only_second
    p = found.p if split_N is None else float("nan")
    tests = p, found.p_units, found.detectable
    return Compared(benchmark, split, first.metric, *names, *values, *counts, *tests, first.num_all)


def find_partings(
    benchmark: str, first: pa.Table, second: pa.Table, count: int, names: tuple[str, str] = NAMES
) -> list[Parting]:
    """Return examples that exactly one model has right, the clearest first, up to ``count`` for each model.

    The clearest example has the largest difference between the models' margins of the true caption.
    """
    if "positive_scores" not in first.column_names:
        return []
    sides: tuple[list[Parting], list[Parting]] = [], []
    for rows in zip(first.to_pylist(), second.to_pylist(), strict=True):
        if not all(row["positive_scores"] for row in rows):
            continue
        leads = [row["positive_scores"][0] - max(row["negative_scores"]) for row in rows]
        is_first = leads[0] > 0
        if is_first != (leads[1] > 0):
            one, wrong = rows[0], rows[is_first]["negative_scores"]
            texts = one["positives"][0], one["negatives"][wrong.index(max(wrong))]
            place = benchmark, one["split"], one["id"], one["image"]
            sides[is_first].append(Parting(*place, *texts, leads[0], leads[1], names))
    ranked = (sorted(side, key=lambda parting: -abs(parting.first - parting.second)) for side in sides)
    return [parting for side in ranked for parting in side[:count]]


def report_lines(lines: Sequence[Compared]) -> list[Table]:
    """Return a table for every benchmark, metric and run that is compared to the reference."""
    by_metric = group_by(lines, lambda line: (line.benchmark, line.metric, line.reference, line.run))
    tables = []
    for (benchmark, metric, reference, run), own in by_metric.items():
        right = f"only {reference} right", f"only {run} right"
        tests = Column("p, McNemar"), Column("p, over images"), Column("detectable", digits=3)
        columns = ("split", reference, run, Column("difference"), "n", "of", *right, *tests)
        rows: list[list[Cell]] = []
        for line in own:
            values: list[Cell] = [line.split, line.reference_value, line.run_value]
            counts = line.n, line.num_all, line.only_reference, line.only_run
            difference = Estimate(line.difference, line.low, line.high)
            rows.append([*values, difference, *counts, PValue(line.p), PValue(line.p_units), line.detectable])
        title = f"{benchmark}: {metric}, {run} minus {reference}"
        tables.append(Table(title, columns, rows, results.explain_metric(metric)))
    return tables


def answer_comparison(lines: Sequence[Compared], margins: Mapping[str, Sequence[Margin]]) -> list[Answer]:
    """Return an answer for each run and benchmark; ``margins`` by the name of the run, the reference too."""
    answers = []
    for (_, benchmark), own in group_by(lines, lambda line: (line.run, line.benchmark)).items():
        main = [line for line in own if line.metric == own[0].metric]
        best = next((line for line in main if line.split == MACRO), main[0])
        splits = [line for line in main if not results.is_mean(benchmark, line.split) and line.n]
        details = []
        if len(splits) > 1:
            said = []
            for what, side in (("Higher", 1), ("Lower", -1), ("No significant difference", 0)):
                names = [line.split.replace("_", " ") for line in splits if line.side == side]
                own_part = f"{what} in {len(names)} of {len(splits)} splits: {', '.join(names)}."
                said += [own_part] if names else []
            is_flat = all(not line.side for line in splits)
            flat = f"No significant difference in any of {len(splits)} splits."
            details.append(flat if is_flat else " ".join(said))
        for name in ((best.reference,) if best.run == lines[0].run else ()) + (best.run,):
            of_own = [one for one in margins.get(name, ()) if one.benchmark == benchmark]
            details += [f"Baselines of {name}: {results.say_margins(of_own)}."] if of_own else []
        values = f"{number(best.run_value, DIGITS)} against {number(best.reference_value, DIGITS)}"
        difference = write_cell(Estimate(best.difference, best.low, best.high), DIGITS)
        over = f" (mean of {len(splits)} splits)" if len(splits) > 1 else ""
        what = f"{best.metric.replace('_', ' ')}{over} {values}, a difference of {difference}"
        verb = "is better than" if best.side > 0 else "is worse than"
        verdict = f"{best.run} {verb} {best.reference}"
        if not best.side:
            verdict = f"{best.run} and {best.reference} do not differ significantly"
        answers.append(Answer(f"{verdict} on {benchmark}: {what}.", details))
    return answers


_NAMED = re.compile(r"([^=/]+)=(.+)", re.DOTALL)
# Columns of a table of scores that every row with status ok must have.
_NUMBERS = {"rank", "ties", "num_own", "num_targets", "num_classes"}


def compare(runs: Sequence[str], table: str | None, out: str, say: Say = print) -> dict[str, Any]:
    """Compare evaluations with the first of them into the folder ``out``; return what run.json holds.

    ``runs``: two folders or more, each as FOLDER or NAME=FOLDER; the default name is the folder's.
    ``table``: a paper's layout, which ``seeds.compare_to_paper`` fills instead. Raises ValueError for errors
    that the user can fix.
    """
    out, named = absolute_uri(str(out)), _name_runs(runs)
    if table is not None:
        return compare_to_paper(named, table, out, say)
    config = _read_runs(named)
    check_writable(out)
    records = [_read_evaluation(source) for source in config.runs]
    listed = [[name_own(name) for name in one["config"]["benchmarks"]] for one in records]
    benchmarks = [one for one in listed[0] if all(one in names for names in listed)]
    lost = [f"{one}: not every run was evaluated on it" for one in sorted({*chain(*listed)} - {*benchmarks})]
    if not benchmarks:
        raise ValueError(f"{' and '.join(config.runs)}: share no benchmark; evaluate all on one")
    # All scores are read before anything is written to the folder.
    named = list(zip(config.names, config.runs, strict=True))
    scores = {name: {one: _read_scores(source, one) for one in benchmarks} for name, source in named}
    reference = config.names[0]
    pairs = [
        (one, scores[reference][one], scores[name][one], (reference, name))
        for name in config.names[1:]
        for one in benchmarks
    ]
    lines = [line for pair in pairs for line in compare_tables(*pair)]
    again = (source if source.endswith(f"/{name}") else f"{name}={source}" for name, source in named)
    rerun = command_line(shlex.join(["raycomp", "compare", *again]), {}, out)

    def fingerprint() -> dict[str, str]:
        return {name: identify(_read_evaluation(source)) for name, source in named}

    with start_run("compare", config, fingerprint, out, say, rerun, outputs=(TABLE,)) as run:
        if not run.is_finished:
            margins = {
                name: [m for one in own for m in results.compute_margins(one, compute_outcomes(own[one]))]
                for name, own in scores.items()
            }
            _close(run, config, records, pairs, lines, margins, lost, say)
    return run.record


def _close(
    run: Run,
    config: CompareConfig,
    records: Sequence[dict[str, Any]],
    pairs: Sequence[tuple[str, pa.Table, pa.Table, tuple[str, str]]],
    lines: Sequence[Compared],
    margins: Mapping[str, Sequence[Margin]],
    warnings: list[str],
    say: Say,
) -> None:
    """Write the table; record the counts and the results."""
    came: Counter[str] = Counter()
    partings: list[Parting] = []
    by_name = dict(zip(config.names, records, strict=True))
    named = {name_own(one): one for one in records[0]["config"]["benchmarks"]}
    for name, first, second, names in pairs:
        both = zip(results.name_statuses(first), results.name_statuses(second), strict=True)
        came.update(one if one == other else "not_in_both" for one, other in both)
        partings += find_partings(name, first, second, config.examples, names)
        others = warn_other_targets(name, first, second, names)
        two = by_name[names[0]], by_name[names[1]]
        warnings += [*warn_other_options(named[name], *two, names, not others), *others]
    run.folder.write_bytes(write_csv([Compared._fields, *lines]).encode(), TABLE)
    run.close({OK: came.total()}, came, OK)
    photos, unseen = _read_photos(records[0], partings)
    for warning in (more := [*warnings, *unseen]):
        say(warning)
    run.record["warnings"] += more
    answers = [] if all(map(say_noise, records)) else answer_comparison(lines, margins)
    results.say_answers(answers, say)
    losses = {
        name: read_losses(one["config"]["model"]["weights"])
        for name, one in zip(config.names, records, strict=True)
    }
    page = render_page(
        "evaluation/compare_page.html.jinja",
        run=run.record,
        names=config.names,
        models=[one["config"]["model"] for one in records],
        answers=[Answer(run.noise)] * bool(run.noise) + answers,
        baselines=results.report_margins(margins),
        figures=report_lines(lines),
        partings=group_by(partings, lambda one: "{}: {} is right, {} is wrong".format(*one.sides)),
        photos=photos,
        losses=[draw_metric(f"Loss of {name}", "", loss, LOSS) for name, loss in losses.items() if loss],
    )
    some = "" if came[OK] == came.total() else f" of {came.total():,}"
    own = [one for one in lines if not results.is_mean(one.benchmark, one.split) and one.n]
    apart = f"in {sum(one.side != 0 for one in own)} of {len(own)} differences"
    run.report(f"{came[OK]:,}{some} common examples; {apart} the interval excludes 0", page)


def _name_runs(runs: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name, "" for none, and the folder of each run."""
    found = []
    for text in map(str, runs):
        # An existing folder is not read as NAME=FOLDER.
        match = None if os.path.isdir(text) else _NAMED.fullmatch(text)
        found.append((match[1], match[2]) if match else ("", text))
    return found


def _read_runs(found: Sequence[tuple[str, str]]) -> CompareConfig:
    """Return the folders, absolute, and a name for each. Raises ValueError where two have the same."""
    folders = tuple(absolute_uri(folder) for _, folder in found)
    if len(folders) < 2:
        raise ValueError(f"runs: must be two evaluations or more, are {len(folders)}")
    for folder in folders:
        _read_evaluation(folder)
    tails = iter(list_tails([folder for (name, _), folder in zip(found, folders, strict=True) if not name]))
    names = tuple(name or next(tails) for name, _ in found)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        said = "name each, as in NAME=FOLDER; seeds of one row go into a --table"
        raise ValueError(f"runs: {twice!r} names two runs; {said}")
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


def _read_scores(source: str, name: str) -> pa.Table:
    files = check_results(Folder(source), _read_evaluation(source), "scores")
    uri = files.get(f"scores/{name}.parquet")
    if uri is None:
        raise ValueError(f"{source}: has no scores of {name}; {_AGAIN}")
    table = read_columns(uri)
    check_table(table, uri)
    return table


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
        schema = example_schema(results.list_controls(table))
    for field in schema:
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            raise ValueError(f"{said}: has no column {field.name} of {field.type}; {_AGAIN}")
    scored = table.filter(pc.equal(table[STATUS], OK))
    for name in _NUMBERS & {*schema.names}:
        if scored[name].null_count:
            raise ValueError(f"{said}: a row with status ok has no {name}; {_AGAIN}")
    for field in schema:
        column = scored[field.name]
        values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
        is_number = pa.types.is_floating(values.type)
        if is_number and not pc.all(pc.is_finite(values), min_count=0).as_py():
            raise ValueError(f"{said}: {field.name} must be finite numbers, holds NaN or infinity; {_AGAIN}")
    for side in {"positives", "negatives"} & {*schema.names}:
        for name in (f"{side[:-1]}_scores", *(f"{one}_{side}" for one in results.list_controls(table))):
            counts = pc.fill_null(pc.list_value_length(scored[side]), 0)
            is_same = pc.fill_null(pc.equal(pc.list_value_length(scored[name]), counts), False)
            if not pc.all(pc.and_(is_same, pc.greater(counts, 0)), min_count=0).as_py():
                raise ValueError(f"{said}: {name} must have a number for each of {side}; {_AGAIN}")
