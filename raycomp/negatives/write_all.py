"""Write the negatives of every file of captions on Ray: propose or ask, rank, judge, merge."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from raycomp.config import ScorerConfig
from raycomp.data.arrow import FAULTS
from raycomp.data.folder import Folder
from raycomp.data.parquet import write_table
from raycomp.data.paths import join_uri
from raycomp.negatives.captions import CaptionFile, load_captions
from raycomp.negatives.config import NegativesConfig
from raycomp.negatives.engines import write_by_replies, write_by_rules
from raycomp.negatives.replies import read_replies
from raycomp.negatives.write import choose_negatives
from raycomp.run.lease import Lease
from raycomp.run.parts import Part, Stats, read_parts
from raycomp.run.passes import Pass
from raycomp.run.session import Session
from raycomp.run.stage import CPUS, SCORERS, Stage
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
    def written(self) -> list[str]:
        """Path of each file's negatives."""
        return [self.out.at("negatives", f"{source.ordinal:05d}.parquet") for source in self.sources]


def write_all(writing: Writing, totals: dict[int, int]) -> Stats:
    """Write ``negatives/``: one file per file of captions. Returns the phase's stats."""
    steps = _build_steps(writing)
    phase = Phase(
        "negatives",
        writing.work,
        writing.config.waves.shards_per_wave,
        merge_negatives,
        (
            writing.out.at("negatives"),
            writing.out.at("exports", "calls") if writing.exports("calls") else None,
        ),
        steps.worker_pools,
        writing.lease.check,
        steps.most,
    )
    return phase.run(list(steps.items), steps.run, totals)


def _build_steps(writing: Writing) -> Pass:
    config, session = writing.config, writing.session
    by_rules = config.negatives.engine == "rules"
    rows = session.block_rows if by_rules else ROWS_WITH_REPLIES
    if by_rules:
        write = partial(write_by_rules, config=config)
    else:
        write = partial(_write_by_replies, config=config, replies_uri=writing.replies_uri)
    embed = partial(_load_ranker, config.ranker)
    keep = partial(choose_negatives, config=config.negatives)
    edit = Stage("edit", "proposes negatives and judges them", CPUS, write)
    rank = Stage("rank", "embeds captions and negatives, on the scorers", SCORERS, embed)
    choose = Stage("choose", "keeps the hardest negatives", CPUS, keep)
    return Pass(
        session,
        items={source.ordinal: source for source in writing.sources},
        read=partial(load_captions, block_rows=rows),
        stages=(edit, rank, choose) if config.negatives.rank else (edit, choose),
        part=Part(_PART_SCHEMA, counted=(FAULTS,)),
        rows=rows,
        scorer_rows=session.rows_per_call(_CAPTIONS_PER_CALL),
        is_cut=by_rules,  # every piece would read the file's replies again
    )


def _load_ranker(config: ScorerConfig, num_threads: int | None = None) -> "Rank":
    from raycomp.negatives.ranking import Rank  # torch, imported only by processes that rank

    return Rank(config, num_threads)


def _write_by_replies(table: pa.Table, config: NegativesConfig, replies_uri: str) -> pa.Table:
    replies = read_replies(replies_uri, table[SHARD_ORDINAL][0].as_py())
    return write_by_replies(table, config, replies)


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
