"""Text-only judges of negatives: n-gram models of the corpus, and a causal language model.

A judge scores a negative by its gap: the log-likelihood of the caption minus that of the negative, in nats.
Above 0 the judge takes the caption for the true one of the two, without the photo. N-gram models are
cross-fitted by image: the captions of an image are judged by counts of other images' captions only.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data.arrow import add_columns, from_rows
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.paths import find_stamp
from raycomp.language.text_only import (
    Ngrams,
    bigram_likelihood,
    count_ngrams,
    leave_out,
    unigram_likelihood,
)
from raycomp.negatives.captions import FOLD, NUM_FOLDS, CaptionFile, draw_uid, load_captions
from raycomp.run.tasks import map_files
from raycomp.schema import NEGATIVE_TYPE
from raycomp.words import BIGRAM, CAPTION, LANGUAGE_MODEL, NEGATIVES, UID, UNIGRAM

NGRAMS, MODEL = "ngrams", "model"
GAPS = (UNIGRAM, BIGRAM, LANGUAGE_MODEL)
"""Fields of a negative, null without that judge."""
MOST_COUNTED = 200_000
"""Captions that n-grams are counted in, about; of more, some are drawn by their uids."""
_ROWS = 10_000
_COUNTS = pa.schema(
    [(FOLD, pa.int32()), ("before", pa.string()), ("word", pa.string()), ("count", pa.int64())]
)


def write_ngrams(sources: Sequence[CaptionFile], num_captions: int, uri: str) -> None:
    """Write how often words, and pairs of neighbours, occur in the captions of each fold of images."""
    limit = min(1.0, MOST_COUNTED / max(num_captions, 1))
    folds = [Ngrams(Counter(), Counter()) for _ in range(NUM_FOLDS)]
    for counted in map_files(_count_file, sources, limit, label="count words"):
        folds = [one + other for one, other in zip(folds, counted, strict=True)]
    rows = [
        (fold, before, word, count)
        for fold, counts in enumerate(folds)
        for (before, word), count in [
            *(((None, word), count) for word, count in sorted(counts.words.items())),
            *sorted(counts.pairs.items()),
        ]
    ]
    write_table(from_rows(rows, _COUNTS), uri, _COUNTS)


def _count_file(source: CaptionFile, limit: float) -> list[Ngrams]:
    texts: list[list[str]] = [[] for _ in range(NUM_FOLDS)]
    for table in load_captions(source, _ROWS):
        columns = (table[name].to_pylist() for name in (UID, FOLD, CAPTION))
        for uid, fold, caption in zip(*columns, strict=True):
            if caption and draw_uid(uid, "words") < limit:
                texts[fold].append(caption)
    return [count_ngrams(captions) for captions in texts]


class NgramJudge:
    """Unigram and bigram gaps of negatives, by the counts that ``write_ngrams`` wrote."""

    def __init__(self, uri: str):
        folds = [Ngrams(Counter(), Counter()) for _ in range(NUM_FOLDS)]
        for row in read_columns(uri).to_pylist():
            counts = folds[row[FOLD]]
            if row["before"] is None:
                counts.words[row["word"]] = row["count"]
            else:
                counts.pairs[row["before"], row["word"]] = row["count"]
        whole = sum(folds, Ngrams(Counter(), Counter()))
        self.others = [leave_out(whole, counts) for counts in folds]

    def __call__(self, table: pa.Table) -> pa.Table:
        """Set ``unigram`` and ``bigram`` of every negative; null if no other image has a caption."""
        judges = {UNIGRAM: unigram_likelihood, BIGRAM: bigram_likelihood}
        gaps: dict[str, list[float | None]] = {name: [] for name in judges}
        columns = (table[name].to_pylist() for name in (CAPTION, FOLD, NEGATIVES))
        for caption, fold, negatives in zip(*columns, strict=True):
            counts = self.others[fold]
            for name, judge in judges.items():
                if not (negatives and counts.total):
                    gaps[name] += [None] * len(negatives)
                    continue
                own = judge(caption, counts)
                gaps[name] += [own - judge(negative["text"], counts) for negative in negatives]
        return set_fields(table, gaps)


def load_ngrams(uri: str) -> NgramJudge:
    """Return the judge, loaded once per process."""
    return _load_ngrams(uri, find_stamp(uri))


@lru_cache(maxsize=1)
def _load_ngrams(uri: str, stamp: tuple[int | None, int | None]) -> NgramJudge:
    return NgramJudge(uri)


def judge_by_model(table: pa.Table, find_likelihoods: Callable[[Sequence[str]], Any]) -> pa.Table:
    """Set ``language_model`` of every negative; a score does not depend on the other rows."""
    gaps: list[float | None] = []
    columns = (table[name].to_pylist() for name in (CAPTION, NEGATIVES))
    for caption, negatives in zip(*columns, strict=True):
        gaps += find_gaps(caption, negatives, find_likelihoods)
    return set_fields(table, {LANGUAGE_MODEL: gaps})


def find_gaps(
    caption: str, negatives: Sequence[dict], find_likelihoods: Callable[[Sequence[str]], Any]
) -> list[float]:
    """Return the gap of each negative of a caption; its texts are judged together and without others."""
    if not negatives:
        return []
    own, *others = find_likelihoods([caption, *(negative["text"] for negative in negatives)])
    return [float(own - other) for other in others]


def set_fields(table: pa.Table, values: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Return the table with fields of its negatives replaced, in the order of all negatives."""
    lists = table[NEGATIVES].combine_chunks()
    fields = dict(zip(NEGATIVE_TYPE.names, lists.flatten().flatten(), strict=True))
    fields |= {name: pa.array(found, NEGATIVE_TYPE.field(name).type) for name, found in values.items()}
    filled = pa.StructArray.from_arrays(list(fields.values()), fields=list(NEGATIVE_TYPE))
    counts = pa.array([0, *lists.value_lengths().to_pylist()], pa.int32())
    offsets = pc.cumulative_sum(counts).cast(pa.int32())
    return add_columns(table, {NEGATIVES: pa.ListArray.from_arrays(offsets, filled)})
