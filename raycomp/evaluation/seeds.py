"""``raycomp compare --table``: a table of a paper, measured again over seeds, with the published values.

The layout is a CSV file with a line for each printed figure::

    # One seed only.
    figure,metric,needs,full,cpi50
    SugarCrepe,sugarcrepe.accuracy.micro,SugarCrepe and COCO val2017,57.78,58.49

Lines with ``#`` before the columns are printed with the table.
``metric`` is BENCHMARK.METRIC.SPLIT of ``raycomp evaluate``, in percent, or STREAM.METRIC of ``raycomp
continual``; of several, separated by spaces, the mean. ``needs`` is printed where a figure is missing. Every
further column is a row of the experiment (a subset, a method) and holds the published value, or nothing.
Evaluations are named ROW=FOLDER, once for each seed; a continual run has its methods as rows.

Letters: S seeds.
"""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from statistics import fmean
from typing import Any, NamedTuple

from raycomp.core.intervals import contrast
from raycomp.data.files import Folder, absolute_uri, check_writable
from raycomp.data.runs import digest, identify, read_finished
from raycomp.evaluation.command import TABLE
from raycomp.evaluation.config import CompareConfig
from raycomp.report.page import render_page
from raycomp.run.run import Say, command_line, start_run
from raycomp.table import Cell, Column, Estimate, Table, plain, read_csv, write_csv
from raycomp.words import OK

CONTINUAL_RUNS = "runs.csv"
"""The file of a continual run with the metrics of each method and seed."""
_FIRST = ("figure", "metric", "needs")
_MISSING, _COMPLETE = "missing", "complete"
# A row's values by seed, and within a seed by metric.
Values = Mapping[str, Mapping[int, Mapping[str, float]]]


@dataclass(frozen=True)
class Figure:
    """A line of the layout."""

    name: str
    metrics: tuple[str, ...]
    """The figure is their mean."""
    needs: str
    published: Mapping[str, str]
    """As the paper prints it, by row of the experiment; empty where it prints none."""


class Measured(NamedTuple):
    """One line of table.csv: a figure of one row of the experiment."""

    figure: str
    row: str
    mean: float
    sd: float
    """Standard deviation over seeds; NaN for fewer than two."""
    seeds: int
    published: str
    difference: float
    """Mean difference from the first row, paired by seed."""
    low: float
    high: float
    """Its 95 % interval by Student's t over seeds; NaN for fewer than two."""
    needs: str
    """What a missing figure needs; empty where there is one."""


def read_layout(uri: str) -> tuple[list[Figure], str]:
    """Return the figures of a layout, and its note. Raises ValueError where it is not one."""
    if not Folder(uri).exists():
        raise ValueError(f"table={uri}: there is no such file")
    text = Folder(uri).read_bytes().decode("utf-8-sig").splitlines(keepends=True)
    notes = list(takewhile(lambda line: line.startswith("#"), text))
    lines = read_csv("".join(text[len(notes) :]))
    heads = list(lines[0]) if lines else []
    if tuple(heads[:3]) != _FIRST or len(heads) < 4 or None in heads:
        wanted = f"must have the columns {', '.join(_FIRST)} and one for each row of the experiment"
        raise ValueError(f"table={uri}: {wanted}")
    figures = []
    for number, line in enumerate(lines, len(notes) + 2):
        if not (line["figure"] and line["metric"]) or None in line.values():
            raise ValueError(f"table={uri}: line {number} has no figure or no metric, or too few fields")
        published = {head: line[head] for head in heads[3:]}
        figures.append(Figure(line["figure"], tuple(line["metric"].split()), line["needs"], published))
    return figures, " ".join(line.lstrip("#").strip() for line in notes)


def read_values(folders: Sequence[tuple[str, str]]) -> dict[str, dict[int, dict[str, float]]]:
    """Return the values of finished runs, named by row: evaluations, of which a row has one for each seed,
    numbered in their order; and continual runs, whose rows are their methods."""
    found: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for row, uri in folders:
        run, folder = read_finished(uri), Folder(uri)
        if run["kind"] == "evaluate":
            lines = read_csv(folder.read_bytes(TABLE).decode())
            found[row][len(found[row])] = {
                f"{one['benchmark']}.{one['metric']}.{one['split']}": 100 * float(one["value"])
                for one in lines
                if one["value"] and not one["control"]
            }
        elif run["kind"] == "continual":
            if not folder.exists(CONTINUAL_RUNS):
                raise ValueError(f"{uri}: has no {CONTINUAL_RUNS}, an earlier version wrote it; run it again")
            for one in read_csv(folder.read_bytes(CONTINUAL_RUNS).decode()):
                of_seed = found[one["method"]].setdefault(int(one["seed"]), {})
                of_seed[f"{one['track']}.{one['metric']}"] = float(one["value"])
        else:
            raise ValueError(f"{uri}: holds {run['kind']}, must hold an evaluation or a continual run")
    return found


