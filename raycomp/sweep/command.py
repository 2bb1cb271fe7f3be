"""``raycomp sweep``: options tried by Ray Tune, selected on development seeds, reported on held-out seeds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from lab.sweep.curves import (
    list_curves,
    list_grids,
    list_plots,
    list_trade_offs,
    published_curve,
    published_table,
)
from lab.sweep.worlds import (
    NEGATIVES,
    fingerprint_worlds,
    list_places,
    make_worlds,
    say_nothing,
    scored_options,
    write_negatives,
)
from raycomp.config.check import check
from raycomp.config.own_code import fingerprint_own
from raycomp.continual.command import (
    check_prepared,
    check_streams,
    fingerprint_methods,
    fingerprint_streams,
)
from raycomp.continual.method import METHODS
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.model import fetch_model, find_model
from raycomp.data.parquet import write_table
from raycomp.data.paths import RUN, absolute_uri
from raycomp.data.runs import check_classed, digest, identify, list_scores, read_finished
from raycomp.data.whole import with_absolute_paths
from raycomp.evaluation.open import open_evaluations
from raycomp.models.describe import fingerprint_scorer
from raycomp.negatives.config import WritingConfig
from raycomp.report.charts import cut_out, intervals
from raycomp.report.markup import Html
from raycomp.report.page import render_page
from raycomp.report.response import response
from raycomp.run.run import Run, Say, start_run
from raycomp.run.session import connect
from raycomp.sweep.capacity import count_trials, is_alone, plan_alone
from raycomp.sweep.check import check_trials, repair_trials
from raycomp.sweep.choose import Winner, choose_best, is_whole
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.job_file import BEST, write_job
from raycomp.sweep.journal import FAILED, FINISHED, STOPPED, TRIALS, Journal, Trial
from raycomp.sweep.metric import check_metric, list_metrics, list_stream_metrics, list_world_metrics
from raycomp.sweep.plan import Plan, count_planned, list_checked, list_groups, make_plan
from raycomp.sweep.result import TABLE
from raycomp.sweep.rows import make_rows
from raycomp.sweep.rungs import count_rungs, list_report, list_rungs, read_trials, share_of_steps
from raycomp.sweep.seed_training import COMMANDS, Job, make_streams
from raycomp.sweep.tables import list_warnings, make_tables, say_winner
from raycomp.table import format_facts
from raycomp.training.held_out import fingerprint_held_out
from raycomp.training.losses import find_loss
from raycomp.training.pairs import fingerprint_pairs
from raycomp.training.trackers import check_packages
from raycomp.words import OK

_FIGURES = "figures"
_OUTPUTS = (TRIALS, TABLE, BEST, _FIGURES)

_TUNE = "a sweep searches with Ray Tune"


def sweep(config: SweepConfig, out: str, say: Say = print, callbacks: Sequence[Any] = ()) -> dict[str, Any]:
    """Sweep the space of ``config`` into the folder ``out``; return the contents of run.json.

    ``callbacks``: of Ray Tune. A finished sweep of the same config is left as it is. An unfinished one
    resumes, and repeats no finished training. Raises ValueError for user mistakes, and TypeError for another
    kind of callback, before anything starts.
    """
    if callbacks:
        from raycomp.sweep.ray_tune import check_callbacks

        check_callbacks(callbacks)
    out, config = absolute_uri(str(out)), with_absolute_paths(config)
    if config.has_worlds and "://" in out:
        raise ValueError(f"out={out!r}: little worlds need a local folder")
    if config.command == "continual" and "://" in out:
        raise ValueError(f"out={out!r}: continual learning needs a folder on a disk that all nodes share")
    check_prepared(config.continual, out)
    plan, metric = _check(config)
    check_packages(config.train.train.log_to)
    needed = plan_alone(config) if is_alone(config) else None
    check_writable(out)
    fingerprint, cost = partial(_fingerprint, config, plan), partial(_describe_cost, plan)
    with start_run("sweep", config, fingerprint, out, say, outputs=_OUTPUTS, cost=cost) as run:
        if run.is_finished:
            check_trials(plan, Journal(run.folder))
            return run.record
        repair_trials(plan, Journal(run.folder), say)
        cluster = replace(config.cluster, scorers=config.workers)
        with (
            _leave_no_start(run.folder),
            connect(
                cluster, run.folder, run.lease.check, needed, dashboard=True, say=say, ray_for=_TUNE
            ) as session,
        ):
            at_once = count_trials(config, session)
            run.bind(session.device, session.gpu)
            count = config.seeds + config.report_seeds if config.has_worlds else 0  # development first
            places = list_places(count, run.work, config.seed, config.worlds, config.cluster)
            make_worlds(places, session.count_cores(), run, say)
            if any(find_loss(loss).negatives for loss in _list_losses(plan)):
                for place in places:
                    write_negatives(place, NEGATIVES, WritingConfig())
            work = run.work.at(TRIALS)
            if config.command == "continual":
                make_streams(config, work, say)
            is_local = config.command == "train" and config.workers == 1 and session.device == "cpu"
            job = Job(plan, run.folder.uri, work, tuple(places), COMMANDS[config.command], is_local)
            winners = _try_all(job, metric, at_once, run, say, callbacks)
        _close(run, plan, winners, metric)
    return run.record


def _describe_cost(plan: Plan) -> str:
    config, trials = plan.config, count_planned(plan)
    reported = f"; {config.report} of them again on {config.report_seeds} report seeds" * bool(
        config.report_seeds
    )
    facts = {"trials": f"{trials:,}, each on {config.seeds} seeds{reported}"}
    if config.rungs == "steps":
        num = trials // len(list(list_groups(plan)))
        shares = ", ".join(f"{count:,}" for count in count_rungs(num))
        each = f" for each {config.per}" * bool(config.per)
        facts["rungs"] = f"{shares} trials{each}; {share_of_steps(num):.0%} of the steps of all trials"
    return format_facts(facts)


def _check(config: SweepConfig) -> tuple[Plan, str]:
    """Return the plan and the metric's full name; raises ValueError for every mistake that is known before
    anything starts."""
    scored = scored_options() if config.has_worlds else None
    if config.curated:
        curated = read_finished(config.curated)
        if curated["kind"] != "curate":
            raise ValueError(
                f"curated={config.curated!r}: holds {curated['kind']}; name the curation that scored"
            )
        check_classed(curated, config.curated)
        list_scores(curated, config.curated)
        scored = curated["config"]
    plan = make_plan(config, scored)
    metric = check_metric(config.metric, _list_known(config))
    if config.report_on is not None:
        check_metric(metric, list_metrics(config.report_on))
    if config.command == "continual":
        _check_streams(plan)
    return plan, metric


def _check_streams(plan: Plan) -> None:
    """Raise ValueError if the streams of a trial cannot be built, each set of their inputs checked once, or
    if a trial would itself select what the sweep tries."""
    seen: set[tuple[Any, ...]] = set()
    for options in list_checked(plan):
        trial = plan.find_trial(options)
        check(trial.develop.seeds == 0, "develop.seeds", trial.develop.seeds, "0 in a sweep, which chooses")
        key = (trial.model, trial.reference, trial.parser, trial.primitives)
        if key not in seen:
            seen.add(key)
            check_streams(with_absolute_paths(trial))


def _list_known(config: SweepConfig) -> list[str]:
    if config.command == "continual":
        return list_stream_metrics(config.continual)
    return list_world_metrics() if config.has_worlds else list_metrics(config.evaluate)


def _fingerprint(config: SweepConfig, plan: Plan) -> dict[str, Any]:
    if config.command == "continual":
        methods = dict.fromkeys((*METHODS, *config.continual.method))
        return {**fingerprint_streams(config.continual), "methods": fingerprint_methods(methods)}
    own = [fingerprint_own("loss", loss) for loss in _list_losses(plan)]
    found: dict[str, Any] = {"losses": digest(own)} if any(own) else {}
    found |= fingerprint_held_out(config.train)
    if config.has_worlds:
        return {**found, **fingerprint_worlds()}
    if config.curated:
        found["curated"] = identify(read_finished(config.curated))
    else:
        found |= fingerprint_pairs(config.train)
    for asked in filter(None, (config.evaluate, config.report_on)):
        found["exams"] = digest(
            [found.get("exams"), *(one.fingerprint for one in open_evaluations(asked, say_nothing))]
        )
    return {**found, "model": fingerprint_scorer(fetch_model(find_model(config.train.model)))}


@contextmanager
def _leave_no_start(folder: Folder) -> Iterator[None]:
    """Remove the files of a sweep that is refused before its first trial: its corrected config may be another
    sweep."""
    try:
        yield
    except ValueError:
        if not folder.exists(TRIALS):
            for name in ("work", "logs", RUN):
                folder.remove(name)
        raise


def _list_losses(plan: Plan) -> Sequence[str]:
    return plan.space["train.loss"].values if "train.loss" in plan.space else [plan.config.train.train.loss]


def _try_all(
    job: Job, metric: str, at_once: int, run: Run, say: Say, callbacks: Sequence[Any]
) -> list[Winner]:
    """Tune every group alike, then train the selected trials on report seeds; return the best trials, best
    first."""
    from raycomp.sweep.ray_tune import Watch, train_points, tune_group

    config, journal = job.config, job.journal
    report = list_report(config)
    watch = Watch(run.lease.check, say, metric, at_once, callbacks)
    groups = list(list_groups(job.plan))
    for group in groups:
        tune_group(job, group, list_rungs(config), watch)
    chosen = _choose(read_trials(job.plan, journal), groups, config, metric)
    reported = [one.trial for one in chosen]
    if config.report == "all":
        trials = read_trials(job.plan, journal)
        reported = [trial for trial in trials if is_whole(trial, metric, config.seeds)]
    if report:
        train_points(job, [trial.options for trial in reported], report, watch)
    return _choose(read_trials(job.plan, journal), groups, config, metric)


def _choose(
    trials: Sequence[Trial], groups: Sequence[Mapping[str, str]], config: SweepConfig, metric: str
) -> list[Winner]:
    """Return the best trial of each group, the best of all first."""
    found = [choose_best(trials, group, metric, config.mode, config.seeds) for group in groups]
    sign = -1 if config.mode == "max" else 1
    return sorted(found, key=lambda one: sign * one.development.value)


def _close(run: Run, plan: Plan, winners: Sequence[Winner], metric: str) -> None:
    trials = read_trials(plan, Journal(run.folder))
    rows = make_rows(plan, trials, list(chain(*list_rungs(plan.config))), metric)
    write_table(rows, run.folder.at(TABLE), rows.schema)
    run.folder.write_bytes(write_job(plan, winners, run.folder.at(BEST)).encode(), BEST)
    came = Counter(OK if status == FINISHED else status for status in rows["status"].to_pylist())
    best = [
        {
            "group": dict(one.group),
            "trial": one.trial.name,
            "options": dict(one.trial.options),
            "development": vars(one.development),
            "report": vars(one.report),
        }
        for one in winners
    ]
    run.close({OK: sum(came.values())}, came, OK, reasons=(FAILED, STOPPED), metric=metric, best=best)
    run.record["warnings"] = list_warnings(plan, trials, winners, metric)
    tables = make_tables(plan, trials, winners, metric)
    if plan.config.published:
        tables.insert(1, published_table(plan, trials, metric))
    charts = {f"over-{name}": chart for name, chart in _draw(plan, trials, metric)}
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    said = f"{len(trials):,} trials; " + "; ".join(say_winner(one, plan, metric) for one in winners)
    lines = [say_winner(one, plan, metric) for one in winners]
    page = render_page(
        "sweep/page.html.jinja", run=run.record, said=lines, tables=tables, charts=list(charts.values())
    )
    run.report(said, page)


def _draw(plan: Plan, trials: Sequence[Trial], metric: str) -> Iterator[tuple[str, Html]]:
    makers = (list_curves, list_grids, list_trade_offs)
    curves = [curve for make in makers for curve in make(plan, trials, metric)]
    for curve in [*curves, *([published_curve()] if plan.config.published else [])]:
        shape = (curve.is_log, not curve.is_measured)
        yield curve.name, response(curve.title, curve.option, curve.unit, curve.series, *shape)
    for plot in list_plots(plan, trials, metric):
        yield plot.title.rpartition(" ")[2], intervals(plot)
