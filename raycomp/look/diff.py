"""How two runs' rows differ: joined by uid, gained and lost rows, their photos and concepts.

The files are read twice, one in memory at a time: for the outcomes of all rows, then for the kept rows. Rows
that the first keeps are read from its files, gained rows from those of the second.

Letters: N rows of one side or file, M rows of the second side; F and S distinct uids of the first and second
side, J uids of both; P phrases; V concepts.

``raycomp diff``: how a curation or selection differs from another one. Does not start Ray."""

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.config import as_setting, flatten, to_dict
from raycomp.core.alignment import Moments
from raycomp.core.intervals import holm
from raycomp.core.metrics import BOTH, GAINED, LOST, Z_95, measure_shifts
from raycomp.core.selection import find_keys, hash_uids, parse_uids, to_keys
from raycomp.curation.command import read_photos
from raycomp.curation.config import CurateConfig, make_selection, read_config
from raycomp.curation.page import reason_words
from raycomp.curation.select.filters import list_shards
from raycomp.curation.select.marks import list_marked
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.select import Gates, judge_file
from raycomp.curation.summary import MOST_LETTERS, Chooser, Picks, Sample, WordCounts
from raycomp.data.files import absolute_uri
from raycomp.data.parquet import count_caption_words, new_groups, read_columns
from raycomp.data.runs import SUBSET_KINDS, TIMES, find_curation, identify, read_finished
from raycomp.evaluation.compare import list_tails
from raycomp.evaluation.results import Answer, say_answers
from raycomp.look.config import DiffConfig
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.table import Column, Estimate, Numeral, PValue, Table, number, percent, write_cell, write_csv


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
        keys.append(to_keys(parse_uids(table[words.UID])))
        codes.append(code_V[which_N])
        alignments.append(table[words.ALIGNMENT].to_numpy().astype(np.float32))
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
            counts[first == words.KEPT, second == words.KEPT] += count
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
    bad = {*words.STATUSES} - {*words.ALIGNED_STATUSES}
    is_bad_N = np.isin(side.code_N, [i for i, name in enumerate(side.names) if name in bad])
    order_N = np.lexsort((is_bad_N, side.key_N))
    sorted_N = side.key_N[order_N]
    is_first_N = np.ones(len(order_N), bool)
    is_first_N[1:] = sorted_N[1:] != sorted_N[:-1]
    return order_N[is_first_N]


def fetch_photos(side: Side, samples: Iterable[Sample]) -> tuple[dict[str, bytes], list[str]]:
    """Return image bytes by uid, and a line on why others cannot be shown.

    An image is shown only if its SHA-256 is that of the scored one; shards may have been added or changed.
    """
    wanted: dict[str, dict[int, str]] = defaultdict(dict)
    for sample in samples:
        if sample.position is not None:
            wanted[sample.shard][sample.position] = sample.uid
    config, photos = side.config, dict[str, bytes]()
    if not wanted or config.prepare.stored_embeddings is not None:
        return {}, []
    try:
        shards = {shard.name: shard for shard in list_shards(config)}
        for file in side.files:
            name = next(iter(read_columns(file.uri, [words.SHARD])[words.SHARD].to_pylist()), None)
            if name in wanted and name in shards:
                photos |= dict(read_photos((shards[name], file.uri, wanted[name])))
    except (ValueError, OSError) as error:
        return photos, [f"{side.uri}: pictures cannot be shown: {' '.join(str(error).split())}"]
    num = sum(map(len, wanted.values())) - len(photos)
    said = f"{num:,} pictures cannot be shown: they were changed or are gone since they were scored"
    return photos, [f"{side.uri}: {said}"] if num else []


