"""How two runs' rows differ: joined by uid, gained and lost rows, their photos and concepts.

The files are read twice, one in memory at a time: for the outcomes of all rows, then for the kept rows. Rows
that the first keeps are read from its files, gained rows from those of the second.

Letters: N rows of one side or file, M rows of the second side; F and S distinct uids of the first and second
side, J uids of both; P phrases; V concepts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.attribution import Moments
from raycomp.core.intervals import holm
from raycomp.core.metrics import BOTH, GAINED, LOST, measure_shifts
from raycomp.core.selection import find_keys, hash_uids, parse_uids, to_keys
from raycomp.curation.command import read_photos
from raycomp.curation.config import CurateConfig, make_selection, read_config
from raycomp.curation.select.filters import list_shards
from raycomp.curation.select.marks import list_marked
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.select import Gates, judge_file
from raycomp.curation.summary import MOST_LETTERS, Chooser, Picks, Sample, WordCounts
from raycomp.data.parquet import count_caption_words
from raycomp.data.paths import absolute_uri, fingerprint_shards
from raycomp.data.runs import SUBSET_KINDS, digest, find_curation, read_finished
from raycomp.words import (
    ALIGNED_STATUSES,
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
    STATUSES,
    UID,
    URL,
)


@dataclass(frozen=True)
class Side:
    """A finished curation or selection."""

    uri: str
    run: dict[str, Any]
    curated: dict[str, Any]
    """run.json of the curation that scored."""
    files: list[ScoresFile]

    @property
    def config(self) -> CurateConfig:
        return read_config(self.run["config"])


def open_side(source: str) -> Side:
    """Open a finished curation or selection. Raises ValueError where ``source`` holds another run, or none,
    or its files are not the ones that it wrote."""
    uri = absolute_uri(source)
    run = read_finished(uri)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"{source}: holds {run['kind']}, must hold a curation or a selection")
    return Side(uri, run, find_curation(run, uri), list_marked(run, uri))


@dataclass(frozen=True)
class Outcomes:
    """The outcome of every row of a side. 29 bytes a row."""

    key_N: np.ndarray
    """uids as sortable keys."""
    code_N: np.ndarray
    """The outcome, a place in ``names``: kept, the reason of a gate or mark, or the status."""
    alignment_N: np.ndarray
    """float32, NaN where there is none."""
    names: tuple[str, ...]


def read_outcomes(side: Side) -> Outcomes:
    """Return the outcome of every row; one file is in memory at a time."""
    places: dict[str, int] = {}
    keys, codes, alignments = [np.empty(0, "S16")], [np.empty(0, np.uint8)], [np.empty(0, np.float32)]
    for reason_N, table in judge_files(side):
        name_V, which_N = np.unique(reason_N.astype(str), return_inverse=True)
        code_V = np.array([places.setdefault(name, len(places)) for name in name_V.tolist()], np.uint8)
        keys.append(to_keys(parse_uids(table[UID])))
        codes.append(code_V[which_N])
        alignments.append(table[ALIGNMENT].to_numpy().astype(np.float32))
    key_N, code_N, alignment_N = map(np.concatenate, (keys, codes, alignments))
    return Outcomes(key_N, code_N, alignment_N, tuple(places))


def judge_files(side: Side, columns: tuple[str, ...] = ()) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield the reasons of each file's rows, and its table with ``columns`` in addition to the gates'."""
    selection, gates = make_selection(side.config), Gates.from_dict(side.run["gates"])
    for file in side.files:
        table, reason_N, _ = judge_file(file, selection, gates, columns)
        yield reason_N, table


ABSENT = "not_in_input"
"""The outcome of a uid that is not among the rows of a side."""
REPEAT = 255
"""In place of the other side's outcome: the row's uid counts by another row of its side."""


