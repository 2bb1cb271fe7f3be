"""From rows of scores to right and wrong answers, to metrics with intervals and baselines, to sentences."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp import words
from raycomp.core import intervals
from raycomp.evaluation.benchmarks.choice import EQUAL, UNCONFIRMED
from raycomp.table import Cell, Column, Estimate, Table, group_by, number, plain, write_cell

# SugarCrepe++'s own name for it.
ITT = "itt"
# Rows with these defects are excluded; rows that annotators did not confirm always are. A row whose caption
# is among its negatives stays, and is wrong, as in published scores; in ARO's orders those count it as right.
_LEFT_OUT = {"aro_order": (EQUAL,)}
_OWN_NAMES = {"sugarcrepe_pp": {words.AUGMENTED_ACCURACY: ITT}}
CUTS = (1, 5, 10)


_ADD, _SWAP = ("add_att", "add_obj"), ("swap_att", "swap_obj")
_REPLACE = ("replace_att", "replace_obj", "replace_rel")
_EDITS = {"replace": (words.MACRO, _REPLACE), "swap": (words.MACRO, _SWAP)}
AGGREGATES: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "sugarcrepe": {"add": (words.MACRO, _ADD), **_EDITS, "replace_add": (words.MICRO, _REPLACE + _ADD)},
    "sugarcrepe_pp": _EDITS,
    "vl_checklist": {kind: (words.MICRO, (kind,)) for kind in words.CONCEPT_KINDS},
    "zeroshot": {"cifar": (words.MACRO, ("cifar10", "cifar100"))},
}
"""The aggregates of published tables: benchmark -> name -> micro or macro, and the splits, or the edited kind
of concept. docs/evaluation.md has the reasons. One that lacks a member is not reported."""


def is_mean(benchmark: str, split: str) -> bool:
    """Return whether a line's split is a mean of several, or takes the place of one by its name."""
    return split in (words.MICRO, words.MACRO, *AGGREGATES.get(benchmark, ()))


def is_main(benchmark: str, split: str, metric: str, with_means: Collection[str]) -> bool:
    """Return whether a line is printed: a mean, a benchmark's only split, or acc1 of a named set."""
    return is_mean(benchmark, split) or benchmark not in with_means or metric == words.ACC1


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
    kind: str = ""
    """The edited kind of concept; "" if none."""


def list_controls(table: pa.Table) -> list[str]:
    """Return the baselines whose scores a table of choices holds."""
    return [name for name in words.CONTROLS if f"{name}_positives" in table.column_names]


def name_statuses(table: pa.Table) -> list[str]:
    """Return for every row: ok, another status, or the defect that excludes it."""
    rows = zip(table[words.STATUS].to_pylist(), _find_exclusions(table), strict=True)
    return [defect or status if status == words.OK else status for status, defect in rows]


def _find_exclusions(table: pa.Table) -> list[str | None]:
    """Return for every row the defect that excludes it; None where there is none."""
    names = table["benchmark"].to_pylist()
    excluding = ((UNCONFIRMED, *_LEFT_OUT.get(name, ())) for name in names)
    found = table["defects"].to_pylist() if "defects" in table.column_names else [()] * len(table)
    return [
        next((one for one in some if one in own), None) for some, own in zip(excluding, found, strict=True)
    ]


def compute_choice_outcomes(table: pa.Table, with_controls: bool = True) -> list[Outcome]:
    """Return the outcomes of EXAMPLE_SCHEMA's rows, the model's and the baselines', split by split.

    Only rows that ``name_statuses`` calls ok are used; for items of two images, both rows must be ok. A split
    that has lost all its rows has the metrics of the first split, with no example.
    """
    asked = table.filter(pa.array([defect is None for defect in _find_exclusions(table)], pa.bool_()))
    outcomes: list[Outcome] = []
    lost = {}
    for split in pc.unique(asked["split"]).to_pylist():
        rows = asked.filter(pc.equal(asked["split"], split))
        items, scored = rows["group"].to_pylist(), rows.filter(pc.equal(rows[words.STATUS], words.OK))
        facts: dict[str, Any] = {"num_all": len(set(items)) if items[0] else len(rows)}
        facts["kind"] = rows["kind"][0].as_py()
        if not len(scored):
            lost[split] = facts
        for control in ("", *(list_controls(table) if with_controls else ())) if len(scored) else ():
            found = _judge_split(scored, split, control)
            outcomes += [outcome._replace(**facts) for outcome in found]
    return outcomes + [
        take_examples(one, np.zeros(0, int))._replace(split=split, chance=float("nan"), **facts)
        for split, facts in lost.items()
        for one in outcomes
        if one.split == outcomes[0].split
    ]


