"""raycomp: curate image-text data for composition on Ray.

The commands as functions; nothing heavy is imported before one is called.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raycomp.api import (
    Inputs,
    Place,
    card,
    explain,
    make_config,
    negatives_of,
    open,
    probe,
    publish,
    read_place,
    run_command,
    score,
    show,
)
from raycomp.config import ScorerConfig, override, override_all
from raycomp.continual.config import ContinualConfig
from raycomp.curation.config import AttributeConfig, CurateConfig, VerifyConfig
from raycomp.evaluation.config import EvaluateConfig
from raycomp.look.config import AuditConfig, ExploreConfig
from raycomp.models import deferred
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.probe.config import ProbeConfig
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import TrainConfig

if TYPE_CHECKING:
    from raycomp.look.show import FinishedRun
    from raycomp.sweep.result import SweepResult

if deferred.IN_WORKER in os.environ:
    deferred.install()

# Some functions below have the name of a folder. The lines above import these folders first, so
# ``raycomp.sweep`` is the function; ``from raycomp.sweep import command`` imports a module of the folder.
__all__ = [
    "AttributeConfig",
    "AuditConfig",
    "ContinualConfig",
    "CurateConfig",
    "EvaluateConfig",
    "ExploreConfig",
    "NegativesConfig",
    "ProbeConfig",
    "ScorerConfig",
    "SweepConfig",
    "TrainConfig",
    "WritingConfig",
    "audit",
    "card",
    "compare",
    "continual",
    "curate",
    "diff",
    "evaluate",
    "explain",
    "explore",
    "negatives",
    "negatives_of",
    "open",
    "override",
    "override_all",
    "probe",
    "publish",
    "score",
    "select",
    "show",
    "sweep",
    "train",
    "update",
    "verify",
]


def audit(config: AuditConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Audit a data set into ``out``, as ``raycomp audit`` does.

    ``config`` is a config, or the input: a path, a uri, or a list of these. ``options`` are set in it by
    path: ``**{"scorer.model": "ViT-B-32"}``. Returns the finished run, as ``open`` does. Raises TypeError for
    other types, ValueError for errors that the caller can fix.
    """
    from raycomp.look.audit import audit as run

    return run_command(run, AuditConfig, config, out, options)


