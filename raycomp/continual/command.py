"""``raycomp continual``: build and embed the streams, run the methods, report the metrics."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raycomp.config import changed_options
from raycomp.config.commands import fingerprint_own, is_own
from raycomp.config.options import check
from raycomp.continual import scoring, tables
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Choice, StreamRun, list_methods, list_runs
from raycomp.continual.embed import EmbeddedStream, RunJob, list_warnings, prepare_streams
from raycomp.continual.method import METHODS, get_method
from raycomp.continual.scoring import RUNS, choose, is_done, list_trials, measure, read_result, report_trials
from raycomp.continual.streams.sources import Source, StreamSource, open_reference, read_stream
from raycomp.data.files import Folder, absolute_uri, check_writable, size_files
from raycomp.data.inputs import fingerprint_shards, list_times, with_absolute_paths
from raycomp.data.runs import TIMES, digest, fetch_model, find_model
from raycomp.evaluation.embed import count_needed
from raycomp.evaluation.seeds import CONTINUAL_RUNS
from raycomp.models.architecture import describe_scorer, fingerprint_scorer
from raycomp.models.parser import fingerprint_parser
from raycomp.report.page import cut_out, intervals, render_page
from raycomp.run.executor import Session, connect, say_many
from raycomp.run.run import Run, Say, command_line, say_count, start_run
from raycomp.run.work import map_some
from raycomp.words import OK

TABLE, _FIGURES, STREAMS = "continual.csv", "figures", "streams"
# CPUs of a local cluster: per scorer that embeds, and in addition to scorers or workers.
_CPUS_OF_SCORER, _OTHER_CPUS = 2, 3


def continual(config: ContinualConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Run the methods on the streams into the local folder ``out``; return the contents of run.json.

    A finished run of the same config is left as it is. An unfinished one resumes, also within a task. Raises
    ValueError for user mistakes, and TooMuchBadData.
    """
    out, asked = absolute_uri(str(out)), with_absolute_paths(config)
    if "://" in out:
        raise ValueError(f"out={out!r}: continual learning needs a folder on a disk that all nodes share")
    check_prepared(asked, out)
    config, runs, trials = check_streams(asked), list_runs(asked), list_trials(asked)
    check_writable(out)
    rerun = command_line("raycomp continual", changed_options(asked), out)
    outputs = (RUNS, _FIGURES, TABLE, CONTINUAL_RUNS)
    fingerprint = partial(fingerprint_streams, config)
    sources = [read_stream(one) for one in config.stream if not is_own(one)]
    dry: dict[str, Any] = {"cost": partial(say_count, len(runs) + len(trials), "trainings")}
    dry["num_bytes"] = partial(count_needed, sources)
    with start_run("continual", config, fingerprint, out, say, rerun, outputs=outputs, **dry) as run:
        if run.is_finished:
            return run.record
        workers = (config.tune.workers or 1) if any(one_run.is_tuned for one_run in runs) else 1
        _, scorers = config.cluster.span or (1, 1)
        with connect(
            config.cluster,
            run.folder,
            run.lease.check,
            max(_CPUS_OF_SCORER * scorers, workers) + _OTHER_CPUS,
            say=say,
            better=say_many(len(runs) + len(trials)),
            ray_for=f"tune.workers={workers} needs several processes" if workers > 1 else None,
        ) as session:
            # Ray Train would wait for workers that the cluster can never hold.
            on_gpus = session.device == "gpu"
            most = min(session.most_cpus, session.num_scorers) if on_gpus else session.most_cpus
            said = f"at most {most}, the {'GPUs' if on_gpus else 'CPUs'} that the cluster has"
            check(workers <= most, "tune.workers", workers, said)
            run.bind(session.device, session.gpu)
            prepared = Folder(config.prepared or run.work.at(STREAMS))
            places = prepare_streams(config, [*trials, *runs], prepared, run, session, say)
            run.end_dry_run()
            _run_all(trials, places, config, {}, session, run, say)
            chosen = choose({one_run: read_result(run.folder, one_run) for one_run in trials}, config)
            for line in scoring.list_ends(chosen, config):
                say(line)
            _run_all(runs, places, config, chosen, session, run, say)
            streams = {place.name: place.facts for place in places}
        _close(run, config, runs, trials, chosen, streams)
    return run.record


def check_streams(asked: ContinualConfig) -> ContinualConfig:
    """Return the config with its model found; check that runs, streams and the model are available.

    Raises ValueError otherwise, before anything is written or Ray starts.
    """
    list_runs(asked)
    has_files = not all(map(is_own, asked.stream))  # such streams use the config's model
    config = replace(asked, model=find_model(asked.model)) if has_files else asked
    fingerprint_streams(config)
    if has_files:
        describe_scorer(fetch_model(config.model))
    return config


def check_prepared(config: ContinualConfig, out: str) -> None:
    """Raise ValueError if ``prepared`` is the run's own folder ``out``, or if no folder can be made there."""
    prepared = config.prepared
    check(prepared != out, "prepared", prepared, "another folder than out")
    if prepared is not None and "://" not in prepared:
        # the nearest existing parent; the folders below it will be made
        found = next(path for path in (Path(prepared), *Path(prepared).parents) if path.exists())
        check(found.is_dir(), "prepared", prepared, f"a folder; {found} is a file")


