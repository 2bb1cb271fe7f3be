"""raycomp: curate image-text data for composition on Ray.

The commands as functions; nothing heavy is imported before one is called.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raycomp.config import ScorerConfig, list_options, override, override_all
from raycomp.config.commands import import_command, import_object
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
    import pyarrow as pa

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


Place = str | os.PathLike[str]
"""A folder: a path, or the uri of a store."""
Inputs = Place | Sequence[Place] | None
"""The input of a command: one or more."""


def _read_place(name: str, place: Place | None) -> str:
    """Return a folder as text. Raises TypeError, naming the argument, for any other value."""
    path = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(path, str):
        raise TypeError(f"{name}={place!r}: must be a path or uri, as a str or a pathlib.Path")
    return path


def _make_config(kind: type, given: Any, options: Mapping[str, Any]) -> Any:
    """Return a config of a command: ``given`` is one, its input (a path, a uri, a list of these), or None.

    ``options`` are set in it by path. Raises TypeError for any other value.
    """
    if not isinstance(given, kind) and given is not None:
        places = given if isinstance(given, list | tuple) else [given]
        wanted = f"config={given!r:.80}: must be a {kind.__name__}"
        if not any(one.path == "input" for one in list_options(kind)):
            raise TypeError(wanted)
        if not places or not all(isinstance(place, str | os.PathLike) for place in places):
            raise TypeError(f"{wanted}, or the input: a path, a uri, or a list of these")
        if "input" in options:
            raise TypeError(f"config={given!r:.80} and input={options['input']!r}: the input is named twice")
        given, options = None, {"input": "::".join(map(os.fspath, places)), **options}
    return override_all(kind() if given is None else given, options).check_typed(options)


def _call(name: str, *values: Any, **more: Any) -> Any:
    """Return what the function of a command returns."""
    return import_object(import_command(name).function)(*values, **more)


def _run(name: str, given: Any, out: Any, options: Mapping[str, Any], **more: Any) -> "FinishedRun":
    """Run a command with its config into ``out``; return the finished run."""
    place = _read_place("out", out)
    _call(name, _make_config(import_command(name).config, given, options), place, **more)
    return open(place)


def audit(config: AuditConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Audit a data set into ``out``, as ``raycomp audit`` does.

    ``config`` is a config, or the input: a path, a uri, or a list of these. ``options`` are set in it by
    path: ``**{"scorer.model": "ViT-B-32"}``. Returns the finished run, as ``open`` does. Raises TypeError for
    other types, ValueError for errors that the caller can fix.
    """
    return _run("audit", config, out, options)


