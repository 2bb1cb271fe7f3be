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

from raycomp import words
from raycomp.data import parquet
from raycomp.data.files import Folder, join_uri
from raycomp.data.runs import TIMES, read_finished, read_manifest
from raycomp.negatives import ask, judges, refine
from raycomp.negatives.ask import PromptSource
from raycomp.negatives.captions import FOLD, CaptionFile, load_captions
from raycomp.negatives.config import SUGGEST, NegativesConfig
from raycomp.negatives.engines import keep_likeliest, list_prompts, write_by_replies, write_by_rules
from raycomp.negatives.refine import Bin
from raycomp.negatives.write import choose_negatives, drop_far, drop_suspects
from raycomp.run.executor import CPUS, SCORERS, Part, Pass, Stage, Stats, read_parts
from raycomp.run.lease import Lease
from raycomp.run.local import Session
from raycomp.run.work import Phase, map_files, map_tasks
from raycomp.schema import COMPARISON_TYPE, NEGATIVES_SCHEMA

if TYPE_CHECKING:
    from raycomp.negatives.ranking import Rank


STATE, FILES = "state", "files.json"
INPUTS = "inputs"
_OTHERS = ("input", TIMES, "frozen")
"""Entries of a fingerprint that a caption's negatives do not depend on: each row's inputs are compared."""
_DIGEST_BYTES = 16
_ROWS = 10_000
_STATE_SCHEMA = pa.schema([(words.UID, pa.string()), (INPUTS, pa.binary(_DIGEST_BYTES))])
_WRITTEN = [name for name in NEGATIVES_SCHEMA.names if name != words.UID]


class Plan(NamedTuple):
    """What of a run is written anew."""

    sources: list[CaptionFile]
    totals: dict[int, int]
    """Captions to be written, by number of the file."""
    statuses: Counter[str]
    """Of the rows that are taken over."""


def name_parquet(ordinal: int) -> str:
    """Return the name of a file's results in each folder."""
    return f"{ordinal:05d}.parquet"


def find_earlier(previous: str | None, fingerprint: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return negatives and state of a finished run by file; empty without one, and if it has other models.

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
        name: (files[f"negatives/{name_parquet(i)}"].uri, files[f"{STATE}/{name_parquet(i)}"].uri)
        for i, name in enumerate(names)
    }


def plan_rows(
    sources: list[CaptionFile], earlier: Mapping[str, tuple[str, str]], out: Folder, work: Folder
) -> Plan:
    """Compare the inputs of all captions with those of an earlier run; write ``state/``, and to ``work`` the
    earlier negatives of each row, null where it is written anew.

    ``earlier``: empty = all captions are written anew.
    """
    found = list(map_files(_compare_file, sources, earlier, out, work, label="compare"))
    out.write_json([name for name, _, _ in found], STATE, FILES)
    named = [replace(source, rows=work.at("rows", name_parquet(source.ordinal))) for source in sources]
    totals = {source.ordinal: count for source, (_, count, _) in zip(sources, found, strict=True)}
    return Plan(named, totals, sum((counted for _, _, counted in found), Counter()))


def _compare_file(
    source: CaptionFile, earlier: Mapping[str, tuple[str, str]], out: Folder, work: Folder
) -> tuple[str, int, Counter[str]]:
    """Return a file's name, how many of its captions are written, and the statuses of the others."""
    uids: list[str] = []
    digests: list[bytes] = []
    for table in load_captions(source, _ROWS):
        here = [words.IMAGE_EMBEDDING] if words.IMAGE_EMBEDDING in table.column_names else []
        columns = [
            table[name] for name in (words.UID, words.CAPTION, parquet.OTHERS, words.STATUS, FOLD, *here)
        ]
        digests += [one[:_DIGEST_BYTES] for one in parquet.digest_rows(columns)]
        uids += table[words.UID].to_pylist()
    state = pa.table(
        [pa.array(uids, pa.string()), pa.array(digests, pa.binary(_DIGEST_BYTES))], _STATE_SCHEMA
    )
    parquet.write_table(state, out.at(STATE, name_parquet(source.ordinal)), _STATE_SCHEMA)
    # A file is found again by the name of its shard, or else its own.
    name = posixpath.basename(source.uri)
    if words.SHARD in parquet.read_schema(source.uri).names:
        name = parquet.read_columns(source.uri, [words.SHARD])[words.SHARD][0].as_py()
    known = NEGATIVES_SCHEMA.empty_table()
    row_N = np.full(len(uids), -1)
    if name in earlier:
        negatives, inputs = (parquet.read_columns(uri) for uri in earlier[name])
        place = {one: row for row, one in enumerate(inputs[INPUTS].to_pylist())}
        known, row_N = negatives, np.array([place.get(one, -1) for one in digests], np.int64)
    known = known.select(_WRITTEN).take(pa.array(row_N, mask=row_N < 0))
    parquet.write_table(
        known.add_column(0, words.UID, state[words.UID]),
        work.at("rows", name_parquet(source.ordinal)),
        NEGATIVES_SCHEMA,
    )
    counted = Counter(known[words.STATUS].drop_null().to_pylist())
    return name, len(uids) - counted.total(), counted


