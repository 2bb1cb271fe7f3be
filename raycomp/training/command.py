"""``raycomp train``: pairs in, a model out, on any number of workers; its page; ``raycomp publish``.

A training also writes the keys of its pairs, two sorted arrays of 16 bytes each, see ``core.near``: of
images, and of all their captions. Hard negatives and their images are not among them.
"""

import hashlib
import io
import math
import os
import posixpath
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from raycomp import words
from raycomp.config import DryRun, ModelConfig
from raycomp.config.commands import fingerprint_own
from raycomp.config.options import check
from raycomp.core.batches import EpochPlan
from raycomp.core.selection import KEY, Known, key_images, key_texts, merge_keys, merge_known
from raycomp.data import files
from raycomp.data.files import Folder
from raycomp.data.inputs import check_output, count_bytes, with_absolute_paths
from raycomp.data.parquet import read_columns
from raycomp.data.runs import check_results, fetch_model, find_model, read_finished, read_result
from raycomp.models.architecture import ScorerSpec, describe_scorer, fingerprint_scorer
from raycomp.models.stated import HUB_CONFIG
from raycomp.report.page import LOW, TALL, Html, Layer, Mark, curves, render_page
from raycomp.run.executor import connect
from raycomp.run.run import Run, Say, refuse_early, start_run
from raycomp.run.work import map_files
from raycomp.table import Numeral, Table, format_facts, number, percent
from raycomp.training import held_out, journal
from raycomp.training.config import EPOCHS, TrainConfig
from raycomp.training.hard import load_mates
from raycomp.training.losses import LOSSES, get_loss
from raycomp.training.pairs import Drawing, Index, Pairs, find_pairs, fingerprint_pairs, make_index

TRAINED = ("trained_images.npy", "trained_texts.npy")
"""At the top of a training's folder, in the order of ``Known``."""

# The files of a model and its tokenizer.
_PUBLISHED = (".safetensors", ".json", ".jsonl", ".txt", ".model", ".jinja")
PUBLISHED_WEIGHTS = "open_clip_model.safetensors"


def read_keys(uri: str) -> Known:
    """Return the keys of the pairs in an index (PAIRS_SCHEMA)."""
    table = read_columns(uri, [words.IMAGE_SHA256, words.CAPTIONS])
    image_N = key_images(table[words.IMAGE_SHA256].to_pylist())
    texts = [text for captions in table[words.CAPTIONS].to_pylist() for text in captions or ()]
    return Known(merge_keys([image_N]), merge_keys([key_texts(texts)]))


def gather_keys(uris: Sequence[str], before: Known | None) -> Known:
    """Return the keys of the pairs of indices, and of those that the model was trained on ``before``."""
    found = map_files(read_keys, uris, label="key pairs", fold=lambda parts: [merge_known(parts)])
    return merge_known([*found, *([before] if before else [])])


def write_trained(known: Known, folder: Folder) -> None:
    """Write the keys to the top of a training's folder."""
    for name, key_K in zip(TRAINED, known, strict=True):
        buffer = io.BytesIO()
        np.save(buffer, key_K, allow_pickle=False)
        folder.write_bytes(buffer.getvalue(), name)


def read_trained(weights: str) -> Known | None:
    """Return the keys of the training that wrote ``weights``; none where the file has none.

    ``weights``: the file, as ``find_model`` names it. Raises ValueError where an array has changed.
    """
    start, found, _ = weights.partition(f"/{files.CHECKPOINT}/{files.WEIGHTS}")
    folder = Folder(start)
    if not found or not folder.exists(files.RUN):
        return None
    written = check_results(folder, read_finished(folder.uri), *TRAINED)
    if not all(name in written for name in TRAINED):
        return None
    found_keys = []
    for uri in (written[name] for name in TRAINED):
        try:
            key_K = np.load(io.BytesIO(read_result(uri)), allow_pickle=False)
            if key_K.dtype != KEY or key_K.ndim != 1 or (key_K[1:] <= key_K[:-1]).any():
                raise ValueError("must be sorted, without duplicates")
        except (ValueError, EOFError) as error:
            line = " ".join(str(error).split())[:200]
            raise ValueError(f"{uri}: does not hold the keys of a training ({line})") from error
        found_keys.append(key_K)
    return Known(*found_keys)


def identify_trained(known: Known) -> str:
    """Return a digest of the keys."""
    return hashlib.sha256(b"".join(key_K.tobytes() for key_K in known)).hexdigest()


