"""The demo's figures: one test set, two models, and the differences that are significant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lab.worlds.benchmark import NAME
from lab.worlds.test_set import CATEGORIES
from raycomp.data.files import join_uri
from raycomp.data.parquet import read_columns
from raycomp.evaluation import retrieval
from raycomp.evaluation.compare import compare_tables
from raycomp.evaluation.results import compute_outcomes, make_lines
from raycomp.table import Cell, Column, Columns, Estimate, Table, write_cell
from raycomp.words import (
    ACCURACY,
    AUGMENTED_ACCURACY,
    BRITTLENESS,
    IMAGE_TO_TEXT,
    MACRO,
    RECALLS,
    SHORTER_CAPTION,
    SHUFFLED_IMAGE,
    TEST,
    TEXT_TO_IMAGE,
)

_RECALL = "image-to-text recall@1"
# Other metrics: by benchmark, split and metric.
_OTHERS = {
    (NAME, MACRO, AUGMENTED_ACCURACY): "augmented accuracy",
    (NAME, MACRO, BRITTLENESS): "brittleness",
    (retrieval.NAME, TEST, f"{RECALLS[IMAGE_TO_TEXT]}@1"): _RECALL,
    (retrieval.NAME, TEST, f"{RECALLS[TEXT_TO_IMAGE]}@1"): "text-to-image recall@1",
}
_LOWER_IS_BETTER = {"brittleness"}
_COLUMNS: tuple[str | Column, ...] = (
    "n",
    *(Column(name, digits=3) for name in ("random half", "raycomp's half", "difference")),
)
# Accuracy of the shorter-caption baseline above which a gain is not evidence of visual understanding.
_SOLVED = 0.9
_CANNOT = (
    "The intervals are over scenes, for these models. They exclude the variation between training seeds; the "
    "study repeats such trainings over twelve worlds. Rendered scenes are not photos."
)


@dataclass(frozen=True)
class Paired:
    """One measure of both models."""

    name: str
    num: int
    reference: Estimate
    other: Estimate
    difference: Estimate
    shorter: float | None = None
    """Accuracy of the baseline that chooses the shorter caption,"""
    shuffled: float | None = None
    """and the mean of both models' with another image."""

    @property
    def gain(self) -> int:
        """1 or -1 where the difference is a significant improvement or loss; else 0."""
        side = int(self.difference.low > 0) - int(self.difference.high < 0)
        return -side if self.name in _LOWER_IS_BETTER else side


@dataclass(frozen=True)
class Figures:
    """All of them."""

    kinds: Sequence[Paired]
    """Accuracy by kind of negative,"""
    mean: Paired
    """and the mean of the kinds."""
    others: Sequence[Paired]
    """Other metrics."""

    @property
    def recall(self) -> Paired:
        """Image-to-text recall@1."""
        return next(one for one in self.others if one.name == _RECALL)


def find_figures(reference: str, other: str) -> Figures:
    """Return the results of two evaluations of the demo's test sets, with 95 % intervals, differences
    paired."""
    found: dict[tuple[str, str, str], Paired] = {}
    for name in (NAME, retrieval.NAME):
        tables = [
            read_columns(join_uri(folder, "scores", f"{name}.parquet")) for folder in (reference, other)
        ]
        found |= {(name, split, metric): one for (split, metric), one in _pair(name, *tables)}
    own = {split: one for (_, split, metric), one in found.items() if metric == ACCURACY}
    splits = (f"{operation}_{kind}".lower() for operation, kind in CATEGORIES)
    kinds = [own[split] for split in splits if split in own]
    return Figures(kinds, own[MACRO], [replace(found[key], name=name) for key, name in _OTHERS.items()])


def _pair(benchmark: str, reference: pa.Table, other: pa.Table) -> Iterator[tuple[tuple[str, str], Paired]]:
    """Yield the figures of a benchmark by split and metric."""
    known = [
        {
            (line.split, line.metric, line.control): line
            for line in make_lines(benchmark, compute_outcomes(one))
        }
        for one in (reference, other)
    ]
    for line in compare_tables(benchmark, reference, other):
        at = (line.split, line.metric)
        first, second = (own[*at, ""] for own in known)
        shorter = known[0].get((*at, SHORTER_CAPTION))
        shuffled = [own[*at, SHUFFLED_IMAGE].value for own in known if (*at, SHUFFLED_IMAGE) in own]
        yield (
            (line.split, line.metric),
            Paired(
                "mean of these" if line.split == MACRO else line.split.replace("_", " "),
                line.n,
                Estimate.of(first, first.chance),
                Estimate.of(second, second.chance),
                Estimate(line.difference, line.low, line.high),
                shorter and shorter.value,
                sum(shuffled) / len(shuffled) if shuffled else None,
            ),
        )


def report_accuracies(figures: Figures) -> Table:
    """Return the table of the test set, with the baselines and the models."""
    rows: list[tuple[Cell, ...]] = [
        (*_report(one), one.shorter, one.shuffled) for one in (*figures.kinds, figures.mean)
    ]
    baselines = (Column(name, digits=3) for name in ("shorter caption", "another image"))
    columns: Columns = ("Negative", *_COLUMNS, *baselines)
    note = (
        "Accuracy: the share of scenes whose picture is nearer to the caption than to the negative, by kind "
        "of edit; a tie is wrong. 95 % intervals are over scenes; the mark is at chance. Baselines: the "
        "shorter caption, and the mean of both models with the picture of another scene."
    )
    return Table("Accuracy by kind of edit", columns, rows, note)


def report_others(figures: Figures) -> Table:
    """Return the table of metrics that a gain may cost."""
    note = (
        "A model that rejects every edited caption also rejects paraphrases. Augmented accuracy: caption and "
        "paraphrase are both nearer to the picture than the negative. Brittleness: the negative is scored "
        "between caption and paraphrase; lower is better. Both are means over the kinds above. Recall@1: a "
        "picture or caption retrieves its counterpart among all pairs; no training used these pairs."
    )
    return Table("Other metrics", ("Measure", *_COLUMNS), [_report(one) for one in figures.others], note)


def _report(one: Paired) -> tuple[Cell, ...]:
    return one.name, one.num, one.reference, one.other, one.difference


def describe_limits(figures: Figures) -> dict[str, str]:
    """Return a sentence or two on the significant differences, and those that are not."""
    reported = [f"The mean accuracy changed by {write_cell(figures.mean.difference, 3)}."]
    for what, gain in (("Improved", 1), ("Worse", -1), ("No significant change", 0)):
        names = [one.name for one in (*figures.kinds, *figures.others) if one.gain == gain]
        reported += [f"{what}: {', '.join(names)}."] if names else []
    by_length = [one.name for one in figures.kinds if one.shorter is not None and one.shorter > _SOLVED]
    cannot = (
        f"Choosing the shorter caption, without the image, solves {', '.join(by_length)}. "
        if by_length
        else ""
    )
    return {"Results": " ".join(reported), "Limits": cannot + _CANNOT}