GROUPS = (BOTH, LOST, GAINED)
NOUN, KIND = "noun", "kind of phrase"
WORDS = "words"
MEASURES = (WORDS, words.ALIGNMENT, words.MEAN_PAS)
MOST_CONCEPTS = 1_000_000
"""The counter of each group holds so many concepts, the most frequent ones; 200 MB where captions have as
many."""
FIRST, SECOND = "outcome_first", "outcome_second"
_TEXTS = (words.UID, words.KEY, words.SHARD, words.IMAGE_SHA256, words.CAPTION)
_NUMBERS = dict.fromkeys(MEASURES[1:], pa.float32())
MOVED_SCHEMA = pa.schema(
    {**dict.fromkeys(_TEXTS, pa.string()), **_NUMBERS, **dict.fromkeys((FIRST, SECOND), pa.string())}
)
_COLUMNS = (*_TEXTS, *_NUMBERS, words.POSITION, words.URL, words.STATUS, words.PHRASES)


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
        self.parsed[group] += len(table) - table[words.PHRASES].null_count
        found = WordCounts.of(MOST_CONCEPTS, list_concepts(table[words.PHRASES].combine_chunks()))
        self.concepts[group] = self.concepts[group].merge(found) if group in self.concepts else found
        values = {WORDS: count_caption_words(table[words.CAPTION]), **{n: table[n] for n in MEASURES[1:]}}
        for name, column in values.items():
            before = self.measures.get((group, name), Moments())
            value_N = column.drop_null().to_numpy()
            self.measures[group, name] = before.merge(Moments.of(value_N))

    def pick(self, group: int, table: pa.Table, others: list[str], count: int, seed: int) -> None:
        """Keep up to ``count`` samples of the rows of a group, drawn by ``seed``.

        ``others`` are the rows' outcomes in the run that does not keep them.
        """
        hash_N = hash_uids(parse_uids(table[words.UID]), seed)
        chooser = Chooser(table, np.array(others, object), np.full(len(table), np.nan), hash_N)
        found = chooser.first(count, np.ones(len(table), bool))
        self.picks[group] = self.picks[group].merge(found) if group in self.picks else found


def list_concepts(phrases: pa.ListArray) -> Iterator[tuple[str, str]]:
    """Yield the concepts of each row, once: the targets of its phrases in lower case, and their kinds."""
    row_P, phrase_P = pc.list_parent_indices(phrases).to_numpy(), phrases.flatten()
    target_P = pc.utf8_slice_codeunits(pc.struct_field(phrase_P, "target"), 0, MOST_LETTERS)
    for what, column in ((NOUN, pc.utf8_lower(target_P)), (KIND, pc.struct_field(phrase_P, "kind"))):
        encoded = column.dictionary_encode()
        code_P = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        size = max(len(encoded.dictionary), 1)
        once = np.unique(row_P.astype(np.int64) * size + code_P) % size
        names = encoded.dictionary.to_pylist()
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
            is_mine_N = (reason_N == words.KEPT) & (code_N != REPEAT)
            kept_N = code_N == (names.index(words.KEPT) if words.KEPT in names else REPEAT)
            if group == LOST:  # rows that both keep are read once, from the first
                changes.add(BOTH, table.filter(pa.array(is_mine_N & kept_N)))
            moved_N = is_mine_N & ~kept_N
            moved, others = table.filter(pa.array(moved_N)), [names[code] for code in code_N[moved_N]]
            changes.add(group, moved)
            changes.pick(group, moved, others, count, seed)
            kept, other = pa.array([words.KEPT] * len(moved)), pa.array(others, pa.string())
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


_CODE = ("parser", "lexicon", "nonces")
"""Fingerprints of what finds phrases and replaces words."""
_LETTERS = 16


class Difference(NamedTuple):
    """An option or fact with its value in each run; None where a run lacks it."""

    what: str
    first: str | None
    second: str | None


def compare_options(first: Side, second: Side) -> list[Difference]:
    """Return what differs: options by path, then version, device, and fingerprints, cut to 16 letters."""
    one, other = _list_facts(first), _list_facts(second)
    names = dict.fromkeys([*one, *other])
    if "select" in (first.run["kind"], second.run["kind"]):
        # A selection takes the rows that its curation attributed, and records no attribute.pool of its own.
        names.pop("attribute.pool", None)
    found = (Difference(name, one.get(name), other.get(name)) for name in names)
    return [difference for difference in found if difference.first != difference.second]