def fingerprint_streams(config: ContinualConfig) -> dict[str, Any]:
    """Return the inputs, other than options, that results depend on. Raises ValueError where a stream cannot
    be built."""
    found: dict[str, Any] = {"methods": fingerprint_methods(list_methods(config))}
    sources: dict[str, StreamSource | Source] = {}
    for stream in config.stream:
        if is_own(stream):
            found |= fingerprint_own(stream, stream)
        else:
            sources[stream] = read_stream(stream)
    if not all(map(is_own, config.stream)):
        found["model"] = fingerprint_scorer(fetch_model(config.model))
    if config.reference is not None:
        sources["reference"] = open_reference(config.reference)
    times = {}
    for name, source in sources.items():
        files = [picture.uri for picture in source.pictures]
        found[name] = digest([repr(source), fingerprint_shards(list(source.shards)), size_files(files)])
        times[name] = digest(list_times(source.shards, files))
    if times:
        found[TIMES] = times
    found["parser"] = fingerprint_parser(config.parser.name)
    return found


def fingerprint_methods(names: Collection[str] = tuple(METHODS)) -> str:
    """Return a digest of the methods' definitions, which are not options: their learners and the options they
    set."""
    found = {}
    for name in names:
        one = get_method(name)
        learner = one.learner if isinstance(one.learner, str) else name
        facts = {**one._asdict(), "learner": learner, "settings": dict(one.settings)}
        found[name] = facts | fingerprint_own("code", name)
    return digest(found)


def _run_all(
    runs: Sequence[StreamRun],
    places: Sequence[EmbeddedStream],
    config: ContinualConfig,
    chosen: Mapping[str, Choice],
    session: Session,
    run: Run,
    say: Say,
) -> None:
    """Run those that have not ended, started in their order: heads, then methods that train the model.

    One at a time, each on all of its workers; or several at a time, each in one process, with a GPU if it
    trains the model.
    """
    work = Folder(run.work.at(RUNS))
    models = {place: place.adapt(config).model for place in places}

    def report(one_run: StreamRun) -> None:
        found = measure(read_result(run.folder, one_run))
        lost = found.get("forgetting_best")
        say(
            f"{one_run.name}: last {found['last']:.1f}" + ("" if lost is None else f", forgetting {lost:.1f}")
        )

    for is_tuned in (False, True):
        jobs = []
        for one_run in runs:
            if one_run.is_tuned == is_tuned and not is_done(run.folder, one_run):
                place = next(place for place in places if place.has(one_run))
                choice = Choice(one_run.rate) if one_run.rate else chosen.get(one_run.method, Choice())
                jobs.append(RunJob(one_run, place, models[place], config, work, run.folder, choice))
        with_gpu = is_tuned and session.device == "gpu"
        if jobs and is_tuned and config.tune.workers is not None and not session.is_local:
            from raycomp.continual.ray_run import fit_one

            for job in jobs:
                fit_one(job, with_gpu, run.lease.check, say)
                report(job.one_run)
        elif jobs:
            from raycomp.continual.loop import run_one

            num_tasks, tasks = config.side_by_side or session.count_cores(), [(job,) for job in jobs]
            for (job,) in map_some(run_one, tasks, num_tasks, run.lease.check, "continual", "run", with_gpu):
                report(job.one_run)


def _close(
    run: Run,
    config: ContinualConfig,
    runs: Sequence[StreamRun],
    trials: Sequence[StreamRun],
    chosen: Mapping[str, Choice],
    streams: Mapping[str, Any],
) -> None:
    """Write and report the results of the runs."""
    results = {one_run: read_result(run.folder, one_run) for one_run in runs}
    measured = {one_run: measure(result) for one_run, result in results.items()}
    run.folder.write_bytes(tables.write_long(results, measured).encode(), TABLE)
    run.folder.write_bytes(tables.write_runs(measured).encode(), CONTINUAL_RUNS)
    charts = {name: intervals(plot) for name, plot in tables.list_plots(results, measured).items()}
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    lines = tables.say_main(results, measured)
    counts = {OK: len(runs) + len(trials)}
    choices = {method: choice._asdict() for method, choice in chosen.items()}
    run.close(counts, counts, OK, lines=lines, streams=streams, chosen=choices)
    run.record["warnings"] += [*list_warnings(streams), *scoring.list_ends(chosen, config)]
    shown = [*tables.report_samples(streams), *tables.make_tables(results, measured)]
    if trials:
        developed = {one_run: read_result(run.folder, one_run) for one_run in trials}
        shown.append(report_trials(developed, chosen, config))
    page = render_page(
        "continual/page.html.jinja",
        run=run.record,
        headline=run.noise or tables.choose_headline(lines),
        tables=shown,
        charts=list(charts.values()),
    )
    run.report(f"{len(runs):,} runs; table: {run.folder.at(TABLE)}", page)
