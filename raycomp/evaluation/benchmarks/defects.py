"""The defects of a benchmark, found without any model, as a table."""

from collections import Counter
from collections.abc import Iterable, Sequence

from raycomp.evaluation.benchmarks.choice import DEFECTS, Choice
from raycomp.table import Cell, Table

ALL = "all"
# Rows of a benchmark's splits as published, where that is known; two for each item of two images. Counted
# from the files; BiVLC's README states 2,933 items, Winoground's paper 400.
ROWS: dict[str, dict[str, int]] = {
    "sugarcrepe": {
        "add_att": 692,
        "add_obj": 2062,
        "replace_att": 788,
        "replace_obj": 1652,
        "replace_rel": 1406,
        "swap_att": 666,
        "swap_obj": 245,
    },
    "sugarcrepe_pp": {
        "replace_att": 788,
        "replace_obj": 1652,
        "replace_rel": 1406,
        "swap_att": 666,
        "swap_obj": 245,
    },
    "valse": {
        "actant-swap": 1042,
        "action-replacement": 779,
        "coreference-hard": 141,
        "coreference-standard": 916,
        "counting-adversarial": 756,
        "counting-hard": 1000,
        "counting-small-quant": 1000,
        "existence": 534,
        "foil-it": 1000,
        "plurals": 1000,
        "relations": 614,
    },
    "hard_positives": {"attributes": 10575, "relations": 16868},
    "cola": {ALL: 2 * 210},
    "winoground": {ALL: 2 * 400},
    "bivlc": {ALL: 2 * 2933},
    "aro_order": {"coco": 25010, "flickr30k": 5000},
}


def warn_other_counts(choices: Iterable[Choice]) -> list[str]:
    """Return a line for every split whose number of rows is not the published one."""
    counts: Counter[tuple[str, str]] = Counter()
    for choice in choices:
        counts[choice.benchmark, choice.split] += 1
        counts[choice.benchmark, ALL] += 1
    lines = []
    for (name, split), count in counts.items():
        published = ROWS.get(name, {}).get(split, count)
        if count != published:
            lines.append(f"{name}: {split}: {count:,} rows, {published:,} are published")
    return lines


def report_defects(choices: Sequence[Choice]) -> Table:
    """Return rows, sound rows and rows by defect of every split; a row may have several defects.

    The note lists the splits whose number of rows differs from the published one.
    """
    rows = Counter((choice.benchmark, choice.split) for choice in choices)
    sound = Counter((choice.benchmark, choice.split) for choice in choices if not choice.defects)
    counts = Counter((choice.benchmark, choice.split, name) for choice in choices for name in choice.defects)
    lines: list[list[Cell]] = [
        [*place, count, sound[place], *(counts[*place, defect] for defect in DEFECTS)]
        for place, count in rows.items()
    ]
    meanings = [f"{name}: {meaning}." for name, meaning in DEFECTS.items()]
    others = [f"{line}." for line in warn_other_counts(choices)]
    columns = ("benchmark", "split", "rows", "sound", *DEFECTS)
    return Table("Defects of the published rows", columns, lines, " ".join([*meanings, *others]))
