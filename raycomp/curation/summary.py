"""The report's statistics of a corpus in bounded memory: one summary per file, added in any order.

N rows of one scores file. Every choice is "the first few by a key". A key is computed from the row, never
drawn, so neither the order of rows nor the split into files changes the choice.

Letters: N rows of one file, P phrases of them. The corpus is the rows that have an alignment. Parsed rows are
those of them whose phrases are known, even if there are none.

PAS is the value by which the run's own rule and reading rank; under a rule without PAS it is what cpi would
rank by. The paper measures both over the rows past its alignment gate (its pool, as the page calls them), so
that value is shown first. Over all rows the value differs, because the gate restricts the range of alignment.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.core.metrics import Histogram, PairMoments, Reservoir, correlation_interval, log_odds, spearman
from raycomp.core.selection import hash_uids, parse_uids
from raycomp.curation.config import PAS, SelectionRule
from raycomp.data.parquet import count_caption_words
from raycomp.table import Estimate
from raycomp.words import ALIGNED_STATUSES, ALIGNMENT, CAPTION, KEPT, KINDS, PHRASES, STATUS, UID, UNSEEN

MOST_CHARACTERS = 600
"""A caption longer than this is shown cut, without the phrases that end later."""
MOST_WORD = 200
"""Keys, shards and addresses longer than this are shown cut."""


@dataclass(frozen=True)
class Sample:
    """One row as the page shows it. ``order`` is its sort key; smaller comes first."""

    order: tuple[float, int, str]
    uid: str
    key: str | None
    shard: str
    position: int | None
    url: str | None
    caption: str | None
    cut: int
    """Characters of the caption left out."""
    status: str
    reason: str
    alignment: float | None
    score: float | None
    phrases: tuple[dict[str, Any], ...]
    """Structs of ``PHRASE_TYPE`` that end within the shown caption."""
    content_words: tuple[dict[str, Any], ...] = ()
    """The same of adjectives, verbs and relation words, where these count."""


@dataclass(frozen=True)
class Picks:
    """The ``limit`` samples of smallest ``order``."""

    limit: int
    samples: tuple[Sample, ...] = ()

    def merge(self, other: "Picks") -> "Picks":
        """Return the choice among the samples of both."""
        both = sorted((*self.samples, *other.samples), key=lambda sample: sample.order)
        return Picks(self.limit, tuple(both[: self.limit]))


@dataclass(frozen=True)
class Chooser:
    """One scores file with each row's selection result and seeded hash."""

    table: pa.Table
    reason_N: np.ndarray
    score_N: np.ndarray
    hash_N: np.ndarray

    def first(self, limit: int, among_N: np.ndarray, by_N: np.ndarray | None = None) -> Picks:
        """Pick the rows of ``among_N`` with the smallest ``by_N``, ties (and no ``by_N``) by hash."""
        by_N = np.zeros(len(self.hash_N)) if by_N is None else by_N
        rows, samples = np.flatnonzero(among_N), []
        for row in rows[np.lexsort((self.hash_N[rows], by_N[rows]))[:limit]].tolist():
            values = self.table.slice(row, 1).to_pylist()[0]
            caption, score = values[CAPTION], float(self.score_N[row])
            targets, others = (
                tuple(one for one in values.get(name) or () if one["end"] <= MOST_CHARACTERS)
                for name in (PHRASES, words.CONTENT_WORDS)
            )
            sample = Sample(
                order=(float(by_N[row]), int(self.hash_N[row]), values[UID]),
                uid=values[UID],
                key=_short(values[words.KEY]),
                shard=str(_short(values[words.SHARD])),
                position=values[words.POSITION],
                url=_short(values[words.URL]),
                caption=None if caption is None else caption[:MOST_CHARACTERS],
                cut=max(len(caption or "") - MOST_CHARACTERS, 0),
                status=values[STATUS],
                reason=str(self.reason_N[row]),
                alignment=values[ALIGNMENT],
                score=None if np.isnan(score) else score,
                phrases=targets,
                content_words=others,
            )
            samples.append(sample)
        return Picks(limit, tuple(samples))


def draw(samples: Iterable[Sample], count: int) -> tuple[Sample, ...]:
    """Draw ``count`` of the samples by their seeded hash, then restore their order."""
    drawn = sorted(samples, key=lambda sample: sample.order[1:])[:count]
    return tuple(sorted(drawn, key=lambda sample: sample.order))


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MOST_WORD else text[: MOST_WORD - 1] + "\u2026"


