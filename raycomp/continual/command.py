"""``raycomp continual``: build and embed the streams, run the methods, report the metrics."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raycomp.config import ModelConfig, changed_options
from raycomp.config.options import check
from raycomp.config.own_code import fingerprint_own, is_own
from raycomp.continual.config import ContinualConfig
from raycomp.continual.method import METHODS, TUNE, find_method
from raycomp.continual.prepare import (
    describe_places,
    find_backbone,
    list_dropped,
    prepare_streams,
)
from raycomp.continual.results import RUNS, choose, is_done, list_trials, measure, read_result, report_trials
from raycomp.continual.runs import Choice, StreamRun, list_methods, list_runs
from raycomp.continual.streams.place import EmbeddedStream, RunJob
from raycomp.continual.streams.sources import Source, StreamSource, open_reference, read_stream
from raycomp.continual.tables import (
    choose_headline,
    list_plots,
    make_tables,
    report_samples,
    say_main,
    write_long,
)
from raycomp.data.files import Folder, check_writable
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.paths import absolute_uri, fingerprint_shards, list_times, size_files
from raycomp.data.runs import TIMES, digest, fetch_model, find_model
from raycomp.models.describe import describe_scorer, fingerprint_scorer
from raycomp.models.parser import fingerprint_parser
from raycomp.report.charts import cut_out, intervals
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, command_line, say_count, start_run
from raycomp.run.session import Session, connect, say_many
from raycomp.run.waves import map_some
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
    outputs = (RUNS, _FIGURES, TABLE)
    fingerprint = partial(fingerprint_streams, config)
    cost = partial(say_count, len(runs) + len(trials), "trainings")
    with start_run("continual", config, fingerprint, out, say, rerun, outputs=outputs, cost=cost) as run:
        if run.is_finished:
            return run.record
        workers = _count_workers(config, runs)
        with connect(
            config.cluster,
            run.folder,
            run.lease.check,
            _count_cpus(workers, config),
            say=say,
            better=say_many(len(runs) + len(trials)),
            ray_for=f"tune.workers={workers} needs several processes" if workers > 1 else None,
        ) as session:
            _check_workers(workers, session)
            run.bind(session.device, session.gpu)
            prepared = Folder(config.prepared or run.work.at(STREAMS))
            places = prepare_streams(config, [*trials, *runs], prepared, run, session, say)
            models = {place: find_backbone(place, config).model for place in places}
            for part in _part(trials):
                _run_all(part, models, config, {}, session, run, say)
            chosen = choose({one_run: read_result(run.folder, one_run) for one_run in trials}, config)
            for part in _part(runs):
                _run_all(part, models, config, chosen, session, run, say)
            streams = describe_places(places)
        _close(run, config, runs, trials, chosen, streams)
    return run.record


def check_streams(asked: ContinualConfig) -> ContinualConfig:
    """Return the config with its model found; check that runs, streams and the model are available.

    Raises ValueError otherwise, before anything is written or Ray starts.
    """
    list_runs(asked)
    config = replace(asked, model=find_model(asked.model)) if _has_files(asked) else asked
    fingerprint_streams(config)
    if _has_files(config):
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


def _has_files(config: ContinualConfig) -> bool:
    """Whether a stream is a json file; such streams use ``config.model``."""
    return not all(map(is_own, config.stream))


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
    if _has_files(config):
        found["model"] = fingerprint_scorer(fetch_model(config.model))
    if config.reference is not None:
        sources["reference"] = open_reference(config.reference)
    found |= {name: _identify(source) for name, source in sources.items()}
    if sources:
        found[TIMES] = {
            name: digest(list_times(source.shards, [picture.uri for picture in source.pictures]))
            for name, source in sources.items()
        }
    found["parser"] = fingerprint_parser(config.parser.name)
    return found


def fingerprint_methods(names: Collection[str] = tuple(METHODS)) -> str:
    """Return a digest of the methods' definitions, which are not options: their learners and the options they
    set."""
    own = {name: find_method(name) for name in names}
    return digest(
        {
            name: one._asdict()
            | {"learner": one.learner if isinstance(one.learner, str) else name}
            | {"settings": dict(one.settings)}
            | fingerprint_own("code", name)
            for name, one in own.items()
        }
    )


def _identify(source: StreamSource | Source) -> str:
    """Return a digest that differs between inputs, and changes when an input changes."""
    sizes = size_files([picture.uri for picture in source.pictures])
    return digest([repr(source), fingerprint_shards(list(source.shards)), sizes])


def _count_workers(config: ContinualConfig, runs: Sequence[StreamRun]) -> int:
    """Return the number of processes that share a run: 1 if no method trains the model."""
    is_tuned = any(find_method(one_run.method).trains == TUNE for one_run in runs)
    return (config.tune.workers or 1) if is_tuned else 1


def _count_cpus(workers: int, config: ContinualConfig) -> int:
    """Return the CPUs of a local cluster: for embedding, then for the workers."""
    _, scorers = config.cluster.span or (1, 1)
    return max(_CPUS_OF_SCORER * scorers, workers) + _OTHER_CPUS


def _check_workers(workers: int, session: Session) -> None:
    """Raise ValueError if the cluster can never hold so many workers; Ray Train would wait for them."""
    on_gpus, most = session.device == "gpu", session.most_cpus
    if on_gpus:
        most = min(most, session.num_scorers)
    said = f"at most {most}, the {'GPUs' if on_gpus else 'CPUs'} that the cluster has"
    check(workers <= most, "tune.workers", workers, said)


def _part(runs: Sequence[StreamRun]) -> tuple[list[StreamRun], ...]:
    """Return the runs in two groups, run in this order: heads, and methods that train the model."""
    tuned = [one_run for one_run in runs if find_method(one_run.method).trains == TUNE]
    return [one_run for one_run in runs if one_run not in tuned], tuned


def _run_all(
    runs: Sequence[StreamRun],
    models: Mapping[EmbeddedStream, ModelConfig],
    config: ContinualConfig,
    chosen: Mapping[str, Choice],
    session: Session,
    run: Run,
    say: Say,
) -> None:
    """Run the runs that have not ended, started in their order."""
    work, jobs = Folder(run.work.at(RUNS)), []
    for one_run in (one_run for one_run in runs if not is_done(run.folder, one_run)):
        place = next(place for place in models if place.has(one_run))
        choice = chosen.get(one_run.method, Choice()) if one_run.rate is None else Choice(one_run.rate)
        jobs.append(RunJob(one_run, place, models[place], config, work, run.folder, choice))
    is_tuned = any(find_method(one_run.method).trains == TUNE for one_run in runs)
    is_shared = is_tuned and config.tune.workers is not None and not session.is_local
    ended = _on_workers(jobs, session, run, say) if is_shared else _side_by_side(jobs, is_tuned, session, run)
    for one_run in ended:
        found = measure(read_result(run.folder, one_run))
        lost = found.get("forgetting_best")
        say(
            f"{one_run.name}: last {found['last']:.1f}" + ("" if lost is None else f", forgetting {lost:.1f}")
        )


def _on_workers(jobs: Sequence[RunJob], session: Session, run: Run, say: Say) -> Iterator[StreamRun]:
    """Yield runs as they end, one at a time, each on all of its workers."""
    from raycomp.continual.ray_run import fit_one

    for job in jobs:
        fit_one(job, session.device == "gpu", run.lease.check, say)
        yield job.one_run


def _side_by_side(jobs: Sequence[RunJob], is_tuned: bool, session: Session, run: Run) -> Iterator[StreamRun]:
    """Yield runs as they end, several at a time, each in one process, with a GPU if it trains the model."""
    from raycomp.continual.run import run_one

    num_tasks = jobs[0].config.side_by_side or session.count_cores() if jobs else 1
    with_gpu = is_tuned and session.device == "gpu"
    tasks, check_lease = [(job,) for job in jobs], run.lease.check
    for (job,) in map_some(run_one, tasks, num_tasks, check_lease, "continual", "run", with_gpu):
        yield job.one_run


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
    run.folder.write_bytes(write_long(results, measured).encode(), TABLE)
    charts = {name: intervals(plot) for name, plot in list_plots(results, measured).items()}
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    lines = say_main(results, measured)
    developed = {one_run: read_result(run.folder, one_run) for one_run in trials}
    counts = {OK: len(runs) + len(trials)}
    choices = {method: choice._asdict() for method, choice in chosen.items()}
    run.close(counts, counts, OK, lines=lines, streams=streams, chosen=choices)
    repeats = [line for facts in streams.values() for line in facts["warnings"]]
    run.record["warnings"] = [*list_dropped(streams), *repeats]
    samples = report_samples(streams)
    reported = f"{len(runs):,} runs; table: {run.folder.at(TABLE)}"
    tables = [*([samples] if samples else []), *make_tables(results, measured)]
    if developed:
        tables.append(report_trials(developed, chosen, config))
    page = render_page(
        "continual/page.html.jinja",
        run=run.record,
        headline=choose_headline(lines),
        tables=tables,
        charts=list(charts.values()),
    )
    run.report(reported, page)
