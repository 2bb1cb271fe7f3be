"""``raycomp study``: build the worlds, train the runs, report the results."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.paths import absolute_uri
from raycomp.report.charts import cut_out, intervals
from raycomp.report.page import render_page
from raycomp.run.opening import say_count
from raycomp.run.run import Run, Say, start_run
from raycomp.run.session import connect, say_many
from raycomp.run.tasks import map_some
from raycomp.study.config import StudyConfig
from raycomp.study.results import compare_planned, read_result
from raycomp.study.runs import StudyRun, list_runs
from raycomp.study.tables import list_plots, make_tables, say_verdicts, write_long
from raycomp.study.trial import list_worlds, make_negatives, run_one
from raycomp.sweep.worlds import Place, fingerprint_worlds, make_worlds
from raycomp.words import OK

_RUNS, _FIGURES, _TABLE = "cells", "figures", "table.csv"


def study(config: StudyConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Run the study into the local folder ``out``; return the contents of run.json.

    A finished study of the same config is left as it is. An unfinished one resumes after its last finished
    run. Raises ValueError for user mistakes.
    """
    out = absolute_uri(str(out))
    if "://" in out:
        raise ValueError(f"out={out!r}: the study needs a local folder")
    runs = list_runs(config)
    check_writable(out)
    outputs, cost = (_RUNS, _FIGURES, _TABLE), partial(say_count, len(runs), "runs")
    with start_run("study", config, fingerprint_worlds, out, say, outputs=outputs, cost=cost) as run:
        if run.is_finished:
            return run.record
        many = say_many(len(runs))
        with connect(
            config.cluster, run.folder, run.lease.check, scores=False, say=say, better=many
        ) as session:
            run.bind("cpu")
            places = list_worlds(config, run.work)
            left = [one_run for one_run in runs if not run.folder.exists(_RUNS, f"{one_run.name}.json")]
            jobs = [(one_run, places[one_run.seed % len(places)], config, run.folder) for one_run in left]
            num_tasks = config.side_by_side or session.count_cores()
            needed = {place.number for _, place, *_ in jobs}
            make_worlds([place for place in places if place.number in needed], num_tasks, run, say)
            for one_run, place, *_ in jobs:
                make_negatives(one_run, place)
            _run_all(jobs, num_tasks, run, say)
        _close(run, runs)
    return run.record


def _close(run: Run, runs: Sequence[StudyRun]) -> None:
    results = {one_run: read_result(run.folder, one_run) for one_run in runs}
    planned = compare_planned(results, run.record["config"]["seed"])
    tables = make_tables(results, planned)
    charts = {name: intervals(plot) for name, plot in list_plots(results, planned).items()}
    run.folder.write_bytes(write_long(results, planned).encode(), _TABLE)
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    verdicts = say_verdicts(planned)
    run.close({OK: len(runs)}, {OK: len(runs)}, OK, verdicts=verdicts)
    reported = "; ".join([f"trained {len(runs):,} runs", *verdicts])
    page = render_page("study/page.html.jinja", run=run.record, tables=tables, charts=list(charts.values()))
    run.report(reported, page)


def _run_all(
    jobs: Sequence[tuple[StudyRun, Place, StudyConfig, Folder]], num_tasks: int, run: Run, say: Say
) -> None:
    """Train the runs that are not done, several at a time, in their order."""
    for one_run, *_ in map_some(run_one, jobs, num_tasks, run.lease.check, "study", "run"):
        facts = run.folder.read_json(_RUNS, f"{one_run.name}.json")
        first, last = facts["losses"]
        say(
            f"{one_run.name}: loss {first:.3f} to {last:.3f}, recall@1 {facts['image_to_text']:.3f} and "
            f"{facts['text_to_image']:.3f}, {facts['seconds']:.0f} s"
        )