@dataclass(frozen=True)
class WordCounts:
    """Counts of the ``limit`` most common words, or other values that can be sorted.

    Exact, and independent of the merge order, while at most ``limit`` different words have occurred.
    Afterwards ``most_lost`` > 0 bounds the error of a count.
    """

    limit: int
    counts: Counter[Any]
    total: int
    """All words counted, pruned ones included."""
    most_lost: int = 0

    @classmethod
    def of(cls, limit: int, words: Iterable[Any]) -> "WordCounts":
        counts = Counter(words)
        return cls(limit, counts, counts.total())._prune()

    def merge(self, other: "WordCounts") -> "WordCounts":
        """Return the counts of both, pruned again."""
        lost = self.most_lost + other.most_lost
        return WordCounts(self.limit, self.counts + other.counts, self.total + other.total, lost)._prune()

    def _prune(self) -> "WordCounts":
        if len(self.counts) <= self.limit:
            return self
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        lost = self.most_lost + ranked[self.limit][1]
        return WordCounts(self.limit, Counter(dict(ranked[: self.limit])), self.total, lost)


def rank_leanings(kept: WordCounts, dropped: WordCounts, most: int) -> list[tuple[str, int, int, float]]:
    """Return (word, kept, dropped, z) of up to ``most`` words over-represented in kept, and in dropped.

    By falling z, the z score of the log-odds of Monroe et al. 2008, so that a rare word does not rank high by
    chance; above 0 if kept rows favour the word.
    """
    if not kept.total or not dropped.total:
        return []
    known = sorted(kept.counts | dropped.counts)
    kept_V, dropped_V = (np.array([side.counts[word] for word in known]) for side in (kept, dropped))
    _, z_V = log_odds(kept_V, dropped_V)
    order = np.argsort(-z_V, kind="stable")
    chosen = [v for v in order[:most] if z_V[v] > 0] + [v for v in order[-most:] if z_V[v] < 0]
    return [(known[v], int(kept_V[v]), int(dropped_V[v]), float(z_V[v])) for v in chosen]


DROPPED = "dropped"
SIDES = (KEPT, DROPPED)
VALID, SUPPORTED = "valid", "supported"
WORDS, DROP, DISPLACEMENT = "words", "drop", "displacement"
PASSED = "passed"
ABOVE, BELOW, TOP, BOTTOM, ANY = "above", "below", "top", "bottom", "any"
NUM_AROUND = 12
NUM_NEAREST = 48
"""The twelve samples around the threshold are drawn from this many nearest on each side."""
NUM_EXTREMES = 6
NUM_EXAMPLES = 3
NUM_POINTS = 2000
MOST_WORDS, MOST_LETTERS = 20_000, 40
FINE = (-1.0, 1.0, 10_000)
"""Bins of 0.0002 for alignments, PAS and drops."""
LENGTHS = (-0.5, 200.5, 201)
"""One bin for each whole number up to 200."""


