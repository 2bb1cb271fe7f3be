"""``raycomp evaluate``: a model's results on benchmarks, with those of text-only and image baselines."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import changed_options
from raycomp.core.selection import (
    KEY,
    Known,
    Leak,
    check_left,
    count_shared,
    key_texts,
    merge_keys,
    warn_leak,
)
from raycomp.data.files import CHECKPOINT, WEIGHTS, Folder, absolute_uri, check_writable
from raycomp.data.inputs import with_absolute_paths
from raycomp.data.parquet import readable, write_table
from raycomp.data.runs import TIMES, digest, fetch_model, find_model
from raycomp.evaluation import results
from raycomp.evaluation.benchmarks.choice import DEFECTS, report_defects
from raycomp.evaluation.choices import Evaluation, Pictures, fingerprint_controls, key_pictures
from raycomp.evaluation.classification import LinearProbe, Sets
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.embed import Embedder, check_images, count_needed, embed_pictures, embed_texts
from raycomp.evaluation.index import Touched, Untouched, find_touched, grade_untouched
from raycomp.evaluation.open import Opened, check_outside, list_evaluation_times, open_evaluations
from raycomp.evaluation.results import Line, Margin, compute_outcomes, make_lines, name_statuses
from raycomp.models.architecture import ScorerSpec, describe_scorer, fingerprint_scorer, list_cut
from raycomp.report.page import render_page
from raycomp.run import run as runs
from raycomp.run.executor import connect
from raycomp.run.progress import describe_phases, describe_stages
from raycomp.run.run import Run, Say, say_count, start_run
from raycomp.table import Estimate, plain, write_cell, write_csv
from raycomp.training.command import LOSS, draw_metric, identify_trained, read_trained
from raycomp.training.journal import METRICS, read_metrics
from raycomp.words import DROP, OK, STATUS

TABLE, UNTOUCHED = "table.csv", "untouched.csv"
# The training images that a test set may overlap with, as messages name them.
OF_PROBE, OF_MODEL = "the training images", "the images that the model was trained on"


def evaluate(
    config: EvaluateConfig, out: str, say: Say = print, gpus_per_scorer: float = 1.0
) -> dict[str, Any]:
    """Evaluate ``config.model`` into the folder ``out``; return what run.json holds.

    ``gpus_per_scorer``: share of a GPU that each scorer reserves. A finished run of the same config is
    unchanged; an unfinished one resumes. Raises ValueError for errors that the user can fix, and
    TooMuchBadData.
    """
    out = absolute_uri(str(out))
    asked = with_absolute_paths(config)
    check_outside(asked, out)
    check_writable(out)  # before anything is read
    config = replace(asked, model=find_model(asked.model))
    opened, warnings = open_evaluations(config, say), list[str]()

    def warn(*lines: str) -> None:
        for line in lines:
            warnings.append(line)
            say(line)

    warn(*(line for one in opened for line in one.warnings))
    runs.refuse_early("evaluate", config, out)
    touched, lost = find_touched(config)
    warn(*lost)
    spec = describe_scorer(fetch_model(config.model))
    fingerprint = partial(_fingerprint, config, spec, touched)
    rerun = runs.command_line("raycomp evaluate", changed_options(asked), out)
    outputs = ("scores", TABLE, UNTOUCHED)
    dry: dict[str, Any] = {"cost": partial(say_count, len(opened), "benchmarks")}
    dry["num_bytes"] = partial(count_needed, [one.evaluation for one in opened])
    with start_run("evaluate", config, fingerprint, out, say, rerun, outputs=outputs, **dry) as run:
        if run.is_finished:
            return run.record
        place = config.cluster, run.folder, run.lease.check
        with connect(*place, say=say, gpus_per_scorer=gpus_per_scorer) as session:
            run.bind(session.device, session.gpu)
            embedder = Embedder(config, spec, run.work, session, run.lease.check)
            evaluations = [one.evaluation for one in opened]
            pictures, seen = embed_pictures(embedder, evaluations)
            warnings += check_images(evaluations, pictures, config, say)
            trained = read_trained(config.model.weights)
            leaks = find_leaks(evaluations, pictures, trained)
            for leak in leaks:
                check_left(leak, config.overlap)
                warn(*warn_leak(leak, config.overlap))
            if config.overlap == DROP and trained is not None:
                pictures = pictures.bar(trained.image_K)
            texts, read = embed_texts(embedder, evaluations, pictures)
            if cut := list_cut(fetch_model(config.model), map(readable, texts.place)):
                counts = f"{len(cut):,} of {len(texts.place):,} texts are longer than its context"
                warn(f"{config.model.said_weights}: {counts}, such as {cut[0]:.60}...; the ends are not read")
        tables = {evaluation.name: evaluation.grade(pictures, texts) for evaluation in evaluations}
        run.end_dry_run()
        untouched = None if touched is None else grade_untouched(touched, evaluations, pictures, texts)
        stats = {name: one for name, one in (("pictures", seen), ("texts", read)) if one.statuses.total()}
        if config.overlap == DROP and trained is None and not config.model.weights.startswith("random:"):
            said = "its training images are unknown, so overlap=drop drops none of them"
            warn(f"{config.model.said_weights}: {said}")
        _close(run, opened, tables, untouched, leaks, stats, spec, warnings, say)
    return run.record


def _fingerprint(config: EvaluateConfig, spec: ScorerSpec, touched: Touched | None) -> dict[str, Any]:
    """Return what results depend on in addition to the options; all of it is read anew, as it may change."""
    opened = open_evaluations(config, say=lambda line: None)
    trained = read_trained(config.model.weights)
    return {
        **({"trained": identify_trained(trained)} if trained else {}),
        "model": fingerprint_scorer(fetch_model(config.model)),
        "preprocessing": digest(vars(spec.image)),
        **{one.evaluation.name: one.fingerprint for one in opened},
        TIMES: digest(list_evaluation_times(opened)),
        **fingerprint_controls(config.controls),
        **(touched.identity if touched else {}),
    }


def _close(
    run: Run,
    opened: Sequence[Opened],
    tables: Mapping[str, pa.Table],
    untouched: Untouched | None,
    leaks: Sequence[Leak],
    stats: Mapping[str, Any],
    spec: ScorerSpec,
    warnings: list[str],
    say: Say,
) -> None:
    """Write scores and table; record the counts and the results."""
    lines: list[Line] = []
    margins: list[Margin] = []
    read, came = Counter[str](), Counter[str]()
    for name, table in tables.items():
        write_table(table, run.folder.at("scores", f"{name}.parquet"), table.schema)
        outcomes = compute_outcomes(table)
        lines += make_lines(name, outcomes)
        margins += results.compute_margins(name, outcomes)
        read.update(table[STATUS].to_pylist())
        came.update(name_statuses(table))
    run.folder.write_bytes(write_csv([Line._fields, *lines]).encode(), TABLE)
    if untouched is not None:
        run.folder.write_bytes(write_csv([Line._fields, *untouched.lines]).encode(), UNTOUCHED)
        warnings += untouched.warnings
    facts: dict[str, Any] = {
        "preprocessing": vars(spec.image),
        "overlap": [leak.describe() for leak in leaks],
        "phases": describe_phases(dict(stats)),
        "stages": describe_stages(dict(stats)),
        "warnings": warnings,
    }
    run.close(read, came, OK, reasons=DEFECTS, **facts)
    for line in results.choose_main(lines):
        figure = plain(write_cell(Estimate.of(line)))
        some = "" if line.n == line.num_all else f" of {line.n:,} of {line.num_all:,} examples"
        say(f"{line.benchmark}: {line.metric}, {line.split} {figure}{some}{results.say_blind(line, lines)}")
    both, said = untouched.report(lines) if untouched else (None, [])
    for text in said:
        say(text)
    choices = [choice for one in opened for choice in one.choices]
    losses = read_losses(run.record["config"]["model"]["weights"])
    name = run.folder.uri.rstrip("/").rpartition("/")[2]
    page = render_page(
        "evaluation/page.html.jinja",
        run=run.record,
        answers=[results.Answer(run.noise)] * bool(run.noise)
        + results.answer_evaluation(name, lines, [] if run.noise else margins),
        baselines=results.report_margins({name: margins}) if margins else None,
        untouched=both,
        figures=results.report_lines(lines),
        before=[report_defects(choices)] if choices else [],
        loss=draw_metric("Loss", "", losses, LOSS) if losses else None,
    )
    run.report(f"{came[OK]:,} of {came.total():,} rows scored; table: {run.folder.at(TABLE)}", page)


def read_losses(weights: str) -> dict[str, np.ndarray] | None:
    """Return the metrics of the training that wrote these weights; None where they are unavailable here.

    They only draw a curve on the page, so no evaluation fails for want of them.
    """
    folder = Folder(weights.removesuffix(f"/{CHECKPOINT}/{WEIGHTS}"))
    if folder.uri == weights or not folder.exists(METRICS):
        return None
    try:
        return read_metrics(folder)
    except (ValueError, OSError):
        return None


def find_leaks(evaluations: Iterable[Evaluation], pictures: Pictures, trained: Known | None) -> list[Leak]:
    """Return each test set's overlap with ``trained``, where that is known, and the probe's own overlap.

    Each example of a test set counts with its image. Training images of the probe are no test set: the model
    may have seen them.
    """
    leaks = []
    parts = ([*one.parts.values()] if isinstance(one, Sets) else [one] for one in evaluations)
    for evaluation in chain.from_iterable(parts):
        if isinstance(evaluation, LinearProbe):
            halves = [one.find_examples(pictures) for one in (evaluation.train, evaluation.test)]
            train_N, image_N = (one.key_N[one.good] for one in halves)
            no_texts = np.zeros(0, KEY)
            learned = Known(merge_keys([train_N]), no_texts)
            leaks.append(Leak(evaluation.name, OF_PROBE, count_shared(learned, image_N, no_texts)))
        else:
            place_N = np.array([pictures.place[picture] for picture in evaluation.pictures], np.int64)
            of_shards = [key_pictures(pictures.shards[shard.place]) for shard in evaluation.shards]
            image_N = np.concatenate([pictures.key_M[place_N], *of_shards])
        if trained is not None:
            text_T = key_texts(evaluation.list_texts(pictures))
            leaks.append(Leak(evaluation.name, OF_MODEL, count_shared(trained, image_N, text_T)))
    return leaks
