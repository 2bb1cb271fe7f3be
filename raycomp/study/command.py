"""``raycomp study``: make the worlds, train the cells, say what came of them."""

from collections.abc import Sequence
from typing import Any

from raycomp.curate.command import curate
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import digest, list_scores
from raycomp.report.charts import cut_out, intervals
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, begin
from raycomp.run.session import connect, say_many
from raycomp.run.tasks import map_some
from raycomp.study.cells import Cell, list_cells
from raycomp.study.compare import compare_planned
from raycomp.study.config import StudyConfig
from raycomp.study.results import read_results
from raycomp.study.tables import list_plots, make_tables, say_verdicts, write_long
from raycomp.study.world import Place, curation, make_ready, make_scorer
from raycomp.train.little_world import TINY_CLIP
from raycomp.words import OK

_CELLS, _FIGURES, _TABLE = "cells", "figures", "table.csv"


def study(config: StudyConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Run the study into the local folder ``out``; return what run.json holds.

    A finished study of the same config is left as it is; an unfinished one goes on after its last finished
    cell. Raises ValueError for what the user can mend.
    """
    out = absolute_uri(str(out))
    if "://" in out:
        raise ValueError(f"out={out!r}: the study needs a local folder")
    cells = list_cells(config)
    check_writable(out)
    with begin("study", config, _fingerprint, out, say, rooms=(_CELLS, _FIGURES, _TABLE)) as run:
        if run.is_finished:
            return run.record
        many = say_many(len(cells))
        with connect(
            config.cluster, run.folder, run.lease.check, scores=False, say=say, better=many
        ) as session:
            run.bind("cpu")
            places = [Place(n, run.work.at(f"world-{n:02d}"), config) for n in range(config.worlds)]
            needed = {cell.seed % config.worlds for cell in cells if not _is_done(run.folder, cell)}
            num_tasks = config.side_by_side or session.count_cores()
            _make_worlds([places[n] for n in sorted(needed)], num_tasks, run, say)
            _run_cells(cells, places, num_tasks, run, say)
        _close(run, cells)
    return run.record


def _close(run: Run, cells: Sequence[Cell]) -> None:
    """Write down and say what came of the cells."""
    results = read_results(run.folder, cells)
    planned = compare_planned(results, run.record["config"]["seed"])
    tables = make_tables(results, planned)
    charts = {name: intervals(plot) for name, plot in list_plots(results, planned).items()}
    run.folder.write_bytes(write_long(results, planned).encode(), _TABLE)
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    verdicts = say_verdicts(planned)
    run.close({OK: len(cells)}, {OK: len(cells)}, OK, verdicts=verdicts)
    told = "; ".join([f"trained {len(cells):,} cells", *verdicts])
    page = render_page("study/page.html.jinja", run=run.record, tables=tables, charts=list(charts.values()))
    run.tell(told, page)


def _fingerprint() -> dict[str, Any]:
    """Return what results depend on beside the dials."""
    return {"architecture": digest(TINY_CLIP)}


def _make_worlds(places: Sequence[Place], num_tasks: int, run: Run, say: Say) -> None:
    """Make what is missing of the worlds: shards and scorers, then scores, then what trainings take."""
    unmade, check = [place for place in places if not place.is_made], run.lease.check
    for made, *_ in map_some(make_scorer, [(one,) for one in unmade], num_tasks, check, "scorers", "world"):
        say(f"world {made.number}: scorer trained")
    unready = [place for place in places if not place.is_ready]
    jobs = []
    for place in unready:
        scored = place.files.at("curated")
        jobs.append((place, list_scores(curate(curation(place), scored, _say_nothing), scored)))
        say(f"world {place.number}: scored")
    for made, *_ in map_some(make_ready, jobs, num_tasks, check, "negatives", "world"):
        say(f"world {made.number}: ready")


def _say_nothing(line: str) -> None:
    """A curation of the study is no run that anybody looks at."""


def _run_cells(cells: Sequence[Cell], places: Sequence[Place], num_tasks: int, run: Run, say: Say) -> None:
    """Train the cells that are not done, so many at a time, in their order."""
    from raycomp.study.train import run_cell

    left = [cell for cell in cells if not _is_done(run.folder, cell)]
    jobs = [(cell, places[cell.seed % len(places)], run.folder) for cell in left]
    for cell, *_ in map_some(run_cell, jobs, num_tasks, run.lease.check, "study", "cell"):
        facts = run.folder.read_json(_CELLS, f"{cell.name}.json")
        first, last = facts["losses"]
        say(
            f"{cell.name}: loss {first:.3f} to {last:.3f}, recall@1 {facts['image_to_text']:.3f} and "
            f"{facts['text_to_image']:.3f}, {facts['seconds']:.0f} s"
        )


def _is_done(folder: Folder, cell: Cell) -> bool:
    return folder.exists(_CELLS, f"{cell.name}.json")
