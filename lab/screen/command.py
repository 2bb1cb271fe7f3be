"""``python -m lab screen``: draw the worlds, score them, report the faults that each rule finds."""

from functools import partial
from pathlib import Path
from typing import Any

from lab.screen.config import CUES, ScreenConfig
from lab.screen.draws import ScreenRun, check_captions
from lab.screen.one_run import ARCHITECTURE, run_one
from lab.screen.photos import screen_photos
from lab.screen.tables import (
    list_plots,
    make_tables,
    say_registered,
    write_faults,
    write_text,
    write_traits,
)
from raycomp.data.files import Folder, absolute_uri, check_writable
from raycomp.data.runs import digest
from raycomp.report.page import cut_out, intervals, render_page
from raycomp.run.executor import connect, say_many
from raycomp.run.run import Run, Say, say_count, start_run
from raycomp.run.work import map_some
from raycomp.words import OK

_RUNS, _CAPTIONS, _FIGURES = "cells", "captions", "figures"
_BELOW = "Below 0 it keeps fewer faulty pairs than alignment."
_FAULTS, _TRAITS, _TEXT = "faults.csv", "traits.csv", "text.csv"


def screen(config: ScreenConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Run the screen into the local folder ``out``; return the contents of run.json.

    A finished screen of the same config is left as it is. An unfinished one resumes after its last finished
    run. Raises ValueError for user mistakes.
    """
    out = absolute_uri(str(out))
    if "://" in out:
        raise ValueError(f"out={out!r}: the screen needs a local folder")
    check_writable(out)
    if config.sugarcrepe.annotations is not None:
        return screen_photos(config, out, say)
    runs = list_runs(config)
    outputs = (_RUNS, _CAPTIONS, _FIGURES, _FAULTS, _TRAITS, _TEXT)
    fingerprint = {"architecture": digest(ARCHITECTURE)}
    cost = partial(say_count, len(runs), "runs")
    with start_run("screen", config, lambda: fingerprint, out, say, outputs=outputs, cost=cost) as run:
        if run.is_finished:
            return run.record
        many = say_many(len(runs))
        with connect(
            config.cluster, run.folder, run.lease.check, scores=False, say=say, better=many
        ) as session:
            run.bind("cpu")
            num_tasks = config.side_by_side or session.count_cores()
            missing = [cue for cue in list_cues(config) if not run.folder.exists(_CAPTIONS, f"{cue}.json")]
            checks = [(cue, config, run.folder) for cue in missing]
            for _ in map_some(check_captions, checks, num_tasks, run.lease.check, "captions", "cue"):
                pass
            left = [one_run for one_run in runs if not run.folder.exists(_RUNS, f"{one_run.name}.json")]
            jobs = [(one_run, config, run.work, run.folder) for one_run in left]
            for one_run, *_ in map_some(run_one, jobs, num_tasks, run.lease.check, "screen", "run"):
                _say_run(run.folder, one_run, say)
        _close(run, config, runs)
    return run.record


def list_runs(config: ScreenConfig) -> list[ScreenRun]:
    """Return the runs world by world: an interrupted screen has all cues for the same number of worlds."""
    worlds = range(config.first_world, config.first_world + config.worlds)
    return [ScreenRun(world, CUES[name]) for world in worlds for name in list_cues(config)]


def list_cues(config: ScreenConfig) -> list[str]:
    """Return the named cues, or all."""
    return list(config.cues or CUES)


def _say_run(folder: Folder, one_run: ScreenRun, say: Say) -> None:
    facts = folder.read_json(_RUNS, f"{one_run.name}.json")
    recalls = " and ".join(f"{recall:.3f}" for recall in facts["recall"])
    say(f"world {one_run.world}, {one_run.cue.name}: scorer's recall@1 {recalls}, {facts['seconds']:.0f} s")


def _close(run: Run, config: ScreenConfig, runs: list[ScreenRun]) -> None:
    """Write and report the results of the runs."""
    found = [run.folder.read_json(_RUNS, f"{one_run.name}.json") for one_run in runs]
    checked = [run.folder.read_json(_CAPTIONS, f"{cue}.json") for cue in list_cues(config)]
    for name, text in (
        (_FAULTS, write_faults(found)),
        (_TRAITS, write_traits(found)),
        (_TEXT, write_text(checked)),
    ):
        run.folder.write_bytes(text.encode(), name)
    charts = {name: intervals(plot) for name, plot in list_plots(found).items()}
    for name, chart in charts.items():
        run.folder.write_bytes(cut_out(chart).encode(), _FIGURES, f"{name}.svg")
    run.close({OK: len(runs)}, {OK: len(runs)}, OK)
    tables = make_tables(found, checked)
    page = render_page(
        Path(__file__).with_name("page.html.jinja"),
        run=run.record,
        headline=say_registered(found),
        answers=[f"{_BELOW} The 95 % interval is over {config.worlds} worlds."],
        tables=tables,
        charts=list(charts.values()),
    )
    run.report(f"screened {len(runs):,} runs", page)
