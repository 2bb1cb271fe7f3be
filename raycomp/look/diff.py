"""``raycomp diff``: how a curation or selection differs from another one. Does not start Ray."""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from raycomp.config import as_setting, flatten, to_dict
from raycomp.core.metrics import BOTH, GAINED, LOST, Z_95
from raycomp.curation.page import reason_words
from raycomp.data.parquet import new_groups
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import TIMES, identify
from raycomp.evaluation.compare_command import list_tails
from raycomp.look.changes import (
    ABSENT,
    LEAST,
    MEASURES,
    MOVED_SCHEMA,
    WORDS,
    Changes,
    Joined,
    Moved,
    Side,
    fetch_photos,
    find_changes,
    join_outcomes,
    open_side,
    rank_concepts,
    read_outcomes,
)
from raycomp.look.config import DiffConfig
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.table import (
    Cell,
    Column,
    Estimate,
    Numeral,
    PValue,
    Table,
    number,
    percent,
    plain,
    write_cell,
    write_csv,
)
from raycomp.words import ALIGNMENT, KEPT, MEAN_PAS, OK

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
    found = _compare(_list_options(first), _list_options(second))
    # A selection takes the rows that its curation attributed, and records no pool of its own.
    is_selected = "select" in (first.run["kind"], second.run["kind"])
    return [one for one in found if not (is_selected and one.what == "attribute.pool")]


def _compare(first: dict[str, str | None], second: dict[str, str | None]) -> list[Difference]:
    names = dict.fromkeys([*first, *second])
    found = (Difference(name, first.get(name), second.get(name)) for name in names)
    return [one for one in found if one.first != one.second]


def _list_options(side: Side) -> dict[str, str | None]:
    # A run's config is read by the present version: an option that came later has its default.
    options = {name: as_setting(value) for name, value in flatten(to_dict(side.config))}
    return options | {name: value for name, value in _list_facts(side)}


def _list_facts(side: Side) -> Iterator[tuple[str, str | None]]:
    yield "command", side.run["kind"]
    yield "raycomp version", side.run["versions"].get("raycomp")
    yield "raycomp version that scored", side.curated["versions"].get("raycomp")
    yield "device that scored", _describe_device(side.curated)
    prints = {**side.curated["fingerprint"], **side.run["fingerprint"]}
    for name, value in prints.items():
        if name not in (TIMES, "scores"):
            yield f"fingerprint of {name}", _shorten(value)


def _describe_device(run: dict[str, Any]) -> str | None:
    gpu = run.get("gpu") or {}
    return " ".join(filter(None, (run.get("device"), str(next(iter(gpu.values()), ""))))) or None


def _shorten(value: Any) -> str:
    text = str(value)
    return text[:_LETTERS] if isinstance(value, str) and len(text) == 64 else text


def find_other_code(first: Side, second: Side) -> list[str]:
    """Return which of parser, lexicon and nonces differ: then phrases of one caption differ too."""
    prints = first.curated["fingerprint"], second.curated["fingerprint"]
    return [name for name in _CODE if prints[0].get(name) != prints[1].get(name)]


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


CONCEPTS, OUTCOMES, OPTIONS, MEANS, MOVED = (
    "concepts.csv",
    "outcomes.csv",
    "options.csv",
    "means.csv",
    "moved.parquet",
)


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
    fingerprint = partial(_fingerprint, config)
    with start_run("diff", config, fingerprint, out, say, rerun, outputs=outputs) as run:
        if not run.is_finished:
            _close(run, config, sides, joined, say)
    return run.record


def _fingerprint(config: DiffConfig) -> dict[str, str]:
    return {name: identify(open_side(getattr(config, name)).run) for name in ("first", "second")}


