"""The commands that write a subset: ``curate`` from shards, ``select`` from the scores of a curation.

The report: summaries are mapped over scores files, a few photos are fetched, one page is drawn.
"""

import hashlib
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from raycomp import words
from raycomp.config.commands import fingerprint_own
from raycomp.core.metrics import auc
from raycomp.curation import config as rules
from raycomp.curation.config import PAS, CurateConfig, SelectionRule, make_selection, read_config
from raycomp.curation.page import make_funnel, render_curate
from raycomp.curation.score.columns import check_scorers, fingerprint_scorers
from raycomp.curation.score.reuse import REUSED, Reuse, find_reuse
from raycomp.curation.score.score import Scoring, check_aligned, plan, score
from raycomp.curation.select import filters, marks
from raycomp.curation.select import select as choosing
from raycomp.curation.select.measures import MARKS, ScoresFile, check_own_columns, corpus_columns, pair_marks
from raycomp.curation.select.select import Chosen, Gates
from raycomp.curation.summary import Summary, choose_shown, merge, summarise
from raycomp.curation.write import materialize
from raycomp.data import inputs, parquet, runs
from raycomp.data.files import WORK, Folder, absolute_uri, check_writable
from raycomp.data.inputs import ShardPath, with_absolute_paths
from raycomp.data.parquet_input import check_embeddings
from raycomp.data.reader import check_tables, extract, read_offsets
from raycomp.data.runs import digest, list_scores, read_finished
from raycomp.data.samples import find_image
from raycomp.language.phrases import REASONS
from raycomp.models import architecture, parser
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.run import run as running
from raycomp.run.executor import Stats, connect
from raycomp.run.progress import describe_dropped, describe_phases, describe_stages
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.run.work import map_files, map_tasks
from raycomp.table import Column, Table
from raycomp.words import ALIGNMENT, CAPTION, IMAGE_SHA256, KEPT, OK, PHRASES, POSITION, SHARD, STATUS, UID

MakeTables = Callable[[list[str]], list[Table]]


class Scored(NamedTuple):
    """Scored rows to choose from."""

    files: list[ScoresFile]
    shards: list[ShardPath]
    """The input's, for photos and for shards of the subset; none where the input is gone."""
    read: Mapping[str, int]
    """Rows of the input by status."""
    sections: dict[str, Any]
    """Sections of run.json on the scores."""
    reuse: Reuse | None = None
    tables: Sequence[Table] = ()
    """Further sections of the report."""


def curate(
    config: CurateConfig,
    out: str,
    say: Say = print,
    extra_tables: MakeTables | None = None,
    earlier: str | None = None,
) -> dict[str, Any]:
    """Curate ``config.input`` into the folder or ``s3://`` uri ``out``; return what run.json holds.

    ``extra_tables`` makes additional sections of the report from the scores files' uris. ``earlier``: the
    folder of a finished curation whose rows are taken over where they are the same; results do not depend on
    it. A finished run of the same config is left unchanged; an unfinished one is resumed. Raises ValueError
    for errors the user can fix (bad options, no input, no model, another run in ``out``) and TooMuchBadData.
    """
    out, config = absolute_uri(str(out)), with_absolute_paths(config)
    shards, spec = _open_input(config, out)
    if not spec.shares_prefixes:
        say(
            f"{config.scorer.model}: its text tower is not causal or does not pool at end-of-text, so "
            f"counterfactuals are encoded without shared prefixes"
        )
    again = {"Choose again": command_line(f"raycomp select {shlex.quote(out)}", _fewer(config), f"{out}-2")}
    fingerprint, cost = partial(_fingerprint, config, shards), partial(plan, config)
    with start_run("curate", config, fingerprint, out, say, commands=again, cost=cost) as run:
        if run.is_finished:
            return run.record
        num_bytes = partial(inputs.count_bytes, shards)
        with connect(config.cluster, run.folder, run.lease.check, say=say, num_bytes=num_bytes) as session:
            if run.folder.is_local and session.num_nodes > 1:
                say(f"{out} is a local folder: all {session.num_nodes} nodes must share it")
            if run.is_stale and config.prepare.stored_embeddings is None:
                check_aligned(shards, run.work)
                run.is_stale = False
            run.bind(session.device, session.gpu)
            reuse = Reuse()
            if earlier is not None:
                reuse = find_reuse(earlier, shards)
                for warning in reuse.check(run.record, earlier):
                    say(warning)
            scoring = Scoring(config, spec, shards, run.folder, run.work, session, run.lease.check, reuse)
            stats, facts = score(scoring)
            run.check_unchanged()  # also here: if scores mix two versions, nothing is chosen from them
            scores = [scoring.scores_uri(ordinal) for ordinal in scoring.ordinals]
            sections = {
                "phases": describe_phases(stats),
                "stages": describe_stages(stats),
                "coverage": describe_coverage(stats["attribute"]),
                "scorer_check": check_scorer(stats["align"]),
                "scores": run.folder.at("scores"),
                **facts,
                **({} if earlier is None else {"taken_over": reuse.describe(stats["align"].counts[REUSED])}),
            }
            files = pair_marks(scores, config, run.folder)
            tables = extra_tables(scores) if extra_tables else []
            scored = Scored(files, shards, stats["align"].statuses, sections, reuse, tables)
            _choose(run, config, scored, say)
    return run.record