def publish(source: str, out: str, say: Callable[[str], object] = print) -> None:
    """Write the model of the training in ``source`` to ``out``, after loading it as a test.

    ``open_clip.create_model_and_transforms("local-dir:OUT")`` loads it; uploaded as it is, ``hf-hub:`` does.
    Only files that the training wrote are copied, and of these no pickle. Raises ValueError where ``source``
    holds no finished training, its model has changed, or ``out`` is not empty or cannot be written.
    """
    found, folder = Folder(source), Folder(out)
    above, name = posixpath.split(found.uri.rstrip("/"))
    if name == files.CHECKPOINT and Folder(above).exists(files.RUN):
        raise ValueError(f"{found.uri}: is part of a training; name the training's folder, {above}")
    run, place = read_finished(found.uri), found.at(files.CHECKPOINT)
    if run["kind"] != "train":
        raise ValueError(f"{found.uri}: holds {run['kind']}, must hold a training")
    written = {
        posixpath.basename(file): file for file in check_results(found, run, files.CHECKPOINT).values()
    }
    folders = Folder(place).list_folders()
    if folders:
        raise ValueError(f"{place}/{folders[0]}: is a folder; a model has files only; move it out")
    if files.ARCHITECTURE not in written or files.WEIGHTS not in written:
        raise ValueError(
            f"{place}: the model is incomplete: {files.ARCHITECTURE} or {files.WEIGHTS} is missing"
        )
    # By their new names, the one that describes the model last.
    names = [name for name in written if name != files.ARCHITECTURE and name.endswith(_PUBLISHED)]
    names.sort(key=lambda name: name == HUB_CONFIG)
    renamed = {PUBLISHED_WEIGHTS if name == files.WEIGHTS else name: written[name] for name in names}
    files.check_writable(out)
    if folder.list_names():
        raise ValueError(f"--out {out}: holds other files; name a folder that is empty or new")
    from raycomp.models.clip import load_start, load_tokenizer  # behind all checks

    with TemporaryDirectory() as local:
        for name, file in renamed.items():
            (Path(local) / name).write_bytes(read_result(file))
        try:
            published = ModelConfig(name=f"local-dir:{local}")
            load_start(published)
            load_tokenizer(published)
        except ValueError as error:
            raise ValueError(f"{place}: the model is incomplete ({error})") from error
        if files.is_dry_run():
            said = "dry run of publish: all checks passed, nothing was written"
            raise DryRun(f"{said}; {len(renamed)} files would be")
        for name in renamed:
            folder.write_bytes((Path(local) / name).read_bytes(), name)
    say(f'{out}: load it with open_clip.create_model_and_transforms("local-dir:{out}")')


# CPUs that make batches, in addition to the trainers' CPUs, on a machine without a cluster.
_CPUS_FOR_BATCHES = 2
# Reasons for which a sample of status ok is not a training pair.
_REASONS = (words.NOT_IN_SUBSET, words.HELD_OUT, words.DUPLICATE_UID)
_OUTPUTS = (files.CHECKPOINT, journal.METRICS, *TRAINED)


@dataclass(frozen=True)
class _Checked:
    """A training whose options and files are right."""

    config: TrainConfig
    pairs: Pairs
    held_pairs: Pairs | None
    spec: ScorerSpec
    before: Known | None
    """The keys of what ``model.weights`` was trained on, if it was a training's."""

    def fingerprint(self) -> dict[str, Any]:
        """Return what results depend on in addition to the options."""
        config = self.config
        return {
            **fingerprint_pairs(config),
            **(held_out.fingerprint_held_out(config) if self.held_pairs else {}),
            **fingerprint_own("loss", config.train.loss),
            "model": fingerprint_scorer(fetch_model(config.model)),
        }

    def index(self, work: Folder) -> tuple[Index, held_out.HeldOut | None, EpochPlan]:
        """List all pairs in ``work``; return them, those held out, and the order of training.

        Raises ValueError where there are fewer pairs than a batch has.
        """
        options, pairs, held = self.config.train, self.pairs, None
        if options.held_out:
            index, held = held_out.index_pairs(pairs, self.held_pairs, self.config, work)
        else:
            index = make_index(pairs, work)
        mates, lost = load_mates(pairs.neighbours, index.uris) if pairs.neighbours else ((), [])
        index.tally["with_neighbours"] = sum(int((mate_nK[:, 0] >= 0).sum()) for mate_nK in mates)
        index = replace(index, warnings=(*index.warnings, *lost))
        return index, held, EpochPlan(index.rows_S, options.batch_size, options.window, options.seed, mates)

    def describe_cost(self) -> str:
        """Return what a dry run reports."""
        shards = self.pairs.shards
        size = f"{len(shards):,}, {count_bytes(shards) / 1e9:,.3f} GB"
        return format_facts({"shards": size, "training": self.config.train.length})


