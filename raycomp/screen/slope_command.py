"""``raycomp slope``: train on growing shares of faulty pairs of each kind, report the cost of a point of
them."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raycomp.core.contrasts import Contrast, contrast
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import digest
from raycomp.report.charts import cut_out, intervals
from raycomp.report.page import render_page
from raycomp.run.opening import say_count
from raycomp.run.run import Run, Say, start_run
from raycomp.run.session import connect, say_many
from raycomp.run.tasks import map_some
from raycomp.screen.config import SlopeConfig
from raycomp.screen.one_run import ARCHITECTURE
from raycomp.screen.slope import CATEGORIES, SlopeRun, fit_slope, run_slope
from raycomp.table import Cell, Column, Columns, Estimate, Plot, Table, write_cell, write_csv
from raycomp.words import FAULT_KINDS, OK

Found = Sequence[Mapping[str, Any]]
LOCAL = 0.2
"""The largest share of a local slope: a gate leaves no more faulty pairs than that."""
_MEASURES = ("composition", *CATEGORIES, "recall")
_RUNS, _FIGURES, _TABLE = "cells", "figures", "slopes.csv"


def slope(config: SlopeConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Train and test all runs into the local folder ``out``; return the contents of run.json.

    A finished run of the same config is left as it is; an unfinished one resumes after its last finished run.
    Raises ValueError for user mistakes.
    """
    out = absolute_uri(str(out))
    if "://" in out:
        raise ValueError(f"out={out!r}: must be a local folder")
    check_writable(out)
    runs = list_runs(config)
    fingerprint = {"architecture": digest(ARCHITECTURE)}
    outputs, cost = (_RUNS, _FIGURES, _TABLE), partial(say_count, len(runs), "runs")
    with start_run("slope", config, lambda: fingerprint, out, say, outputs=outputs, cost=cost) as run:
        if run.is_finished:
            return run.record
        many = say_many(len(runs))
        with connect(
            config.cluster, run.folder, run.lease.check, scores=False, say=say, better=many
        ) as session:
            run.bind("cpu")
            left = [one_run for one_run in runs if not run.folder.exists(_RUNS, f"{one_run.name}.json")]
            jobs = [(one_run, config, run.work, run.folder) for one_run in left]
            num_tasks = config.side_by_side or session.count_cores()
            for one_run, *_ in map_some(run_slope, jobs, num_tasks, run.lease.check, "slope", "run"):
                _say_run(run.folder, one_run, say)
        _close(run, runs)
    return run.record


def list_runs(config: SlopeConfig) -> list[SlopeRun]:
    """Return the runs world by world."""
    worlds = range(config.first_world, config.first_world + config.worlds)
    return [SlopeRun(world, kind) for world in worlds for kind in config.kinds or FAULT_KINDS]


def list_slopes(found: Found, kind: str, measure: str = "composition", most: float = 1.0) -> list[float]:
    """Return the slope of each world, in points per percentage point, over shares of at most ``most``."""
    slopes = []
    for one in found:
        rows = [row for row in one["rows"] if row["share"] <= most]
        if one["kind"] == kind and len(rows) > 1:
            values = ([row[name] for row in rows] for name in ("share", measure))
            slopes.append(fit_slope(*(np.array(value) for value in values)))
    return slopes


def list_gains(found: Found, kind: str, share: float, measure: str = "composition") -> list[float]:
    """Return, for each world, the difference of its training at this share from the one at its smallest
    share, in points."""
    gains = []
    for one in found:
        if one["kind"] == kind:
            by_share = {row["share"]: row[measure] for row in one["rows"]}
            gains.append(by_share[share] - by_share[min(by_share)])
    return gains


def write_rows(found: Found) -> str:
    """Return a row for every world, kind and share as CSV."""
    lines: list[tuple[object, ...]] = [("world", "kind", "share", *_MEASURES)]
    for one in found:
        for row in one["rows"]:
            values = (round(row[name], 3) for name in _MEASURES)
            lines.append((one["world"], one["kind"], row["share"], *values))
    return write_csv(lines)


def make_slope_tables(found: Found) -> list[Table]:
    """Return the tables of the page."""
    return [_table_slopes(found), *(_table_shares(found, kind) for kind in list_kinds(found))]