@dataclass(frozen=True)
class Joined:
    """Two sides, joined by uid: a uid that occurs again in a side counts once there."""

    moves: Counter[tuple[str, str]]
    """uids by their outcomes in the first and the second."""
    names: tuple[tuple[str, ...], tuple[str, ...]]
    """The outcomes of the first and of the second, ABSENT last; codes are places in them."""
    other_N: np.ndarray
    """For each row of the first the code of its outcome in the second, or REPEAT."""
    other_M: np.ndarray
    """For each row of the second the code of its outcome in the first, or REPEAT."""
    repeats: tuple[int, int]
    """Rows of each side whose uid another of its rows has."""
    num_rescored: int
    """uids whose alignments differ, or that only one side has an alignment of."""
    largest: float
    """The largest absolute difference of two alignments; 0 without any."""

    @property
    def num_shared(self) -> int:
        return sum(count for pair, count in self.moves.items() if ABSENT not in pair)

    def count_kept(self) -> tuple[int, int, int]:
        """Return the numbers of uids kept in both, only in the first, only in the second."""
        counts: Counter[tuple[bool, bool]] = Counter()
        for (first, second), count in self.moves.items():
            counts[first == KEPT, second == KEPT] += count
        return counts[True, True], counts[True, False], counts[False, True]


def join_outcomes(first: Outcomes, second: Outcomes) -> Joined:
    """Join two sides by uid. Of a uid's rows in one side the one that has an alignment counts, else the
    first."""
    at_F, at_S = _list_distinct(first), _list_distinct(second)
    other_N = _look_up(first, at_F, second, at_S)
    other_M = _look_up(second, at_S, first, at_F)
    names = (*first.names, ABSENT), (*second.names, ABSENT)
    moves = Counter[tuple[str, str]]()
    pair_F = first.code_N[at_F].astype(np.int64) * (REPEAT + 1) + other_N[at_F]
    for pair, count in zip(*np.unique(pair_F, return_counts=True), strict=True):
        own, other = divmod(int(pair), REPEAT + 1)
        moves[names[0][own], names[1][other]] = int(count)
    new_S = second.code_N[at_S][other_M[at_S] == len(first.names)]
    for code, count in zip(*np.unique(new_S, return_counts=True), strict=True):
        moves[ABSENT, names[1][int(code)]] = int(count)
    repeats = len(first.key_N) - len(at_F), len(second.key_N) - len(at_S)
    place_F = find_keys(second.key_N[at_S], first.key_N[at_F])
    both_F = place_F >= 0
    first_J, second_J = first.alignment_N[at_F[both_F]], second.alignment_N[at_S[place_F[both_F]]]
    step_J = np.abs(first_J.astype(np.float64) - second_J)
    differs_J = (np.isnan(first_J) != np.isnan(second_J)) | (step_J > 0)
    largest = float(np.nanmax(step_J)) if (~np.isnan(step_J)).any() else 0.0
    return Joined(moves, names, other_N, other_M, repeats, int(differs_J.sum()), largest)


def _look_up(own: Outcomes, at_F: np.ndarray, other: Outcomes, at_S: np.ndarray) -> np.ndarray:
    """Return for each row of a side the code of its outcome in the other."""
    found_N = np.full(len(own.key_N), REPEAT, np.uint8)
    code_S = np.append(other.code_N[at_S], np.uint8(len(other.names)))
    found_N[at_F] = code_S[find_keys(other.key_N[at_S], own.key_N[at_F])]
    return found_N


def _list_distinct(side: Outcomes) -> np.ndarray:
    """Return the row of each distinct uid, in the order of uids."""
    bad = {*STATUSES} - {*ALIGNED_STATUSES}
    is_bad_N = np.isin(side.code_N, [i for i, name in enumerate(side.names) if name in bad])
    order_N = np.lexsort((is_bad_N, side.key_N))
    sorted_N = side.key_N[order_N]
    is_first_N = np.ones(len(order_N), bool)
    is_first_N[1:] = sorted_N[1:] != sorted_N[:-1]
    return order_N[is_first_N]