def take_examples(outcome: Outcome, at_n: np.ndarray) -> Outcome:
    """Return the outcome restricted to the examples at these places."""
    names = ("key_N", "unit_N", "right_N", "tie_N", *(() if outcome.class_N is None else ("class_N",)))
    return outcome._replace(**{name: getattr(outcome, name)[at_n] for name in names})


def _judge_split(rows: pa.Table, split: str, control: str) -> list[Outcome]:
    positives, negatives = (
        rows[f"{control}_{side}" if control else f"{side[:-1]}_scores"].to_pylist()
        for side in ("positives", "negatives")
    )
    keys, units, groups = (rows[name].to_pylist() for name in ("id", "image", "group"))
    verdicts: dict[str, intervals.Verdict]
    if groups[0]:
        places = group_by(range(len(rows)), lambda row: groups[row])
        whole = {group: intervals.Pair(*found) for group, found in places.items() if len(found) == 2}
        keys = units = list(whole)
        verdicts = intervals.judge_pairs(positives, negatives, list(whole.values()))
    else:
        verdicts = intervals.judge_choices(positives, negatives, half_ties=control == words.SHORTER_CAPTION)
        num_true = {len(texts) for texts in rows["positives"].to_pylist()}
        if not control and len(num_true) == 1 and min(num_true) > 1:
            verdicts[words.TOT] = intervals.judge_texts(rows["text_scores"].to_pylist(), *num_true)
    names, outcomes = _OWN_NAMES.get(rows["benchmark"][0].as_py(), {}), []
    for metric, verdict in verdicts.items():
        chance = float(verdict.chance_N.mean()) if len(keys) else float("nan")
        examples = np.array(keys), np.array(units), verdict.right_N, verdict.tie_N
        outcomes.append(Outcome(split, names.get(metric, metric), control, *examples, chance))
    return outcomes


def join_splits(outcomes: Sequence[Outcome]) -> tuple[Outcome, np.ndarray]:
    """Return the outcomes of a metric's splits as those of one split without a name, and each example's
    split, int (N,), or split and class, int (N, 2), where examples have one. An example's key is SPLIT/KEY;
    an image in several splits is one unit. At least one split has an example."""
    own = [outcome for outcome in outcomes if len(outcome.key_N)]
    first, counts = own[0], np.array([len(outcome.key_N) for outcome in own])
    names = ("unit_N", "right_N", "tie_N")
    joined = Outcome(
        split="",
        metric=first.metric,
        control=first.control,
        key_N=np.array([f"{outcome.split}/{key}" for outcome in own for key in outcome.key_N]),
        **{name: np.concatenate([getattr(outcome, name) for outcome in own]) for name in names},
        kind="",
        chance=float(np.array([outcome.chance for outcome in own]) @ counts / counts.sum()),
        num_all=sum(outcome.num_all for outcome in outcomes),
    )
    split_N = np.repeat(np.arange(len(own)), counts)
    classes = [np.unique(one.class_N, return_inverse=True)[1] for one in own if one.class_N is not None]
    return joined, np.stack([split_N, np.concatenate(classes)], 1) if classes else split_N


def list_means(benchmark: str, outcomes: Sequence[Outcome]) -> list[tuple[str, bool, list[Outcome]]]:
    """Return the means of one metric over several splits: name, whether macro, and the splits' outcomes.
    Means without an example are absent; so is micro of means over classes."""
    means = [(words.MICRO, False, [*outcomes]), (words.MACRO, True, [*outcomes])]
    for name, (mean, parts) in AGGREGATES.get(benchmark, {}).items():
        own = [one for one in outcomes if {one.split, one.kind} & {*parts}]
        if {*parts} <= {word for one in own for word in (one.split, one.kind)}:
            means += [(name, mean == words.MACRO, own)] * all(one.split != name for one in outcomes)
    left = means[1:] if outcomes[0].class_N is not None else means
    return [one for one in left if any(len(outcome.key_N) for outcome in one[2])]