@dataclass(frozen=True)
class Summary:
    """Counts, histograms, sums and a few samples. ``Summary()`` is the summary of no rows."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Rows by status."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Rows by drop reason, and ``kept``."""
    lowest: dict[str, float] = field(default_factory=dict)
    """Thresholds of the gates: the lowest alignment that passed gate 1, the lowest kept score."""
    histograms: dict[tuple[str, str], Histogram] = field(default_factory=dict)
    """Alignment, PAS, words and number of phrases by side; drops by kind of phrase."""
    moments: dict[str, PairMoments] = field(default_factory=dict)
    """(alignment, PAS) over pairs; (displacement, drop) over phrases by kind, and ``UNSEEN``."""
    passed: dict[str, PairMoments] = field(default_factory=dict)
    """The same over the rows past the alignment gate: (alignment, PAS) of pairs as ``pas``, (displacement,
    drop) of the phrases of all kinds as ``drop``."""
    with_drop: Counter[str] = field(default_factory=Counter)
    """Pairs that have a phrase with a drop: all as ``drop``, those past the alignment gate as ``passed``."""
    points: dict[str, Reservoir] = field(default_factory=dict)
    """(alignment, PAS, kept) of pairs; (displacement, drop) of phrases; both with ``passed``."""
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Phrases by kind and side; by kind also those that have a drop, and those whose drop is above 0. Those
    whose target no picture can show also count under ``UNSEEN``."""
    heads: dict[str, WordCounts] = field(default_factory=dict)
    """Head nouns of phrases, lower case, by side."""
    picks: dict[str, Picks] = field(default_factory=dict)
    """Samples by the reason why they are shown; examples of each status except ok under its name."""

    @property
    def rows(self) -> int:
        return self.statuses.total()

    @property
    def num_aligned(self) -> int:
        """The corpus: the N of both gates."""
        aligned = sum(self.statuses[status] for status in ALIGNED_STATUSES)
        return aligned - sum(self.reasons[reason] for reason in words.MARK_REASONS)

    @property
    def num_bad(self) -> int:
        """Rows without an alignment, except duplicates and removed rows."""
        aligned = sum(self.statuses[status] for status in ALIGNED_STATUSES)
        return self.rows - aligned - self.statuses[words.DUPLICATE_UID] - self.statuses[words.REMOVED]


def merge(a: Summary, b: Summary) -> Summary:
    """Return the summary of the rows of both; the rows must not overlap.

    Any order gives the same page except for the last bits of the sums in ``moments``.
    """
    return Summary(**{f.name: _merge_parts(getattr(a, f.name), getattr(b, f.name)) for f in fields(Summary)})


def _merge_parts(a: Any, b: Any) -> Any:
    if isinstance(a, Counter):
        return a + b
    if isinstance(a, dict):
        both = {key: _merge_parts(a[key], b[key]) for key in a if key in b}
        return {key: both[key] if key in both else a.get(key, b.get(key)) for key in sorted({**a, **b})}
    return min(a, b) if isinstance(a, float) else a.merge(b)


def summarise(table: pa.Table, reason_N: np.ndarray, score_N: np.ndarray, seed: int) -> Summary:
    """Summarise one scores file (its image_embedding is not read), whose column ``pas`` is what
    ``rank_attributed`` returns.

    ``reason_N``: ``kept``, the reason of a gate or mark, or for rows without an alignment their status.
    ``score_N`` float32: the last gate's score, NaN if that gate did not rank the row. ``seed`` draws samples.
    Raises ValueError if a reason does not fit its row's status.
    """
    status_N, reason_N = table[STATUS].to_numpy(), np.asarray(reason_N, dtype=object)
    gated = (KEPT, *words.GATE_REASONS, *words.MARK_REASONS, *words.AFTER_REASONS)
    aligned_N = np.isin(status_N, ALIGNED_STATUSES)
    wrong_N = np.where(aligned_N, ~np.isin(reason_N, gated), reason_N != status_N)
    if wrong_N.any():
        row = int(wrong_N.argmax())
        said = f"reason {reason_N[row]!r} does not go with status {status_N[row]!r}"
        raise ValueError(f"uid {table[UID][row]}: {said}")
    uid_N2, kept_N = parse_uids(table[UID]), reason_N == KEPT
    outside = (words.DROPPED_ALIGNMENT, *words.MARK_REASONS)
    passed_N = table[ALIGNMENT].is_valid().to_numpy() & ~np.isin(reason_N, outside)
    score_N = np.asarray(score_N, dtype=np.float64)
    ranked_N = ~np.isnan(score_N)
    chooser = Chooser(table, reason_N, score_N, hash_uids(uid_N2, seed))
    faults = sorted({*status_N.tolist()} - {words.OK})
    counts = Summary(
        statuses=Counter(status_N.tolist()),
        reasons=Counter(reason_N.tolist()),
        lowest=_lowest(words.SCORE, score_N[ranked_N & kept_N]),
        picks={
            ABOVE: chooser.first(NUM_NEAREST, ranked_N & kept_N, score_N),
            BELOW: chooser.first(NUM_NEAREST, ranked_N & ~kept_N, -score_N),
            TOP: chooser.first(NUM_EXTREMES, ranked_N, -score_N),
            BOTTOM: chooser.first(NUM_EXTREMES, ranked_N, score_N),
            ANY: chooser.first(NUM_AROUND, aligned_N),
            **{status: chooser.first(NUM_EXAMPLES, status_N == status) for status in faults},
        },
    )
    pairs = _summarise_pairs(table, kept_N, passed_N, uid_N2, seed)
    return merge(merge(counts, pairs), _summarise_phrases(table, kept_N, passed_N, uid_N2, seed))


def _summarise_pairs(
    table: pa.Table, kept_N: np.ndarray, passed_N: np.ndarray, uid_N2: np.ndarray, seed: int
) -> Summary:
    """Summarise the values that a pair has once: alignment, PAS, caption length, number of phrases."""
    alignment_N, pas_N = _floats(table[ALIGNMENT]), _floats(table[PAS])
    words_N = np.where(np.isnan(alignment_N), np.nan, _floats(count_caption_words(table[CAPTION])))
    phrases_N = _floats(pc.list_value_length(table[PHRASES]))
    measures = [(ALIGNMENT, alignment_N, FINE), (PAS, pas_N, FINE)]
    measures += [(WORDS, words_N, LENGTHS), (PHRASES, phrases_N, LENGTHS)]
    both_N = ~np.isnan(alignment_N + pas_N)
    inside_N = both_N & passed_N
    columns = {ALIGNMENT: alignment_N, PAS: pas_N, KEPT: kept_N, PASSED: passed_N}
    columns = {name: column_N[both_N] for name, column_N in columns.items()}
    return Summary(
        lowest=_lowest(ALIGNMENT, alignment_N[passed_N]),
        histograms={
            (measure, side): Histogram.of(value_N[at_N & ~np.isnan(value_N)], *bins)
            for measure, value_N, bins in measures
            for side, at_N in ((KEPT, kept_N), (DROPPED, ~kept_N))
        },
        moments={PAS: PairMoments.of(columns[ALIGNMENT], columns[PAS])},
        passed={PAS: PairMoments.of(alignment_N[inside_N], pas_N[inside_N])},
        points={PAS: Reservoir.of(NUM_POINTS, seed, uid_N2[both_N], columns)},
    )


def _summarise_phrases(
    table: pa.Table, kept_N: np.ndarray, passed_N: np.ndarray, uid_N2: np.ndarray, seed: int
) -> Summary:
    """Summarise the values of every phrase: kind, head noun, drop and displacement."""
    lists = table[PHRASES].combine_chunks()
    row_P, phrases = pc.list_parent_indices(lists).to_numpy(), lists.flatten()
    drop_P, displacement_P = (_floats(pc.struct_field(phrases, name)) for name in (DROP, DISPLACEMENT))
    kind_P, class_P = (
        pc.struct_field(phrases, name).to_numpy(zero_copy_only=False) for name in ("kind", "target_class")
    )
    target_P = pc.utf8_slice_codeunits(pc.struct_field(phrases, "target"), 0, MOST_LETTERS)
    head_P = pc.utf8_lower(target_P).to_numpy(zero_copy_only=False)
    side_P, passed_P = np.where(kept_N[row_P], KEPT, DROPPED), passed_N[row_P]
    valid_P = ~np.isnan(drop_P + displacement_P)
    inside_P = valid_P & passed_P
    groups = {**{kind: kind_P == kind for kind in KINDS}, UNSEEN: class_P == UNSEEN}
    counted = {side: side_P == side for side in SIDES}
    counted |= {VALID: valid_P, SUPPORTED: valid_P & (drop_P > 0)}
    columns = {DISPLACEMENT: displacement_P, DROP: drop_P, PASSED: passed_P}
    columns = {name: column_P[valid_P] for name, column_P in columns.items()}
    # The uid of a phrase: its row's, hashed, and its index in the row.
    place_P = (np.arange(len(row_P)) - np.searchsorted(row_P, row_P)).astype(np.uint64)
    uid_P2 = np.stack([hash_uids(uid_N2, 0)[row_P], place_P], axis=1)
    return Summary(
        histograms={(DROP, kind): Histogram.of(drop_P[groups[kind] & valid_P], *FINE) for kind in KINDS},
        moments={
            name: PairMoments.of(displacement_P[at_P & valid_P], drop_P[at_P & valid_P])
            for name, at_P in groups.items()
        },
        with_drop=Counter({DROP: len(set(row_P[valid_P])), PASSED: len(set(row_P[inside_P]))}),
        passed={DROP: PairMoments.of(displacement_P[inside_P], drop_P[inside_P])},
        points={DROP: Reservoir.of(NUM_POINTS, seed, uid_P2[valid_P], columns)},
        kinds=Counter(
            {
                (name, what): int(np.sum(at_P & of_P))
                for name, at_P in groups.items()
                for what, of_P in counted.items()
            }
        ),
        heads={side: WordCounts.of(MOST_WORDS, head_P[side_P == side].tolist()) for side in SIDES},
    )


def _lowest(name: str, value_N: np.ndarray) -> dict[str, float]:
    return {name: float(value_N.min())} if len(value_N) else {}


def _floats(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return float64, nulls as NaN."""
    value_N = pc.fill_null(pc.cast(column, pa.float64()), np.nan)
    return value_N.to_numpy() if isinstance(value_N, pa.ChunkedArray) else value_N.to_numpy(False)