def _open_input(config: CurateConfig, out: str) -> tuple[list[ShardPath], ScorerSpec]:
    """Return the shards, and the description of the scorer that they fit."""
    inputs.check_output(config.input, out)
    shards = inputs.expand_input(config.input, config.prepare.stored_embeddings, config.columns)
    if config.removed is not None:
        shards = filters.drop_shards(shards, config.removed)
    runs.check_shards_of_runs(shards)
    parquet.check_extra_columns(config.extra_columns)
    check_scorers(config.scorers, config.extra_columns, config.prepare.stored_embeddings is not None)
    check_own_columns(config)
    if config.has_marks:
        marks.check_markers(config, shards)
    check_writable(out)  # before a model is loaded
    check_tables(shards)
    running.refuse_early("curate", config, out)
    spec = describe_scorer(config.scorer)
    if config.prepare.stored_embeddings is not None:
        check_embeddings(shards, config.scorer.model, spec.embedding_dim)
    return shards, spec


def select(source: str, settings: Mapping[str, Any], out: str, say: Say = print) -> dict[str, Any]:
    """Choose again from the scores of the curation in ``source`` into ``out``; no model is loaded.

    ``settings`` are options by path ("align.keep": 0.6). Raises ValueError if one of them would change a
    score, or asks for a larger pool than was attributed (the error gives the largest), or needs unseen
    targets that the scores do not hold.
    """
    origin, out = Folder(absolute_uri(str(source))), absolute_uri(str(out))
    curated = read_finished(origin.uri)
    if curated["kind"] != "curate":
        raise ValueError(f"{origin.uri}: holds {curated['kind']}; name the curation that scored")
    scores = list_scores(curated, origin.uri)
    config = with_absolute_paths(rules.choose_config(curated["config"], settings, origin.uri))
    check_own_columns(config)
    inputs.check_output(config.input, out)
    try:
        shards = filters.list_shards(config)
        is_same = digest(inputs.fingerprint_shards(shards)) == curated["fingerprint"]["input"]
    except ValueError:
        is_same = False
    shards = shards if is_same else []
    if not shards and wants_shards(config, Folder(out)):
        raise ValueError(
            f"input={config.input!r}: is gone or was changed after scoring; set materialize=false"
        )
    # The run starts with the record that its options came from; the record is read again at the end.
    records = chain([curated], iter(partial(read_finished, origin.uri), None))
    rerun = command_line(f"raycomp select {shlex.quote(origin.uri)}", settings, out)
    num_bytes = partial(inputs.count_bytes, shards if config.materialize else [])
    fingerprint = lambda: _point_at(next(records), config)  # noqa: E731
    with start_run("select", config, fingerprint, out, say, rerun, num_bytes=num_bytes) as run:
        if run.is_finished:
            return run.record
        with connect(config.cluster, run.folder, run.lease.check, scores=False, say=say, num_bytes=num_bytes):
            facts = {}
            if config.has_marks:
                facts = marks.mark_rows(scores, config, run.folder, origin, run.work, shards)
            files = pair_marks(scores, config, run.folder)
            try:
                choosing.check_pool(files, config, read_config(curated["config"]), origin.uri)
            except ValueError:  # after the update that the error names, the same command starts anew
                for name in (WORK, MARKS):
                    run.folder.remove(name)
                raise
            known = [name for name in ("scorer_check", "coverage") if name in curated]
            sections: dict[str, Any] = {name: curated[name] for name in known}
            sections |= {"scores": origin.at("scores"), **facts}
            _choose(run, config, Scored(files, shards, {OK: curated["funnel"]["read"]}, sections), say)
    return run.record


def _fewer(config: CurateConfig) -> dict[str, Any]:
    """Return the options of a choice of 4/5 of the config's kept share; a draw's name holds its share."""
    keep = round(0.8 * config.attribute.keep, 4)
    rule = rules.get_rule(config.select.rule)
    name = "align_only" if rule.keeps_all else rules.name_draw(config.align.keep, keep)
    draw = {"select.rule": name} if rule.keeps_all or rule.attribute_by == rules.DRAW else {}
    return {"attribute.keep": keep, **draw}


