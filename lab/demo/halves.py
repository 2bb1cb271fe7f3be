"""The halves that the demo compares: which pairs each holds, and what a CLIP learns from it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lab.demo.figures import Figures
from lab.demo.planted import FAULT
from lab.worlds.faults import NO_FAULT
from raycomp.data.files import KEPT_FILE, Folder
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import read_columns
from raycomp.data.reader import extract
from raycomp.data.runs import list_scores, read_finished
from raycomp.data.samples import find_image
from raycomp.table import Cell, Column, Columns, Estimate, Plot, Table, write_cell
from raycomp.words import CAPTION, OK, POSITION, STATUS, UID

RANDOM, ALIGNMENT, CHOSEN = "random", "alignment", "chosen"
NAMES = {RANDOM: "a random half", ALIGNMENT: "the best half by alignment", CHOSEN: "raycomp's half"}
"""Every half that is trained on; the others are compared with the first."""
# Longer names would not fit next to a chart on a narrow screen.
_IN_CHART = {ALIGNMENT: "by alignment", CHOSEN: "by raycomp"}
STUDY = Estimate(7.07, 5.71, 8.44)
"""Points of accuracy that a half without faulty pairs gains over a random half, over the twelve worlds of
docs/study_world.md (bench/results/world_study/table.csv)."""
_SHOWN = 3


class Example(NamedTuple):
    """A pair that the page shows."""

    caption: str
    fault: str | None
    is_kept: bool
    image: bytes


@dataclass(frozen=True)
class Half:
    """The pairs of one half, and the model that was trained on it."""

    name: str
    num_pairs: int
    num_faulty: int
    figures: Figures | None
    """Compared with the random half; None for that itself."""


def count_faults(curated: str, kept: str) -> tuple[int, int]:
    """Return the number of pairs that a selection kept, and how many of them have a planted fault."""
    faults = _read_faults(curated)
    uids = read_columns(Folder(kept).at(KEPT_FILE), [UID])[UID].to_pylist()
    return len(uids), sum(faults[uid] is not None for uid in uids)


def _read_faults(curated: str) -> dict[str, str | None]:
    rows = pa.concat_tables(
        read_columns(uri, [UID, FAULT]) for uri in list_scores(read_finished(curated), curated)
    )
    faults = (None if fault == NO_FAULT else fault for fault in rows[FAULT].to_pylist())
    return dict(zip(rows[UID].to_pylist(), faults, strict=True))


def report_halves(halves: Sequence[Half]) -> Table:
    """Return the table of the halves: faulty pairs, accuracy, recall, differences from the random half."""
    compared = next(half.figures for half in halves if half.figures)
    rows: list[tuple[Cell, ...]] = []
    for half in halves:
        figures, cells = half.figures or compared, list[Cell]()
        for one in (figures.mean, figures.recall):
            own = one.other if half.figures else one.reference
            cells += [replace(own, chance=None), one.difference if half.figures else None]
        rows.append((NAMES[half.name], half.num_pairs, half.num_faulty, *cells))
    columns: Columns = (
        "Trained on",
        "pairs",
        "of these faulty",
        *(Column(name, digits=3) for name in ("accuracy", "minus random", "recall@1", "minus random ")),
    )
    note = (
        "Three CLIPs start from the same random weights and take the same number of steps. Accuracy: the "
        "share of unseen scenes whose picture is nearer to its caption than to an edited one, mean over the "
        "kinds of edits. Recall@1: the share of unseen pictures that retrieve their caption. 95 % intervals "
        "over scenes."
    )
    return Table("What a CLIP learns from each half", columns, rows, note)


def plot_halves(halves: Sequence[Half]) -> Plot:
    """Return the differences from the random half, in points, with the study's next to them."""
    rows = [
        (f"{_IN_CHART[half.name]}, {what}", _in_points(one.difference))
        for half in halves
        if half.figures
        for what, one in (("accuracy", half.figures.mean), ("recall@1", half.figures.recall))
    ]
    rows.append(("study: no faulty pair", STUDY))
    return Plot("Difference from a random half", "points", rows, 0.0)


