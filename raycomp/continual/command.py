"""``raycomp continual``: make and embed the streams, run the methods, say what is left."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raycomp.config import ModelConfig, changed_options
from raycomp.config.check import check
from raycomp.continual.cells import Cell, Choice, list_cells, list_methods
from raycomp.continual.config import ContinualConfig
from raycomp.continual.develop import choose, list_trials, report_trials
from raycomp.continual.jobs import CellJob
from raycomp.continual.means import by_stream
from raycomp.continual.method import CLIPPED, FULL, METHODS, TUNE
from raycomp.continual.prepare import (
    describe_places,
    find_backbone_of,
    list_dropped,
    prepare_streams,
)
from raycomp.continual.published import write_published
from raycomp.continual.results import CELLS, is_done, measure, read_cell
from raycomp.continual.streams.little_world import check_tasks
from raycomp.continual.streams.place import EmbeddedStream
from raycomp.continual.streams.samples import PARSED
from raycomp.continual.streams.sources import Source, StreamSource, open_reference, open_stream
from raycomp.continual.tables import list_plots, make_tables, report_samples, say_main, write_long
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.model import fetch_model, find_model
from raycomp.data.paths import absolute_uri, fingerprint_shards, list_times, size_files
from raycomp.data.runs import TIMES, digest
from raycomp.data.whole import with_absolute_paths
from raycomp.models.describe import describe_scorer, fingerprint_scorer
from raycomp.models.parser import fingerprint_parser
from raycomp.report.charts import cut_out, intervals
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, begin, command_line
from raycomp.run.session import Session, connect, say_many
from raycomp.run.tasks import map_some
from raycomp.train.little_world import TINY_CLIP
from raycomp.words import OK, WORLD_STREAMS

TABLE, PUBLISHED, _FIGURES, STREAMS = "continual.csv", "published.csv", "figures", "streams"
# Of a cluster that is started here: for each scorer that embeds, and beside scorers or workers.
_CPUS_OF_SCORER, _CPUS_BESIDE = 2, 3


def continual(config: ContinualConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Run the methods on the streams into the local folder ``out``; return what run.json holds.

    A finished run of the same config is left as it is; an unfinished one goes on, within a task, too. Raises
    ValueError for what the user can mend, and TooMuchBadData.
    """
    out, asked = absolute_uri(str(out)), with_absolute_paths(config)
    if "://" in out:
        raise ValueError(f"out={out!r}: continual learning needs a folder on a disk that all nodes share")
    check_prepared(asked, out)
    config, cells, trials = check_streams(asked), list_cells(asked), list_trials(asked)
    check_writable(out)
    rerun = command_line("raycomp continual", changed_options(asked), out)
    rooms = (CELLS, _FIGURES, TABLE, PUBLISHED)
    with begin(
        "continual", config, partial(fingerprint_streams, config), out, say, rerun, rooms=rooms
    ) as run:
        if run.is_finished:
            return run.record
        workers = _count_workers(config, cells)
        with connect(
            config.cluster,
            run.folder,
            run.lease.check,
            _count_cpus(workers, config),
            say=say,
            better=say_many(len(cells) + len(trials)),
            ray_for=f"tune.workers={workers} are several processes" if workers > 1 else None,
        ) as session:
            _check_workers(workers, session)
            run.bind(session.device, session.gpu)
            prepared = Folder(config.prepared or run.work.at(STREAMS))
            places = prepare_streams(config, [*trials, *cells], prepared, run, session, say)
            models = {place: find_backbone_of(place, config, prepared) for place in places}
            for part in _part(trials):
                _run_cells(part, models, config, {}, session, run, say)
            chosen = choose({cell: read_cell(run.folder, cell) for cell in trials}, config)
            for part in _part(cells):
                _run_cells(part, models, config, chosen, session, run, say)
            streams = describe_places(places)
        _close(run, config, cells, trials, chosen, streams)
    return run.record


def check_streams(asked: ContinualConfig) -> ContinualConfig:
    """Return the config with its model found, where runs, streams and the model can be had.

    Raises ValueError otherwise, before anything is written or Ray starts.
    """
    list_cells(asked)
    config = replace(asked, model=find_model(asked.model)) if _has_own(asked) else asked
    fingerprint_streams(config)
    if _has_own(config):
        describe_scorer(fetch_model(config.model))
    return config