def measure_figures(layout: Sequence[Figure], values: Values) -> list[Measured]:
    """Return a line for each figure and row of the layout; NaN where no seed has the figure.

    A figure of a row is the mean over its seeds that have all of the figure's metrics; its difference is that
    of the same seeds of the first row.
    """
    lines = []
    for one in layout:
        rows = {
            row: {
                seed: fmean(own[metric] for metric in one.metrics)
                for seed, own in values.get(row, {}).items()
                if all(metric in own for metric in one.metrics)
            }
            for row in one.published
        }
        first = next(iter(rows.values()))
        for row, own in rows.items():
            mean = contrast(list(own.values()))
            shared = [] if own is first else [seed for seed in own if seed in first]
            apart = contrast([own[seed] - first[seed] for seed in shared])
            gap = apart.value, apart.low, apart.high
            needs = "" if own else one.needs or "a run of this row"
            lines.append(
                Measured(one.name, row, mean.value, mean.sd, len(own), one.published[row], *gap, needs)
            )
    return lines


def make_tables(lines: Sequence[Measured], note: str = "") -> list[Table]:
    """Return the table as its paper prints it, with the published values and the layout's note; then the
    differences."""
    rows = list(dict.fromkeys(one.row for one in lines))
    by_figure = {figure: {one.row: one for one in lines if one.figure == figure} for figure in _names(lines)}
    printed = {one.row for one in lines if one.published}
    heads: list[str | Column] = ["figure"]
    heads += [head for row in rows for head in (row, "published")[: 1 + (row in printed)]]
    body: list[list[Cell]] = []
    for figure, own in by_figure.items():
        cells = [(_say_mean(own[row]), own[row].published or "-")[: 1 + (row in printed)] for row in rows]
        body.append([figure, *chain.from_iterable(cells)])
    seeds = sorted({one.seeds for one in lines if one.seeds})
    counts = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]]))) if seeds else "no"
    note = f"{note} Mean \u00b1 standard deviation over seeds ({counts}); published: as the paper prints it."
    tables = [Table("Measured and published", heads, body, note.strip())]
    if len(rows) > 1:
        gaps: list[list[Cell]] = [
            [figure, *(Estimate(own[row].difference, own[row].low, own[row].high) for row in rows[1:])]
            for figure, own in by_figure.items()
        ]
        columns: list[str | Column] = ["figure"]
        columns += [Column(f"{row} minus {rows[0]}", digits=2) for row in rows[1:]]
        note = "Paired by seed, with 95 % intervals by Student's t over seeds; no interval for one seed."
        tables.append(Table("Differences", columns, gaps, note))
    if lost := [one for one in lines if one.needs]:
        missing = {figure: [one for one in lost if one.figure == figure] for figure in _names(lost)}
        said = [
            [figure, ", ".join(one.row for one in own) if len(own) < len(rows) else "all", own[0].needs]
            for figure, own in missing.items()
        ]
        tables.append(Table("Missing figures", ["figure", "rows", "needs"], said))
    return tables


def _names(lines: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(one.figure for one in lines))


def _say_mean(one: Measured) -> str:
    if not one.seeds:
        return _MISSING
    return f"{one.mean:.2f}" + (f"\u00a0\u00b1\u00a0{one.sd:.2f}" if one.seeds > 1 else "")


def compare_to_paper(named: Sequence[tuple[str, str]], table: str, out: str, say: Say) -> dict[str, Any]:
    """Write the table of ``named`` runs, (row, folder), into ``out``; return what run.json holds.

    Raises ValueError where the layout or a run cannot be used, or no run is a row of the layout.
    """
    table, folders = absolute_uri(table), [(row, absolute_uri(folder)) for row, folder in named]
    (layout, note), values = read_layout(table), read_values(folders)
    rows = list(layout[0].published)
    if unknown := [row for row, _ in folders if row not in rows and row in values]:
        said = f"{unknown[0]!r}: is not a row of {table}; name each run ROW=FOLDER, with a row of"
        raise ValueError(f"{said} {', '.join(rows)}")
    if not set(rows) & set(values):
        raise ValueError(f"runs: none is a row of {table}; its rows are {', '.join(rows)}")
    check_writable(out)
    lines = measure_figures(layout, values)
    config = CompareConfig(tuple(folder for _, folder in folders), tuple(row for row, _ in folders), table)
    again = shlex.join(["raycomp", "compare", *(f"{row}={folder}" for row, folder in folders)])
    rerun = command_line(f"{again} --table {shlex.quote(table)}", {}, out)

    def fingerprint() -> dict[str, str]:
        own = {f"{n} {row}": identify(read_finished(uri)) for n, (row, uri) in enumerate(folders)}
        return {"table": digest(Folder(table).read_bytes().decode("utf-8-sig")), **own}

    with start_run("compare", config, fingerprint, out, say, rerun, outputs=(TABLE,)) as run:
        if not run.is_finished:
            run.folder.write_bytes(write_csv([Measured._fields, *lines]).encode(), TABLE)
            missing = sum(bool(one.needs) for one in lines)
            counts = {_COMPLETE: len(lines) - missing, _MISSING: missing}
            run.close({OK: len(lines)}, counts, _COMPLETE, reasons=(_MISSING,))
            tables = make_tables(lines, note)
            for one in tables:
                say(plain(one.to_text()).replace("\u00b1", "+-"))
            page = render_page(
                "evaluation/seeds_page.html.jinja", run=run.record, tables=tables, noise=run.noise
            )
            run.report(f"{len(lines) - missing:,} of {len(lines):,} figures measured", page)
    return run.record