def _close(run: Run, config: DiffConfig, sides: tuple[Side, Side], joined: Joined, say: Say) -> None:
    """Write the tables; record the counts and the results."""
    same = config.first == config.second
    first, second = ("first", "second") if same else list_tails([config.first, config.second])
    names = first, second
    with new_groups(run.folder.at(MOVED), MOVED_SCHEMA) as write:
        changes = find_changes(*sides, joined, config.examples, sides[1].config.seed, write)
    moved, options = rank_concepts(changes), compare_options(*sides)
    _write_tables(run, joined, changes, moved, options, names)
    shared, rows = joined.num_shared, joined.moves.total()
    run.close({OK: rows}, {OK: shared, ABSENT: rows - shared} if rows > shared else {OK: rows}, OK)
    photos, lost_photos = _fetch_all(sides, changes)
    run.record["warnings"] = [*_warn(sides, changes, names), *lost_photos]
    answers = answer_diff(joined, moved, names)
    for warning in run.record["warnings"]:
        say(f"warning: {warning}")
    for answer in answers:
        say(plain("\n  ".join([answer.head, *answer.details])))
    both, lost, gained = joined.count_kept()
    run.record["rows"] = {"kept_in_both": both, "lost": lost, "gained": gained}
    page = _draw(run, sides, joined, changes, moved, options, photos, names)
    run.report(f"{gained:,} rows gained, {lost:,} lost, {both:,} kept in both", page)


def _write_tables(
    run: Run,
    joined: Joined,
    changes: Changes,
    moved: Sequence[Moved],
    options: Sequence[Difference],
    names: Names,
) -> None:
    moves = sorted(joined.moves.items())
    tables = {
        CONCEPTS: write_csv([Moved._fields, *moved]),
        OUTCOMES: write_csv([("first", "second", "rows"), *((*pair, count) for pair, count in moves)]),
        OPTIONS: write_csv([Difference._fields, *options]),
        MEANS: write_means(list_means(changes)),
    }
    for name, text in tables.items():
        run.folder.write_bytes(text.encode(), name)


def _warn(sides: tuple[Side, Side], changes: Changes, names: Names) -> list[str]:
    """Return what limits the comparison of concepts."""
    found = []
    other = find_other_code(*sides)
    if other:
        found.append(
            f"concepts: {' and '.join(other)} differ between the runs, so one caption may have other "
            "phrases in each; a concept may seem to move for that reason"
        )
    missing = [
        (changes.rows[group] - changes.parsed[group], changes.rows[group]) for group in (BOTH, LOST, GAINED)
    ]
    if any(count for count, _ in missing):
        said = ", ".join(
            f"{count:,} of {rows:,} {name}"
            for name, (count, rows) in zip(("kept in both", "lost", "gained"), missing, strict=True)
            if count
        )
        found.append(
            f"concepts: rows without phrases, because they were not attributed, do not count: {said}"
        )
    lost = max((one.most_lost for one in changes.concepts.values()), default=0)
    if lost:
        found.append(f"concepts: the counter discards rare words; a count may be too low by up to {lost:,}")
    return found


def _fetch_all(sides: tuple[Side, Side], changes: Changes) -> tuple[dict[str, bytes], list[str]]:
    photos: dict[str, bytes] = {}
    lines: list[str] = []
    for side, group in zip(sides, (LOST, GAINED), strict=True):
        found, why = fetch_photos(side, changes.picks[group].samples)
        photos |= found
        lines += why
    return photos, list(dict.fromkeys(lines))


def _draw(
    run: Run,
    sides: tuple[Side, Side],
    joined: Joined,
    changes: Changes,
    moved: Sequence[Moved],
    options: Sequence[Difference],
    photos: dict[str, bytes],
    names: Names,
) -> str:
    up = [one for one in moved if one.side > 0]
    down = [one for one in moved if one.side < 0]
    others = [one for one in moved if not one.side]
    return render_page(
        "look/diff.html.jinja",
        run=run.record,
        names=names,
        inputs=[side.config.input for side in sides],
        answers=answer_diff(joined, moved, names),
        rows=report_rows(joined, names),
        moves=report_moves(joined, names),
        num_tested=len(moved),
        least=LEAST,
        more=report_concepts(up, names, f"More frequent in {names[1]}"),
        less=report_concepts(down, names, f"Less frequent in {names[1]}"),
        others=report_concepts(others, names, "Did not move"),
        means=report_means(list_means(changes), names),
        options=report_options(options, names),
        gained=changes.picks[GAINED].samples,
        lost=changes.picks[LOST].samples,
        photos=photos,
        reason_words=reason_words,
    )