def check_prepared(config: ContinualConfig, out: str) -> None:
    """Raise ValueError where streams would be made in the folder of the run that waits for them, or cannot be
    made where they are to lie."""
    prepared = config.prepared
    check(prepared != out, "prepared", prepared, "another folder than out")
    if prepared is not None and "://" not in prepared:
        # the nearest thing that there is; the folders below it will be made
        found = next(path for path in (Path(prepared), *Path(prepared).parents) if path.exists())
        check(found.is_dir(), "prepared", prepared, f"a folder; {found} is a file")


def _has_own(config: ContinualConfig) -> bool:
    """Whether a stream is the user's, which ``config.model`` meets."""
    return not set(config.stream) <= set(WORLD_STREAMS)


def fingerprint_streams(config: ContinualConfig) -> dict[str, Any]:
    """Return what results depend on beside the options. Raises ValueError where a stream cannot be made."""
    found: dict[str, Any] = {"architecture": digest(TINY_CLIP)}
    found["methods"] = fingerprint_methods(
        {name for stream in config.stream for name in list_methods(config, stream)}
    )
    sources: dict[str, StreamSource | Source] = {}
    for stream in config.stream:
        if stream in WORLD_STREAMS:
            check_tasks(stream, config)
        else:
            sources[stream] = open_stream(stream, config, "")
    if _has_own(config):
        found["model"] = fingerprint_scorer(fetch_model(config.model))
    if config.reference is not None:
        sources["reference"] = open_reference(config.reference)
    found |= {name: _identify(source) for name, source in sources.items()}
    if sources:
        found[TIMES] = {
            name: digest(list_times(source.shards, [picture.uri for picture in source.pictures]))
            for name, source in sources.items()
        }
    if _has_own(config) or config.primitives == PARSED:
        found["parser"] = fingerprint_parser(config.parser.name)
    return found


def fingerprint_methods(names: Collection[str] = tuple(METHODS)) -> str:
    """Return what methods mean, which is not among the options: their learners and the options they set."""
    own = {name: METHODS[name] for name in names}
    return digest({name: one._asdict() | {"settings": dict(one.settings)} for name, one in own.items()})


def _identify(source: StreamSource | Source) -> str:
    """Return what tells inputs apart, and each from what it was before it changed."""
    sizes = size_files([picture.uri for picture in source.pictures])
    return digest([repr(source), fingerprint_shards(list(source.shards)), sizes])


def _count_workers(config: ContinualConfig, cells: Sequence[Cell]) -> int:
    """Return how many processes share a cell: one where no method trains the model."""
    is_tuned = any(METHODS[cell.method].trains == TUNE for cell in cells)
    return (config.tune.workers or 1) if is_tuned else 1


def _count_cpus(workers: int, config: ContinualConfig) -> int:
    """Return the CPUs of a cluster that is started here, for embedding and then for the workers."""
    _, scorers = config.cluster.span or (1, 1)
    return max(_CPUS_OF_SCORER * scorers, workers) + _CPUS_BESIDE


def _check_workers(workers: int, session: Session) -> None:
    """Raise ValueError where the cluster never has room for so many, for which Ray Train would wait."""
    on_gpus, most = session.device == "gpu", session.num_cpus
    if on_gpus:
        most = min(most, session.num_scorers)
    said = f"at most {most}, the {'GPUs' if on_gpus else 'CPUs'} that the cluster has"
    check(workers <= most, "tune.workers", workers, said)


def _part(cells: Sequence[Cell]) -> tuple[list[Cell], ...]:
    """Return what is run together: heads, methods that train the model, those that heads give an option."""
    tuned = [cell for cell in cells if METHODS[cell.method].trains == TUNE]
    last = [cell for cell in cells if cell.method == CLIPPED]
    return [cell for cell in cells if cell not in tuned and cell not in last], tuned, last


