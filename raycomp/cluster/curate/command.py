"""The two runs that end in a subset: ``curate`` from shards, ``select`` from the scores of a curation."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from raycomp.cluster.curate.choose import choose, cut_pool
from raycomp.cluster.curate.materialize import materialize
from raycomp.cluster.curate.publish import publish_report
from raycomp.cluster.curate.score import Job, score
from raycomp.cluster.lease import Lease, hold_lease
from raycomp.cluster.record import bind_device, close_run, command_line, describe_run
from raycomp.cluster.runs import Say, check_unchanged, count_results, open_run, tidy, with_absolute_paths
from raycomp.cluster.session import connect
from raycomp.config import (
    CurateConfig,
    changed_dials,
    exact_share,
    find_rule,
    from_dict,
    name_draw,
    override,
    override_all,
)
from raycomp.config.rules import DRAW
from raycomp.loops.tables import check_extra_columns
from raycomp.models.clip import ScorerSpec, describe_scorer, fingerprint_scorer, load_tokenizer
from raycomp.models.nonces import NonceMaker, load_nonce_pools
from raycomp.models.parser import PACKAGED, fingerprint_folder, load_parser
from raycomp.report.markup import Table
from raycomp.shards.embeddings import check_embeddings
from raycomp.shards.files import check_writable
from raycomp.shards.folder import Folder
from raycomp.shards.inputs import check_output, expand_input
from raycomp.shards.paths import RUN, ShardPath, absolute_uri, fingerprint_shards
from raycomp.shards.runs import check_classed, digest, identify, list_scores, read_finished

# What ``select`` may change: nothing that a score depends on.
SELECT_DIALS = (
    "align.keep",
    "attribute.keep",
    "attribute.aggregate",
    "attribute.unseen",
    "select.",
    "materialize",
    "seed",
    "cluster.",
)

MakeTables = Callable[[list[str]], list[Table]]


def curate(
    config: CurateConfig, out: str, say: Say = print, extra_tables: MakeTables | None = None
) -> dict[str, Any]:
    """Curate ``config.input`` into the folder or ``s3://`` uri ``out``; return what run.json holds.

    ``extra_tables`` makes more sections of the report out of the scores files' uris. A finished run of the
    same config is left as it is; an unfinished one goes on. Raises ValueError for what the user can mend (bad
    dials, no input, no model, another run in ``out``) and TooMuchBadData.
    """
    folder = Folder(absolute_uri(str(out)))
    config = with_absolute_paths(config)
    check_output(config.input, folder.uri)
    shards = expand_input(config.input, config.prepare.stored_embeddings)
    check_extra_columns(config.extra_columns)
    check_writable(folder.uri)
    spec = describe_scorer(config.scorer)
    check_embeddings(shards, config.scorer.model, spec.embedding_dim)
    if not spec.shares_prefixes:
        say(
            f"{config.scorer.model}: its text tower is not causal with the result at end-of-text; "
            f"every counterfactual is encoded whole"
        )
    commands = {
        "Rerun": command_line("raycomp curate", changed_dials(config), folder.uri),
        "Choose again": command_line(
            f"raycomp select {shlex.quote(folder.uri)}", _fewer(config), f"{folder.uri}-2"
        ),
    }
    run = describe_run("curate", config, _fingerprint(config, shards), commands)
    with hold_lease(folder) as lease:
        finished = open_run(folder, run, say)
        return finished or _curate(run, config, spec, shards, folder, lease, say, extra_tables)


def _fewer(config: CurateConfig) -> dict[str, Any]:
    """Return the dials of a choice of four in five of what the config keeps; a draw's name says its share."""
    keep = round(0.8 * config.attribute.keep, 4)
    if find_rule(config.select.rule).gate_2 != DRAW:
        return {"attribute.keep": keep}
    return {"attribute.keep": keep, "select.rule": name_draw(config.align.keep, keep)}


def _curate(
    run: dict[str, Any],
    config: CurateConfig,
    spec: ScorerSpec,
    shards: list[ShardPath],
    folder: Folder,
    lease: Lease,
    say: Say,
    extra_tables: MakeTables | None,
) -> dict[str, Any]:
    with connect(config.cluster) as session:
        if folder.is_local and session.num_nodes > 1:
            say(f"{folder.uri} is a local folder: all {session.num_nodes} nodes must share it")
        run = bind_device(folder, run, session.device)
        work = Folder(folder.at("work"))
        job = Job(config, spec, shards, folder, work, session, lease.check)
        stats = score(job)
        check_unchanged(run["fingerprint"], _fingerprint(config, shards))
        scores = [job.scores_uri(ordinal) for ordinal in job.ordinals]
        choice = choose(scores, config, folder, work, lease.check)
        run = close_run({**run, "scores": folder.at("scores")}, config, choice, stats, job.stage_workers)
        if wants_shards(config, folder):
            materialize(choice, shards, scores, folder, work)
        tables = extra_tables(scores) if extra_tables else []
        publish_report(folder, run, config, choice, scores, shards, tables)
    lease.check()
    return _finish(folder, run, say)