def _list_facts(side: Side) -> dict[str, str | None]:
    # A run's config is read by the present version: an option that came later has its default.
    found: dict[str, str | None] = {name: as_setting(v) for name, v in flatten(to_dict(side.config))}
    gpu = next(iter((side.curated.get("gpu") or {}).values()), "")
    found |= {
        "command": side.run["kind"],
        "raycomp version": side.run["versions"].get("raycomp"),
        "raycomp version that scored": side.curated["versions"].get("raycomp"),
        "device that scored": " ".join(filter(None, (side.curated.get("device"), str(gpu)))) or None,
    }
    for name, value in {**side.curated["fingerprint"], **side.run["fingerprint"]}.items():
        if name not in (TIMES, "scores"):
            is_digest = isinstance(value, str) and len(value) == 64
            found[f"fingerprint of {name}"] = str(value)[:_LETTERS] if is_digest else str(value)
    return found


Names = tuple[str, str]
_MOST_NAMED = 5
_MEANS = ("Mean", "gained", "lost", "kept in both", "gained minus lost")
_MEASURE_WORDS = {
    WORDS: "words of a caption",
    words.ALIGNMENT: "alignment",
    words.MEAN_PAS: "mean drop, showable nouns",
}


def answer_diff(joined: Joined, moved: Sequence[Moved], names: Names) -> list[Answer]:
    """Return what was gained and lost, and which concepts moved."""
    both, lost, gained = joined.count_kept()
    first, second = names
    if not lost and not gained:
        return [Answer(f"{second} and {first} keep the same {number(both)} rows.")]
    head = (
        f"{second} keeps {number(both + gained)} rows, {first} {number(both + lost)}: {number(gained)} rows "
        f"gained, {number(lost)} lost, {number(both)} kept in both."
    )
    lines = []
    for how, side in (("More", 1), ("Less", -1)):
        own = [one for one in moved if one.side == side]
        named = [
            f"{one.concept}{'' if one.type == NOUN else ' phrases'} "
            f"({percent(one.share_first, 1)} to {percent(one.share_second, 1)})"
            for one in own[:_MOST_NAMED]
        ]
        more = f" and {len(own) - _MOST_NAMED} more" if len(own) > _MOST_NAMED else ""
        lines += [f"{how} frequent in {second}: {', '.join(named)}{more}."] if own else []
    nothing = f"No concept is in {LEAST} changed rows or more, so none was tested."
    if moved:
        nothing = f"None of {number(len(moved))} concepts moved by more than chance (Holm's correction, 5 %)."
    return [Answer(head, lines or [nothing])]


def report_rows(joined: Joined, names: Names) -> Table:
    """Return the numbers of uids by side."""
    both, lost, gained = joined.count_kept()
    first, second = names
    total = joined.moves.total()
    only_first, only_second = (
        sum(count for pair, count in joined.moves.items() if pair[place] == ABSENT) for place in (1, 0)
    )
    rows = [
        ("kept in both", both),
        (f"kept only in {first} (lost)", lost),
        (f"kept only in {second} (gained)", gained),
        ("kept in neither", total - both - lost - gained),
    ]
    notes = [f"All rows: {number(total)} uids that {first} or {second} has."]
    if only_first + only_second:
        rows.append(("in one input only, kept or not", only_first + only_second))
        both_inputs = f"{first}: {number(only_first)}; of {second}: {number(only_second)}"
        notes.append(f"Only in the input of {both_inputs}.")
    if any(joined.repeats):
        counts = " and ".join(number(count) for count in joined.repeats)
        notes.append(f"Left out, because another row has their uid: {counts} rows.")
    rescored = f"{number(joined.num_rescored)} rows differ between the runs, by at most {joined.largest:.3g}."
    notes.append(
        f"Alignments of {rescored}" if joined.num_rescored else "No alignment differs between the runs."
    )
    cells = [(name, count, Numeral(percent(count, total))) for name, count in rows]
    return Table("Rows", ("Rows", "number", "of all"), cells, " ".join(notes))


