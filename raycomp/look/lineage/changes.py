"""What the gained, the lost and the other kept rows are like: concepts, measures, a few samples.

The files are read a second time, one in memory at a time. Rows that the first keeps are read from its files,
gained rows from those of the second. N rows of one file, P phrases of them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.attribution import Moments
from raycomp.core.selection import hash_uids, parse_uids
from raycomp.core.shifts import BOTH, GAINED, LOST
from raycomp.curation.samples import Chooser, Picks, WordCounts
from raycomp.curation.summary import MOST_LETTERS
from raycomp.data.parquet import count_caption_words
from raycomp.look.lineage.join import REPEAT, Joined
from raycomp.look.lineage.sides import Side, judge_files
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    IMAGE_SHA256,
    KEPT,
    KEY,
    MEAN_PAS,
    PHRASES,
    POSITION,
    SHARD,
    STATUS,
    UID,
    URL,
)

GROUPS = (BOTH, LOST, GAINED)
NOUN, KIND = "noun", "kind of phrase"
WORDS = "words"
MEASURES = (WORDS, ALIGNMENT, MEAN_PAS)
MOST_CONCEPTS = 1_000_000
"""The counter of each group holds so many concepts, the most frequent ones; 200 MB where captions have as
many."""
FIRST, SECOND = "outcome_first", "outcome_second"
MOVED_SCHEMA = pa.schema(
    [
        (UID, pa.string()),
        (KEY, pa.string()),
        (SHARD, pa.string()),
        (IMAGE_SHA256, pa.string()),
        (CAPTION, pa.string()),
        (ALIGNMENT, pa.float32()),
        (MEAN_PAS, pa.float32()),
        (FIRST, pa.string()),
        (SECOND, pa.string()),
    ]
)
_COLUMNS = (UID, KEY, SHARD, POSITION, URL, CAPTION, STATUS, ALIGNMENT, MEAN_PAS, PHRASES, IMAGE_SHA256)


@dataclass
class Changes:
    """Facts on the rows of each group."""

    rows: Counter[int] = field(default_factory=Counter)
    parsed: Counter[int] = field(default_factory=Counter)
    """Rows whose phrases are known; only these count for concepts."""
    concepts: dict[int, WordCounts] = field(default_factory=dict)
    """Rows by concept, (NOUN, word) or (KIND, kind); a row counts once for each."""
    measures: dict[tuple[int, str], Moments] = field(default_factory=dict)
    picks: dict[int, Picks] = field(default_factory=dict)
    """Samples drawn by seed, of gained and of lost rows."""

    def add(self, group: int, table: pa.Table) -> None:
        """Count rows of a group."""
        self.rows[group] += len(table)
        self.parsed[group] += len(table) - table[PHRASES].null_count
        found = WordCounts.of(MOST_CONCEPTS, list_concepts(table[PHRASES].combine_chunks()))
        self.concepts[group] = self.concepts[group].merge(found) if group in self.concepts else found
        values = {WORDS: count_caption_words(table[CAPTION]), **{n: table[n] for n in MEASURES[1:]}}
        for name, column in values.items():
            before = self.measures.get((group, name), Moments())
            value_N = column.drop_null().to_numpy()
            self.measures[group, name] = before.merge(Moments.of(value_N))

    def pick(self, group: int, table: pa.Table, others: list[str], count: int, seed: int) -> None:
        """Keep up to ``count`` samples of the rows of a group, drawn by ``seed``.

        ``others`` are the rows' outcomes in the run that does not keep them.
        """
        hash_N = hash_uids(parse_uids(table[UID]), seed)
        chooser = Chooser(table, np.array(others, object), np.full(len(table), np.nan), hash_N)
        found = chooser.first(count, np.ones(len(table), bool))
        self.picks[group] = self.picks[group].merge(found) if group in self.picks else found


def list_concepts(phrases: pa.ListArray) -> Iterator[tuple[str, str]]:
    """Yield the concepts of each row, once: the targets of its phrases in lower case, and their kinds."""
    row_P, phrase_P = pc.list_parent_indices(phrases).to_numpy(), phrases.flatten()
    target_P = pc.utf8_slice_codeunits(pc.struct_field(phrase_P, "target"), 0, MOST_LETTERS)
    for what, column in ((NOUN, pc.utf8_lower(target_P)), (KIND, pc.struct_field(phrase_P, "kind"))):
        words = column.dictionary_encode()
        code_P = words.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        size = max(len(words.dictionary), 1)
        once = np.unique(row_P.astype(np.int64) * size + code_P) % size
        names = words.dictionary.to_pylist()
        yield from ((what, names[code]) for code in once.tolist())


def find_changes(
    first: Side, second: Side, joined: Joined, count: int, seed: int, write: Callable[[pa.Table], None]
) -> Changes:
    """Return the facts on both sides' kept rows; ``write`` takes the gained and lost rows, file by file.

    ``count`` and ``seed`` are of the samples.
    """
    changes = Changes()
    sides = (first, joined.other_N, joined.names[1]), (second, joined.other_M, joined.names[0])
    for side, other_N, names in sides:
        start = 0
        for reason_N, table in judge_files(side, _COLUMNS):
            code_N = other_N[start : start + len(table)]
            start += len(table)
            is_mine_N = (reason_N == KEPT) & (code_N != REPEAT)
            kept_N = code_N == (names.index(KEPT) if KEPT in names else REPEAT)
            if side is first:
                changes.add(BOTH, _take(table, is_mine_N & kept_N))
            group, moved_N = LOST if side is first else GAINED, is_mine_N & ~kept_N
            moved = _take(table, moved_N)
            others = [names[code] for code in code_N[moved_N]]
            changes.add(group, moved)
            changes.pick(group, moved, others, count, seed)
            write(_add_outcomes(moved, group, others))
    return changes


def _take(table: pa.Table, at_N: np.ndarray) -> pa.Table:
    return table.select(_COLUMNS).take(pa.array(np.flatnonzero(at_N)))


def _add_outcomes(table: pa.Table, group: int, others: list[str]) -> pa.Table:
    kept, other = pa.array([KEPT] * len(table)), pa.array(others, pa.string())
    first, second = (kept, other) if group == LOST else (other, kept)
    whole = table.append_column(FIRST, first).append_column(SECOND, second)
    return whole.select(MOVED_SCHEMA.names)