def train(
    config: TrainConfig,
    out: str,
    say: Say = print,
    evaluate: journal.Evaluate | None = None,
    num_threads: int | None = None,
) -> dict[str, Any]:
    """Train ``config.model`` on ``config.input`` into the folder or ``s3://`` uri ``out``.

    Returns what run.json holds. ``evaluate`` is called by one worker every ``train.evaluate_steps`` and at
    the end, and tried before the first step; its results are columns of metrics.jsonl. ``num_threads``: torch
    threads of a worker on CPUs; none = the machine's cores divided by its workers. A finished run of the same
    config is left unchanged; an unfinished one resumes from its last checkpoint. Raises ValueError for errors
    the user can fix, and TooMuchBadData.
    """
    out, config = files.absolute_uri(str(out)), with_absolute_paths(config)
    journal.check_packages(config.train.log_to)
    pairs = find_pairs(config)
    held_pairs = held_out.find_held_input(config) if config.train.held_out else None
    check_output(config.input, out)
    if held_pairs:
        check_output(held_pairs.source, out, held_out.OPTION)
    files.check_writable(out)  # before a model is loaded
    config = replace(config, model=find_model(config.model))
    refuse_early("train", config, out)
    spec = describe_scorer(fetch_model(config.model))
    checked = _Checked(config, pairs, held_pairs, spec, read_trained(config.model.weights))
    with start_run(
        "train",
        config,
        checked.fingerprint,
        out,
        say,
        commands=list_uses(out),
        outputs=_OUTPUTS,
        cost=checked.describe_cost,
        num_bytes=lambda: count_bytes(pairs.shards),
    ) as run:
        if not run.is_finished:
            _train(run, checked, say, evaluate, num_threads)
    return run.record


def warn_of_unused(config: TrainConfig) -> list[str]:
    """Return a line for negatives, or their images, that are named and that the loss does not use."""
    own, lines = get_loss(config.train.loss), []
    for option in ("negatives", "negative_images"):
        if getattr(config, option) is not None and not getattr(own, option):
            uses = " or ".join(name for name, loss in LOSSES.items() if getattr(loss, option))
            lines.append(f"{option}: train.loss={config.train.loss} does not use them; set --loss to {uses}")
    return lines


def _train(
    run: Run, checked: _Checked, say: Say, evaluate: journal.Evaluate | None, num_threads: int | None
) -> None:
    """Raise ValueError for a batch size or workers that are impossible, and as ``train``."""
    config, pairs, options = checked.config, checked.pairs, checked.config.train
    cluster = replace(config.cluster, scorers=options.num_workers or config.cluster.scorers)
    with connect(
        cluster,
        run.folder,
        run.lease.check,
        (options.num_workers or 1) + _CPUS_FOR_BATCHES,
        say=say,
        num_bytes=lambda: count_bytes(pairs.shards),
        gpus_per_scorer=options.gpus_per_worker,
    ) as session:
        if num_threads is None and session.is_local:
            num_threads = os.cpu_count()  # the number that one rank on Ray has: weights depend on it
        if num_threads is not None and session.device == "cpu":
            session = replace(session, num_threads=num_threads)
        run.bind(session.device)
        index, held, plan = checked.index(run.work)
        if session.is_elastic:
            raise ValueError(
                f"train.workers=none: must be set on an elastic cluster; set {session.least_scorers} to "
                f"{session.num_scorers}"
            )
        wanted = f"at least {session.num_scorers}, one pair per worker"
        check(options.batch_size >= session.num_scorers, "train.batch_size", options.batch_size, wanted)
        run.end_dry_run()
        run.has_results = lambda: bool(journal.list_states(run.folder))
        image, kinds = checked.spec.image, tuple(sorted(index.kinds))
        draw = Drawing(image, config.model, options, pairs.max_pixels, kinds, index.most_negatives)
        training = journal.Training(
            config=config,
            out=run.folder.uri,
            pairs=replace(pairs, listed=index.uris),
            course=journal.Course(plan, draw),
            num_steps=options.steps or (options.epochs or EPOCHS) * plan.steps_per_epoch,
            num_kinds=len(kinds),
            image=image,
            threads=session.num_threads,
            evaluate=evaluate,
            held_out=held,
            run_id=run.record["id"],
        )
        known = gather_keys(index.uris, checked.before)
        write_trained(known, run.work)  # before hours of steps: it takes memory
        warnings = (*index.warnings, *(held.warn(known) if held else ()), *warn_of_unused(config))
        for warning in warnings:
            say(warning)
        if session.is_local:
            from raycomp.training.loop import fit_here

            status = fit_here(training, run.lease.check, say)
        else:
            from raycomp.training.ray_train import TrainWorkers, fit

            ranks = TrainWorkers(session.num_scorers, session.device == "gpu", options.gpus_per_worker)
            status = fit(training, ranks, run.lease.check, say)
        more: dict[str, Any] = {"held_out": held.describe(known)} if held else {}
    _close(run, training, index, session.num_scorers, status.resumed, {"warnings": list(warnings), **more})


