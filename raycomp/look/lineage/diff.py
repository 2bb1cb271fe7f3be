"""``raycomp diff``: how a curation or selection differs from another one. Does not start Ray."""

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from raycomp.core.shifts import BOTH, GAINED, LOST
from raycomp.curation.funnel import reason_words
from raycomp.data.parquet import new_groups
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import identify
from raycomp.evaluation.compare_command import list_tails
from raycomp.look.lineage.changes import MOVED_SCHEMA, Changes, find_changes
from raycomp.look.lineage.concepts import LEAST, Moved, rank_concepts
from raycomp.look.lineage.config import DiffConfig
from raycomp.look.lineage.join import ABSENT, Joined, join_outcomes
from raycomp.look.lineage.options import Difference, compare_options, find_other_code
from raycomp.look.lineage.photos import fetch_photos
from raycomp.look.lineage.sides import Side, open_side, read_outcomes
from raycomp.look.lineage.tables import (
    Names,
    answer_diff,
    list_means,
    report_concepts,
    report_means,
    report_moves,
    report_options,
    report_rows,
    write_means,
)
from raycomp.report.page import render_page
from raycomp.run.run import Run, Say, command_line, start_run
from raycomp.table import plain, write_csv
from raycomp.words import OK

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
        "look/lineage/diff_page.html.jinja",
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
