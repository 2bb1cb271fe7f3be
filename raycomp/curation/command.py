"""The two commands that write a subset: ``curate`` from shards, ``select`` from the scores of a curation."""

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from raycomp.config.own_code import fingerprint_own
from raycomp.core.attribution import Moments
from raycomp.curation.choose import choose, write_kept
from raycomp.curation.config import (
    CurateConfig,
    choose_config,
    describe_rule,
    find_selection,
    read_config,
)
from raycomp.curation.contamination import fingerprint_index
from raycomp.curation.exclusion import fingerprint_filter
from raycomp.curation.marks import MARKS, check_markers, mark_rows, pair_marks
from raycomp.curation.materialize import materialize
from raycomp.curation.measures import check_own_columns
from raycomp.curation.own_scorers import check_scorers, fingerprint_scorers
from raycomp.curation.plan import plan
from raycomp.curation.pool import check_pool
from raycomp.curation.publish import check_scorer, describe_coverage, draw_report
from raycomp.curation.removal import fingerprint_removed, list_shards
from raycomp.curation.reuse import Reuse, describe_reuse, find_reuse
from raycomp.curation.rules import DRAW, find_rule, name_draw
from raycomp.curation.score import Scoring, check_aligned, score
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import describe_duplicates, describe_shortage
from raycomp.data.arrow import check_extra_columns
from raycomp.data.embeddings import check_embeddings
from raycomp.data.files import check_writable
from raycomp.data.folder import Folder
from raycomp.data.image_inputs import check_tables
from raycomp.data.inputs import check_output
from raycomp.data.paths import WORK, ShardPath, absolute_uri, count_bytes, fingerprint_shards, list_times
from raycomp.data.runs import (
    TIMES,
    check_shards_of_runs,
    digest,
    identify,
    list_scores,
    read_finished,
)
from raycomp.data.whole import with_absolute_paths
from raycomp.models.describe import describe_scorer, fingerprint_scorer
from raycomp.models.nonces import NonceMaker, load_nonce_pools
from raycomp.models.parser import PACKAGED, fingerprint_folder, fingerprint_parser
from raycomp.models.spec import ScorerSpec
from raycomp.models.tokens import load_tokens
from raycomp.run.bad_data import describe_dropped
from raycomp.run.opening import refuse_early
from raycomp.run.record import describe_phases, describe_stages
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.run.session import connect
from raycomp.table import Table
from raycomp.words import KEPT, OK

MakeTables = Callable[[list[str]], list[Table]]


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
    again = command_line(f"raycomp select {shlex.quote(out)}", _fewer(config), f"{out}-2")
    fingerprint = partial(_fingerprint, config, shards)
    again_too, cost = {"Choose again": again}, partial(plan, config)
    with start_run("curate", config, fingerprint, out, say, commands=again_too, cost=cost) as run:
        if run.is_finished:
            return run.record
        with connect(
            config.cluster, run.folder, run.lease.check, say=say, num_bytes=lambda: count_bytes(shards)
        ) as session:
            if run.folder.is_local and session.num_nodes > 1:
                say(f"{out} is a local folder: all {session.num_nodes} nodes must share it")
            if run.is_stale and config.prepare.stored_embeddings is None:
                check_aligned(shards, run.work)
                run.is_stale = False
            run.bind(session.device, session.gpu)
            reuse = Reuse() if earlier is None else find_reuse(earlier, shards)
            for warning in reuse.check(run.record, earlier or out):
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
                **({} if earlier is None else describe_reuse(reuse)),
            }
            tables = extra_tables(scores) if extra_tables else []
            files = pair_marks(scores, config, run.folder)
            _choose(run, config, shards, files, stats["align"].statuses, sections, tables, say, reuse)
    return run.record