def compute_class_outcomes(table: pa.Table) -> list[Outcome]:
    """Return for CLASSIFIED_SCHEMA's rows acc1, with more than five classes acc5, and mean_per_class_recall.

    The last is acc1 with equal weight for every class. Classes without an evaluated image are excluded.
    """
    splits = [split for split in pc.unique(table["split"]).to_pylist() if split != words.TRAIN]
    outcomes = [_judge_classes(table.filter(pc.equal(table["split"], split)), split) for split in splits]
    return [one for own in outcomes for one in own]


def _judge_classes(tested: pa.Table, split: str) -> list[Outcome]:
    rows = tested.filter(pc.equal(tested[words.STATUS], words.OK))
    if not len(rows):
        return []
    key_N, unit_N, label_N = (np.array(rows[name].to_pylist()) for name in ("id", words.IMAGE, "label"))
    num_classes = rows["num_classes"][0].as_py()
    outcomes = []
    for metric, k, class_N in (
        (words.ACC1, 1, None),
        (words.ACC5, 5, None),
        (words.MEAN_PER_CLASS_RECALL, 1, label_N),
    ):
        if k < num_classes:
            hits = intervals.count_hits(rows["rank"].to_numpy(), rows["ties"].to_numpy(), k)
            found = key_N, unit_N, *hits, k / num_classes, class_N
            outcomes.append(Outcome(split, metric, "", *found, len(tested)))
    return outcomes


def compute_retrieval_outcomes(table: pa.Table) -> list[Outcome]:
    """Return for RETRIEVED_SCHEMA's rows the recalls at 1, 5 and 10 of both directions, then their means.

    Each is computed only where there are more targets than that. A caption's unit is its image: captions of
    one image are not independent.
    """
    outcomes = []
    for direction, metric in words.RECALLS.items():
        asked = table.filter(pc.equal(table["direction"], direction))
        rows = asked.filter(pc.equal(asked[words.STATUS], words.OK))
        key_N, unit_N = (np.array(rows[name].to_pylist()) for name in ("id", words.IMAGE))
        num_targets = rows["num_targets"][0].as_py() if len(rows) else 0
        num_own = Counter(rows["num_own"].to_pylist()).items()
        for k in (k for k in CUTS if k < num_targets):
            hits = intervals.count_hits(rows["rank"].to_numpy(), rows["ties"].to_numpy(), k)
            chances = [intervals.chance_of_hit(own, num_targets, k) * count for own, count in num_own]
            found = key_N, unit_N, *hits, sum(chances) / len(rows)
            outcomes.append(Outcome(direction, f"{metric}@{k}", "", *found, num_all=len(asked)))
    for k in CUTS:
        both = [one for one in outcomes if one.metric.endswith(f"@{k}")]
        if len(both) == 2:
            (joined, class_N), name = join_splits(both), f"{words.MEAN_RECALL}@{k}"
            chance = (both[0].chance + both[1].chance) / 2
            outcomes.append(joined._replace(metric=name, chance=chance, class_N=class_N))
    return [one._replace(split=words.TEST) for one in outcomes]


def compute_outcomes(table: pa.Table, with_controls: bool = True) -> list[Outcome]:
    """Return the outcomes of a scores file's rows, for any benchmark, of choices also the baselines'.

    Repetitions of an id get their number as a suffix: of all rows, whatever their status, so that two models'
    rows pair.
    """
    if "id" in table.column_names:
        names = [name for name in ("split", "direction", "id") if name in table.column_names]
        seen: Counter[tuple[str, ...]] = Counter()
        ids = []
        for row in zip(*(table[name].to_pylist() for name in names), strict=True):
            ids.append(f"{row[-1]}\0{seen[row]}" if seen[row] else row[-1])
            seen[row] += 1
        place = table.column_names.index("id")
        table = table.set_column(place, "id", pa.array(ids, table["id"].type))
    if "num_classes" in table.column_names:
        return compute_class_outcomes(table)
    if "num_targets" in table.column_names:
        return compute_retrieval_outcomes(table)
    return compute_choice_outcomes(table, with_controls)


