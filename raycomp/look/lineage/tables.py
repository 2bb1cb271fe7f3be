"""The tables of a diff, for the page and as CSV, and the sentences that answer its question."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raycomp.core.metrics import Z_95
from raycomp.core.shifts import BOTH, GAINED, LOST
from raycomp.curation.funnel import reason_words
from raycomp.look.lineage.changes import MEASURES, WORDS, Changes
from raycomp.look.lineage.concepts import LEAST, Moved
from raycomp.look.lineage.join import ABSENT, Joined
from raycomp.look.lineage.options import Difference
from raycomp.table import Cell, Column, Estimate, Numeral, PValue, Table, number, percent, write_cell
from raycomp.words import ALIGNMENT, KEPT, MEAN_PAS

Names = tuple[str, str]
_MOST_NAMED = 5
_MEANS = ("Mean", "gained", "lost", "kept in both", "gained minus lost")
_MEASURE_WORDS = {WORDS: "words of a caption", ALIGNMENT: "alignment", MEAN_PAS: "mean drop, showable nouns"}


class Answer(NamedTuple):
    """A sentence of the page's head, and details."""

    head: str
    details: Sequence[str] = ()


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
    sides = [
        ("more", [one for one in moved if one.side > 0]),
        ("less", [one for one in moved if one.side < 0]),
    ]
    lines = [f"{how.capitalize()} frequent in {second}: {_name_concepts(own)}." for how, own in sides if own]
    if not lines:
        lines = [
            f"None of {number(len(moved))} concepts moved by more than chance (Holm's correction, 5 %)."
            if moved
            else f"No concept is in {LEAST} changed rows or more, so none was tested."
        ]
    return [Answer(head, lines)]


def _name_concepts(moved: Sequence[Moved]) -> str:
    """Return the first of these concepts with their shares."""
    named = [
        f"{_name(one)} ({_percent(one.share_first)} to {_percent(one.share_second)})"
        for one in moved[:_MOST_NAMED]
    ]
    more = len(moved) - _MOST_NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _name(one: Moved) -> str:
    return one.concept if one.type == "noun" else f"{one.concept} phrases"


def _percent(share: float) -> str:
    return percent(share, 1)


def report_rows(joined: Joined, names: Names) -> Table:
    """Return the numbers of uids by side."""
    both, lost, gained = joined.count_kept()
    all_rows = joined.moves.total()
    only = [
        sum(n for pair, n in joined.moves.items() if pair[place] == ABSENT and pair[1 - place] != ABSENT)
        for place in (1, 0)
    ]
    rows = [
        ("kept in both", both),
        (f"kept only in {names[0]} (lost)", lost),
        (f"kept only in {names[1]} (gained)", gained),
        ("kept in neither", all_rows - both - lost - gained),
        *([("in one input only, kept or not", sum(only))] if sum(only) else []),
    ]
    cells = [(name, count, Numeral(percent(count, all_rows))) for name, count in rows]
    notes = [f"All rows: {number(all_rows)} uids that {names[0]} or {names[1]} has."]
    if sum(only):
        notes.append(f"Only in the input of {names[0]}: {number(only[0])}; of {names[1]}: {number(only[1])}.")
    if any(joined.repeats):
        counts = " and ".join(number(count) for count in joined.repeats)
        notes.append(f"Left out, because another row has their uid: {counts} rows.")
    if joined.num_rescored:
        notes.append(
            f"Alignments of {number(joined.num_rescored)} rows differ between the runs, by at most "
            f"{joined.largest:.3g}."
        )
    else:
        notes.append("No alignment differs between the runs.")
    return Table("Rows", ("Rows", "number", "of all"), cells, " ".join(notes))