def say_slopes(found: Found) -> list[str]:
    """Return a sentence for each kind of fault."""
    slopes = {kind: contrast(list_slopes(found, kind, most=LOCAL)) for kind in list_kinds(found)}
    return [_say_slope(kind, one) for kind, one in slopes.items()]


def _say_slope(kind: str, slope: Contrast) -> str:
    pairs = f"{_readable(kind)} pairs, up to {100 * LOCAL:.0f} %"
    if slope.value != slope.value:
        return f"The cost of {pairs}, was not measured: name at least two such shares."
    reported = write_cell(_estimate(slope), 3)
    return f"Each percentage point of {pairs}, changes composition by {reported} points."


def list_kinds(found: Found) -> list[str]:
    """Return the kinds of fault in their order."""
    return list(dict.fromkeys(one["kind"] for one in found))


def _table_slopes(found: Found) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for kind in list_kinds(found):
        estimates: list[Cell] = []
        for measure in ("composition", "recall"):
            for most in (LOCAL, 1.0):
                estimates.append(_estimate(contrast(list_slopes(found, kind, measure, most))))
        rows.append((_readable(kind), *estimates))
    upto = f"to {100 * LOCAL:.0f} %"
    columns: Columns = (
        "Kind of fault",
        Column(f"composition, {upto}", digits=3),
        Column("composition, all shares", digits=3),
        Column(f"recall@1, {upto}", digits=3),
        Column("recall@1, all shares", digits=3),
    )
    note = (
        "Points per percentage point of faulty pairs: least-squares slopes of each world, 95 % intervals by "
        "Student's t over worlds. Composition is the mean accuracy over negatives that replace an object, an "
        "attribute or a relation, or swap two attributes; chance is 50. Number of pairs, captions, initial "
        "weights and batches are equal at every share."
    )
    return Table("Change of accuracy per percentage point of faulty pairs", columns, rows, note)


def _table_shares(found: Found, kind: str) -> Table:
    own = [one for one in found if one["kind"] == kind]
    first, *rest = [row["share"] for row in own[0]["rows"]]
    rows: list[tuple[Cell, ...]] = []
    for measure in _MEASURES:
        base = contrast([one["rows"][0][measure] for one in own])
        gains = [_estimate(contrast(list_gains(own, kind, share, measure))) for share in rest]
        rows.append((_readable(measure), _estimate(base), *gains))
    columns: Columns = (
        "Measure",
        Column(f"at {100 * first:.0f} % faulty", "%", 1),
        *(Column(f"{100 * share:.0f} % minus that", "points", 2) for share in rest),
    )
    return Table(f"Results by share of faulty pairs: {_readable(kind)}", columns, rows)


def list_plots(found: Found) -> dict[str, Plot]:
    """Return the plots, by the name of the file."""
    rows = [
        (_readable(kind), _estimate(contrast(list_slopes(found, kind, most=LOCAL))))
        for kind in list_kinds(found)
    ]
    title = f"Points of composition per percentage point of faulty pairs, up to {100 * LOCAL:.0f} %"
    return {"slopes": Plot(title, "points", rows, 0.0)}


def _readable(name: str) -> str:
    return name.replace("_", " ")


def _estimate(found: Contrast) -> Estimate:
    return Estimate(found.value, found.low, found.high)


def _say_run(folder: Folder, one_run: SlopeRun, say: Say) -> None:
    facts = folder.read_json(_RUNS, f"{one_run.name}.json")
    points = ", ".join(f"{100 * row['share']:.0f} %: {row['composition']:.1f}" for row in facts["rows"])
    say(f"world {one_run.world}, {_readable(one_run.kind)}: composition {points}; {facts['seconds']:.0f} s")


def _close(run: Run, runs: Sequence[SlopeRun]) -> None:
    """Write the tables and the page."""
    found = [run.folder.read_json(_RUNS, f"{one_run.name}.json") for one_run in runs]
    run.folder.write_bytes(write_rows(found).encode(), _TABLE)
    charts = {name: intervals(plot) for name, plot in list_plots(found).items()}
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    run.close({OK: len(runs)}, {OK: len(runs)}, OK)
    page = render_page(
        "screen/slope.html.jinja",
        run=run.record,
        sentences=say_slopes(found),
        tables=make_slope_tables(found),
        charts=list(charts.values()),
    )
    run.report(f"trained and tested {len(runs):,} runs", page)
