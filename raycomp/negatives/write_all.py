"""Write the negatives of every file of captions: propose or ask, rank, judge, merge; reuse an earlier
run's.

The inputs of a caption are its uid and text, the other captions of its image, its fold and status, and the
image's embedding where a scorer ranks. ``state/`` keeps a digest of them, row for row with ``negatives/``.
"""

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.data.files import Folder
from raycomp.data.manifest import read_manifest
from raycomp.data.parquet import (
    FAULTS,
    OTHERS,
    digest_rows,
    read_columns,
    read_groups,
    read_schema,
    write_groups,
    write_table,
)
from raycomp.data.paths import join_uri
from raycomp.data.runs import TIMES, read_finished
from raycomp.negatives.ask import (
    PROMPT_SCHEMA,
    PromptSource,
    ask,
    compact_replies,
    read_replies,
    to_prompt_table,
)
from raycomp.negatives.captions import FOLD, CaptionFile, load_captions
from raycomp.negatives.config import SUGGEST, NegativesConfig, WritingConfig
from raycomp.negatives.engines import find_prompts, keep_likeliest, write_by_replies, write_by_rules
from raycomp.negatives.judges import (
    NGRAMS,
    TILTING_FILE,
    load_ngrams,
    take_models,
    write_context,
    write_ngrams,
    write_photos,
)
from raycomp.negatives.refine import (
    Bin,
    draw_file,
    find_thresholds,
    fit_all,
    load_refined,
    read_thresholds,
    write_thresholds,
    write_tiltings,
)
from raycomp.negatives.write import choose_negatives, drop_far, drop_suspects
from raycomp.run.executor import CPUS, SCORERS, Stage
from raycomp.run.lease import Lease
from raycomp.run.passes import Part, Pass, Stats, read_parts
from raycomp.run.session import Session
from raycomp.run.waves import Phase, map_files, map_tasks
from raycomp.schema import COMPARISON_TYPE, NEGATIVES_SCHEMA
from raycomp.words import (
    CAPTION,
    COMPARISON,
    IMAGE_EMBEDDING,
    KEY,
    POSITION,
    SHARD,
    SHARD_ORDINAL,
    STATUS,
    UID,
)

if TYPE_CHECKING:
    from raycomp.negatives.ranking import Rank


STATE, FILES = "state", "files.json"
INPUTS = "inputs"
_OTHERS = ("input", TIMES, "frozen")
"""Entries of a fingerprint that a caption's negatives do not depend on: each row's inputs are compared."""
_DIGEST_BYTES = 16
_ROWS = 10_000
_STATE_SCHEMA = pa.schema([(UID, pa.string()), (INPUTS, pa.binary(_DIGEST_BYTES))])
_WRITTEN = [name for name in NEGATIVES_SCHEMA.names if name != UID]
Earlier = Mapping[str, tuple[str, str]]
"""Negatives and state of an earlier run, by the name of the file of captions."""


class Plan(NamedTuple):
    """What of a run is written anew."""

    sources: list[CaptionFile]
    totals: dict[int, int]
    """Captions to be written, by number of the file."""
    statuses: Counter[str]
    """Of the rows that are taken over."""


def find_earlier(previous: str | None, fingerprint: Mapping[str, Any]) -> Earlier:
    """Return the files of a finished run; empty without one, and if it has other models.

    ``fingerprint``: what the present run depends on.
    """
    if previous is None:
        return {}
    run = read_finished(previous)
    now = {name: value for name, value in fingerprint.items() if name not in _OTHERS}
    if any(run["fingerprint"].get(name) != value for name, value in now.items()):
        return {}
    files = read_manifest(Folder(previous))
    names = Folder(files[f"{STATE}/{FILES}"].uri).read_json()
    return {
        name: (files[f"negatives/{i:05d}.parquet"].uri, files[f"{STATE}/{i:05d}.parquet"].uri)
        for i, name in enumerate(names)
    }


