"""A trained model in the layout of open_clip's hub, and the keys of its training pairs.

Two sorted arrays of 16-byte keys, see ``core.leaks``: of images, and of all their captions. Hard negatives
and their images are not among them.

``raycomp train``: pairs in, a model out, on any number of workers."""

import hashlib
import io
import os
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from raycomp.config import DryRun, ModelConfig, TooMuchBadData
from raycomp.config.change import fingerprint_own
from raycomp.core.epochs import EpochPlan
from raycomp.core.near import Known, key_images, key_texts, merge_keys, merge_known
from raycomp.core.selection import KEY
from raycomp.data.files import (
    ARCHITECTURE,
    CHECKPOINT,
    RUN,
    WEIGHTS,
    WORK,
    Folder,
    ResultFile,
    absolute_uri,
    check_writable,
    is_dry_run,
)
from raycomp.data.inputs import check_output, count_bytes, with_absolute_paths
from raycomp.data.parquet import read_columns
from raycomp.data.runs import check_results, fetch_model, find_model, read_finished, read_result
from raycomp.models.architecture import HUB_CONFIG, ScorerSpec, describe_scorer, fingerprint_scorer
from raycomp.run.local import Session, connect
from raycomp.run.run import Run, Say, refuse_early, start_run
from raycomp.run.work import map_files
from raycomp.table import format_facts
from raycomp.training.config import TrainConfig
from raycomp.training.feed import Drawing
from raycomp.training.hard import load_mates
from raycomp.training.held_out import OPTION, find_held_input, fingerprint_held_out, index_pairs, read_start
from raycomp.training.journal import (
    EVENTS,
    METRICS,
    OWN_COLUMNS,
    Course,
    Evaluate,
    ShardSource,
    Training,
    TrainingStatus,
    check_packages,
    list_states,
    read_metrics,
)
from raycomp.training.page import list_uses, render_train
from raycomp.training.pairs import Index, Pairs, find_pairs, fingerprint_pairs
from raycomp.words import CAPTIONS, DUPLICATE_UID, HELD_OUT, IMAGE_SHA256, NOT_IN_SUBSET, OK

TRAINED = ("trained_images.npy", "trained_texts.npy")
"""At the top of a training's folder, in the order of ``Known``."""

# The files of a model and its tokenizer.
_PUBLISHED = (".safetensors", ".json", ".jsonl", ".txt", ".model", ".jinja")
PUBLISHED_WEIGHTS = "open_clip_model.safetensors"


def read_keys(uri: str) -> Known:
    """Return the keys of the pairs in an index (PAIRS_SCHEMA)."""
    table = read_columns(uri, [IMAGE_SHA256, CAPTIONS])
    image_N = key_images(table[IMAGE_SHA256].to_pylist())
    texts = [text for captions in table[CAPTIONS].to_pylist() for text in captions or ()]
    return Known(merge_keys([image_N]), merge_keys([key_texts(texts)]))


def merge_some(parts: list[Known]) -> list[Known]:
    """Return the union of several, in a list."""
    return [merge_known(parts)]


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
    start, found, _ = weights.partition(f"/{CHECKPOINT}/{WEIGHTS}")
    folder = Folder(start)
    if not found or not folder.exists(RUN):
        return None
    files = check_results(folder, read_finished(folder.uri), *TRAINED)
    if not all(name in files for name in TRAINED):
        return None
    found_keys = []
    for uri in (files[name] for name in TRAINED):
        try:
            key_K = np.load(io.BytesIO(read_result(uri)), allow_pickle=False)
        except (ValueError, EOFError) as error:
            line = " ".join(str(error).split())[:200]
            raise ValueError(f"{uri}: does not hold the keys of a training ({line})") from error
        if key_K.dtype != KEY or key_K.ndim != 1 or (key_K[1:] <= key_K[:-1]).any():
            raise ValueError(
                f"{uri}: does not hold the keys of a training: must be sorted, without duplicates"
            )
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
    files = _list_files(found)
    check_writable(out)
    if folder.list_names():
        raise ValueError(f"--out {out}: holds other files; name a folder that is empty or new")
    if is_dry_run():
        raise DryRun(
            f"dry run of publish: all checks passed, nothing was written; {len(files)} files would be"
        )
    from raycomp.models.clip import load_start, load_tokenizer  # behind all checks

    with TemporaryDirectory() as local:
        for name, file in files.items():
            (Path(local) / name).write_bytes(read_result(file))
        try:
            published = ModelConfig(name=f"local-dir:{local}")
            load_start(published)
            load_tokenizer(published)
        except ValueError as error:
            raise ValueError(f"{found.at(CHECKPOINT)}: the model is incomplete ({error})") from error
        for name in files:
            folder.write_bytes((Path(local) / name).read_bytes(), name)
    say(f'{out}: load it with open_clip.create_model_and_transforms("local-dir:{out}")')


