"""The Python interface without a run's folder: scores, negatives, finished runs.

``raycomp`` exports these functions; nothing heavy is imported before one is called.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raycomp.config import list_options, override_all
from raycomp.curation.config import CurateConfig
from raycomp.negatives.config import NegativesConfig
from raycomp.probe.config import ProbeConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from raycomp.look.show import FinishedRun

Place = str | os.PathLike[str]
"""A folder: a path, or the uri of a store."""
Inputs = Place | Sequence[Place] | None
"""The input of a command: one or more."""


def read_place(name: str, place: Place | None) -> str:
    """Return a folder as text. Raises TypeError, naming the argument, for any other value."""
    path = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(path, str):
        raise TypeError(f"{name}={place!r}: must be a path or uri, as a str or a pathlib.Path")
    return path


def make_config(kind: type, given: Any, options: Mapping[str, Any]) -> Any:
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
    return override_all(kind() if given is None else given, options)


def run_command(
    function: Callable[..., Any], kind: type, given: Any, out: Any, options: Mapping[str, Any], **more: Any
) -> "FinishedRun":
    """Run a command's function with its config into ``out``; return the finished run."""
    place = read_place("out", out)
    function(make_config(kind, given, options), place, **more)
    return open(place)


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

    return FinishedRun(read_place("folder", folder))


def show(source: Place) -> str:
    """Return what ``raycomp show`` prints: the run's kind and options, its counts, phases and warnings.

    Raises ValueError where there is no finished run, or its files differ from what it wrote.
    """
    from raycomp.look.show import show as run

    return "\n\n".join(run(read_place("source", source)))


def explain(source: Place, uid: str) -> str:
    """Return what ``raycomp explain`` prints: the scores, gates, negatives or targets of one sample.

    ``uid`` may also be a key, a file name, a url or a caption. Raises ValueError where there is no finished
    run, or none of its samples has it.
    """
    from raycomp.look.show import explain as run

    return run(read_place("source", source), uid)


def probe(name: str, config: ProbeConfig | Inputs, out: Place | None = None, **options: Any) -> "FinishedRun":
    """Run a probe, overlap, composition or pas, into ``out``, as ``raycomp probe`` does.

    ``config`` is a config, or the input; ``options`` are set in it by path. Returns the finished run. Raises
    ValueError for an unknown name and for errors that the caller can fix.
    """
    from raycomp.probe.overlap import probe as run

    place = read_place("out", out)
    run(name, make_config(ProbeConfig, config, options), place)
    return open(place)


def publish(source: Place, out: Place) -> None:
    """Write the model of the training in ``source`` to ``out`` in the form of open_clip's hub models.

    As ``raycomp publish`` does. Raises ValueError where ``source`` holds no finished training, its model
    differs from what was written, or ``out`` holds something.
    """
    from raycomp.training.command import publish as run

    run(read_place("source", source), read_place("out", out))


def card(source: Place, out: Place) -> None:
    """Write the data card and the Croissant description of the subset in ``source`` to ``out``.

    As ``raycomp card`` does. Raises ValueError where ``source`` holds no finished curation or selection, its
    files differ from what it wrote, or ``out`` has a card already.
    """
    from raycomp.look.card import card as run

    run(read_place("source", source), read_place("out", out))