def plan_rows(sources: list[CaptionFile], earlier: Earlier, out: Folder, work: Folder) -> Plan:
    """Compare the inputs of all captions with those of an earlier run; write ``state/``, and to ``work`` the
    earlier negatives of each row, null where it is written anew.

    ``earlier``: empty = all captions are written anew.
    """
    found = list(map_files(_compare_file, sources, earlier, out, work, label="compare"))
    out.write_json([name for name, _, _ in found], STATE, FILES)
    named = [replace(source, rows=_name_rows(work, source.ordinal)) for source in sources]
    totals = {source.ordinal: count for source, (_, count, _) in zip(sources, found, strict=True)}
    return Plan(named, totals, sum((counted for _, _, counted in found), Counter()))


def _name_rows(work: Folder, ordinal: int) -> str:
    return work.at("rows", f"{ordinal:05d}.parquet")


def _compare_file(
    source: CaptionFile, earlier: Earlier, out: Folder, work: Folder
) -> tuple[str, int, Counter[str]]:
    """Return a file's name, how many of its captions are written, and the statuses of the others."""
    tables = list(load_captions(source, _ROWS))
    digests = [one for table in tables for one in _digest(table)]
    uids = [uid for table in tables for uid in table[UID].to_pylist()]
    columns = [pa.array(uids, pa.string()), pa.array(digests, pa.binary(_DIGEST_BYTES))]
    state = pa.table(columns, schema=_STATE_SCHEMA)
    write_table(state, out.at(STATE, f"{source.ordinal:05d}.parquet"), _STATE_SCHEMA)
    name = _name_file(source)
    known = _find_known(digests, *earlier[name]) if name in earlier else _no_rows(len(digests))
    rows = known.add_column(0, UID, state[UID])
    write_table(rows, _name_rows(work, source.ordinal), NEGATIVES_SCHEMA)
    counted = Counter(known[STATUS].drop_null().to_pylist())
    return name, len(digests) - counted.total(), counted


def _digest(table: pa.Table) -> list[bytes]:
    names = [UID, CAPTION, OTHERS, STATUS, FOLD]
    names += [IMAGE_EMBEDDING] if IMAGE_EMBEDDING in table.column_names else []
    return [one[:_DIGEST_BYTES] for one in digest_rows([table[name] for name in names], len(table))]


def _name_file(source: CaptionFile) -> str:
    """Return the name by which a file is found again: its shard's, or its own."""
    if SHARD in read_schema(source.uri).names:
        return read_columns(source.uri, [SHARD])[SHARD][0].as_py()
    return posixpath.basename(source.uri)


def _find_known(digests: list[bytes], negatives: str, state: str) -> pa.Table:
    """Return the earlier results of rows with the same inputs, null for others."""
    place = {one: row for row, one in enumerate(read_columns(state, [INPUTS])[INPUTS].to_pylist())}
    row_N = np.array([place.get(one, -1) for one in digests], np.int64)
    return read_columns(negatives).select(_WRITTEN).take(pa.array(row_N, mask=row_N < 0))


def _no_rows(num_rows: int) -> pa.Table:
    fields = [NEGATIVES_SCHEMA.field(name) for name in _WRITTEN]
    return pa.table([pa.nulls(num_rows, field.type) for field in fields], schema=pa.schema(fields))


def join_earlier(rows_uri: str, written: pa.Table) -> pa.Table:
    """Return all rows of a file: those that are taken over, and those written anew, by their positions."""
    rows = read_columns(rows_uri)
    new = written.select(NEGATIVES_SCHEMA.names).cast(NEGATIVES_SCHEMA)
    row_N = np.arange(len(rows))
    row_N[written[POSITION].to_numpy()] = len(rows) + np.arange(len(written))
    return pa.concat_tables([rows, new]).take(pa.array(row_N))


# Captions that a ranking actor takes at a time, per thread of a CPU or for a GPU.
_CAPTIONS_PER_CALL = {"cpu": 64, "gpu": 512}
# Captions whose replies are read together.
ROWS_WITH_REPLIES = 10_000
_PART_SCHEMA = NEGATIVES_SCHEMA.append(pa.field(POSITION, pa.int32())).append(
    pa.field(COMPARISON, COMPARISON_TYPE)
)
_CANDIDATES_SCHEMA = pa.schema([(SHARD_ORDINAL, pa.int32()), (POSITION, pa.int32()), *NEGATIVES_SCHEMA])
_CALLS_SCHEMA = pa.schema([NEGATIVES_SCHEMA.field(UID), NEGATIVES_SCHEMA.field(CAPTION), *COMPARISON_TYPE])