def _list_files(source: Folder) -> dict[str, ResultFile]:
    """Return the files that are published by their new names, the one that describes the model last."""
    above, name = posixpath.split(source.uri.rstrip("/"))
    if name == CHECKPOINT and Folder(above).exists(RUN):
        raise ValueError(f"{source.uri}: is part of a training; name the training's folder, {above}")
    run = read_finished(source.uri)
    if run["kind"] != "train":
        raise ValueError(f"{source.uri}: holds {run['kind']}, must hold a training")
    written = {posixpath.basename(file): file for file in check_results(source, run, CHECKPOINT).values()}
    folders = Folder(source.at(CHECKPOINT)).list_folders()
    if folders:
        raise ValueError(
            f"{source.at(CHECKPOINT, folders[0])}: is a folder; a model has files only; move it out"
        )
    if ARCHITECTURE not in written or WEIGHTS not in written:
        raise ValueError(
            f"{source.at(CHECKPOINT)}: the model is incomplete: {ARCHITECTURE} or {WEIGHTS} is missing"
        )
    names = [name for name in written if name != ARCHITECTURE and name.endswith(_PUBLISHED)]
    names.sort(key=lambda name: name == HUB_CONFIG)
    return {PUBLISHED_WEIGHTS if name == WEIGHTS else name: written[name] for name in names}


_EPOCHS = 5
# CPUs that make batches, in addition to the trainers' CPUs, on a machine without a cluster.
_CPUS_FOR_BATCHES = 2
# Reasons for which a sample of status ok is not a training pair.
_REASONS = (NOT_IN_SUBSET, HELD_OUT, DUPLICATE_UID)
_OUTPUTS = (CHECKPOINT, METRICS, *TRAINED)
_OF_A_START = (WORK, "logs", "checkpoints", EVENTS, METRICS, RUN)


def train(
    config: TrainConfig,
    out: str,
    say: Say = print,
    evaluate: Evaluate | None = None,
    num_threads: int | None = None,
) -> dict[str, Any]:
    """Train ``config.model`` on ``config.input`` into the folder or ``s3://`` uri ``out``.

    Returns what run.json holds. ``evaluate`` is called by one worker every ``train.evaluate_steps`` and at
    the end, and tried before the first step; its results are columns of metrics.jsonl. ``num_threads``: torch
    threads of a worker on CPUs; none = the machine's cores divided by its workers. A finished run of the same
    config is left unchanged; an unfinished one resumes from its last checkpoint. Raises ValueError for errors
    the user can fix, and TooMuchBadData.
    """
    out, config = absolute_uri(str(out)), with_absolute_paths(config)
    check_packages(config.train.log_to)
    pairs, held_pairs = find_pairs(config), find_held_input(config)
    check_output(config.input, out)
    if held_pairs:
        check_output(held_pairs.source, out, OPTION)
    check_writable(out)  # before a model is loaded
    config = replace(config, model=find_model(config.model))
    refuse_early("train", config, out)
    spec = describe_scorer(fetch_model(config.model))
    before = read_trained(config.model.weights)
    fingerprint = partial(_fingerprint, config)
    uses, cost = list_uses(out), partial(_describe_cost, config, pairs)
    with start_run("train", config, fingerprint, out, say, commands=uses, outputs=_OUTPUTS, cost=cost) as run:
        if run.is_finished:
            return run.record
        workers = config.train.num_workers
        cluster = replace(config.cluster, scorers=workers or config.cluster.scorers)
        needed = (workers or 1) + _CPUS_FOR_BATCHES
        with (
            _leave_no_start(run.folder),
            connect(
                cluster,
                run.folder,
                run.lease.check,
                needed,
                say=say,
                num_bytes=lambda: count_bytes(pairs.shards),
                gpus_per_scorer=config.train.gpus_per_worker,
            ) as session,
        ):
            if num_threads is None and session.is_local:
                num_threads = os.cpu_count()  # the number that one rank on Ray has: weights depend on it
            if num_threads is not None and session.device == "cpu":
                session = replace(session, num_threads=num_threads)
            run.bind(session.device)
            index, held = index_pairs(pairs, held_pairs, config, run.work)
            training = _plan(run, config, session, spec, pairs, index, evaluate)
            known = gather_keys(index, before)
            write_trained(known, run.work)  # before hours of steps: it takes memory
            if held:
                training = replace(training, held_out=held.tables)
                index = replace(index, warnings=(*index.warnings, *held.warn(known)))
            for warning in index.warnings:
                say(warning)
            if session.is_local:
                from raycomp.training.local_fit import fit_here

                status = fit_here(training, run.lease.check, say)
            else:
                from raycomp.training.ray_train import TrainWorkers, fit

                on_gpus, share = session.device == "gpu", config.train.gpus_per_worker
                ranks = TrainWorkers(session.num_scorers, on_gpus, share)
                status = fit(training, ranks, run.lease.check, say)
            held_section = {"held_out": held.describe(known)} if held else {}
        _close(run, training, session, index, status, held_section)
    return run.record


