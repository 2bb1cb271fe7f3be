"""Write the negatives of every file of captions: propose, rank, judge, merge; reuse those of an earlier run.

The inputs of a caption are its uid and text, the other captions of its image, its fold and status, and the
image's embedding where a scorer ranks. ``state/`` keeps a digest of them, row for row with ``negatives/``.
"""

import posixpath
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycomp import words
from raycomp.data import parquet
from raycomp.data.files import Folder, copy_file, join_uri
from raycomp.data.runs import TIMES, read_finished, read_manifest
from raycomp.negatives import judges, refine, write
from raycomp.negatives.captions import FOLD, CaptionFile, load_captions
from raycomp.negatives.config import SUGGEST, NegativesConfig
from raycomp.run.executor import CPUS, SCORERS, Part, Pass, Session, Stage, Stats, read_parts
from raycomp.run.run import Lease
from raycomp.run.work import Phase, map_files
from raycomp.schema import COMPARISON_TYPE, NEGATIVES_SCHEMA

if TYPE_CHECKING:
    from raycomp.negatives.ranking import Rank

STATE, FILES, INPUTS = "state", "files.json", "inputs"
_OTHERS = ("input", TIMES, "frozen")
"""Entries of a fingerprint that a caption's negatives do not depend on: each row's inputs are compared."""
_DIGEST_BYTES = 16
_STATE_SCHEMA = pa.schema([(words.UID, pa.string()), (INPUTS, pa.binary(_DIGEST_BYTES))])
_WRITTEN = [name for name in NEGATIVES_SCHEMA.names if name != words.UID]
# Captions that a ranking actor takes at a time, per thread of a CPU or for a GPU.
_CAPTIONS_PER_CALL = {"cpu": 64, "gpu": 512}
# Captions whose replies or inputs are read together.
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
) -> tuple[list[CaptionFile], dict[int, int], Counter[str]]:
    """Compare the inputs of all captions with those of an earlier run; write ``state/``, and to ``work`` the
    earlier negatives of each row, null where it is written anew.

    ``earlier``: empty = all captions are written anew. Return the files with these rows, how many captions of
    each are written, by its number, and the statuses of those that are taken over.
    """
    found = list(map_files(_compare_file, sources, earlier, out, work, label="compare"))
    out.write_json([name for name, _, _ in found], STATE, FILES)
    named = [replace(source, rows=work.at("rows", name_parquet(source.ordinal))) for source in sources]
    totals = {source.ordinal: count for source, (_, count, _) in zip(sources, found, strict=True)}
    return named, totals, sum((counted for _, _, counted in found), Counter())


def _compare_file(
    source: CaptionFile, earlier: Mapping[str, tuple[str, str]], out: Folder, work: Folder
) -> tuple[str, int, Counter[str]]:
    """Return a file's name, how many of its captions are written, and the statuses of the others."""
    uids: list[str] = []
    digests: list[bytes] = []
    for table in load_captions(source, ROWS_WITH_REPLIES):
        names = [words.UID, words.CAPTION, parquet.OTHERS, words.STATUS, FOLD]
        names += [words.IMAGE_EMBEDDING] * (words.IMAGE_EMBEDDING in table.column_names)
        digests += [one[:_DIGEST_BYTES] for one in parquet.digest_rows([table[name] for name in names])]
        uids += table[words.UID].to_pylist()
    own_name = name_parquet(source.ordinal)
    state = parquet.from_rows(list(zip(uids, digests, strict=True)), _STATE_SCHEMA)
    parquet.write_table(state, out.at(STATE, own_name), _STATE_SCHEMA)
    # A file is found again by the name of its shard, or else its own.
    name = posixpath.basename(source.uri)
    if words.SHARD in parquet.read_schema(source.uri).names:
        name = parquet.read_columns(source.uri, [words.SHARD])[words.SHARD][0].as_py()
    known = NEGATIVES_SCHEMA.empty_table()
    row_N = np.full(len(uids), -1)
    if name in earlier:
        known, inputs = (parquet.read_columns(uri) for uri in earlier[name])
        place = {one: row for row, one in enumerate(inputs[INPUTS].to_pylist())}
        row_N = np.array([place.get(one, -1) for one in digests], np.int64)
    known = known.select(_WRITTEN).take(pa.array(row_N, mask=row_N < 0))
    rows = known.add_column(0, words.UID, state[words.UID])
    parquet.write_table(rows, work.at("rows", own_name), NEGATIVES_SCHEMA)
    counted = Counter(known[words.STATUS].drop_null().to_pylist())
    return name, len(uids) - counted.total(), counted