BLIND = {words.SHORTER_CAPTION: "the shorter caption", words.SHUFFLED_IMAGE: "a shuffled image"}
"""The baselines that decide, and their names in sentences."""


class Margin(NamedTuple):
    """A model minus one baseline, in the main metric of one split; shares."""

    benchmark: str
    split: str
    metric: str
    control: str
    model: Estimate
    baseline: Estimate
    margin: Estimate
    """The model minus the baseline, with its 95 % interval over images."""

    @property
    def is_above(self) -> bool:
        """Whether the interval of the margin is above 0."""
        return self.margin.low > 0


def compute_margins(benchmark: str, outcomes: Sequence[Outcome]) -> list[Margin]:
    """Return the margins of every split, and of the mean over several splits; empty without a blind baseline.

    The main metric is the first one: accuracy, or the text score of items of two images.
    """
    metric = next((one.metric for one in outcomes if not one.control), "")
    own = {one.split: one for one in outcomes if (one.metric, one.control) == (metric, "")}
    margins = []
    for control in BLIND:
        asked = [one for one in outcomes if (one.metric, one.control) == (metric, control) and len(one.key_N)]
        compared: list[tuple[str, Outcome, Outcome, np.ndarray | None]]
        compared = [(one.split, own[one.split], one, None) for one in asked]
        if len(asked) > 1:
            (first, part_N), (second, _) = join_splits([own[one.split] for one in asked]), join_splits(asked)
            compared.append((words.MACRO, first, second, part_N))
        for split, first, second, split_N in compared:
            shares = (intervals.compute_share(o.right_N, o.unit_N, split_N) for o in (first, second))
            model, baseline = (Estimate.of(share, first.chance) for share in shares)
            found = intervals.compare_paired(second.right_N, first.right_N, first.unit_N, split_N)
            margin = Estimate(found.difference, found.low, found.high)
            margins.append(Margin(benchmark, split, metric, control, model, baseline, margin))
    return margins


def choose_summary(margins: Sequence[Margin]) -> list[Margin]:
    """Return the margins of the mean over splits, or of a benchmark's only split."""
    with_mean = {one.benchmark for one in margins if one.split == words.MACRO}
    return [one for one in margins if one.split == words.MACRO or one.benchmark not in with_mean]


def say_verdict(margins: Sequence[Margin]) -> str:
    """Return the verdict on one benchmark, or split: "passes", or the baselines that the model is not
    above."""
    below = [BLIND[one.control] for one in choose_summary(margins) if not one.is_above]
    return f"not above {' or '.join(below)}" if below else "passes" if margins else "no blind baseline"


def say_margins(margins: Sequence[Margin]) -> str:
    """Return the verdict on one benchmark with each margin, and the splits without a significant margin."""
    if not margins:
        return say_verdict(margins)
    reported = [f"{write_cell(one.margin, 3)} above {BLIND[one.control]}" for one in choose_summary(margins)]
    said = f"{say_verdict(margins)} ({', '.join(reported)})"
    for control, own in group_by(margins, lambda one: one.control).items():
        splits = [one for one in own if one.split != words.MACRO]
        below = [one.split.replace("_", " ") for one in splits if not one.is_above]
        if below and len(splits) > 1:
            is_all = len(below) == len(splits)
            some = f"in {'all' if is_all else f'{len(below)} of'} {len(splits)} splits"
            said += f"; {some} not above {BLIND[control]}{'' if is_all else ': ' + ', '.join(below)}"
    return said


def report_margins(by_run: Mapping[str, Sequence[Margin]]) -> Table:
    """Return the table of all margins: runs, benchmarks and splits, with the verdict."""
    rows: list[tuple[Cell, ...]] = []
    for name, margins in by_run.items():
        for (benchmark, split), own in group_by(margins, lambda one: (one.benchmark, one.split)).items():
            found = {one.control: one for one in own}
            cells: list[Cell] = []
            for one in map(found.get, BLIND):
                cells += [one.baseline.value, one.margin] if one else [None, None]
            rows.append((name, f"{benchmark}: {split}", say_verdict(own), own[0].model.value, *cells))
    heads = [control.replace("_", " ") for control in BLIND]
    pairs = [name for head in heads for name in (head, f"minus {head}")]
    values = [Column(name, digits=3) for name in ("model", *pairs)]
    note = (
        "A margin is the model minus a baseline on the same examples, with its 95 % interval over "
        "images. A model passes where the intervals of both margins are above 0: it then uses the image, and "
        "not only the length of the caption."
    )
    return Table("Baselines", ("run", "split", "verdict", *values), rows, note)


