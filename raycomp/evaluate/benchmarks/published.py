"""How many rows the splits of a benchmark have as published, where that is known, to tell another version.

Two rows for each item of two images. Counted from the files; of BiVLC its README says 2,933 items, of
Winoground the paper says 400.
"""

from collections import Counter
from collections.abc import Iterable

from raycomp.evaluate.benchmarks.choice import Choice

ALL = "all"
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


def tell_other_counts(choices: Iterable[Choice]) -> list[str]:
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
