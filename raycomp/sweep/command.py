"""``raycomp sweep``: options tried by Ray Tune, selected on development seeds, reported on held-out seeds."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from raycomp.config import flatten, list_options
from raycomp.config.commands import fingerprint_own
from raycomp.config.options import SELECT, check
from raycomp.continual.command import check_prepared, check_streams, fingerprint_methods, fingerprint_streams
from raycomp.continual.method import METHODS
from raycomp.curation.config import CurateConfig
from raycomp.data.files import absolute_uri, check_writable
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.parquet import write_table
from raycomp.data.runs import digest, fetch_model, find_model, list_scores, read_finished
from raycomp.evaluation.open import open_evaluations
from raycomp.models.architecture import describe_scorer, fingerprint_scorer
from raycomp.report.page import cut_out, render_page
from raycomp.run.executor import Session, connect, current, is_connected
from raycomp.run.run import Run, Say, start_run
from raycomp.sweep import page, result, trials
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import Plan, check_metric, list_metrics, list_stream_metrics, make_plan
from raycomp.table import format_facts
from raycomp.training.config import LEAST_GPU
from raycomp.training.held_out import fingerprint_held_out
from raycomp.training.journal import check_packages
from raycomp.training.pairs import fingerprint_pairs
from raycomp.words import OK

_FIGURES = "figures"
_OUTPUTS = (trials.TRIALS, result.TABLE, result.BEST, _FIGURES)

# A trial holds its training workers, or while it evaluates a scorer, which takes two CPUs without a GPU. One
# more CPU for all trials is enough for the tasks they wait for; a trial holds no CPU while it waits.
OF_SCORER, OF_TASKS = 2, 1
# A GPU in the units in which Ray counts shares.
_UNITS = round(1 / LEAST_GPU)


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
    if config.command == "continual" and "://" in out:
        raise ValueError(f"out={out!r}: continual learning needs a folder on a disk that all nodes share")
    check_prepared(config.continual, out)
    at_seeds = _list_seeds(config)
    plan, metric = _check(config, at_seeds)
    check_packages(config.train.log_to)
    has_cluster = is_connected() or config.cluster.address or os.environ.get("RAY_ADDRESS")
    needed = None if has_cluster else plan_alone(config)
    fingerprint, cost = partial(_fingerprint, plan, at_seeds), partial(_describe_cost, plan)
    if config.command == "train":
        fingerprint()  # what a seed lacks is reported before anything is written
    check_writable(out)
    with start_run("sweep", config, fingerprint, out, say, outputs=_OUTPUTS, cost=cost) as run:
        journal = trials.Journal(run.folder)
        if run.is_finished:
            journal.check(plan)
            return run.record
        journal.repair(plan, say)
        cluster = replace(config.cluster, scorers=config.workers)
        how: dict[str, Any] = {"dashboard": True, "say": say, "ray_for": "a sweep searches with Ray Tune"}
        run.has_results = lambda: run.folder.exists(trials.TRIALS)
        with connect(cluster, run.folder, run.lease.check, needed, **how) as session:
            at_once = count_trials(config, session)
            run.bind(session.device, session.gpu)
            work = run.work.at(trials.TRIALS)
            if config.command == "continual":
                trials.make_streams(config, work, say)
            is_local = config.command == "train" and config.workers == 1 and session.device == "cpu"
            job = trials.Job(plan, run.folder.uri, work, at_seeds, trials.COMMANDS[config.command], is_local)
            winners = _try_all(job, metric, at_once, run, say, callbacks)
        _close(run, plan, winners, metric)
    return run.record


def _describe_cost(plan: Plan) -> str:
    config, num = plan.config, plan.count()
    reported = f"; {config.report} of them again on {config.report_seeds} report seeds"
    reported = reported if config.report_seeds else ""
    facts = {"trials": f"{num:,}, each on {config.seeds} seeds{reported}"}
    if config.command == "train":
        again = num if config.report == "all" else len(list(plan.list_groups()))
        fits = sorted({plan.make_trial(options).train.length for options in plan.list_checked()})
        most = f"{num * config.seeds + again * config.report_seeds:,} trainings"
        facts["cost"] = f"{most} of {' or '.join(fits)}, each with an evaluation"
    if config.rungs == "steps":
        each = num // len(list(plan.list_groups()))
        shares = ", ".join(f"{count:,}" for count in result.count_rungs(each))
        of = f" for each {config.per}" * bool(config.per)
        facts["rungs"] = f"{shares} trials{of}; {result.share_of_steps(each):.0%} of the steps of all trials"
    points = plan.list_points() if config.search != "optuna" else []
    for n, point in enumerate(points[:20], 1):
        facts[f"trial {n}"] = " ".join(f"{option}={value}" for option, value in point.items())
    return format_facts(facts)


def _list_seeds(config: SweepConfig) -> tuple[SweepConfig, ...]:
    """Return the sweep as each seed has it, the development seeds first, with absolute paths."""
    found = [config.at_seed(number) for number in range(config.seeds + config.report_seeds)]
    whole = {one: with_absolute_paths(one) for one in dict.fromkeys(found)}
    return tuple(whole[one] for one in found)


def _check(config: SweepConfig, at_seeds: Sequence[SweepConfig]) -> tuple[Plan, str]:
    """Return the plan and the metric's full name; raises ValueError for every mistake that is known before
    anything starts."""
    if config.command == "continual":
        plan = make_plan(config, None)
        metric = check_metric(config.metric, list_stream_metrics(config.continual))
        seen: set[tuple[Any, ...]] = set()
        for options in plan.list_checked():
            trial = plan.make_trial(options)
            tried = trial.develop.seeds
            check(tried == 0, "develop.seeds", tried, "0 in a sweep, which chooses")
            key = (trial.model, trial.reference, trial.parser, trial.primitives)
            if key not in seen:  # each set of the streams' inputs is checked once
                seen.add(key)
                check_streams(with_absolute_paths(trial))
        return plan, metric
    wanted = "a curation whose scores every trial selects from; or set input, pairs to train on as they are"
    check(bool(config.curated or config.input), "curated", config.curated, wanted)
    check(bool(config.evaluate.benchmarks), "evaluate.benchmarks", "", "set: trials are evaluated on them")
    scored = []
    for curated in dict.fromkeys(one.curated for one in at_seeds if one.curated):
        run = read_finished(curated)
        if run["kind"] != "curate":
            raise ValueError(f"curated={curated!r}: holds {run['kind']}; name the curation that scored")
        list_scores(run, curated)
        scored.append(run["config"])
    # Trials are checked once for all curations with the same options of selection.
    paths = [one.path for one in list_options(CurateConfig, *SELECT)]
    unlike = {digest({path: dict(flatten(one)).get(path) for path in paths}): one for one in scored}.values()
    plan, *_ = [make_plan(config, one) for one in unlike] or [make_plan(config, None)]
    metric = config.metric
    for asked in dict.fromkeys((at_seeds[0].evaluate, at_seeds[-1].evaluate)):
        metric = check_metric(metric, list_metrics(asked))
    return plan, metric


def _fingerprint(plan: Plan, at_seeds: Sequence[SweepConfig]) -> dict[str, Any]:
    """Return the inputs, other than options, that results depend on. Raises ValueError where one is missing,
    of any seed."""
    config = plan.config
    if config.command == "continual":
        methods = dict.fromkeys((*METHODS, *config.continual.method))
        return {**fingerprint_streams(config.continual), "methods": fingerprint_methods(methods)}
    tried = plan.space["train.loss"].values if "train.loss" in plan.space else [config.train.loss]
    own = [fingerprint_own("loss", loss) for loss in tried]
    losses = {"losses": digest(own)} if any(own) else {}
    first, *others = [_fingerprint_data(one) for one in dict.fromkeys(at_seeds)]
    return {**losses, **first, **({"seeds": digest(others)} if others else {})}


def _fingerprint_data(config: SweepConfig) -> dict[str, Any]:
    """Return the inputs of one seed."""
    found: dict[str, Any] = fingerprint_held_out(config)
    found |= fingerprint_pairs(replace(config, input=config.curated or config.input))
    if config.curated:
        found["curated"] = found.pop("input")
    opened = open_evaluations(config.evaluate, trials.say_nothing)
    found["exams"] = digest([None, *(one.fingerprint for one in opened)])
    model = fetch_model(find_model(config.model))
    describe_scorer(model)  # loads it where it is not known
    return {**found, "model": fingerprint_scorer(model)}


def _try_all(
    job: trials.Job, metric: str, at_once: int, run: Run, say: Say, callbacks: Sequence[Any]
) -> list[result.Winner]:
    """Tune every group alike, then train the selected trials on report seeds; return the best trials, best
    first."""
    from raycomp.sweep.ray_tune import Watch, train_points, tune_group

    config, plan, groups = job.config, job.plan, list(job.plan.list_groups())
    watch = Watch(run.lease.check, say, metric, at_once, callbacks)

    def choose(tried: Sequence[trials.Trial]) -> list[result.Winner]:
        found = [result.choose_best(tried, group, metric, config.mode, config.seeds) for group in groups]
        sign = -1 if config.mode == "max" else 1
        return sorted(found, key=lambda one: sign * one.development.value)

    for group in groups:
        tune_group(job, group, trials.list_rungs(config), watch)
    tried = result.read_trials(plan, job.journal)
    chosen = [one.trial for one in choose(tried)]
    if config.report == "all":
        chosen = result.list_whole(plan, tried, metric)
    if report := trials.list_report(config):
        train_points(job, [trial.options for trial in chosen], report, watch)
    return choose(result.read_trials(plan, job.journal))


def _close(run: Run, plan: Plan, winners: Sequence[result.Winner], metric: str) -> None:
    tried = result.read_trials(plan, trials.Journal(run.folder))
    rows = result.make_rows(plan, tried, list(chain(*trials.list_rungs(plan.config))), metric)
    write_table(rows, run.folder.at(result.TABLE), rows.schema)
    run.folder.write_bytes(result.write_job(plan, winners, run.folder.at(result.BEST)).encode(), result.BEST)
    came = Counter(OK if status == trials.FINISHED else status for status in rows["status"].to_pylist())
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
    reasons = (trials.FAILED, trials.STOPPED)
    run.close({OK: sum(came.values())}, came, OK, reasons=reasons, metric=metric, best=best)
    run.record["warnings"] = page.list_warnings(plan, tried, winners, metric)
    charts = page.draw_charts(plan, tried, metric)
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"over-{name}.svg")
    said = [page.say_winner(one, plan, metric) for one in winners]
    shown = {"tables": page.make_tables(plan, tried, winners, metric), "charts": list(charts.values())}
    html = render_page("sweep/page.html.jinja", run=run.record, said=said, **shown)
    run.report(f"{len(tried):,} trials; {'; '.join(said)}", html)


def cpus_of(trials: int, workers: int) -> int:
    """Return the CPUs below which this number of trials might deadlock."""
    return trials * max(workers, OF_SCORER) + OF_TASKS


def count_on_gpus(gpus: float, workers: int, gpus_per_worker: float) -> float:
    """Return how many trials fit on this number of GPUs at once; inf for inf.

    The share of a worker is of one GPU: of .6 one fits, and .4 of the GPU is left.
    """
    if math.isinf(gpus):
        return gpus
    return int(gpus) * (_UNITS // round(gpus_per_worker * _UNITS)) // workers


def plan_alone(config: SweepConfig) -> int:
    """Return the CPUs to start local Ray with. Raises ValueError for workers that can never fit."""
    cores = config.cluster.num_cpus or os.cpu_count() or 1
    if config.workers > cores:
        named = "cluster.num_cpus" if config.cluster.num_cpus else "the cores of this machine"
        raise ValueError(f"train.workers={config.workers}: must be at most {cores}, {named}")
    at_once = config.max_concurrent or max(1, (os.cpu_count() or 1) // config.workers)
    # Each CPU counted here may become a process that loads torch: no more than needed.
    return cpus_of(at_once, config.workers)


def count_trials(config: SweepConfig, session: Session) -> int:
    """Return the number of concurrent trials.

    One trial fits on any CPUs, as its workers and scorers then request less than one each. Raises ValueError
    if the cluster can never hold the GPUs of one trial, or the workers of ``max_concurrent``.
    """
    workers = config.workers
    there = session.most_cpus - OF_TASKS
    # inf // 1 would be nan.
    most = on_cpus = max(1, there if math.isinf(there) else there // max(workers, OF_SCORER))
    if session.device == "gpu":
        from raycomp.run.ray_cluster import count_offered

        gpus = max(current().count("GPU"), count_offered("GPU"))
        most = min(most, count_on_gpus(gpus, workers, config.share_of_gpu))
    if most < 1:
        raise ValueError(f"train.workers={workers}: more than fit on the cluster's GPUs; set fewer")
    asked = config.max_concurrent
    if asked is not None and asked > most:
        why = f"{cpus_of(asked, workers)} CPUs are needed, the cluster has {session.num_cpus}"
        if most < on_cpus:
            share = config.share_of_gpu
            why = f"no more fit on the cluster's GPUs at train.gpus_per_worker={share:g}"
        raise ValueError(f"max_concurrent={asked}: must be at most {most:.0f}; {why}")
    return asked or max(1, int(min(most, session.count_cores() // workers)))