def report_moves(joined: Joined, names: Names) -> Table:
    """Return the from-to table of outcomes: rows that moved first, by number."""
    moves = sorted(joined.moves.items(), key=lambda move: (_rank_move(*move[0]), -move[1], move[0]))
    rows: list[tuple[Cell, ...]] = [
        (_describe_move(first, second), _outcome(first), _outcome(second), count)
        for (first, second), count in moves
    ]
    columns = ("Change", f"in {names[0]}", f"in {names[1]}", "rows")
    return Table("Outcomes", columns, rows, "The outcome of a row is kept, or the reason why it is dropped.")


def _rank_move(first: str, second: str) -> int:
    """Return 0 for gained and lost rows, 1 for another reason, 2 for the same outcome."""
    return 0 if (first == KEPT) != (second == KEPT) else int(first == second) + 1


def _describe_move(first: str, second: str) -> str:
    if (first == KEPT) != (second == KEPT):
        return "lost" if first == KEPT else "gained"
    return "same" if first == second else "other reason"


def _outcome(name: str) -> str:
    return "not in the input" if name == ABSENT else reason_words(name)


def report_concepts(moved: Iterable[Moved], names: Names, title: str) -> Table:
    """Return the concepts with shares, difference, interval and p."""
    columns = (
        "Concept",
        "type",
        Column(names[0], "%", 2),
        Column(names[1], "%", 2),
        Column("difference", "points", 2),
        "rows lost with it",
        "rows gained with it",
        "p",
        "p after Holm",
    )
    rows: list[tuple[Cell, ...]] = [
        (
            one.concept,
            one.type,
            100 * one.share_first,
            100 * one.share_second,
            Estimate(one.difference, one.low, one.high).times(100),
            one.only_first,
            one.only_second,
            PValue(one.p),
            PValue(one.p_holm),
        )
        for one in moved
    ]
    return Table(title, columns, rows)


class Mean(NamedTuple):
    """Means of one measure, with 95 % intervals by the standard error over rows."""

    measure: str
    gained: Estimate
    lost: Estimate
    both: Estimate
    difference: Estimate
    """Of gained and lost rows."""


def list_means(changes: Changes) -> list[Mean]:
    """Return the means of caption length, alignment and PAS."""
    found = []
    for measure in MEASURES:
        gained, lost, both = (_estimate_mean(changes, group, measure) for group in (GAINED, LOST, BOTH))
        found.append(Mean(_MEASURE_WORDS[measure], gained, lost, both, _subtract(gained, lost)))
    return found


def report_means(means: Sequence[Mean], names: Names) -> Table:
    """Return them as a table of the page."""
    rows = [
        (
            one.measure,
            *(
                Numeral(write_cell(value, 1 if one.measure == _MEASURE_WORDS[WORDS] else 4))
                for value in one[1:]
            ),
        )
        for one in means
    ]
    note = (
        "95 % intervals, by the standard error over rows. Alignments of gained rows are those of "
        f"{names[1]}, of other rows those of {names[0]}. PAS is of rows that have one."
    )
    return Table("Means of gained and lost rows", _MEANS, rows, note)


def write_means(means: Sequence[Mean]) -> str:
    """Return them as CSV, an interval's ends in columns of their own."""
    return Table("", _MEANS, means).to_csv()


def _estimate_mean(changes: Changes, group: int, measure: str) -> Estimate:
    found = changes.measures.get((group, measure))
    if found is None or not found.count:
        return Estimate(float("nan"))
    if found.count < 2:
        return Estimate(found.mean)
    reach = Z_95 * math.sqrt(found.m2 / (found.count - 1) / found.count)
    return Estimate(found.mean, found.mean - reach, found.mean + reach)


def _subtract(one: Estimate, other: Estimate) -> Estimate:
    """Return the difference of two independent means."""
    value = one.value - other.value
    reach = math.hypot(one.high - one.value, other.high - other.value)
    return Estimate(value, value - reach, value + reach)


def report_options(differences: Sequence[Difference], names: Names) -> Table:
    """Return what the runs differ in."""
    note = "" if differences else "No option, version or fingerprint differs."
    return Table(
        "Options and fingerprints that differ", ("Option", *names), [tuple(one) for one in differences], note
    )
