"""Write the negatives of every file of captions on Ray: propose or ask, rank, judge, merge."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raycomp.data.arrow import FAULTS
from raycomp.data.folder import Folder
from raycomp.data.parquet import write_table
from raycomp.data.paths import join_uri
from raycomp.negatives.captions import CaptionFile, load_captions
from raycomp.negatives.config import SUGGEST, NegativesConfig, WritingConfig
from raycomp.negatives.counting import write_context, write_photos
from raycomp.negatives.earlier import join_earlier
from raycomp.negatives.engines import write_by_replies, write_by_rules
from raycomp.negatives.frozen import TILTING_FILE, take_models
from raycomp.negatives.judges import NGRAMS, load_ngrams, write_ngrams
from raycomp.negatives.refine import (
    Bin,
    draw_file,
    find_thresholds,
    fit_all,
    load_refined,
    read_thresholds,
    write_thresholds,
)
from raycomp.negatives.replies import read_replies
from raycomp.negatives.suggest import keep_likeliest
from raycomp.negatives.tilting import write_tiltings
from raycomp.negatives.write import choose_negatives, drop_far, drop_suspects
from raycomp.run.lease import Lease
from raycomp.run.parts import Part, Stats, read_parts
from raycomp.run.passes import Pass
from raycomp.run.session import Session
from raycomp.run.stage import CPUS, SCORERS, Stage
from raycomp.run.tasks import map_files
from raycomp.run.waves import Phase
from raycomp.schema import COMPARISON_TYPE, NEGATIVES_SCHEMA
from raycomp.words import CAPTION, COMPARISON, POSITION, SHARD_ORDINAL, UID

if TYPE_CHECKING:
    from raycomp.negatives.ranking import Rank

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