def curate(config: CurateConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Curate pairs into ``out``, as ``raycomp curate`` does: ``raycomp.curate("photos", "out/photos",
    **{"align.keep": 0.6})``.

    Arguments and result as of ``audit``. Raises ValueError for errors that the caller can fix, TooMuchBadData
    above ``max_bad_fraction``.
    """
    return _run("curate", config, out, options)


def continual(
    config: ContinualConfig | None = None, out: Place | None = None, **options: Any
) -> "FinishedRun":
    """Train ``method`` on ``stream`` into ``out``, as ``raycomp continual`` does.

    ``config``, or the defaults, with ``options`` by path. Returns the finished run. Raises ValueError for
    errors that the caller can fix, TooMuchBadData where too much of its input is bad.
    """
    return _run("continual", config, out, options)


def compare(*runs: Place, out: Place, table: Place | None = None) -> "FinishedRun":
    """Compare evaluations with the first of them into ``out``, as ``raycomp compare`` does.

    ``runs``: folders, two or more; a text may be NAME=FOLDER. ``table``: a CSV file with a paper's figures,
    which runs named by its rows fill with means over seeds. Returns the finished run. Raises ValueError
    where they are not of the same examples.
    """
    places = [_read_place(f"run {i}", place) for i, place in enumerate(runs, 1)]
    layout = None if table is None else _read_place("table", table)
    _call("compare", places, layout, _read_place("out", out))
    return open(out)


def diff(first: Place, second: Place, out: Place) -> "FinishedRun":
    """Compare the second curation or selection with the first into ``out``, as ``raycomp diff`` does.

    Returns the finished run. Raises ValueError where one of them is not a finished curation or selection, or
    they have no row in common.
    """
    _call("diff", _read_place("first", first), _read_place("second", second), _read_place("out", out))
    return open(out)


def evaluate(config: EvaluateConfig | None = None, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Evaluate ``model`` on ``benchmarks`` into ``out``, as ``raycomp evaluate`` does.

    ``config``, or the defaults, with ``options`` by path. Returns the finished run. Raises ValueError for
    errors that the caller can fix, TooMuchBadData where too much of its input is bad.
    """
    return _run("evaluate", config, out, options)


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
    if out is None and atlas is None:
        raise ValueError("out=None, atlas=None: name a folder for the pages, or a file")
    file = None if atlas is None else _read_place("atlas", atlas)
    folder = None if out is None else _read_place("out", out)
    _call(
        "explore", _read_place("source", source), _make_config(ExploreConfig, config, options), file, folder
    )
    return None if out is None else open(out)


def negatives(config: NegativesConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Write hard negatives of captions into ``out``, as ``raycomp negatives`` does.

    Arguments and result as of ``audit``. Raises ValueError for errors that the caller can fix, TooMuchBadData
    where too much of the input is bad.
    """
    return _run("negatives", config, out, options)


def select(
    source: Place, settings: Mapping[str, Any] | None = None, out: Place | None = None, **options: Any
) -> "FinishedRun":
    """Select again from the scores in ``source``, as ``raycomp select`` does; return the finished run.

    ``settings`` and ``options`` are options by path, {"align.keep": 0.6}. Raises ValueError where the scores
    lack what they need.
    """
    _call("select", _read_place("source", source), {**(settings or {}), **options}, _read_place("out", out))
    return open(_read_place("out", out))


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
    from raycomp.sweep.result import SweepResult

    place = _read_place("out", out)
    record = _call("sweep", _make_config(SweepConfig, config, options), place, callbacks=callbacks)
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
    return _run("train", config, out, options, evaluate=evaluate)


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
    listed = None if remove is None else _read_place("remove", remove)
    return _call("update", _read_place("source", source), add, listed, settings)


def verify(source: Place, rows: int = 300, seed: int = 0) -> list[str]:
    """Recompute what the curation in ``source`` states, as ``raycomp verify`` does; return a line per check.

    Raises ValueError at the first check that fails.
    """
    return list(_call("verify", _read_place("source", source), VerifyConfig(rows, seed)))


def score(
    images: Sequence[Any],
    captions: Sequence[str | None],
    model: Place | None = None,
    weights: Place | None = None,
    config: CurateConfig | None = None,
) -> "pa.Table":
    """Score each image with its caption, in this process; return a table with a row per pair, in order.

    ``images``: paths or uris, Pillow images, the bytes of image files, or uint8 arrays, [height, width] or
    [height, width, 1, 3 or 4]. ``model`` is an open_clip architecture ("ViT-B-16", the default), a config
    file, or a folder that ``raycomp train`` wrote, which has its weights. ``weights`` is an open_clip tag
    ("openai", the default), a checkpoint, or "random:SEED". ``config`` holds the options of ``raycomp
    curate``; scorer, prepare, attribute, nonce, parser and cluster.num_cpus are used. The scores equal, bit
    for bit, those that curate writes for the same pairs and options on the same kind of device. A Pillow
    image is scored by its pixels; ``prepare.fast_decode`` applies to files alone.

    Columns: caption; status, one of ``raycomp.words.STATUSES``; alignment, a cosine, -1 to 1; pas, the drops
    of the targets as ``config.attribute`` aggregates them (targets, unit, aggregate); mean_pas, the mean drop
    of the nouns that an image can show; phrases, a list of structs with text, kind, target, nonces, drops
    (one per nonce), their mean drop and displacement; content_words, the same of adjectives, verbs and
    relation words, where attribute.targets is content. Drops are differences of cosines, -2 to 2. A bad image
    or an empty caption is a row with a status and nulls.

    The last model stays loaded for the next call. Raises ValueError for lists of different lengths, values of
    other types, and a model that is not available.
    """
    from raycomp.curation.score.reuse import score_pairs

    named = weights if weights is not None else (config or CurateConfig()).scorer.weights
    if str(named).startswith("random:") and not (model is not None and weights is None):
        warnings.warn(f"weights={str(named)!r}: are random, so these scores are noise", stacklevel=2)
    return score_pairs(images, captions, model, weights, config)


def negatives_of(
    captions: Sequence[str | None],
    model: Place | None = None,
    weights: Place | None = None,
    config: NegativesConfig | None = None,
    uids: Sequence[str] | None = None,
) -> "pa.Table":
    """Write hard negatives of captions by rules, in this process; return a table with a row per negative.

    ``config`` holds the options of ``raycomp negatives``; negatives (its engine must be rules), scorer,
    parser and cluster.num_cpus are used. ``model`` and ``weights`` name the scoring model whose text encoder
    ranks, as in ``score``; with negatives.rank=false no model is loaded. The rows equal those that the
    command writes for the same uids, captions and options. Rules break ties by ``uids``, which are derived
    from the captions if they are not given. Each caption counts as the only one of its image.

    Columns: index, the caption's place in the list, from 0; caption; status; negative, the text; op, SWAP,
    REPLACE or ADD, joined by "+" after several calls; kind, object, attribute or relation; concepts, the
    words that the edit acts on; calls; similarity, the cosine of caption and negative, -1 to 1, null without
    rank. The judge has accepted every negative. A caption without any is one row with null for its negative:
    its status is one of ``raycomp.words.NEGATIVE_STATUSES``, no_caption, empty_caption or bad_encoding, and
    ``reasons`` lists why the rules proposed nothing or the judge rejected it.

    The last model stays loaded for the next call. Raises ValueError for lists of different lengths, values of
    other types, another engine, and a model that is not available.
    """
    from raycomp.negatives.write import write_negatives_of

    return write_negatives_of(captions, model, weights, config, uids)


def open(folder: Place) -> "FinishedRun":
    """Open the finished run in a folder, a path or the uri of a store.

    It has ``kind``, ``config``, ``record`` (what run.json holds), ``tables``, ``table(name)``, a
    pyarrow.Table, and ``figures()``, by name (value, low, high, unit); a notebook shows a summary. Raises
    ValueError where the folder holds no finished run.
    """
    from raycomp.look.show import FinishedRun

    return FinishedRun(_read_place("folder", folder))


def show(source: Place) -> str:
    """Return what ``raycomp show`` prints: the run's kind and options, its counts, phases and warnings.

    Raises ValueError where there is no finished run, or its files differ from what it wrote.
    """
    return "\n\n".join(_call("show", _read_place("source", source)))


def explain(source: Place, uid: str) -> str:
    """Return what ``raycomp explain`` prints: the scores, gates, negatives or targets of one sample.

    ``uid`` may also be a key, a file name, a url or a caption. Raises ValueError where there is no finished
    run, or none of its samples has it.
    """
    return _call("explain", _read_place("source", source), uid)


def probe(name: str, config: ProbeConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Run a probe, overlap, composition or pas, into ``out``, as ``raycomp probe`` does.

    ``config`` is a config, or the input; ``options`` are set in it by path. Returns the finished run. Raises
    ValueError for an unknown name and for errors that the caller can fix.
    """
    place = _read_place("out", out)
    _call("probe", name, _make_config(ProbeConfig, config, options), place)
    return open(place)


def publish(source: Place, out: Place) -> None:
    """Write the model of the training in ``source`` to ``out`` in the form of open_clip's hub models.

    As ``raycomp publish`` does. Raises ValueError where ``source`` holds no finished training, its model
    differs from what was written, or ``out`` holds something.
    """
    _call("publish", _read_place("source", source), _read_place("out", out))


def card(source: Place, out: Place) -> None:
    """Write the data card and the Croissant description of the subset in ``source`` to ``out``.

    As ``raycomp card`` does. Raises ValueError where ``source`` holds no finished curation or selection, its
    files differ from what it wrote, or ``out`` has a card already.
    """
    _call("card", _read_place("source", source), _read_place("out", out))