def select(source: str, settings: Mapping[str, Any], out: str, say: Say = print) -> dict[str, Any]:
    """Choose again from the scores of the curation in ``source`` into ``out``; no model is loaded.

    ``settings`` are dials by path ("align.keep": 0.6). Raises ValueError where one of them would change a
    score, or asks for a larger pool than was attributed (it names the largest), and where the scores know
    no unseen targets.
    """
    origin, folder = Folder(absolute_uri(str(source))), Folder(absolute_uri(str(out)))
    curated = read_finished(origin.uri)
    if curated["kind"] != "curate":
        raise ValueError(f"{origin.uri}: holds {curated['kind']}; name the curation that scored")
    check_classed(curated, origin.uri)
    config = _choose_config(curated["config"], settings)
    check_output(config.input, folder.uri)
    check_writable(folder.uri)
    commands = {"Rerun": command_line(f"raycomp select {shlex.quote(origin.uri)}", settings, folder.uri)}
    fingerprint = _point_at(curated)
    run = describe_run("select", config, fingerprint, commands)
    shards = _same_shards(config, curated)
    if not shards and wants_shards(config, folder):
        raise ValueError(
            f"input={config.input!r}: is gone or was changed after scoring; set materialize=false"
        )
    with hold_lease(folder) as lease:
        finished = open_run(folder, run, say)
        if finished:
            return finished
        with connect(config.cluster):
            work = Folder(folder.at("work"))
            scores = list_scores(curated, origin.uri)
            _check_pool(scores, config, from_dict(CurateConfig(), curated["config"]))
            choice = choose(scores, config, folder, work, lease.check)
            known = {name: curated[name] for name in ("scorer_check", "coverage") if name in curated}
            run = close_run({**run, **known, "scores": origin.at("scores")}, config, choice, {}, {})
            if wants_shards(config, folder):
                materialize(choice, shards, scores, folder, work)
            publish_report(folder, run, config, choice, scores, shards, [])
        check_unchanged(fingerprint, _point_at(read_finished(origin.uri)))
        lease.check()
        return _finish(folder, run, say)


def _point_at(curated: dict[str, Any]) -> dict[str, Any]:
    """Return what a selection depends on beside its dials: the curation that scored."""
    return {"scores": identify(curated), "shards": curated["fingerprint"]["shards"]}


def wants_shards(config: CurateConfig, folder: Folder) -> bool:
    """Return whether the kept samples are written as shards: by default images that go to a local output."""
    if config.materialize is None:
        return folder.is_local and config.prepare.stored_embeddings is None
    return config.materialize


def _choose_config(curated: dict[str, Any], settings: Mapping[str, Any]) -> CurateConfig:
    """Return the curation's config with ``settings``, or say why its scores cannot serve them."""
    for path in settings:
        if not path.startswith(SELECT_DIALS):
            allowed = ", ".join(dial + "*" if dial.endswith(".") else dial for dial in SELECT_DIALS)
            raise ValueError(f"{path}: select cannot change it, its dials are {allowed}; run curate instead")
    scored = from_dict(CurateConfig(), curated)
    config = override_all(scored, {"attribute.pool": None, **settings})
    if find_rule(config.select.rule).gate_2 and config.align.keep > scored.pool:
        raise ValueError(
            f"align.keep={config.align.keep}: must be at most {scored.pool}, the share of the corpus that "
            f"was attributed; curate with a larger attribute.pool"
        )
    return config


def _check_pool(scores: list[str], config: CurateConfig, scored: CurateConfig) -> None:
    """Raise ValueError where DataComp's rule keeps ties at the first gate that were not attributed."""
    compat = config.select.datacomp_compat and find_rule(config.select.rule).gate_2
    if not compat or scored.select.datacomp_compat or scored.pool == 1:
        return
    first = cut_pool(scores, override(config, "attribute.pool", None))
    attributed = exact_share(scored.pool, first["gates"]["num_corpus"])
    if sum(first["sizes"]) > attributed:
        raise ValueError(
            f"select.datacomp_compat=true: gate 1 keeps {sum(first['sizes']):,} pairs with their ties, of "
            f"which {attributed:,} were attributed; curate with it, or with a larger attribute.pool"
        )


def _fingerprint(config: CurateConfig, shards: list[ShardPath]) -> dict[str, Any]:
    """Return what results depend on beside the dials.

    Raises ValueError where the parser is missing, or the model's tokenizer has no nonces.
    """
    if config.pool:
        NonceMaker(load_tokenizer(config.scorer), config.nonce.seed, config.scorer.model)
    return {
        "input": digest(fingerprint_shards(shards)),
        "shards": len(shards),
        "scorer": fingerprint_scorer(config.scorer),
        "parser": load_parser(config.parser.name).fingerprint,
        "lexicon": fingerprint_folder(PACKAGED.with_name("lexicon")),
        "nonces": digest([[*key, *words] for key, words in load_nonce_pools().items()]),
    }


def _same_shards(config: CurateConfig, curated: dict[str, Any]) -> list[ShardPath]:
    """Return the input's shards if they still are those that were scored, else none."""
    try:
        shards = expand_input(config.input, config.prepare.stored_embeddings)
        found = digest(fingerprint_shards(shards))
    except ValueError:
        return []
    return shards if found == curated["fingerprint"]["input"] else []


def _finish(folder: Folder, run: dict[str, Any], say: Say) -> dict[str, Any]:
    run = {**run, "results": count_results(folder)}
    folder.write_json(run, RUN)
    tidy(folder)
    funnel = run["funnel"]
    say(f"kept {funnel['kept']:,} of {funnel['read']:,} rows; report: {folder.at('report.html')}")
    return run