def report_moves(joined: Joined, names: Names) -> Table:
    """Return the from-to table of outcomes: rows gained or lost first, then those with another reason."""
    found = []
    for (first, second), count in joined.moves.items():
        change, rank = ("same", 2) if first == second else ("other reason", 1)
        if (first == words.KEPT) != (second == words.KEPT):
            change, rank = "lost" if first == words.KEPT else "gained", 0
        found.append((rank, -count, (first, second), change))
    rows: list[tuple[Any, ...]] = []
    for _, minus, pair, change in sorted(found):
        said = ("not in the input" if name == ABSENT else reason_words(name) for name in pair)
        rows.append((change, *said, -minus))
    columns = ("Change", f"in {names[0]}", f"in {names[1]}", "rows")
    return Table("Outcomes", columns, rows, "The outcome of a row is kept, or the reason why it is dropped.")


def report_concepts(moved: Iterable[Moved], names: Names, side: int, title: str) -> Table:
    """Return the concepts of a side (``Moved.side``) with shares, difference, interval and p."""
    numbers = *(Column(name, "%", 2) for name in names), Column("difference", "points", 2)
    counts = "rows lost with it", "rows gained with it", "p", "p after Holm"
    rows: list[tuple[Any, ...]] = []
    for one in moved:
        if one.side == side:
            shares = 100 * one.share_first, 100 * one.share_second
            difference = Estimate(one.difference, one.low, one.high).times(100)
            tests = one.only_first, one.only_second, PValue(one.p), PValue(one.p_holm)
            rows.append((one.concept, one.type, *shares, difference, *tests))
    return Table(title, ("Concept", "type", *numbers, *counts), rows)


def list_means(changes: Changes) -> list[tuple[str, Estimate, Estimate, Estimate, Estimate]]:
    """Return the means of caption length, alignment and PAS: of gained, lost and common rows, and the
    difference of the first two, with 95 % intervals by the standard error over rows."""

    def estimate(group: int, measure: str) -> Estimate:
        one = changes.measures.get((group, measure), Moments())
        reach = Z_95 * math.sqrt(one.m2 / (one.count - 1) / one.count) if one.count > 1 else math.nan
        return Estimate(one.mean if one.count else math.nan, one.mean - reach, one.mean + reach)

    found = []
    for measure in MEASURES:
        gained, lost, both = (estimate(group, measure) for group in (GAINED, LOST, BOTH))
        value = gained.value - lost.value
        reach = math.hypot(gained.high - gained.value, lost.high - lost.value)  # independent means
        difference = Estimate(value, value - reach, value + reach)
        found.append((_MEASURE_WORDS[measure], gained, lost, both, difference))
    return found


def report_means(means: Iterable[tuple[str, *tuple[Estimate, ...]]], names: Names) -> Table:
    """Return the table of the means: words with one digit, the others with four."""
    rows = []
    for measure, *own in means:
        digits = 1 if measure == _MEASURE_WORDS[WORDS] else 4
        rows.append((measure, *(Numeral(write_cell(value, digits)) for value in own)))
    note = (
        "95 % intervals, by the standard error over rows. Alignments of gained rows are those of "
        f"{names[1]}, of other rows those of {names[0]}. PAS is of rows that have one."
    )
    return Table("Means of gained and lost rows", _MEANS, rows, note)


CONCEPTS, OUTCOMES, OPTIONS, MEANS = "concepts.csv", "outcomes.csv", "options.csv", "means.csv"
MOVED = "moved.parquet"


def diff(first: str, second: str, out: str, say: Say = print) -> dict[str, Any]:
    """Compare the second curation or selection with the first into ``out``; return what run.json holds.

    Raises ValueError where one is not a finished curation or selection, or they have no row in common.
    """
    out = absolute_uri(str(out))
    config = DiffConfig(absolute_uri(first), absolute_uri(second))
    sides = open_side(config.first), open_side(config.second)
    joined = join_outcomes(*map(read_outcomes, sides))
    if not joined.num_shared:
        raise ValueError(f"{first} and {second}: have no uid in common; name two runs of the same input")
    rerun = command_line(shlex.join(["raycomp", "diff", config.first, config.second]), {}, out)
    outputs = (CONCEPTS, OUTCOMES, OPTIONS, MEANS, MOVED)

    def fingerprint() -> dict[str, str]:
        return {name: identify(open_side(getattr(config, name)).run) for name in ("first", "second")}

    with start_run("diff", config, fingerprint, out, say, rerun, outputs=outputs) as run:
        if not run.is_finished:
            _close(run, config, sides, joined, say)
    return run.record