def curate(config: CurateConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Curate pairs into ``out``, as ``raycomp curate`` does: ``raycomp.curate("photos", "out/photos",
    **{"align.keep": 0.6})``.

    Arguments and result as of ``audit``. Raises ValueError for errors that the caller can fix, TooMuchBadData
    above ``max_bad_fraction``.
    """
    from raycomp.curation.command import curate as run

    return run_command(run, CurateConfig, config, out, options)


def continual(
    config: ContinualConfig | None = None, out: Place | None = None, **options: Any
) -> "FinishedRun":
    """Train ``method`` on ``stream`` into ``out``, as ``raycomp continual`` does.

    ``config``, or the defaults, with ``options`` by path. Returns the finished run. Raises ValueError for
    errors that the caller can fix, TooMuchBadData where too much of its input is bad.
    """
    from raycomp.continual.command import continual as run

    return run_command(run, ContinualConfig, config, out, options)


def compare(*runs: Place, out: Place) -> "FinishedRun":
    """Compare evaluations with the first of them into ``out``, as ``raycomp compare`` does.

    ``runs``: folders, two or more; a text may be NAME=FOLDER. Returns the finished run. Raises ValueError
    where they are not of the same examples.
    """
    from raycomp.evaluation.compare import compare as run

    places = [read_place(f"run {i}", place) for i, place in enumerate(runs, 1)]
    run(places, read_place("out", out))
    return open(out)


def diff(first: Place, second: Place, out: Place) -> "FinishedRun":
    """Compare the second curation or selection with the first into ``out``, as ``raycomp diff`` does.

    Returns the finished run. Raises ValueError where one of them is not a finished curation or selection, or
    they have no row in common.
    """
    from raycomp.look.diff import diff as run

    run(read_place("first", first), read_place("second", second), read_place("out", out))
    return open(out)


def evaluate(config: EvaluateConfig | None = None, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Evaluate ``model`` on ``benchmarks`` into ``out``, as ``raycomp evaluate`` does.

    ``config``, or the defaults, with ``options`` by path. Returns the finished run. Raises ValueError for
    errors that the caller can fix, TooMuchBadData where too much of its input is bad.
    """
    from raycomp.evaluation.command import evaluate as run

    return run_command(run, EvaluateConfig, config, out, options)


def explore(
    source: Place,
    config: ExploreConfig | None = None,
    out: Place | None = None,
    atlas: Place | None = None,
    **options: Any,
) -> "FinishedRun | None":
    """Write pages to look at the samples of a curation or selection, as ``raycomp explore`` does.

    ``out``: the folder of the pages; ``atlas``: a Parquet file of the same rows. Returns the finished run,
    None without ``out``. Raises ValueError where both are missing, and for errors that the caller can fix.
    """
    from raycomp.look.explore import explore as run

    if out is None and atlas is None:
        raise ValueError("out=None, atlas=None: name a folder for the pages, or a file")
    file = None if atlas is None else read_place("atlas", atlas)
    folder = None if out is None else read_place("out", out)
    run(read_place("source", source), make_config(ExploreConfig, config, options), file, folder)
    return None if out is None else open(out)


def negatives(config: NegativesConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Write hard negatives of captions into ``out``, as ``raycomp negatives`` does.

    Arguments and result as of ``audit``. Raises ValueError for errors that the caller can fix, TooMuchBadData
    where too much of the input is bad.
    """
    from raycomp.negatives.command import negatives as run

    return run_command(run, NegativesConfig, config, out, options)


def select(
    source: Place, settings: Mapping[str, Any] | None = None, out: Place | None = None, **options: Any
) -> "FinishedRun":
    """Select again from the scores in ``source``, as ``raycomp select`` does; return the finished run.

    ``settings`` and ``options`` are options by path, {"align.keep": 0.6}. Raises ValueError where the scores
    lack what they need.
    """
    from raycomp.curation.command import select as run

    run(read_place("source", source), {**(settings or {}), **options}, read_place("out", out))
    return open(read_place("out", out))


def sweep(
    config: SweepConfig | None = None,
    out: Place | None = None,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> "SweepResult":
    """Search the space of ``config`` into ``out``, as ``raycomp sweep`` does; return the trials as a table.

    The result has ``rows``, one per trial with its config, status, metric and steps; ``best``, the selected
    row; ``dataframe()``; and ``record``, what run.json holds. ``callbacks`` are objects of ray.tune.Callback,
    called in this process. A sweep runs one Tune experiment for each rung and each value of ``per``, and one
    for the report seeds; a callback is set up at the start of each. Trials whose results are stored are not
    reported again, except with search=optuna, or scheduler=asha and rungs=seeds. Raises ValueError for errors
    that the caller can fix, TypeError for another kind of callback.
    """
    from raycomp.data.files import absolute_uri
    from raycomp.sweep.command import sweep as run
    from raycomp.sweep.result import SweepResult

    place = read_place("out", out)
    record = run(make_config(SweepConfig, config, options), place, callbacks=callbacks)
    return SweepResult(record, absolute_uri(place))


def train(
    config: TrainConfig | Inputs,
    out: Place | None = None,
    evaluate: Callable[[Any, int], Mapping[str, Any]] | None = None,
    **options: Any,
) -> "FinishedRun":
    """Train on pairs into ``out``, as ``raycomp train`` does; arguments and result as of ``audit``.

    ``evaluate`` is called every ``train.evaluate_steps`` and at the end, in one worker, with open_clip's
    model and the steps so far. It returns a dict of numbers by name, which metrics.jsonl stores. It is tested
    before the first step, with step 0: an error in it ends the run there. Raises ValueError for errors that
    the caller can fix, TooMuchBadData where too much of the input is bad.
    """
    from raycomp.training.command import train as run

    return run_command(run, TrainConfig, config, out, options, evaluate=evaluate)


def update(
    source: Place,
    add: str | None = None,
    remove: Place | None = None,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Bring the curation, or run of negatives, in ``source`` up to date, as ``raycomp update`` does.

    ``add``: another input; ``remove``: a list of rows and shards; ``settings``: options of selection and
    attribution by path. Returns a line on the result. Raises ValueError for errors that the caller can fix.
    """
    from raycomp.curation.update import update as run

    listed = None if remove is None else read_place("remove", remove)
    return run(read_place("source", source), add, listed, settings)


def verify(source: Place, rows: int = 300, seed: int = 0) -> list[str]:
    """Recompute what the curation in ``source`` states, as ``raycomp verify`` does; return a line per check.

    Raises ValueError at the first check that fails.
    """
    from raycomp.curation.verify import verify as run

    return list(run(read_place("source", source), VerifyConfig(rows, seed)))