@dataclass(frozen=True)
class Writing:
    """One run: its config, files of captions and output."""

    config: NegativesConfig
    sources: list[CaptionFile]
    out: Folder
    work: Folder
    session: Session
    lease: Lease

    def exports(self, name: str) -> bool:
        """Whether an export was requested."""
        return name in self.config.negatives.export

    @property
    def replies_uri(self) -> str:
        """Path of a language model's replies."""
        return self.out.at("replies")

    @property
    def ngrams_uri(self) -> str:
        """Path of the counts that the n-gram judge reads."""
        return self.out.at("judges", "ngrams.parquet")

    @property
    def context_uri(self) -> str:
        """Path of the counts that the rules draw by."""
        return self.out.at("context.parquet")

    @property
    def photos_uri(self) -> str:
        """Path of the photos that all are compared with."""
        return self.out.at("judges", "photos.parquet")

    @property
    def written(self) -> list[str]:
        """Path of each file's negatives."""
        return [self.out.at("negatives", f"{source.ordinal:05d}.parquet") for source in self.sources]


def write_all(writing: Writing, totals: dict[int, int]) -> dict[str, Stats]:
    """Write ``negatives/``: one file per file of captions. Returns the stats of each phase."""
    config, folder = writing.config.negatives, writing.out.at("negatives")
    if config.frozen:
        take_models(config, writing.out)
    else:
        _count_corpus(writing, sum(totals.values()))
    calls = writing.out.at("exports", "calls") if writing.exports("calls") else None
    if config.refine == "none":
        return {"negatives": _run_phase("negatives", writing, totals, _first_pass(writing), folder, calls)}
    candidates = writing.work.at("candidates")
    found = _run_phase("candidates", writing, totals, _first_pass(writing), candidates)
    load = refine_files(writing, candidates, sum(totals.values()))
    kept = _run_phase("negatives", writing, totals, _second_pass(writing, load), folder)
    return {"candidates": found, "negatives": kept}


def _count_corpus(writing: Writing, num_captions: int) -> None:
    """Count what the rules and judges need to know of all captions."""
    config = writing.config.negatives
    if NGRAMS in config.judge:
        write_ngrams(writing.sources, num_captions, writing.ngrams_uri)
    if config.screen:
        write_photos(writing.sources, writing.photos_uri)
    if config.context or config.screen:
        write_context(writing.sources, num_captions, writing.config.parser, writing.context_uri)


def refine_files(writing: Writing, candidates: str, num_captions: int) -> Callable[..., Iterator[pa.Table]]:
    """Fit, draw and balance; return the function that loads a file's captions with what stays."""
    config = writing.config.negatives
    names = [f"{source.ordinal:05d}.parquet" for source in writing.sources]
    files = [(join_uri(candidates, name), join_uri(writing.work.at("drawn"), name)) for name in names]
    fitted_uri = writing.out.at(TILTING_FILE)
    if not config.frozen:
        write_tiltings(fit_all([uri for uri, _ in files], num_captions, config), fitted_uri)
    counts: Counter[Bin] = Counter()
    for counted in map_files(draw_file, files, fitted_uri, config, label="draw"):
        counts.update(counted)
    drawn = [uri for _, uri in files]
    thresholds = {}
    if config.refine == "balance":
        if not config.frozen:
            write_thresholds(find_thresholds(counts, drawn, config.seed), writing.out)
        thresholds = read_thresholds(writing.out)
    places = {source.ordinal: both for source, both in zip(writing.sources, files, strict=True)}
    return partial(_load_refined, places=places, thresholds=thresholds, seed=config.seed)


def _load_refined(source: CaptionFile, places: dict, **options: Any) -> Iterator[pa.Table]:
    return load_refined(places[source.ordinal], **options)