def _point_at(curated: dict[str, Any], config: CurateConfig) -> dict[str, Any]:
    """Return the dependencies of a selection besides its options: the curation that scored, and own code."""
    return {
        "scores": runs.identify(curated),
        "shards": curated["fingerprint"]["shards"],
        **fingerprint_own("rule", config.select.rule),
        **(marks.fingerprint_markers(config) if config.has_marks else {}),
    }


def wants_shards(config: CurateConfig, folder: Folder) -> bool:
    """Return whether the kept samples are written as shards: by default for images and local output."""
    if config.materialize is None:
        return folder.is_local and config.prepare.stored_embeddings is None
    return config.materialize


def _fingerprint(config: CurateConfig, shards: list[ShardPath]) -> dict[str, Any]:
    """Return the dependencies of results besides the options.

    Raises ValueError if the parser is missing, or the model's tokenizer has no nonces.
    """
    if config.pool:
        tokens = architecture.load_tokens(config.scorer)
        architecture.NonceMaker(tokens, config.nonce.seed, config.scorer.model)
    lexicon = parser.PACKAGED.with_name("lexicon")
    return {
        **fingerprint_own("rule", config.select.rule),
        **fingerprint_scorers(config.scorers),
        **(marks.fingerprint_markers(config) if config.has_marks else {}),
        **({} if config.removed is None else {"removed": filters.hash_uri("removed", config.removed)}),
        "input": digest(inputs.fingerprint_shards(shards)),
        runs.TIMES: digest(inputs.list_times(shards)),
        "shards": len(shards),
        "scorer": architecture.fingerprint_scorer(config.scorer),
        "parser": parser.fingerprint_parser(config.parser.name),
        "lexicon": architecture.fingerprint_folder(lexicon),
        "nonces": digest([[*key, *texts] for key, texts in architecture.load_nonce_pools().items()]),
    }


def describe_coverage(stats: Stats) -> dict[str, Any]:
    """Return the share of the pool's captions with a valid counterfactual, and the phrases without by reason.

    ``of_captions`` compares with the paper's 99.79 %.
    """
    captions = stats.statuses.total()
    covered = stats.statuses[OK] + stats.statuses[words.NO_SEEN_PHRASE]
    with_phrase = captions - stats.statuses[words.NO_PHRASE]
    return {
        "captions": captions,
        "with_phrase": with_phrase,
        "with_nonce": covered,
        "of_captions": covered / captions if captions else None,
        "of_captions_with_phrase": covered / with_phrase if with_phrase else None,
        "phrases_without_nonce": dict(stats.counts.get(parquet.FAULTS, {})),
    }


def check_scorer(stats: Stats) -> dict[str, Any] | None:
    """Return how well alignments separate a sample of pairs from the same images with other captions."""
    matched, shuffled = (
        np.array(stats.samples.get(name, ())) for name in (ALIGNMENT, parquet.SHUFFLED_ALIGNMENT)
    )
    if not len(matched):
        return None
    return {
        "n": len(matched),
        "matched_mean": float(matched.mean()),
        "shuffled_mean": float(shuffled.mean()),
        "auc": float(auc(matched, shuffled)),
    }


def _choose(run: Run, config: CurateConfig, source: Scored, say: Say) -> None:
    """Cut the gates over the scores, write the kept rows, report: the part that curate and select share."""
    selection = make_selection(config)
    choice = choosing.choose(source.files, selection, run.folder, run.work, run.lease.check)
    run.end_dry_run()
    faults = describe_dropped("input", choice.faults, examples=choice.examples)
    shortage = choosing.describe_shortage(selection, choice.gates)  # the page derives it from its summary
    duplicates = choosing.describe_duplicates(choice.reasons, choice.gates.num_corpus)
    warnings = [*faults, *shortage, *duplicates, *source.sections.pop("unmatched", ())]
    for warning in warnings:
        say(warning)
    pas = choice.moments  # Score = (score - mean) / std is Eq. 5 of Go et al. (arXiv 2605.22651)
    moments = {} if pas is None else {"count": pas.count, "mean": pas.mean, "std": pas.std}
    run.close(
        source.read,
        choice.reasons,
        KEPT,
        choice.gates.num_corpus,
        rule=rules.describe_rule(config),
        gates=choice.gates.to_dict(),
        **({"pool_pas": moments} if moments else {}),
        warnings=warnings,
        **source.sections,
    )
    num_png, rewritten = 0, []
    if wants_shards(config, run.folder):
        uris = [file.uri for file in source.files]
        as_png = config.shard_images == "png"
        num_png = materialize(choice, source.shards, uris, run.folder, run.work, source.reuse, as_png)
    if num_png:
        why = "as asked" if as_png else "open_clip would read their bytes as other pictures"
        rewritten = [f"{num_png:,} of {choice.num_kept:,} images rewritten as PNG: {why}"]
        say(rewritten[0])
    run.record["images_rewritten"] = num_png
    choosing.write_kept(choice, run.folder, run.work, num_png > 0)
    page = draw_report(run.record, selection, choice, source, [*faults, *duplicates, *rewritten])
    run.report(f"kept {choice.num_kept:,} of {sum(source.read.values()):,} rows", page)


