"""``raycomp diff``: how a curation or selection differs from another one. Does not start Ray."""

import math
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from raycomp.config import as_setting, flatten, to_dict
from raycomp.core.metrics import BOTH, GAINED, LOST, Z_95
from raycomp.curation.page import reason_words
from raycomp.data.parquet import new_groups
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import TIMES, identify
from raycomp.evaluation.compare_command import list_tails
from raycomp.look.config import DiffConfig
from raycomp.look.differences import (
    ABSENT,
    LEAST,
    MEASURES,
    MOVED_SCHEMA,
    NOUN,
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
        notes.append(
            f"Only in the input of {first}: {number(only_first)}; of {second}: {number(only_second)}."
        )
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
        if (first == KEPT) != (second == KEPT):
            change, rank = "lost" if first == KEPT else "gained", 0
        found.append((rank, -count, (first, second), change))
    rows: list[tuple[Cell, ...]] = [
        (change, *map(_outcome, pair), -minus) for _, minus, pair, change in sorted(found)
    ]
    columns = ("Change", f"in {names[0]}", f"in {names[1]}", "rows")
    return Table("Outcomes", columns, rows, "The outcome of a row is kept, or the reason why it is dropped.")


def _outcome(name: str) -> str:
    return "not in the input" if name == ABSENT else reason_words(name)


def report_concepts(moved: Iterable[Moved], names: Names, side: int, title: str) -> Table:
    """Return the concepts of a side (``Moved.side``) with shares, difference, interval and p."""
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
        if one.side == side
    ]
    return Table(title, columns, rows)


def list_means(changes: Changes) -> list[tuple[str, Estimate, Estimate, Estimate, Estimate]]:
    """Return the means of caption length, alignment and PAS: of gained, lost and common rows, and the
    difference of the first two, with 95 % intervals by the standard error over rows."""
    found = []
    for measure in MEASURES:
        gained, lost, both = (_estimate_mean(changes, group, measure) for group in (GAINED, LOST, BOTH))
        value = gained.value - lost.value
        reach = math.hypot(gained.high - gained.value, lost.high - lost.value)  # independent means
        difference = Estimate(value, value - reach, value + reach)
        found.append((_MEASURE_WORDS[measure], gained, lost, both, difference))
    return found


def report_means(changes: Changes, names: Names) -> Table:
    """Return them as a table of the page."""
    rows = []
    for measure, *means in list_means(changes):
        digits = 1 if measure == _MEASURE_WORDS[WORDS] else 4
        rows.append((measure, *(Numeral(write_cell(value, digits)) for value in means)))
    note = (
        "95 % intervals, by the standard error over rows. Alignments of gained rows are those of "
        f"{names[1]}, of other rows those of {names[0]}. PAS is of rows that have one."
    )
    return Table("Means of gained and lost rows", _MEANS, rows, note)


def _estimate_mean(changes: Changes, group: int, measure: str) -> Estimate:
    found = changes.measures.get((group, measure))
    if found is None or not found.count:
        return Estimate(float("nan"))
    if found.count < 2:
        return Estimate(found.mean)
    reach = Z_95 * math.sqrt(found.m2 / (found.count - 1) / found.count)
    return Estimate(found.mean, found.mean - reach, found.mean + reach)


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
    moved, options = rank_concepts(changes), compare_options(*sides)
    moves = [(*pair, count) for pair, count in sorted(joined.moves.items())]
    tables = {
        CONCEPTS: write_csv([Moved._fields, *moved]),
        OUTCOMES: write_csv([("first", "second", "rows"), *moves]),
        OPTIONS: write_csv([Difference._fields, *options]),
        MEANS: Table("", _MEANS, list_means(changes)).to_csv(),
    }
    for name, text in tables.items():
        run.folder.write_bytes(text.encode(), name)
    shared, rows = joined.num_shared, joined.moves.total()
    run.close({OK: rows}, {OK: shared, ABSENT: rows - shared} if rows > shared else {OK: rows}, OK)
    photos, why_lost = fetch_photos(sides[0], changes.picks[LOST].samples)
    gained_photos, why_gained = fetch_photos(sides[1], changes.picks[GAINED].samples)
    run.record["warnings"] = [*_warn(sides, changes), *dict.fromkeys([*why_lost, *why_gained])]
    answers = answer_diff(joined, moved, names)
    for warning in run.record["warnings"]:
        say(f"warning: {warning}")
    for answer in answers:
        say(plain("\n  ".join([answer.head, *answer.details])))
    both, lost, gained = joined.count_kept()
    run.record["rows"] = {"kept_in_both": both, "lost": lost, "gained": gained}
    no_options = "" if options else "No option, version or fingerprint differs."
    page = render_page(
        "look/diff.html.jinja",
        run=run.record,
        names=names,
        inputs=[side.config.input for side in sides],
        answers=answers,
        rows=report_rows(joined, names),
        moves=report_moves(joined, names),
        num_tested=len(moved),
        least=LEAST,
        more=report_concepts(moved, names, 1, f"More frequent in {second}"),
        less=report_concepts(moved, names, -1, f"Less frequent in {second}"),
        others=report_concepts(moved, names, 0, "Did not move"),
        means=report_means(changes, names),
        options=Table("Options and fingerprints that differ", ("Option", *names), options, no_options),
        gained=changes.picks[GAINED].samples,
        lost=changes.picks[LOST].samples,
        photos=photos | gained_photos,
        reason_words=reason_words,
    )
    run.report(f"{gained:,} rows gained, {lost:,} lost, {both:,} kept in both", page)


def _warn(sides: tuple[Side, Side], changes: Changes) -> list[str]:
    """Return what limits the comparison of concepts."""
    found = []
    then, now = (side.curated["fingerprint"] for side in sides)
    other = [name for name in _CODE if then.get(name) != now.get(name)]
    if other:
        found.append(
            f"concepts: {' and '.join(other)} differ between the runs, so one caption may have other "
            "phrases in each; a concept may seem to move for that reason"
        )
    missing = [
        f"{changes.rows[group] - changes.parsed[group]:,} of {changes.rows[group]:,} {name}"
        for group, name in ((BOTH, "kept in both"), (LOST, "lost"), (GAINED, "gained"))
        if changes.rows[group] > changes.parsed[group]
    ]
    if missing:
        said = "rows without phrases, because they were not attributed, do not count"
        found.append(f"concepts: {said}: {', '.join(missing)}")
    lost = max((one.most_lost for one in changes.concepts.values()), default=0)
    if lost:
        found.append(f"concepts: the counter discards rare words; a count may be too low by up to {lost:,}")
    return found