def _run_phase(
    name: str, writing: Writing, totals: dict[int, int], steps: Pass, uri: str, calls_uri: str | None = None
) -> Stats:
    phase = Phase(
        name,
        writing.work,
        writing.config.waves.shards_per_wave,
        merge_negatives,
        (steps.part.schema, uri, calls_uri, writing.work.at("rows")),
        steps.worker_pools,
        writing.lease.check,
        steps.most,
    )
    return phase.run(list(steps.items), steps.run, totals)


def _first_pass(writing: Writing) -> Pass:
    """Return the pass that proposes candidates, judges and ranks them, and chooses if none are refined."""
    config, session = writing.config, writing.session
    by_rules, refines = config.negatives.by_rules, config.negatives.refine != "none"
    rows = session.block_rows if by_rules else ROWS_WITH_REPLIES
    if by_rules:
        uri = writing.context_uri if config.negatives.context else None
        write = partial(write_by_rules, config=config, context_uri=uri)
    else:
        write = partial(_write_by_replies, config=config, replies_uri=writing.replies_uri)
    ngrams_uri = writing.ngrams_uri if NGRAMS in config.negatives.judge else None
    edit = partial(_edit, write=write, ngrams_uri=ngrams_uri)
    keep = partial(_keep, config=config.negatives)
    screened_by = (writing.photos_uri, writing.context_uri) if config.negatives.screen else None
    load = partial(_load_ranker, config, screened_by)
    stages = (
        Stage("edit", "proposes negatives and judges them", CPUS, edit),
        Stage("rank", "embeds captions and negatives, on the scorers", SCORERS, load),
        Stage("choose", "keeps the hardest negatives", CPUS, keep),
    )
    return Pass(
        session,
        items={source.ordinal: source for source in writing.sources},
        read=partial(load_captions, block_rows=rows),
        stages=stages if config.negatives.scores else (stages[0], stages[2]),
        part=Part(_CANDIDATES_SCHEMA if refines else _PART_SCHEMA, counted=(FAULTS,)),
        rows=rows,
        scorer_rows=session.rows_per_call(_CAPTIONS_PER_CALL),
        is_cut=by_rules,  # every piece would read the file's replies again
    )


def _second_pass(writing: Writing, load: Callable[..., Iterator[pa.Table]]) -> Pass:
    """Return the pass that chooses among what the refinement left."""
    session = writing.session
    choose = partial(choose_negatives, config=writing.config.negatives)
    return Pass(
        session,
        items={source.ordinal: source for source in writing.sources},
        read=partial(load, block_rows=session.block_rows),
        stages=(Stage("choose", "keeps the hardest negatives", CPUS, choose),),
        part=Part(_PART_SCHEMA),
        rows=session.block_rows,
    )


def _edit(table: pa.Table, write: Callable[[pa.Table], pa.Table], ngrams_uri: str | None) -> pa.Table:
    table = write(table)
    return load_ngrams(ngrams_uri)(table) if ngrams_uri else table


def _keep(table: pa.Table, config: WritingConfig) -> pa.Table:
    near = drop_far(keep_likeliest(table) if config.engine == SUGGEST else table, config)
    near = drop_suspects(near, config)
    return choose_negatives(near, config) if config.refine == "none" else near


def _load_ranker(
    config: NegativesConfig, screened_by: tuple[str, str] | None, num_threads: int | None = None
) -> "Rank":
    from raycomp.negatives.ranking import Rank  # torch, imported only by processes that rank

    return Rank(config, num_threads, screened_by)


def _write_by_replies(table: pa.Table, config: NegativesConfig, replies_uri: str) -> pa.Table:
    replies = read_replies(replies_uri, table[SHARD_ORDINAL][0].as_py())
    return write_by_replies(table, config, replies)