@dataclass(frozen=True)
class Shown:
    """The samples whose photos the page shows; each part best score first."""

    around: tuple[Sample, ...]
    top: tuple[Sample, ...] = ()
    bottom: tuple[Sample, ...] = ()
    has_threshold: bool = True
    """False if no row was dropped by a score: ``around`` is then drawn from the whole corpus."""

    @property
    def samples(self) -> list[Sample]:
        """All of them, each uid once; ``render`` needs their image bytes."""
        return list({s.uid: s for s in (*self.around, *self.top, *self.bottom)}.values())


def choose_shown(summary: Summary) -> Shown:
    """Choose the samples of the page: six drawn on each side of the threshold, the top and the bottom six.

    If one side has fewer, the other gets more. A random draw's scores do not rank, so they are not used.
    """
    samples = {name: picks.samples for name, picks in summary.picks.items()}
    if summary.reasons[words.DROPPED_RANDOM]:
        return Shown(samples[ANY], has_threshold=False)
    above, below = samples.get(ABOVE, ()), samples.get(BELOW, ())
    half = NUM_AROUND // 2
    kept = draw(above, max(half, NUM_AROUND - len(below)))
    around = (*reversed(kept), *draw(below, NUM_AROUND - len(kept)))
    return Shown(
        around=around if below else samples.get(ANY, ()),
        top=samples.get(TOP, ()),
        bottom=tuple(reversed(samples.get(BOTTOM, ()))),
        has_threshold=bool(below),
    )