def fetch_photos(side: Side, samples: Iterable[Sample]) -> tuple[dict[str, bytes], list[str]]:
    """Return image bytes by uid, and a line on why others cannot be shown.

    An image is shown only if its SHA-256 is that of the scored one.
    """
    wanted: dict[str, dict[int, str]] = defaultdict(dict)
    for sample in samples:
        if sample.position is not None:
            wanted[sample.shard][sample.position] = sample.uid
    config, photos = side.config, dict[str, bytes]()
    if not wanted or config.prepare.stored_embeddings is not None:
        return {}, []
    try:
        shards = list_shards(config)
        if digest(fingerprint_shards(shards)) != side.curated["fingerprint"].get("input"):
            raise ValueError(f"input={config.input!r}: was changed after scoring")
        for shard in sorted(shards, key=lambda shard: shard.name):
            if shard.name in wanted:
                job = shard, side.files[shard.ordinal].uri, wanted[shard.name]
                photos |= dict(read_photos(job))
    except (ValueError, OSError) as error:
        return photos, [f"{side.uri}: pictures cannot be shown: {' '.join(str(error).split())}"]
    return photos, []


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
    sides = (first, joined.other_N, joined.names[1], LOST), (second, joined.other_M, joined.names[0], GAINED)
    for side, other_N, names, group in sides:
        start = 0
        for reason_N, table in judge_files(side, _COLUMNS):
            code_N = other_N[start : start + len(table)]
            start += len(table)
            table = table.select(_COLUMNS)
            is_mine_N = (reason_N == KEPT) & (code_N != REPEAT)
            kept_N = code_N == (names.index(KEPT) if KEPT in names else REPEAT)
            if group == LOST:  # rows that both keep are read once, from the first
                changes.add(BOTH, table.filter(pa.array(is_mine_N & kept_N)))
            moved_N = is_mine_N & ~kept_N
            moved, others = table.filter(pa.array(moved_N)), [names[code] for code in code_N[moved_N]]
            changes.add(group, moved)
            changes.pick(group, moved, others, count, seed)
            kept, other = pa.array([KEPT] * len(moved)), pa.array(others, pa.string())
            own, theirs = (FIRST, SECOND) if group == LOST else (SECOND, FIRST)
            write(moved.append_column(own, kept).append_column(theirs, other).select(MOVED_SCHEMA.names))
    return changes


LEAST = 10
"""A concept is tested where at least so many changed rows have it, or would at its common share."""
LEVEL = 0.05


class Moved(NamedTuple):
    """One concept; shares are of the kept rows whose phrases are known."""

    concept: str
    type: str
    """noun, or kind of phrase."""
    share_first: float
    share_second: float
    difference: float
    """The second's share minus the first's."""
    low: float
    high: float
    kept_in_both: int
    """Rows with the concept that both keep,"""
    only_first: int
    only_second: int
    p: float
    p_holm: float
    """p after Holm's correction for all concepts that are tested."""

    @property
    def side(self) -> int:
        """1 where the concept is more frequent in the second after the correction, -1 less, 0 neither."""
        return int(np.sign(self.difference)) * int(self.p_holm < LEVEL)


def rank_concepts(changes: Changes) -> list[Moved]:
    """Return the tested concepts, the smallest p first, ties by the size of the difference.

    A concept is tested if enough changed rows have it, or would if it were as frequent there as in the kept
    rows. Holm's correction (1979): the chance that any concept is called moved which is not is at most 5 %,
    however the concepts depend on each other, and words of one caption do. A rate of false discoveries would
    allow some false ones in the list, and a reader looks at single words.
    """
    counts = [changes.concepts[group].counts if group in changes.concepts else {} for group in GROUPS]
    names = sorted(set().union(*counts))
    if not names:
        return []
    count_3V = np.array([[own.get(name, 0) for name in names] for own in counts])
    size_3 = np.array([changes.parsed[group] for group in GROUPS])
    num_changed, changed_V = size_3[LOST] + size_3[GAINED], count_3V[LOST] + count_3V[GAINED]
    common_V = (2 * count_3V[BOTH] + changed_V) / max(1, 2 * size_3[BOTH] + num_changed)
    at_V = np.flatnonzero(np.maximum(changed_V, common_V * num_changed) >= LEAST)
    found = measure_shifts(count_3V[:, at_V], size_3)
    p_V = [float(p) for p in found.p]
    lines = []
    for i, (v, adjusted) in enumerate(zip(at_V.tolist(), holm(p_V), strict=True)):
        kind, concept = names[v]
        first, second, difference, low, high = (float(part[i]) for part in found[:5])
        both, lost, gained = (int(count_3V[group, v]) for group in (BOTH, LOST, GAINED))
        counted = both, lost, gained, p_V[i], adjusted
        lines.append(Moved(concept, kind, first, second, difference, low, high, *counted))
    return sorted(lines, key=lambda line: (line.p, -abs(line.difference), line.type, line.concept))