def _open_input(config: CurateConfig, out: str) -> tuple[list[ShardPath], ScorerSpec]:
    """Return the shards, and the description of the scorer that they fit."""
    check_output(config.input, out)
    shards = list_shards(config)
    check_shards_of_runs(shards)
    check_extra_columns(config.extra_columns)
    check_scorers(config.scorers, config.extra_columns, config.prepare.stored_embeddings is not None)
    check_own_columns(config)
    check_markers(config, shards)
    check_writable(out)  # before a model is loaded
    check_tables(shards)
    refuse_early("curate", config, out)
    spec = describe_scorer(config.scorer)
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
    config = with_absolute_paths(choose_config(curated["config"], settings, origin.uri))
    check_own_columns(config)
    check_output(config.input, out)
    shards = _same_shards(config, curated)
    if not shards and wants_shards(config, Folder(out)):
        raise ValueError(
            f"input={config.input!r}: is gone or was changed after scoring; set materialize=false"
        )
    # The run starts with the record that its options came from; the record is read again at the end.
    records = chain([curated], iter(partial(read_finished, origin.uri), None))
    rerun = command_line(f"raycomp select {shlex.quote(origin.uri)}", settings, out)
    with start_run("select", config, lambda: _point_at(next(records), config), out, say, rerun) as run:
        if run.is_finished:
            return run.record
        with connect(
            config.cluster,
            run.folder,
            run.lease.check,
            scores=False,
            say=say,
            num_bytes=lambda: count_bytes(shards) if config.materialize else 0,
        ):
            facts = mark_rows(scores, config, run.folder, origin, run.work, shards)
            files = pair_marks(scores, config, run.folder)
            try:
                check_pool(files, config, read_config(curated["config"]), origin.uri)
            except ValueError:  # after the update that the error names, the same command starts anew
                for name in (WORK, MARKS):
                    run.folder.remove(name)
                raise
            known = [name for name in ("scorer_check", "coverage") if name in curated]
            sections: dict[str, Any] = {name: curated[name] for name in known}
            sections |= {"scores": origin.at("scores"), **facts}
            _choose(run, config, shards, files, {OK: curated["funnel"]["read"]}, sections, [], say)
    return run.record


def _choose(
    run: Run,
    config: CurateConfig,
    shards: list[ShardPath],
    scores: list[ScoresFile],
    read: Mapping[str, int],
    sections: dict[str, Any],
    tables: list[Table],
    say: Say,
    reuse: Reuse | None = None,
) -> None:
    """Do the shared part of curate and select: cut the gates over ``scores``, write the kept rows, report."""
    selection = find_selection(config)
    choice = choose(scores, selection, run.folder, run.work, run.lease.check)
    warnings = [
        *describe_dropped("input", choice.faults),
        *describe_shortage(selection, choice.gates),
        *describe_duplicates(choice.reasons, choice.gates.num_corpus),
    ]
    for warning in warnings:
        say(warning)
    run.close(
        read,
        choice.reasons,
        KEPT,
        choice.gates.num_corpus,
        rule=describe_rule(config),
        gates=choice.gates.to_dict(),
        **describe_moments(choice.moments),
        warnings=warnings,
        **sections,
    )
    has_images = False
    if wants_shards(config, run.folder):
        has_images = materialize(choice, shards, [file.uri for file in scores], run.folder, run.work, reuse)
    write_kept(choice, run.folder, run.work, has_images)
    page = draw_report(run.record, selection, choice, scores, shards, tables)
    run.report(f"kept {choice.num_kept:,} of {sum(read.values()):,} rows", page)


def describe_moments(moments: Moments | None) -> dict[str, Any]:
    """Return the pool's PAS: Score = (score - mean) / std is Eq. 5 of Go et al. (arXiv 2605.22651)."""
    if moments is None:
        return {}
    return {"pool_pas": {"count": moments.count, "mean": moments.mean, "std": moments.std}}


def _fewer(config: CurateConfig) -> dict[str, Any]:
    """Return the options of a choice of 4/5 of the config's kept share; a draw's name holds its share."""
    keep = round(0.8 * config.attribute.keep, 4)
    if find_rule(config.select.rule).attribute_by != DRAW:
        return {"attribute.keep": keep}
    return {"attribute.keep": keep, "select.rule": name_draw(config.align.keep, keep)}


def _point_at(curated: dict[str, Any], config: CurateConfig) -> dict[str, Any]:
    """Return the dependencies of a selection besides its options: the curation that scored, and own code."""
    scored = {"scores": identify(curated), "shards": curated["fingerprint"]["shards"]}
    return {
        **scored,
        **fingerprint_own("rule", config.select.rule),
        **fingerprint_filter(config.filter),
        **fingerprint_index(config.decontaminate),
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
        NonceMaker(load_tokens(config.scorer), config.nonce.seed, config.scorer.model)
    return {
        **fingerprint_own("rule", config.select.rule),
        **fingerprint_scorers(config.scorers),
        **fingerprint_filter(config.filter),
        **fingerprint_index(config.decontaminate),
        **fingerprint_removed(config.removed),
        "input": digest(fingerprint_shards(shards)),
        TIMES: digest(list_times(shards)),
        "shards": len(shards),
        "scorer": fingerprint_scorer(config.scorer),
        "parser": fingerprint_parser(config.parser.name),
        "lexicon": fingerprint_folder(PACKAGED.with_name("lexicon")),
        "nonces": digest([[*key, *words] for key, words in load_nonce_pools().items()]),
    }


def _same_shards(config: CurateConfig, curated: dict[str, Any]) -> list[ShardPath]:
    """Return the input's shards if they are still the scored ones, else none."""
    try:
        shards = list_shards(config)
        found = digest(fingerprint_shards(shards))
    except ValueError:
        return []
    return shards if found == curated["fingerprint"]["input"] else []