def join_earlier(rows_uri: str, written: pa.Table) -> pa.Table:
    """Return all rows of a file: those that are taken over, and those written anew, by their positions."""
    rows = parquet.read_columns(rows_uri)
    new = written.select(NEGATIVES_SCHEMA.names).cast(NEGATIVES_SCHEMA)
    row_N = np.arange(len(rows))
    row_N[written[words.POSITION].to_numpy()] = len(rows) + np.arange(len(written))
    return pa.concat_tables([rows, new]).take(pa.array(row_N))


# Captions that a ranking actor takes at a time, per thread of a CPU or for a GPU.
_CAPTIONS_PER_CALL = {"cpu": 64, "gpu": 512}
# Captions whose replies are read together.
ROWS_WITH_REPLIES = 10_000
_PART_SCHEMA = NEGATIVES_SCHEMA.append(pa.field(words.POSITION, pa.int32())).append(
    pa.field(words.COMPARISON, COMPARISON_TYPE)
)
_CANDIDATES_SCHEMA = pa.schema(
    [(words.SHARD_ORDINAL, pa.int32()), (words.POSITION, pa.int32()), *NEGATIVES_SCHEMA]
)
_CALLS_SCHEMA = pa.schema(
    [NEGATIVES_SCHEMA.field(words.UID), NEGATIVES_SCHEMA.field(words.CAPTION), *COMPARISON_TYPE]
)


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
    def written(self) -> list[str]:
        """Path of each file's negatives."""
        return [self.out.at("negatives", name_parquet(source.ordinal)) for source in self.sources]


def write_all(writing: Writing, totals: dict[int, int]) -> dict[str, Stats]:
    """Write ``negatives/``: one file per file of captions. Returns the stats of each phase."""
    config, sources, folder = writing.config.negatives, writing.sources, writing.out.at("negatives")
    num_captions = sum(totals.values())
    if config.frozen:
        judges.take_models(config, writing.out)
    else:  # what the rules and judges need to know of all captions
        if judges.NGRAMS in config.judge:
            judges.write_ngrams(sources, num_captions, writing.out.at(judges.NGRAMS_FILE))
        if config.screen:
            judges.write_photos(sources, writing.out.at(judges.PHOTOS_FILE))
        if config.context or config.screen:
            judges.write_context(
                sources, num_captions, writing.config.parser, writing.out.at(judges.CONTEXT_FILE)
            )
    calls = writing.out.at("exports", "calls") if writing.exports("calls") else None
    if config.refine == "none":
        return {"negatives": _run_phase("negatives", writing, totals, _first_pass(writing), folder, calls)}
    candidates = writing.work.at("candidates")
    found = _run_phase("candidates", writing, totals, _first_pass(writing), candidates)
    rows = writing.session.block_rows
    choose = partial(choose_negatives, config=config)
    second = Pass(
        writing.session,
        items={source.ordinal: source for source in sources},
        read=partial(refine_files(writing, candidates, num_captions), block_rows=rows),
        stages=(Stage("choose", "keeps the hardest negatives", CPUS, choose),),
        part=Part(_PART_SCHEMA),
        rows=rows,
    )
    return {"candidates": found, "negatives": _run_phase("negatives", writing, totals, second, folder)}


def refine_files(writing: Writing, candidates: str, num_captions: int) -> Callable[..., Iterator[pa.Table]]:
    """Fit, draw and balance; return the function that loads a file's captions with what stays."""
    config, out = writing.config.negatives, writing.out
    names = [name_parquet(source.ordinal) for source in writing.sources]
    files = [(join_uri(candidates, name), join_uri(writing.work.at("drawn"), name)) for name in names]
    fitted_uri = out.at(judges.TILTING_FILE)
    if not config.frozen:
        refine.write_tiltings(refine.fit_all([uri for uri, _ in files], num_captions, config), fitted_uri)
    counts: Counter[Bin] = Counter()
    for counted in map_files(refine.draw_file, files, fitted_uri, config, label="draw"):
        counts.update(counted)
    thresholds = {}
    if config.refine == "balance":
        if not config.frozen:
            refine.write_thresholds(
                refine.compute_thresholds(counts, [uri for _, uri in files], config.seed), out
            )
        thresholds = refine.read_thresholds(out)
    places = {source.ordinal: both for source, both in zip(writing.sources, files, strict=True)}
    return lambda source, block_rows: refine.load_refined(
        places[source.ordinal], thresholds, config.seed, block_rows
    )


def _run_phase(
    name: str, writing: Writing, totals: dict[int, int], steps: Pass, uri: str, calls_uri: str | None = None
) -> Stats:
    phase = Phase(
        name,
        writing.work,
        writing.config.waves,
        steps,
        merge_negatives,
        (steps.part.schema, uri, calls_uri, writing.work.at("rows")),
        writing.lease.check,
    )
    return phase.run(totals)