@dataclass(frozen=True)
class Writing:
    """One run: its config, files of captions and output."""

    config: NegativesConfig
    sources: list[CaptionFile]
    out: Folder
    work: Folder
    session: Session
    lease: Lease

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
        for name, file in judges.find_models(config).items():
            copy_file(file, writing.out.at(*name.split("/")))
    else:  # what the rules and judges need to know of all captions
        if judges.NGRAMS in config.judge:
            judges.write_ngrams(sources, num_captions, writing.out.at(judges.NGRAMS_FILE))
        if config.screen:
            judges.write_photos(sources, writing.out.at(judges.PHOTOS_FILE))
        if config.context or config.screen:
            uri = writing.out.at(judges.CONTEXT_FILE)
            judges.write_context(sources, num_captions, writing.config.parser, uri)
    calls = writing.out.at("exports", "calls") if "calls" in config.export else None
    if config.refine == "none":
        return {"negatives": _run_phase("negatives", writing, totals, _first_pass(writing), folder, calls)}
    candidates = writing.work.at("candidates")
    found = _run_phase("candidates", writing, totals, _first_pass(writing), candidates)
    rows = writing.session.block_rows
    choose = partial(write.choose_negatives, config=config)
    second = Pass(
        writing.session,
        items={source.ordinal: source for source in sources},
        read=partial(_refine_files(writing, candidates, num_captions), block_rows=rows),
        stages=(Stage("choose", "keeps the hardest negatives", CPUS, choose),),
        part=Part(_PART_SCHEMA),
        rows=rows,
    )
    return {"candidates": found, "negatives": _run_phase("negatives", writing, totals, second, folder)}


def _refine_files(writing: Writing, candidates: str, num_captions: int) -> Callable[..., Iterator[pa.Table]]:
    """Fit, draw and balance; return the function that loads a file's captions with what stays."""
    config, out = writing.config.negatives, writing.out
    names = [name_parquet(source.ordinal) for source in writing.sources]
    files = [(join_uri(candidates, name), join_uri(writing.work.at("drawn"), name)) for name in names]
    fitted_uri = out.at(judges.TILTING_FILE)
    if not config.frozen:
        refine.write_tiltings(refine.fit_all([uri for uri, _ in files], num_captions, config), fitted_uri)
    counts: Counter[refine.Bin] = Counter()
    for counted in map_files(refine.draw_file, files, fitted_uri, config, label="draw"):
        counts.update(counted)
    thresholds = {}
    if config.refine == "balance":
        if not config.frozen:
            refine.write_thresholds(counts, [uri for _, uri in files], config.seed, out)
        thresholds = refine.read_thresholds(out)
    places = {source.ordinal: both for source, both in zip(writing.sources, files, strict=True)}
    return lambda source, block_rows: refine.load_refined(
        places[source.ordinal], thresholds, config.seed, block_rows
    )


def _run_phase(
    name: str, writing: Writing, totals: dict[int, int], steps: Pass, uri: str, calls_uri: str | None = None
) -> Stats:
    args = steps.part.schema, uri, calls_uri, writing.work.at("rows")
    waves, check = writing.config.waves, writing.lease.check
    return Phase(name, writing.work, waves, steps, merge_negatives, args, check).run(totals)


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
            table = write.write_by_rules(table, config, context_uri)
        else:
            from raycomp.negatives.ask import read_replies  # aiohttp

            replies = read_replies(replies_uri, table[words.SHARD_ORDINAL][0].as_py())
            table = write.write_by_replies(table, config, replies)
        return judges.load_ngrams(ngrams_uri)(table) if ngrams_uri else table

    def keep(table: pa.Table) -> pa.Table:
        if config.negatives.engine == SUGGEST:
            table = write.keep_likeliest(table)
        table = write.drop_unfit(table, config.negatives)
        return table if refines else write.choose_negatives(table, config.negatives)

    screened_by = None
    if config.negatives.screen:
        screened_by = writing.out.at(judges.PHOTOS_FILE), writing.out.at(judges.CONTEXT_FILE)

    def load(num_threads: int | None = None) -> "Rank":
        from raycomp.negatives.ranking import Rank  # torch, imported only by processes that rank

        return Rank(config, num_threads, screened_by)

    stages = [Stage("edit", "proposes negatives and judges them", CPUS, edit)]
    if config.negatives.scores:
        stages.append(Stage("rank", "embeds captions and negatives, on the scorers", SCORERS, load))
    stages.append(Stage("choose", "keeps the hardest negatives", CPUS, keep))
    return Pass(
        session,
        items={source.ordinal: source for source in writing.sources},
        read=partial(load_captions, block_rows=rows),
        stages=tuple(stages),
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
        rows = parquet.read_columns(join_uri(rows_uri, name))
        new = table.select(NEGATIVES_SCHEMA.names).cast(NEGATIVES_SCHEMA)
        row_N = np.arange(len(rows))
        row_N[table[words.POSITION].to_numpy()] = len(rows) + np.arange(len(table))
        rows = pa.concat_tables([rows, new]).take(pa.array(row_N))
        parquet.write_table(rows, join_uri(target_uri, name), NEGATIVES_SCHEMA)
    else:
        parquet.write_table(table.select(schema.names), join_uri(target_uri, name), schema)
    if calls_uri:
        compared = table.filter(table[words.COMPARISON].is_valid()).combine_chunks()
        fields = compared[words.COMPARISON].combine_chunks().flatten()
        columns = [compared[words.UID], compared[words.CAPTION], *fields]
        parquet.write_table(pa.table(columns, schema=_CALLS_SCHEMA), join_uri(calls_uri, name), _CALLS_SCHEMA)
    return len(table)