def draw_report(
    run: dict[str, Any], selection: SelectionRule, choice: Chosen, source: Scored, warnings: list[str]
) -> str:
    """Return the page of the run with record ``run``. Without shards the photos are grey tiles."""
    parts = map_files(
        summarise_scores,
        source.files,
        selection,
        choice.gates,
        label="report",
        fold=lambda found: [reduce(merge, found, Summary())],
    )
    summary = reduce(merge, parts, Summary())
    fingerprint = ", ".join(f"{name} {value}" for name, value in run["fingerprint"].items())
    tables = [*source.tables]
    if "coverage" in run:
        coverage = run["coverage"]
        rows = [
            ("captions attributed", coverage["captions"], None),
            ("of these, with a phrase", coverage["with_phrase"], None),
            ("of these, with a valid nonce", coverage["with_nonce"], None),
            ("share of all captions", None, coverage["of_captions"]),
            ("share of captions with a phrase", None, coverage["of_captions_with_phrase"]),
        ]
        lost = coverage["phrases_without_nonce"].items()
        rows += [(f"phrases without: {REASONS[why]}", n, None) for why, n in lost]
        note = "The paper reports 0.9979 of the captions processed (Go et al., arXiv 2605.22651)."
        tables.append(Table("Counterfactual coverage", ("What", "number", "share"), rows, note))
    if "near_duplicates" in run:
        total = max(choice.gates.num_corpus + choice.reasons[words.NEAR_DUPLICATE], 1)
        groups = []
        for name, one in run["near_duplicates"].items():
            rule = "all rules" if name == words.DUPLICATE_GROUP else name
            groups.append((rule, one["groups"], one["rows"], one["rows"] / total))
        note = "Rows in a group of two or more, of all that have an alignment and pass the filters."
        columns = ("Rule", "groups", "rows", Column("of all", digits=4))
        tables.append(Table("Near-duplicates", columns, groups, note))
    shown = {**run, "fingerprint": fingerprint, "warnings": warnings}
    by_name = {shard.name: shard for shard in source.shards}
    wanted: dict[str, dict[int, str]] = defaultdict(dict)
    for sample in choose_shown(summary).samples:
        if sample.shard in by_name and sample.position is not None:
            wanted[sample.shard][sample.position] = sample.uid
    named = [(by_name[name], uids) for name, uids in sorted(wanted.items())]
    jobs = [(shard, source.files[shard.ordinal].uri, uids) for shard, uids in named]
    photos = {uid: image for found in map_tasks(read_photos, jobs, label="photos") for uid, image in found}
    return render_curate(summary, photos, shown, make_funnel(summary.reasons), tables)


def summarise_scores(file: ScoresFile, selection: SelectionRule, gates: Gates) -> Summary:
    """Return the summary of one scores file; its samples are drawn independently of those of a rule."""
    shown = (UID, words.KEY, SHARD, POSITION, words.URL, CAPTION, STATUS, ALIGNMENT, PHRASES)
    columns = [*shown, *corpus_columns(selection.by_pas, with_attribute=True)]
    table, reason_N, score_N = choosing.judge_file(file, selection, gates, columns)
    table = table.append_column(PAS, choosing.rank_attributed(table, selection, gates))
    return summarise(table, reason_N, score_N, ~selection.seed)


def read_photos(job: tuple[ShardPath, str, dict[int, str]]) -> list[tuple[str, bytes]]:
    """Return (uid, image bytes) of samples of a shard by position, if the image is the scored one."""
    shard, uri, uids = job
    return [(uids[position], image) for position, image in stream_photos(shard, uri, uids)]


def stream_photos(shard: ShardPath, uri: str, positions: Collection[int]) -> Iterator[tuple[int, bytes]]:
    """Yield (position, image bytes) of samples of a shard, in order, if the image is the scored one.

    ``uri``: the shard's scores file.
    """
    hashes = parquet.read_columns(uri, [IMAGE_SHA256])[IMAGE_SHA256]
    for position, members in extract(shard, positions, read_offsets(uri)):
        name = find_image(members)
        image = members[name] if name else None
        if image is not None and hashlib.sha256(image).hexdigest() == hashes[position].as_py():
            yield position, image