def _first_pass(writing: Writing) -> Pass:
    """Return the pass that proposes candidates, judges and ranks them, and chooses if none are refined."""
    config, session = writing.config, writing.session
    by_rules, refines = config.negatives.by_rules, config.negatives.refine != "none"
    rows = session.block_rows if by_rules else ROWS_WITH_REPLIES
    context_uri = writing.out.at(judges.CONTEXT_FILE) if config.negatives.context else None
    ngrams_uri = writing.out.at(judges.NGRAMS_FILE) if judges.NGRAMS in config.negatives.judge else None
    replies_uri = writing.replies_uri

    def edit(table: pa.Table) -> pa.Table:
        if by_rules:
            table = write_by_rules(table, config, context_uri)
        else:
            replies = ask.read_replies(replies_uri, table[words.SHARD_ORDINAL][0].as_py())
            table = write_by_replies(table, config, replies)
        return judges.load_ngrams(ngrams_uri)(table) if ngrams_uri else table

    def keep(table: pa.Table) -> pa.Table:
        if config.negatives.engine == SUGGEST:
            table = keep_likeliest(table)
        near = drop_suspects(drop_far(table, config.negatives), config.negatives)
        return near if refines else choose_negatives(near, config.negatives)

    screened_by = (
        (writing.out.at(judges.PHOTOS_FILE), writing.out.at(judges.CONTEXT_FILE))
        if config.negatives.screen
        else None
    )

    def load(num_threads: int | None = None) -> "Rank":
        from raycomp.negatives.ranking import Rank  # torch, imported only by processes that rank

        return Rank(config, num_threads, screened_by)

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
        part=Part(_CANDIDATES_SCHEMA if refines else _PART_SCHEMA, counted=(parquet.FAULTS,)),
        rows=rows,
        scorer_rows=session.rows_per_call(_CAPTIONS_PER_CALL),
        is_cut=by_rules,  # every piece would read the file's replies again
    )


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
    name = name_parquet(ordinal)
    if schema == _PART_SCHEMA:
        rows = join_earlier(join_uri(rows_uri, name), table)
        parquet.write_table(rows, join_uri(target_uri, name), NEGATIVES_SCHEMA)
    else:
        parquet.write_table(table.select(schema.names), join_uri(target_uri, name), schema)
    if calls_uri:
        compared = table.filter(table[words.COMPARISON].is_valid()).combine_chunks()
        fields = compared[words.COMPARISON].combine_chunks().flatten()
        columns = [compared[words.UID], compared[words.CAPTION], *fields]
        parquet.write_table(pa.table(columns, schema=_CALLS_SCHEMA), join_uri(calls_uri, name), _CALLS_SCHEMA)
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
            ask.ask(prompts, config.llm, config.negatives.engine, writing.replies_uri, writing.session)
        except OSError:
            if not _still_answers(writing):
                raise
            return


def _still_answers(writing: Writing) -> bool:
    """Ask again for a prompt that was answered before: if it succeeds, the remaining prompts are at fault."""
    config = writing.config
    for source in writing.sources:
        replies = ask.read_replies(writing.replies_uri, source.ordinal)
        for table in load_captions(source, ROWS_WITH_REPLIES) if replies else ():
            known = [prompt for prompt in list_prompts(table, config, {}) if prompt.key in replies][:1]
            if known:
                prompts = PromptSource(
                    [ask.to_prompt_table(known, source.ordinal)], lambda rows: iter([rows]), 1
                )
                uri = writing.work.at("asked-again")
                try:
                    asked = ask.ask(prompts, config.llm, config.negatives.engine, uri, writing.session)
                except OSError:
                    return False
                return asked.answered == 1
    return False


def write_prompts(source: CaptionFile, config: NegativesConfig, replies_uri: str, prompts_uri: str) -> int:
    """Write one file's prompts that are not answered yet; return their number."""
    ask.compact_replies(replies_uri, source.ordinal)
    replies, rows = ask.read_replies(replies_uri, source.ordinal), config.cluster.block_rows

    def find_blocks() -> Iterator[pa.Table]:
        for table in load_captions(replace(source, with_images=False), ROWS_WITH_REPLIES):
            prompts = list_prompts(table, config, replies)
            for start in range(0, len(prompts), rows):
                yield ask.to_prompt_table(prompts[start : start + rows], source.ordinal)

    return parquet.write_groups(
        find_blocks(), join_uri(prompts_uri, name_parquet(source.ordinal)), ask.PROMPT_SCHEMA
    )


def load_prompts(ordinal: int, replies_uri: str, prompts_uri: str) -> Iterator[pa.Table]:
    """Yield the written prompts in blocks, without those answered since: the engine may have failed."""
    replies = ask.read_replies(replies_uri, ordinal)
    for table in parquet.read_groups(join_uri(prompts_uri, name_parquet(ordinal))):
        yield table.filter(pa.array([key not in replies for key in table[words.KEY].to_pylist()]))