def _close(run: Run, config: DiffConfig, sides: tuple[Side, Side], joined: Joined, say: Say) -> None:
    """Write the tables; record the counts and the results."""
    same = config.first == config.second
    first, second = ("first", "second") if same else list_tails([config.first, config.second])
    names = first, second
    with new_groups(run.folder.at(MOVED), MOVED_SCHEMA) as write:
        changes = find_changes(*sides, joined, config.examples, sides[1].config.seed, write)
    moved, options, means = rank_concepts(changes), compare_options(*sides), list_means(changes)
    moves = [(*pair, count) for pair, count in sorted(joined.moves.items())]
    tables = {
        CONCEPTS: write_csv([Moved._fields, *moved]),
        OUTCOMES: write_csv([("first", "second", "rows"), *moves]),
        OPTIONS: write_csv([Difference._fields, *options]),
        MEANS: Table("", _MEANS, means).to_csv(),
    }
    for name, text in tables.items():
        run.folder.write_bytes(text.encode(), name)
    shared, rows = joined.num_shared, joined.moves.total()
    absent = {ABSENT: rows - shared} if rows > shared else {}
    run.close({words.OK: rows}, {words.OK: shared, **absent}, words.OK)
    photos, why_lost = fetch_photos(sides[0], changes.picks[LOST].samples)
    gained_photos, why_gained = fetch_photos(sides[1], changes.picks[GAINED].samples)
    warnings = [*_warn(sides, changes), *dict.fromkeys([*why_lost, *why_gained])]
    run.record["warnings"] += warnings
    for warning in warnings:
        say(f"warning: {warning}")
    answers = answer_diff(joined, moved, names)
    answers = [Answer(answers[0].head)] if run.noise else answers
    say_answers(answers, say)
    both, lost, gained = joined.count_kept()
    run.record["rows"] = {"kept_in_both": both, "lost": lost, "gained": gained}
    no_options = "" if options else "No option, version or fingerprint differs."
    page = render_page(
        "look/diff.html.jinja",
        run=run.record,
        names=names,
        inputs=[side.config.input for side in sides],
        answers=answers + [Answer(run.noise)] * bool(run.noise),
        rows=report_rows(joined, names),
        moves=report_moves(joined, names),
        num_tested=len(moved),
        least=LEAST,
        more=report_concepts(moved, names, 1, f"More frequent in {second}"),
        less=report_concepts(moved, names, -1, f"Less frequent in {second}"),
        others=report_concepts(moved, names, 0, "Did not move"),
        means=report_means(means, names),
        options=Table("Options and fingerprints that differ", ("Option", *names), options, no_options),
        gained=changes.picks[GAINED].samples,
        lost=changes.picks[LOST].samples,
        photos=photos | gained_photos,
        reason_words=reason_words,
    )
    run.report(f"{gained:,} rows gained, {lost:,} lost, {both:,} kept in both", page)


def _warn(sides: tuple[Side, Side], changes: Changes) -> Iterator[str]:
    """Yield what limits the comparison of concepts."""
    then, now = (side.curated["fingerprint"] for side in sides)
    if other := [name for name in _CODE if then.get(name) != now.get(name)]:
        yield (
            f"concepts: {' and '.join(other)} differ between the runs, so one caption may have other "
            "phrases in each; a concept may seem to move for that reason"
        )
    rows, parsed = changes.rows, changes.parsed
    named = (BOTH, "kept in both"), (LOST, "lost"), (GAINED, "gained")
    missing = [(rows[one] - parsed[one], f"{rows[one]:,} {name}") for one, name in named]
    if said := ", ".join(f"{count:,} of {whole}" for count, whole in missing if count):
        yield f"concepts: rows without phrases, because they were not attributed, do not count: {said}"
    if lost := max((one.most_lost for one in changes.concepts.values()), default=0):
        yield f"concepts: the counter discards rare words; a count may be too low by up to {lost:,}"