def _describe_cost(config: TrainConfig, pairs: Pairs) -> str:
    options = config.train
    steps = f"{options.steps:,} steps" if options.steps else f"{options.epochs or _EPOCHS} epochs in steps"
    size = f"{len(pairs.shards):,}, {count_bytes(pairs.shards) / 1e9:,.3f} GB"
    return format_facts({"shards": size, "training": f"{steps} of {options.batch_size:,} pairs"})


def _fingerprint(config: TrainConfig) -> dict[str, Any]:
    """Return what results depend on in addition to the options."""
    return {
        **fingerprint_pairs(config),
        **fingerprint_held_out(config),
        **fingerprint_own("loss", config.train.loss),
        "model": fingerprint_scorer(fetch_model(config.model)),
    }


def _plan(
    run: Run,
    config: TrainConfig,
    session: Session,
    spec: ScorerSpec,
    pairs: Pairs,
    index: Index,
    evaluate: Evaluate | None,
) -> Training:
    """Return what every rank gets. Raises ValueError for a batch size or workers that are impossible."""
    options = config.train
    if session.is_elastic:
        raise ValueError(
            f"train.workers=none: must be set on an elastic cluster; set {session.least_scorers} to "
            f"{session.num_scorers}"
        )
    mates = load_mates(pairs.neighbours, index.uris) if pairs.neighbours else ()
    plan = EpochPlan(index.rows_S, options.batch_size, options.window, options.seed, mates)
    if options.batch_size < session.num_scorers:
        raise ValueError(
            f"train.batch_size={options.batch_size}: must be at least {session.num_scorers}, one pair per "
            "worker"
        )
    kinds = tuple(sorted(index.kinds))
    draw = Drawing(spec.image, config.model, options, pairs.max_pixels, kinds, index.most_negatives)
    return Training(
        config=config,
        out=run.folder.uri,
        source=ShardSource(pairs, index.uris),
        course=Course(plan, draw),
        num_steps=options.steps or (options.epochs or _EPOCHS) * plan.steps_per_epoch,
        num_kinds=len(kinds),
        image=spec.image,
        threads=session.num_threads,
        evaluate=evaluate,
        run_id=run.record["id"],
    )


@contextmanager
def _leave_no_start(folder: Folder) -> Iterator[None]:
    """Remove a run that is refused before its first checkpoint: with corrected options it may be another
    run."""
    try:
        yield
    except (ValueError, TooMuchBadData):
        if not list_states(folder):
            for name in _OF_A_START:
                folder.remove(name)
        raise


def _close(
    run: Run,
    training: Training,
    session: Session,
    index: Index,
    status: TrainingStatus,
    more: dict[str, Any],
) -> None:
    """Record the results."""
    metrics = read_metrics(run.folder)
    num_steps, num_pairs = len(metrics["step"]), training.config.train.batch_size
    seconds = float(np.sum(num_pairs / metrics["samples_per_s"]))
    # The results of each evaluation with the number of steps before it, as passed to ``evaluate``.
    found: dict[int, dict[str, float]] = {}
    for name in [name for name in metrics if name not in OWN_COLUMNS]:
        for step in np.flatnonzero(np.isfinite(metrics[name])).tolist():
            found.setdefault(step, {"step": step + 1})[name] = float(metrics[name][step])
    sections: dict[str, Any] = {
        "steps": num_steps,
        "epochs": num_steps / training.course.plan.steps_per_epoch,
        "batch_size": num_pairs,
        "workers": session.num_scorers,
        **{name: index.tally[name] for name in ("pairs", "copies", "captions")},
        "pairs_with_negatives": index.tally["with_negatives"],
        "negatives_by_kind": {" ".join(kind): count for kind, count in sorted(index.kinds.items())},
        "first_loss": float(metrics["loss"][0]),
        "last_loss": float(metrics["loss"][-1]),
        "train_s": seconds,
        "samples_per_s": num_steps * num_pairs / seconds,
        "resumed": status.resumed,
        "evaluations": [*read_start(run.work), *(found[step] for step in sorted(found))],
        **more,
    }
    read = dict(index.reasons)
    for reason in _REASONS:
        read[OK] += read.pop(reason, 0)
    run.staged = (CHECKPOINT, *TRAINED)
    warnings = list(index.warnings)
    run.close(read, index.reasons, OK, reasons=_REASONS, warnings=warnings, **sections)
    copies = index.tally["copies"]
    repeated = f"; {copies:,} of the {index.tally['pairs']:,} pairs are copies of others" if copies else ""
    said = (
        f"trained {num_steps:,} steps of {num_pairs:,} pairs in {seconds:,.0f} s{repeated}: loss "
        f"{sections['first_loss']:.3f} to {sections['last_loss']:.3f}; model: {run.folder.at(CHECKPOINT)}"
    )
    run.report(said, render_train(run.record, metrics))


def gather_keys(index: Index, before: Known | None) -> Known:
    """Return the keys of all pairs, and of those that the model had been trained on ``before``."""
    found = list(map_files(read_keys, index.uris, label="key pairs", fold=merge_some))
    return merge_known([*found, *([before] if before else [])])
