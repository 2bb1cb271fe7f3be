"""From rows of scores to right and wrong answers: the input of tables, comparisons and intervals."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.outcomes import Pair, Verdict, judge_choices, judge_pairs, judge_texts
from raycomp.core.ranks import chance_of_hit, find_hits
from raycomp.evaluation.benchmarks.choice import EQUAL, UNCONFIRMED
from raycomp.words import (
    ACC1,
    ACC5,
    AUGMENTED_ACCURACY,
    CONTROLS,
    IMAGE,
    MEAN_PER_CLASS_RECALL,
    OK,
    RECALLS,
    SHORTER_CAPTION,
    STATUS,
    TEST,
    TOT,
)

# SugarCrepe++'s own name for it.
ITT = "itt"
# Rows with these defects are excluded; rows that annotators did not confirm always are. A row whose caption
# is among its negatives stays, and is wrong, as in published scores; in ARO's orders those count it as right.
_LEFT_OUT = {"aro_order": (EQUAL,)}
_OWN_NAMES = {"sugarcrepe_pp": {AUGMENTED_ACCURACY: ITT}}
CUTS = (1, 5, 10)


class Outcome(NamedTuple):
    """One metric of one split: N examples, each right or wrong."""

    split: str
    metric: str
    control: str
    """The baseline whose scores are evaluated; "" for the model's own."""
    key_N: np.ndarray
    """Keys of the split's examples, texts."""
    unit_N: np.ndarray
    """The image of each example: examples of one image are not independent. Texts."""
    right_N: np.ndarray
    """1, 0, or 1/2 where a tie counts half; float64."""
    tie_N: np.ndarray
    """Whether the example is a tie of equal scores; bool."""
    chance: float
    """The expected value of random scores; NaN where it is unknown."""
    class_N: np.ndarray | None = None
    """Group of each example, any values that compare equal. The groups' means have equal weight, as classes
    do; None: all examples have equal weight."""
    num_all: int = 0
    """All examples of the split: N, and those left out because an image or a caption is missing."""


def list_controls(table: pa.Table) -> list[str]:
    """Return the baselines whose scores a table of choices holds."""
    return [name for name in CONTROLS if f"{name}_positives" in table.column_names]


def name_statuses(table: pa.Table) -> list[str]:
    """Return for every row: ok, another status, or the defect that excludes it."""
    rows = zip(table[STATUS].to_pylist(), _find_exclusions(table), strict=True)
    return [defect or status if status == OK else status for status, defect in rows]


def _find_exclusions(table: pa.Table) -> list[str | None]:
    """Return for every row the defect that excludes it; None where there is none."""
    benchmarks = table["benchmark"].to_pylist()
    found = table["defects"].to_pylist() if "defects" in table.column_names else [()] * len(table)
    return [
        next((one for one in (UNCONFIRMED, *_LEFT_OUT.get(benchmark, ())) if one in defects), None)
        for benchmark, defects in zip(benchmarks, found, strict=True)
    ]


def find_choice_outcomes(table: pa.Table) -> list[Outcome]:
    """Return the outcomes of EXAMPLE_SCHEMA's rows, the model's and the baselines', split by split.

    Only rows that ``name_statuses`` calls ok are used; for items of two images, both rows must be ok. A split
    that has lost all its rows has the metrics of the first split, with no example.
    """
    asked = table.filter(pa.array([defect is None for defect in _find_exclusions(table)], pa.bool_()))
    outcomes: list[Outcome] = []
    lost = {}
    for split in pc.unique(asked["split"]).to_pylist():
        rows = asked.filter(pc.equal(asked["split"], split))
        items, scored = rows["group"].to_pylist(), rows.filter(pc.equal(rows[STATUS], OK))
        num_all = len(set(items)) if items[0] else len(rows)
        if not len(scored):
            lost[split] = num_all
        for control in ("", *list_controls(table)) if len(scored) else ():
            found = _judge_split(scored, split, control)
            outcomes += [outcome._replace(num_all=num_all) for outcome in found]
    return outcomes + [
        take_examples(one, np.zeros(0, int))._replace(split=split, num_all=num_all, chance=float("nan"))
        for split, num_all in lost.items()
        for one in outcomes
        if one.split == outcomes[0].split
    ]


def take_examples(outcome: Outcome, at_n: np.ndarray) -> Outcome:
    """Return the outcome restricted to the examples at these places."""
    return outcome._replace(
        key_N=outcome.key_N[at_n],
        unit_N=outcome.unit_N[at_n],
        right_N=outcome.right_N[at_n],
        tie_N=outcome.tie_N[at_n],
        class_N=None if outcome.class_N is None else outcome.class_N[at_n],
    )


def _judge_split(rows: pa.Table, split: str, control: str) -> list[Outcome]:
    positives, negatives = (
        rows[f"{control}_{side}" if control else f"{side[:-1]}_scores"].to_pylist()
        for side in ("positives", "negatives")
    )
    keys, units = rows["id"].to_pylist(), rows["image"].to_pylist()
    is_of_items = bool(rows["group"][0].as_py())
    verdicts: dict[str, Verdict]
    if is_of_items:
        pairs, keys = _find_pairs(rows)
        units, verdicts = keys, judge_pairs(positives, negatives, pairs)
    else:
        verdicts = judge_choices(positives, negatives, half_ties=control == SHORTER_CAPTION)
        num_true = {len(texts) for texts in rows["positives"].to_pylist()}
        if not control and len(num_true) == 1 and min(num_true) > 1:
            verdicts[TOT] = judge_texts(rows["text_scores"].to_pylist(), *num_true)
    names = _OWN_NAMES.get(rows["benchmark"][0].as_py(), {})
    return [
        Outcome(
            split,
            names.get(metric, metric),
            control,
            np.array(keys),
            np.array(units),
            verdict.right_N,
            verdict.tie_N,
            float(verdict.chance_N.mean()) if len(keys) else float("nan"),
        )
        for metric, verdict in verdicts.items()
    ]