def _run_cells(
    cells: Sequence[Cell],
    models: Mapping[EmbeddedStream, ModelConfig],
    config: ContinualConfig,
    chosen: Mapping[str, Choice],
    session: Session,
    run: Run,
    say: Say,
) -> None:
    """Run those of the cells that have not ended, started in their order."""
    work, jobs = Folder(run.work.at(CELLS)), []
    for cell in (cell for cell in cells if not is_done(run.folder, cell)):
        place = next(place for place in models if place.has(cell, config))
        alpha = _find_alpha(cell, config, run.folder)
        choice = chosen.get(cell.method, Choice()) if cell.rate is None else Choice(cell.rate)
        jobs.append(CellJob(cell, place, models[place], config, work, run.folder, alpha, choice))
    is_tuned = any(METHODS[cell.method].trains == TUNE for cell in cells)
    is_shared = is_tuned and config.tune.workers is not None and not session.is_local
    ended = _on_workers(jobs, session, run, say) if is_shared else _side_by_side(jobs, is_tuned, session, run)
    for cell in ended:
        found = measure(read_cell(run.folder, cell))
        lost = found.get("forgetting_best")
        say(f"{cell.name}: last {found['last']:.1f}" + ("" if lost is None else f", forgetting {lost:.1f}"))


def _on_workers(jobs: Sequence[CellJob], session: Session, run: Run, say: Say) -> Iterator[Cell]:
    """Yield cells as they end, one after the other, each on all of its workers."""
    from raycomp.continual.ray_cell import fit_cell

    for job in jobs:
        fit_cell(job, session.device == "gpu", run.lease.check, say)
        yield job.cell


def _side_by_side(jobs: Sequence[CellJob], is_tuned: bool, session: Session, run: Run) -> Iterator[Cell]:
    """Yield cells as they end: so many at a time, each one process, with a GPU if it trains the model."""
    from raycomp.continual.run import run_cell

    num_tasks = jobs[0].config.side_by_side or session.count_cores() if jobs else 1
    with_gpu = is_tuned and session.device == "gpu"
    tasks, check_lease = [(job,) for job in jobs], run.lease.check
    for (job,) in map_some(run_cell, tasks, num_tasks, check_lease, "continual", "run", with_gpu):
        yield job.cell


def _find_alpha(cell: Cell, config: ContinualConfig, folder: Folder) -> float | None:
    """Return how far a step of fixed-clip goes: as far as the whole method's did in the mean."""
    if cell.method != CLIPPED or config.trust.alpha is not None:
        return None
    whole = read_cell(folder, replace(cell, method=FULL))
    return float(whole.of_method("alpha_realised")[-1])


def _close(
    run: Run,
    config: ContinualConfig,
    cells: Sequence[Cell],
    trials: Sequence[Cell],
    chosen: Mapping[str, Choice],
    streams: Mapping[str, Any],
) -> None:
    """Write down and say what came of the cells."""
    results = {cell: read_cell(run.folder, cell) for cell in cells}
    measured = {cell: measure(result) for cell, result in results.items()}
    run.folder.write_bytes(write_long(results, measured).encode(), TABLE)
    published = write_published(by_stream(results, measured).values())
    run.folder.write_bytes(published.encode(), PUBLISHED)
    charts = {name: intervals(plot) for name, plot in list_plots(results, measured).items()}
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    lines = say_main(results, measured)
    developed = {cell: read_cell(run.folder, cell) for cell in trials}
    counts = {OK: len(cells) + len(trials)}
    choices = {method: choice._asdict() for method, choice in chosen.items()}
    run.close(counts, counts, OK, lines=lines, streams=streams, chosen=choices)
    repeats = [line for facts in streams.values() for line in facts["warnings"]]
    run.record["warnings"] = [*list_dropped(streams), *repeats]
    samples = report_samples(streams)
    reported = f"{len(cells):,} runs; table: {run.folder.at(TABLE)}"
    tables = [*([samples] if samples else []), *make_tables(results, measured)]
    if developed:
        tables.append(report_trials(developed, chosen, config))
    page = render_page(
        "continual/page.html.jinja", run=run.record, tables=tables, charts=list(charts.values())
    )
    run.report(reported, page)