def _close(
    run: Run, training: journal.Training, index: Index, workers: int, resumed: list, more: dict[str, Any]
) -> None:
    """Record the results."""
    metrics = journal.read_metrics(run.folder)
    num_steps, num_pairs = len(metrics["step"]), training.config.train.batch_size
    seconds = float(np.sum(num_pairs / metrics["samples_per_s"]))
    # The results of each evaluation with the number of steps before it, as passed to ``evaluate``.
    found: dict[int, dict[str, float]] = {}
    for name in [name for name in metrics if name not in journal.OWN_COLUMNS]:
        for step in np.flatnonzero(np.isfinite(metrics[name])).tolist():
            found.setdefault(step, {"step": step + 1})[name] = float(metrics[name][step])
    start = held_out.read_start(run.work) if training.held_out else []
    sections: dict[str, Any] = {
        "steps": num_steps,
        "epochs": num_steps / training.course.plan.steps_per_epoch,
        "batch_size": num_pairs,
        "workers": workers,
        **{name: index.tally[name] for name in ("pairs", "copies", "captions")},
        "pairs_with_negatives": index.tally["with_negatives"],
        "joined": {name: index.tally[name] for name in ("with_negative_images", "with_neighbours")},
        "negatives_by_kind": {" ".join(kind): count for kind, count in sorted(index.kinds.items())},
        "first_loss": float(metrics["loss"][0]),
        "last_loss": float(metrics["loss"][-1]),
        "train_s": seconds,
        "samples_per_s": num_steps * num_pairs / seconds,
        "resumed": resumed,
        "evaluations": [*start, *(found[step] for step in sorted(found))],
        **more,
    }
    read = dict(index.reasons)
    for reason in _REASONS:
        read[words.OK] += read.pop(reason, 0)
    run.staged = (files.CHECKPOINT, *TRAINED)
    run.close(read, index.reasons, words.OK, reasons=_REASONS, **sections)
    copies = index.tally["copies"]
    repeated = f"; {copies:,} of the {index.tally['pairs']:,} pairs are copies of others" if copies else ""
    said = (
        f"trained {num_steps:,} steps of {num_pairs:,} pairs in {seconds:,.0f} s{repeated}: loss "
        f"{sections['first_loss']:.3f} to {sections['last_loss']:.3f}; model: "
        f"{run.folder.at(files.CHECKPOINT)}"
    )
    run.report(said, render_train(run.record, metrics))


STEP, LOSS, RATE, SPEED = journal.OWN_COLUMNS
NUM_POINTS = 1000
"""Of a drawn curve, at most."""
NUM_REPORTED = 12
"""Evaluations and resumptions that are written out, at most."""
_SMOOTHED = 0.02
"""Share of the steps that a smoothed value is the mean of."""
_RESUMED = Layer("resumed from a checkpoint", "mark")
_OTHER_REASONS = {
    "not_in_subset": "the subset does not list it",
    "held_out": "train.held_out keeps it for evaluation",
}
Metrics = Mapping[str, np.ndarray]
Evaluations = Sequence[Mapping[str, Any]]