def _find_pairs(rows: pa.Table) -> tuple[list[Pair], list[str]]:
    """Return the items of two images whose rows are both present, and their names."""
    places: dict[str, list[int]] = {}
    for place, group in enumerate(rows["group"].to_pylist()):
        places.setdefault(group, []).append(place)
    whole = {group: Pair(*found) for group, found in places.items() if len(found) == 2}
    return list(whole.values()), list(whole)


def join_splits(outcomes: Sequence[Outcome]) -> tuple[Outcome, np.ndarray]:
    """Return the outcomes of a metric's splits as those of one split without a name, and each example's
    split, int (N,). An example's key is SPLIT/KEY; an image in several splits is one unit. At least one split
    has an example."""
    own = [outcome for outcome in outcomes if len(outcome.key_N)]
    first, counts = own[0], np.array([len(outcome.key_N) for outcome in own])
    keys = [f"{outcome.split}/{key}" for outcome in own for key in outcome.key_N]
    joined = Outcome(
        split="",
        metric=first.metric,
        control=first.control,
        key_N=np.array(keys),
        unit_N=np.concatenate([outcome.unit_N for outcome in own]),
        right_N=np.concatenate([outcome.right_N for outcome in own]),
        tie_N=np.concatenate([outcome.tie_N for outcome in own]),
        chance=float(np.array([outcome.chance for outcome in own]) @ counts / counts.sum()),
        num_all=sum(outcome.num_all for outcome in outcomes),
    )
    return joined, np.repeat(np.arange(len(own)), counts)


def find_class_outcomes(table: pa.Table) -> list[Outcome]:
    """Return for CLASSIFIED_SCHEMA's rows acc1, with more than five classes acc5, and mean_per_class_recall.

    The last is acc1 with equal weight for every class. Classes without an evaluated image are excluded.
    """
    tested = table.filter(pc.equal(table["split"], TEST))
    rows = tested.filter(pc.equal(tested[STATUS], OK))
    if not len(rows):
        return []
    key_N, unit_N, label_N = (np.array(rows[name].to_pylist()) for name in ("id", IMAGE, "label"))
    num_classes = rows["num_classes"][0].as_py()
    outcomes = []
    for metric, k, class_N in ((ACC1, 1, None), (ACC5, 5, None), (MEAN_PER_CLASS_RECALL, 1, label_N)):
        if k < num_classes:
            right_N, tie_N = find_hits(rows["rank"].to_numpy(), rows["ties"].to_numpy(), k)
            found = key_N, unit_N, right_N, tie_N, k / num_classes, class_N
            outcomes.append(Outcome(TEST, metric, "", *found, len(tested)))
    return outcomes


def find_retrieval_outcomes(table: pa.Table) -> list[Outcome]:
    """Return for RETRIEVED_SCHEMA's rows the recalls at 1, 5 and 10 of both directions.

    Each is computed only where there are more targets than that. A caption's unit is its image: captions of
    one image are not independent.
    """
    outcomes = []
    for direction, metric in RECALLS.items():
        asked = table.filter(pc.equal(table["direction"], direction))
        rows = asked.filter(pc.equal(asked[STATUS], OK))
        key_N, unit_N = (np.array(rows[name].to_pylist()) for name in ("id", IMAGE))
        num_targets = rows["num_targets"][0].as_py() if len(rows) else 0
        num_own = Counter(rows["num_own"].to_pylist()).items()
        for k in (k for k in CUTS if k < num_targets):
            right_N, tie_N = find_hits(rows["rank"].to_numpy(), rows["ties"].to_numpy(), k)
            chance = sum(chance_of_hit(own, num_targets, k) * count for own, count in num_own) / len(rows)
            found = key_N, unit_N, right_N, tie_N, chance
            outcomes.append(Outcome(TEST, f"{metric}@{k}", "", *found, num_all=len(asked)))
    return outcomes


def find_outcomes(table: pa.Table) -> list[Outcome]:
    """Return the outcomes of a scores file's rows, for any benchmark."""
    table = _number_repeats(table)
    if "num_classes" in table.column_names:
        return find_class_outcomes(table)
    if "num_targets" in table.column_names:
        return find_retrieval_outcomes(table)
    return find_choice_outcomes(table)


def _number_repeats(table: pa.Table) -> pa.Table:
    """Return the rows with unique ids: repetitions of an id get their number as a suffix.

    All rows are numbered, whatever their status, so that two models' rows pair.
    """
    if "id" not in table.column_names:
        return table
    names = [name for name in ("split", "direction", "id") if name in table.column_names]
    seen: Counter[tuple[str, ...]] = Counter()
    ids = []
    for row in zip(*(table[name].to_pylist() for name in names), strict=True):
        ids.append(f"{row[-1]}\0{seen[row]}" if seen[row] else row[-1])
        seen[row] += 1
    return table.set_column(table.column_names.index("id"), "id", pa.array(ids, table["id"].type))
