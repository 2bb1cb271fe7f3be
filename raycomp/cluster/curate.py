"""The two runs that end in a subset: ``curate`` from shards, ``select`` from the scores of a curation."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from raycomp.cluster.choose import choose
from raycomp.cluster.materialize import materialize
from raycomp.cluster.publish import publish_report
from raycomp.cluster.record import (
    RUN,
    close_run,
    command_line,
    describe_run,
    read_run,
    refuse_other,
)
from raycomp.cluster.score import Job, score
from raycomp.cluster.session import connect
from raycomp.config import CurateConfig, changed_dials, from_dict, override_all
from raycomp.models.clip import ScorerSpec, describe_scorer
from raycomp.models.nonces import load_nonce_pools
from raycomp.models.parser import load_parser
from raycomp.report.markup import Table
from raycomp.shards.files import check_writable
from raycomp.shards.folder import Folder
from raycomp.shards.paths import ShardPath, expand_input, fingerprint_shards

# What ``select`` may change: nothing that a score depends on.
SELECT_DIALS = (
    "align.keep",
    "attribute.keep",
    "attribute.aggregate",
    "select.",
    "materialize",
    "seed",
    "cluster.",
)

Say = Callable[[str], None]
MakeTables = Callable[[list[str]], list[Table]]


def curate(
    config: CurateConfig, out: str, say: Say = print, extra_tables: MakeTables | None = None
) -> dict[str, Any]:
    """Curate ``config.input`` into the folder or ``s3://`` uri ``out``; return what run.json holds.

    ``extra_tables`` makes more sections of the report out of the scores files' uris. A finished run of the
    same config is left as it is; an unfinished one goes on. Raises ValueError for what the user can mend (bad
    dials, no input, no model, another run in ``out``) and TooMuchBadData.
    """
    folder = Folder(str(out))
    shards = expand_input(config.input)
    previous = read_run(folder)
    check_writable(folder.uri)
    spec = describe_scorer(config.scorer)
    again = f"raycomp select {folder.uri} --set align.keep=0.6 --set attribute.keep=0.4 --out {folder.uri}-2"
    commands = {
        "Rerun": command_line("raycomp curate", changed_dials(config), folder.uri),
        "Choose again": again,
    }
    run = describe_run("curate", config, _fingerprint(config, shards, spec), commands)
    if previous:
        refuse_other(previous, run, folder)
        if previous["status"] == "finished":
            say(f"{folder.uri} is finished already; nothing to do")
            return previous
    folder.write_json(run, RUN)
    with connect(config.cluster) as session:
        work = Folder(folder.at("work"))
        job = Job(config, spec, shards, folder, work, session)
        stats = score(job)
        scores = [job.scores_uri(ordinal) for ordinal in job.ordinals]
        choice = choose(scores, config, folder, work)
        run = close_run({**run, "scores": folder.at("scores")}, config, choice, stats, job.stage_workers)
        if wants_shards(config, folder):
            materialize(choice, shards, scores, folder, work)
        tables = extra_tables(scores) if extra_tables else []
        publish_report(folder, run, config, choice, scores, shards, tables)
    return _finish(folder, run, say)


def select(source: str, settings: Mapping[str, Any], out: str, say: Say = print) -> dict[str, Any]:
    """Choose again from the scores of the curation in ``source`` into ``out``; no model is loaded.

    ``settings`` are dials by path ("align.keep": 0.6). Raises ValueError where one of them would change a
    score, or asks for a larger pool than was attributed (it names the largest).
    """
    origin, folder = Folder(str(source)), Folder(str(out))
    curated = origin.read_json(RUN) if origin.exists(RUN) else None
    if not curated or curated["status"] != "finished":
        raise ValueError(f"{origin.uri}: holds no finished curation ({RUN})")
    config = _choose_config(curated["config"], settings)
    scores_folder = curated["scores"] if Folder(curated["scores"]).exists() else origin.at("scores")
    start = f"raycomp select {origin.uri}"
    commands = {"Rerun": command_line(start, settings, folder.uri)}
    run = describe_run("select", config, {"scores": _digest(curated["fingerprint"])}, commands)
    previous = read_run(folder)
    check_writable(folder.uri)
    if previous:
        refuse_other(previous, run, folder)
        if previous["status"] == "finished":
            say(f"{folder.uri} is finished already; nothing to do")
            return previous
    shards = _same_shards(config, curated)
    if not shards and wants_shards(config, folder):
        raise ValueError(
            f"input={config.input!r}: is gone or has changed since it was scored; set materialize=false"
        )
    folder.write_json(run, RUN)
    with connect(config.cluster):
        work = Folder(folder.at("work"))
        scores = [f"{scores_folder}/{name}" for name in Folder(scores_folder).list_names()]
        choice = choose(scores, config, folder, work)
        kept_stats = {name: curated[name] for name in ("scorer_check", "coverage") if name in curated}
        run = close_run({**run, **kept_stats, "scores": scores_folder}, config, choice, {}, {})
        if wants_shards(config, folder):
            materialize(choice, shards, scores, folder, work)
        publish_report(folder, run, config, choice, scores, shards, [])
    return _finish(folder, run, say)


def wants_shards(config: CurateConfig, folder: Folder) -> bool:
    """Return whether the kept samples are written as shards: by default where the output is local."""
    return folder.is_local if config.materialize is None else config.materialize


def _choose_config(curated: dict[str, Any], settings: Mapping[str, Any]) -> CurateConfig:
    """Return the curation's config with ``settings``, or say why its scores cannot serve them."""
    for path in settings:
        if not path.startswith(SELECT_DIALS):
            allowed = ", ".join(dial + "*" if dial.endswith(".") else dial for dial in SELECT_DIALS)
            raise ValueError(f"{path}: select cannot change it, its dials are {allowed}; run curate instead")
    scored = from_dict(CurateConfig(), curated)
    config = override_all(scored, {"attribute.pool": None, **settings})
    if config.select.rule == "cpi" and config.align.keep > scored.pool:
        raise ValueError(
            f"align.keep={config.align.keep}: must be at most {scored.pool}, the share of the corpus that "
            f"was attributed; curate with a larger attribute.pool"
        )
    return config


def _fingerprint(config: CurateConfig, shards: list[ShardPath], spec: ScorerSpec) -> dict[str, Any]:
    """Return what results depend on beside the dials. Raises ValueError where the parser is missing."""
    return {
        "input": _digest(fingerprint_shards(shards)),
        "shards": len(shards),
        "scorer": spec.fingerprint,
        "parser": load_parser(config.parser.name).fingerprint,
        "nonces": _digest([[*key, *words] for key, words in load_nonce_pools().items()]),
    }


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _same_shards(config: CurateConfig, curated: dict[str, Any]) -> list[ShardPath]:
    """Return the input's shards if they still are those that were scored, else none."""
    try:
        shards = expand_input(config.input)
    except ValueError:
        return []
    return shards if _digest(fingerprint_shards(shards)) == curated["fingerprint"]["input"] else []


def _finish(folder: Folder, run: dict[str, Any], say: Say) -> dict[str, Any]:
    folder.write_json(run, RUN)
    folder.remove("work")
    funnel = run["funnel"]
    say(f"kept {funnel['kept']:,} of {funnel['read']:,} rows; report: {folder.at('report.html')}")
    return run