_FOUND = {words.IMAGE_TO_TEXT: "one of the image's captions", words.TEXT_TO_IMAGE: "the caption's image"}
MEANINGS = {
    words.ACCURACY: "the caption is nearer to the image than every negative; a tie is wrong",
    words.AUGMENTED_ACCURACY: "the caption and every paraphrase are nearer to the image than every negative",
    ITT: "both captions are nearer to the image than the negative",
    words.BRITTLENESS: "the negative is scored between caption and paraphrase; lower is better",
    words.TOT: "without the image: true captions are nearer to one another than to the negative",
    words.TEXT_SCORE: "for both images of an item, the own caption is scored higher",
    words.IMAGE_SCORE: "for both captions of an item, the own image is scored higher",
    words.GROUP_SCORE: "text score and image score are both right",
    words.ACC1: "the image is nearest to its own class; a tie is wrong",
    words.ACC5: "fewer than five other classes are as near to the image; a tie is wrong",
    words.MEAN_PER_CLASS_RECALL: "the mean over classes of each class's acc1",
    **{
        f"{words.RECALLS[direction]}@{k}": f"{what} is among the first {k}; a tie is wrong"
        for direction, what in _FOUND.items()
        for k in CUTS
    },
    **{f"{words.MEAN_RECALL}@{k}": f"the mean of both directions' recall@{k}" for k in CUTS},
}


class Line(NamedTuple):
    """One row of table.csv. Figures are shares, 0 to 1; NaN, an empty cell, where not available."""

    benchmark: str
    split: str
    """``micro``: equal weight for all examples; ``macro``: the mean of the splits."""
    metric: str
    value: float
    n: int
    """Examples that were evaluated."""
    chance: float
    ties: int
    """Examples that are ties of equal scores."""
    low: float
    high: float
    """Ends of the 95 % interval, with the examples of one image resampled together."""
    detectable: float
    """See ``core.intervals.Share``; NaN for baselines."""
    control: str
    """The baseline of these scores; "" for the model's own."""
    num_all: int
    """All examples: ``n``, and those left out because an image or a caption is missing."""


def make_lines(benchmark: str, outcomes: Sequence[Outcome]) -> list[Line]:
    """Return the lines of a benchmark: its splits in order, and for several splits ``list_means``."""
    splits = list(dict.fromkeys(outcome.split for outcome in outcomes))
    lines = [_make_line(benchmark, outcome.split, outcome) for outcome in outcomes]
    if len(splits) < 2:
        return lines
    for metric, control in dict.fromkeys((outcome.metric, outcome.control) for outcome in outcomes):
        every = [o for o in outcomes if (o.metric, o.control) == (metric, control)]
        for name, is_macro, own in list_means(benchmark, every):
            joined, split_N = join_splits(own)
            if is_macro:
                joined = joined._replace(chance=float(np.mean([o.chance for o in own if len(o.key_N)])))
            lines.append(_make_line(benchmark, name, joined, split_N if is_macro else None))
    return lines


def _make_line(benchmark: str, split: str, outcome: Outcome, split_N: np.ndarray | None = None) -> Line:
    part_N = outcome.class_N if split_N is None else split_N
    share = intervals.compute_share(outcome.right_N, outcome.unit_N, part_N)
    counted = len(outcome.key_N), outcome.chance, int(outcome.tie_N.sum())
    ends = share.low, share.high, float("nan") if outcome.control else share.detectable
    values = share.value, *counted, *ends
    return Line(benchmark, split, outcome.metric, *values, outcome.control, outcome.num_all)


def choose_main(lines: Sequence[Line]) -> list[Line]:
    """Return the model's own lines that ``is_main``."""
    with_means = {line.benchmark for line in lines if line.split == words.MACRO}
    return [line for line in lines if not line.control and is_main(*line[:3], with_means)]