def render_train(run: Mapping[str, Any], metrics: Metrics) -> str:
    """Return the page as text to be written as UTF-8.

    ``run``: the content of run.json. ``metrics``: loss, learning_rate and samples_per_s by step, NaN where
    there is none, as ``read_metrics`` returns them.
    """
    marks = [Mark(entry[STEP]) for entry in run["resumed"]]
    # Learning rates in units that leave no row of zeros at the axis.
    top = np.nanmax(metrics[RATE], initial=0.0)
    power = math.floor(math.log10(top)) if top > 0 else 0
    rate = {**metrics, RATE: metrics[RATE] / 10.0**power}
    negatives = [_report_negatives(run)] if run["negatives_by_kind"] else []
    evaluations = run["evaluations"]
    names = list(dict.fromkeys(name for entry in evaluations for name in entry if name != STEP))
    rows = [(entry[STEP], *(entry.get(name) for name in names)) for entry in evaluations[-NUM_REPORTED:]]
    step_N = np.array([entry[STEP] for entry in evaluations])
    measures = {
        name: {STEP: step_N, name: _read_measure(evaluations, name)}
        for name in names
        if len(evaluations) > 1 and not name.startswith("held_out_")  # one evaluation gives no curve
    }
    charts = [draw_metric(name, "", values, name) for name, values in measures.items()]
    loss = LOSSES.get(run["config"]["train"]["loss"])
    has_chance = loss is not None and not loss.bias  # a sum of sigmoids has none
    return render_page(
        "training/page.html.jinja",
        run=run,
        num_reported=NUM_REPORTED,
        chance=math.log(run["batch_size"]) if has_chance else None,
        loss=draw_metric("Loss", "", metrics, LOSS, marks, TALL),
        plots=[
            draw_metric("Learning rate", f"in units of 1e{power}", rate, RATE, marks),
            draw_metric("Speed", "samples/s", metrics, SPEED, marks),
        ],
        evaluated=Table("Evaluation", ("Step", *names), rows),
        held_out=_draw_held_out(evaluations),
        held_chance=math.log(run["held_out"]["evaluated"]) if "held_out" in run else None,
        measures=[chart for chart in charts if chart],
        tables=[_report_training(run), _report_pairs(run["funnel"], run["copies"]), *negatives],
    )


def list_uses(out: str) -> dict[str, str]:
    """Return uses of a model trained into ``out`` by name, each with its command lines."""
    is_near = "://" not in out
    place = files.join_uri(out, "checkpoint") if is_near else "checkpoint"
    model, weights = f"{place}/model.json", f"{place}/model.safetensors"
    scorer = f"--set {shlex.quote(f'scorer.model={model}')} --set {shlex.quote(f'scorer.weights={weights}')}"
    lines = [
        "import open_clip",
        f"open_clip.add_model_config({model!r})",
        f"model, _, preprocess = open_clip.create_model_and_transforms('model', pretrained={weights!r})",
    ]
    fetched = f"aws s3 cp --recursive {shlex.quote(files.join_uri(out, 'checkpoint'))} checkpoint"
    return {
        **({} if is_near else {"Fetch the model": fetched}),
        "Curate with it": f"raycomp curate --set input=SHARDS {scorer} --out DIR",
        "Load it in Python": "\n".join(lines),
        "Publish it": f"raycomp publish {shlex.quote(out)} --out FOLDER",
    }


def draw_metric(
    title: str, y_name: str, metrics: Metrics, name: str, marks: Sequence[Mark] = (), height: float = LOW
) -> Html:
    """Draw one metric over the steps that have it, if any do; the learning rate is smooth by itself."""
    known_N = np.isfinite(metrics[name])
    step_N, value_N = metrics[STEP][known_N], metrics[name][known_N]
    if not len(step_N):
        return Html()
    at = thin(value_N, NUM_POINTS)
    width = 2 * int(_SMOOTHED * len(value_N) / 2) + 1
    if name == RATE or width == 1:
        lines = [(Layer("each step", "kept"), step_N[at], value_N[at])]
    else:
        mean_N = smooth(value_N, width)
        near = thin(mean_N, NUM_POINTS)
        lines = [
            (Layer("each step", "dropped"), step_N[at], value_N[at]),
            (Layer(f"mean of {number(width)} steps", "kept"), step_N[near], mean_N[near]),
        ]
    return curves(title, "step", y_name, lines, marks, _RESUMED if height == TALL else None, height)


