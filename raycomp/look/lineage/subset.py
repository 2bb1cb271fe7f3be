"""The rows of a subset for its card, read from the scores file by file."""

from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa

from raycomp.curation.samples import WordCounts
from raycomp.look.lineage.changes import MOST_CONCEPTS, NOUN, list_concepts
from raycomp.look.lineage.sides import Side, judge_files
from raycomp.words import CAPTION_LANGUAGE, CAPTION_WORDS, KEPT, PHRASES


@dataclass
class Rows:
    """Facts on the kept rows."""

    languages: Counter[str] = field(default_factory=Counter)
    """Rows by the most probable language of the caption."""
    words: int = 0
    """Words of all captions."""
    counted: int = 0
    """Rows with a number of words."""
    parsed: int = 0
    """Rows whose phrases are known."""
    concepts: WordCounts = field(default_factory=lambda: WordCounts(MOST_CONCEPTS, Counter(), 0))
    """Rows by noun."""


def describe_rows(side: Side) -> Rows:
    """Return the facts on a run's kept rows; one file is in memory at a time."""
    found = Rows()
    for reason_N, table in judge_files(side, (CAPTION_LANGUAGE, CAPTION_WORDS, PHRASES)):
        kept = table.filter(pa.array(reason_N == KEPT))
        found.languages.update(kept[CAPTION_LANGUAGE].drop_null().to_pylist())
        words = kept[CAPTION_WORDS].drop_null().to_numpy()
        found.words, found.counted = found.words + int(words.sum()), found.counted + len(words)
        nouns = (word for kind, word in list_concepts(kept[PHRASES].combine_chunks()) if kind == NOUN)
        found.concepts = found.concepts.merge(WordCounts.of(MOST_CONCEPTS, nouns))
        found.parsed += len(kept) - kept[PHRASES].null_count
    return found