def say_blind(line: Line, lines: Sequence[Line]) -> str:
    """Return the best text-only baseline of a model's line, to print behind it; empty without one."""
    sign = -1 if line.metric == words.BRITTLENESS else 1
    alike = [one for one in lines if one[:3] == line[:3] and one.control in words.TEXT_CONTROLS]
    if not alike or not line.n:
        return ""
    best = max(alike, key=lambda one: sign * one.value)
    return f"; best text-only baseline {number(best.value, DIGITS)} ({best.control.replace('_', ' ')})"


def report_lines(lines: Sequence[Line]) -> list[Table]:
    """Return a table for every benchmark and metric: model and baselines, split by split."""
    tables = []
    for (benchmark, metric), own in group_by(lines, lambda line: (line.benchmark, line.metric)).items():
        controls = [name for name in words.CONTROLS if any(line.control == name for line in own)]
        baselines = {(line.split, line.control): line.value for line in own}
        models = [line for line in own if not line.control]
        rows: list[list[Cell]] = []
        for line in models:
            counts = line.n, line.num_all, line.ties, line.detectable
            others = (baselines.get((line.split, name), float("nan")) for name in controls)
            rows.append([line.split, Estimate.of(line, line.chance), *counts, *others])
        columns = ("split", Column(metric), "n", "of", "ties", Column("detectable", digits=3))
        names = [Column(name.replace("_", " "), digits=3) for name in controls]
        chances = sorted({round(line.chance, 3) for line in models if line.chance == line.chance})
        chance = f" Chance: {', '.join(f'{value:g}' for value in chances)}." if chances else ""
        note = f"{explain_metric(metric)}{chance}{_explain_means(benchmark, models)}".strip()
        tables.append(Table(f"{benchmark}: {metric}", (*columns, *names), rows, note))
    return tables


def explain_metric(metric: str) -> str:
    """Return a sentence on a metric, empty for one without."""
    meaning = MEANINGS.get(metric)
    return f"{meaning[0].upper()}{meaning[1:]}." if meaning else ""


def _explain_means(benchmark: str, lines: Sequence[Line]) -> str:
    """Return a sentence for each aggregate among the lines."""
    own = [one for one in AGGREGATES.get(benchmark, {}).items() if any(o.split == one[0] for o in lines)]
    ways = {words.MACRO: "the mean of", words.MICRO: "all examples in"}
    return "".join(f" {name}: {ways[mean]} {', '.join(parts)}." for name, (mean, parts) in own)


DIGITS = 3


class Answer(NamedTuple):
    """The answer of a page to its question, for one benchmark."""

    head: str
    """One sentence with the value and its interval."""
    details: Sequence[str] = ()
    """Sentences on splits and baselines."""


def answer_evaluation(name: str, lines: Sequence[Line], margins: Sequence[Margin]) -> list[Answer]:
    """Return an answer for each benchmark of an evaluation; ``name`` is that of the model."""
    answers = []
    for benchmark, own in group_by(lines, lambda line: line.benchmark).items():
        metric = own[0].metric
        main = [line for line in own if not line.control and line.metric == metric]
        best = next((line for line in main if line.split == words.MACRO), main[0])
        num = sum(not is_mean(benchmark, line.split) for line in main)
        over = f", mean of {num} splits" if num > 1 else ""
        value = write_cell(Estimate.of(best), DIGITS)
        of_own = [one for one in margins if one.benchmark == benchmark]
        verdict = say_verdict(of_own)
        said = "" if not of_own else f"; it is {verdict}"
        said = "; it passes its blind baselines" if verdict == "passes" else said
        details = [f"Baselines: {say_margins(of_own)}."] if of_own else []
        details += [f"Chance is {number(best.chance, DIGITS)}."] if best.chance == best.chance else []
        head = f"{name}: {metric.replace('_', ' ')} {value} on {benchmark}{over}{said}."
        answers.append(Answer(head, details))
    return answers


def say_answers(answers: Sequence[Answer], say: Callable[[str], object]) -> None:
    """Print the answers."""
    for answer in answers:
        say(plain("\n  ".join([answer.head, *answer.details])))