UNITS = {PAS: "pairs", DROP: "phrases"}
AXES = {PAS: (ALIGNMENT, PAS), DROP: (DISPLACEMENT, DROP)}


class Correlation(NamedTuple):
    """One row of the section: a correlation and the rows it is measured on."""

    what: str
    """``pas`` with alignment, or ``drop`` with displacement."""
    over: str
    inside: bool
    """Whether it is measured over the rows past the alignment gate, as in the paper."""
    num_rows: int
    """Pairs, or phrases."""
    num_apart: int
    """The n of the interval. For phrases it is the number of their pairs, or the number of different targets
    if that is less: the phrases of one caption may all agree. So may those of one target, which has the same
    nonces everywhere."""
    pearson: Estimate
    spearman: Estimate
    num_points: int
    """Points drawn for Spearman's rho."""


def correlate(summary: Summary, selection: SelectionRule) -> list[Correlation]:
    """Return each correlation over the rows past the alignment gate, then over all rows if there are more."""
    found, is_gated = [], selection.attribute_share is not None
    targets = {word for heads in summary.heads.values() for word in heads.counts}  # not all may be stored
    for what, unit in UNITS.items():
        points = summary.points.get(what)
        if points is None or points.num_seen < 2:
            continue
        kinds = (summary.moments[kind] for kind in ([PAS] if what == PAS else KINDS))
        inside, whole = summary.passed[what], reduce(PairMoments.merge, kinds)
        parts = [(f"{unit} inside the pool", PASSED, inside)] if is_gated else []
        if not is_gated or inside.count < whole.count:
            parts.append((f"all {unit}" if is_gated else f"all {unit}, no pool", DROP, whole))
        for over, key, moments in parts:
            at_M = points.columns[PASSED] if key == PASSED else np.ones(len(points.uid_M2), bool)
            x_M, y_M = (points.columns[name][at_M] for name in AXES[what])
            num_apart, num_drawn = moments.count, len(x_M)
            if what == DROP:
                num_apart = min(summary.with_drop[key], len(targets))
                num_drawn = len(np.unique(points.uid_M2[at_M][:, 0]))  # a phrase's uid starts with its pair's
            r, rho = moments.pearson, spearman(x_M, y_M)
            pearson = Estimate(r, *correlation_interval(r, num_apart))
            ranks = Estimate(rho, *correlation_interval(rho, min(num_drawn, num_apart), ranks=True))
            is_inside, num = key == PASSED, len(x_M)
            found.append(Correlation(what, over, is_inside, moments.count, num_apart, pearson, ranks, num))
    return found