def thin(value_N: np.ndarray, most: int) -> np.ndarray:
    """Return the places, rising, of at most ``most`` (from 2) values: all of them where they are no more.

    Else the smallest and the largest of each of ``most`` // 2 stretches of equal length, so that no peak is
    lost and a line through them covers what a line through all does.
    """
    if len(value_N) <= most:
        return np.arange(len(value_N))
    edges = np.linspace(0, len(value_N), most // 2 + 1).astype(int)
    stretches = [(start, value_N[start:end]) for start, end in pairwise(edges)]
    return np.unique([start + pick(some) for start, some in stretches for pick in (np.argmin, np.argmax)])


def smooth(value_N: np.ndarray, width: int) -> np.ndarray:
    """Return each value's mean over ``width`` (odd) values around it, over fewer at both ends."""
    place_N, half = np.arange(len(value_N)), width // 2
    low_N, high_N = np.maximum(place_N - half, 0), np.minimum(place_N + half + 1, len(value_N))
    total = np.concatenate([[0.0], np.cumsum(value_N, dtype=np.float64)])
    return (total[high_N] - total[low_N]) / (high_N - low_N)


def _read_measure(evaluations: Evaluations, name: str) -> np.ndarray:
    return np.array([math.nan if entry.get(name) is None else float(entry[name]) for entry in evaluations])


def _draw_held_out(evaluations: Evaluations) -> list[Html]:
    """Return a chart of the held-out loss and one of both recalls, nothing without held-out pairs."""
    known = [entry for entry in evaluations if math.isfinite(entry.get(words.HELD_OUT_LOSS, math.nan))]
    if not known:
        return []
    step_N = np.array([entry[STEP] for entry in known])
    loss_N, *recalls = (_read_measure(known, name) for name in words.HELD_OUT_MEASURES)
    layers = (Layer("image to text", "kept"), Layer("text to image", "kind-relation"))
    lines = [(layer, step_N, 100 * recall_N) for layer, recall_N in zip(layers, recalls, strict=True)]
    return [
        curves("Held-out loss", "step", "", [(Layer("after each evaluation", "kept"), step_N, loss_N)]),
        curves("Held-out recall@1", "step", "%", lines),
    ]


def _report_training(run: Mapping[str, Any]) -> Table:
    config, minutes = run["config"], run["train_s"] / 60
    time = f"{number(run['train_s'], 1)} s" + (f" ({number(minutes, 1)} minutes)" if minutes >= 2 else "")
    facts = {
        "Model": config["model"]["name"],
        "Initial weights": config["model"]["weights"],
        "Loss": config["train"]["loss"],
        "Steps": f"{number(run['steps'])} of {number(run['batch_size'])} pairs",
        "Epochs": f"{number(float(run['epochs']), 2)} of {number(run['pairs'])} pairs",
        "Loss of the first step": number(run["first_loss"], 6),
        "Loss of the last step": number(run["last_loss"], 6),
        "Time": time,
        "Speed": f"{number(run['samples_per_s'], 1)} samples/s",
        "Workers": f"{number(run['workers'])} on {run['device']}",
    }
    facts |= {f"Pairs {name.replace('_', ' ')}": number(n) for name, n in run.get("joined", {}).items() if n}
    return Table("Training", ("Property", "value"), list(facts.items()))


def _report_pairs(funnel: Mapping[str, Any], copies: int) -> Table:
    read, kept = funnel["read"], funnel["kept"]
    dropped = sorted(funnel["dropped"].items(), key=lambda item: (-item[1], item[0]))
    meanings = {**words.STATUSES, **words.NEGATIVE_STATUSES, **_OTHER_REASONS}
    rows = [("read", read, Numeral(percent(read, read)), "")]
    for why, count in dropped:
        name, meaning = why.replace("_", " "), meanings.get(why, "")
        rows.append((name, -count, Numeral(percent(count, read)), meaning))
    rows.append(("used for training", kept, Numeral(percent(kept, read)), ""))
    if copies:
        meaning = "the subset lists these pairs more than once; an epoch repeats them"
        rows.append(("copies", copies, Numeral(""), meaning))
    return Table("Pairs read and pairs used", ("Pairs", "rows", "of read", "meaning"), rows)


def _report_negatives(run: Mapping[str, Any]) -> Table:
    by_kind, pairs, some = run["negatives_by_kind"], run["pairs"], run["pairs_with_negatives"]
    total = sum(by_kind.values())
    split = sorted((*name.partition(" ")[::2], count) for name, count in by_kind.items())
    rows = [(op, kind, count, Numeral(percent(count, total))) for op, kind, count in split]
    note = f"{number(some)} of {number(pairs)} pairs ({percent(some, pairs)}) have at least one."
    return Table("Hard negatives", ("Operation", "kind", "negatives", "of all negatives"), rows, note)