def merge_negatives(
    ordinal: int,
    parts_uri: str,
    names: list[str],
    schema: pa.Schema,
    target_uri: str,
    calls_uri: str | None,
    rows_uri: str,
) -> int:
    """Write a file's negatives and comparisons, in the order of its rows; return the number of rows.

    Candidates are written with all columns of their parts, of ``schema``; negatives with those that are taken
    over.
    """
    table = read_parts(parts_uri, names) or schema.empty_table()
    name = f"{ordinal:05d}.parquet"
    if schema == _PART_SCHEMA:
        write_table(
            join_earlier(join_uri(rows_uri, name), table), join_uri(target_uri, name), NEGATIVES_SCHEMA
        )
    else:
        write_table(table.select(schema.names), join_uri(target_uri, name), schema)
    if calls_uri:
        compared = table.filter(table[COMPARISON].is_valid()).combine_chunks()
        fields = compared[COMPARISON].combine_chunks().flatten()
        columns = [compared[UID], compared[CAPTION], *fields]
        write_table(pa.table(columns, schema=_CALLS_SCHEMA), join_uri(calls_uri, name), _CALLS_SCHEMA)
    return len(table)


def ask_all(writing: Writing) -> None:
    """Ask the engine until every prompt is answered or out of attempts; replies are stored in ``replies/``.

    The prompts of a later call follow from the replies to the earlier ones. Raises OSError if the engine no
    longer answers. Prompts that stay unanswered while others are answered are left out.
    """
    config, prompts_uri = writing.config, writing.work.at("prompts")
    for _ in range(config.negatives.calls * config.llm.tries):
        writing.lease.check()
        folders = config, writing.replies_uri, prompts_uri
        counts = list(map_tasks(write_prompts, writing.sources, *folders, label="prompts"))
        if not any(counts):
            return
        asked = [source.ordinal for source, count in zip(writing.sources, counts, strict=True) if count]
        writing.lease.check()
        load = partial(load_prompts, replies_uri=writing.replies_uri, prompts_uri=prompts_uri)
        prompts = PromptSource(asked, load, sum(counts))
        try:
            ask(prompts, config.llm, config.negatives.engine, writing.replies_uri, writing.session)
        except OSError:
            if not _still_answers(writing):
                raise
            return


def _still_answers(writing: Writing) -> bool:
    """Ask again for a prompt that was answered before: if it succeeds, the remaining prompts are at fault."""
    config = writing.config
    for source in writing.sources:
        replies = read_replies(writing.replies_uri, source.ordinal)
        for table in load_captions(source, ROWS_WITH_REPLIES) if replies else ():
            known = [prompt for prompt in find_prompts(table, config, {}) if prompt.key in replies][:1]
            if known:
                prompts = PromptSource([to_prompt_table(known, source.ordinal)], _yield_it, 1)
                uri = writing.work.at("asked-again")
                try:
                    asked = ask(prompts, config.llm, config.negatives.engine, uri, writing.session)
                except OSError:
                    return False
                return asked.answered == 1
    return False


def _yield_it(table: pa.Table) -> Iterator[pa.Table]:
    yield table


def write_prompts(source: CaptionFile, config: NegativesConfig, replies_uri: str, prompts_uri: str) -> int:
    """Write one file's prompts that are not answered yet; return their number."""
    compact_replies(replies_uri, source.ordinal)
    return write_groups(
        _find_blocks(source, config, replies_uri), _file(prompts_uri, source.ordinal), PROMPT_SCHEMA
    )


def load_prompts(ordinal: int, replies_uri: str, prompts_uri: str) -> Iterator[pa.Table]:
    """Yield the written prompts in blocks, without those answered since: the engine may have failed."""
    replies = read_replies(replies_uri, ordinal)
    for table in read_groups(_file(prompts_uri, ordinal)):
        yield table.filter(pa.array([key not in replies for key in table[KEY].to_pylist()]))


def _file(prompts_uri: str, ordinal: int) -> str:
    return join_uri(prompts_uri, f"{ordinal:05d}.parquet")


def _find_blocks(source: CaptionFile, config: NegativesConfig, replies_uri: str) -> Iterator[pa.Table]:
    replies = read_replies(replies_uri, source.ordinal)
    for table in load_captions(replace(source, with_images=False), ROWS_WITH_REPLIES):
        prompts = find_prompts(table, config, replies)
        for start in range(0, len(prompts), config.cluster.block_rows):
            yield to_prompt_table(prompts[start : start + config.cluster.block_rows], source.ordinal)