def _in_points(one: Estimate) -> Estimate:
    return Estimate(100 * one.value, 100 * one.low, 100 * one.high)


def head(halves: Mapping[str, Half]) -> str:
    """Return the page's headline: whether the chosen half teaches more than a random one."""
    figures = halves[CHOSEN].figures
    assert figures is not None
    mean = figures.mean
    verbs = {1: "learns more from", -1: "learns less from", 0: "shows no significant difference between"}
    verb, joint = verbs[mean.gain], "and" if mean.gain == 0 else "than from"
    return (
        f"A small CLIP {verb} {NAMES[CHOSEN]} of the data {joint} {NAMES[RANDOM]}: "
        f"accuracy {mean.other.value:.3f} and {mean.reference.value:.3f}, "
        f"difference {write_cell(mean.difference, 3)}."
    )


def say_all(halves: Mapping[str, Half]) -> str:
    """Return the accuracy that each half teaches, in the order of the halves."""
    means = {name: half.figures.mean for name, half in halves.items() if half.figures is not None}
    values = {RANDOM: means[CHOSEN].reference.value, **{name: one.other.value for name, one in means.items()}}
    return "accuracy " + ", ".join(f"{value:.3f} on {NAMES[name]}" for name, value in values.items())


def say_others(halves: Mapping[str, Half], against: Figures, rule: str) -> str:
    """Return the rule, and its half compared with as many pairs by alignment alone (``against``)."""
    sides = {1: "higher", -1: "lower", 0: "not significantly different"}
    learned = (
        f"{name} is {sides[one.gain]} ({one.other.value:.3f} instead of {one.reference.value:.3f}, "
        f"difference {write_cell(one.difference, 3)})"
        for name, one in (("accuracy", against.mean), ("image-to-text recall@1", against.recall))
    )
    return (
        f"The rule is {rule}. Compared with the best half by alignment alone (align_only), its half holds "
        f"{halves[CHOSEN].num_faulty} faulty pairs instead of {halves[ALIGNMENT].num_faulty}; "
        f"{'; '.join(learned)}. These are single trainings; over twelve worlds the study, of showable nouns "
        "and two nonces, finds no detectable difference from alignment in what a CLIP learns."
    )


def list_examples(curated: dict[str, Any], folder: str, world: str) -> list[Example]:
    """Return the first pairs by uid that are sound and kept, and the first that are faulty and dropped."""
    names = [UID, STATUS, CAPTION, POSITION, FAULT]
    kept = set(read_columns(Folder(folder).at(KEPT_FILE), [UID])[UID].to_pylist())
    found: dict[bool, list[tuple[str, int, dict[str, Any]]]] = {True: [], False: []}
    for ordinal, uri in enumerate(list_scores(curated, folder)):
        table = read_columns(uri, names)
        for row in table.filter(pc.equal(table[STATUS], OK)).to_pylist():
            is_kept, is_sound = row[UID] in kept, row[FAULT] in (None, NO_FAULT)
            if is_kept == is_sound:
                found[is_kept].append((row[UID], ordinal, row))
    shards = expand_input(world)
    chosen = [one for rows in found.values() for one in sorted(rows, key=lambda one: one[0])[:_SHOWN]]
    return list(_read_examples(shards, chosen, kept))


def _read_examples(
    shards: Sequence[Any], chosen: Sequence[tuple[str, int, dict[str, Any]]], kept: set[str]
) -> Iterator[Example]:
    for uid, ordinal, row in chosen:
        for _, members in extract(shards[ordinal], {row[POSITION]: uid}):
            name = find_image(members)
            if name:
                fault = None if row[FAULT] in (None, NO_FAULT) else str(row[FAULT]).replace("_", " ")
                yield Example(row[CAPTION], fault, uid in kept, members[name])
