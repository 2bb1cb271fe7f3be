"""The results of a study's runs, and differences between two groups of runs, paired by training seed.

R rows of the seen test set and then the unseen one, G scenes, C categories of the primary metric.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raycomp.core.contrasts import Contrast, bootstrap_seeds, contrast, holm, mean_by
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.study.runs import StudyRun

PRIMARY = ("SWAP object", "SWAP attribute", "REPLACE object", "REPLACE relation")
"""Their mean over scenes of seen pairs is the primary metric: the other categories are at their ceiling."""
RIGHT, AUGMENTED, BRITTLE = "right", "augmented", "brittle"
CLEAR = 0.05
PLANNED = (("clip-cpi50", "clip-align50"), ("clip-cpi50", "clip-align70_random50"))
"""Preregistered: the paper's contrast, and the contrast that isolates the gain of PAS over an alignment
gate."""
CLEANED = ("clip-oracle50", "clip-random50")
"""The gain from removing faulty pairs alone: a selection rule also chooses which correct pairs stay."""


@dataclass(frozen=True)
class Result:
    """One run's rows and facts."""

    one_run: StudyRun
    facts: dict[str, Any]
    scene_R: np.ndarray
    category_R: np.ndarray
    seen_R: np.ndarray
    values: dict[str, np.ndarray]
    """By measure: right, augmented, and in between (``BRITTLE``), bool [R]."""

    def share(self, category: str, what: str = RIGHT, seen: bool = True) -> float:
        """Return the share of a category's rows in percent; NaN where there are none."""
        at_R = (self.category_R == category) & (self.seen_R == seen)
        return 100 * float(self.values[what][at_R].mean()) if at_R.any() else float("nan")

    def macro(self, what: str = RIGHT, seen: bool = True, categories: Iterable[str] = PRIMARY) -> float:
        """Return the mean over categories of their shares in percent; by default the primary metric."""
        return float(np.mean([self.share(category, what, seen) for category in categories]))

    def recall(self) -> float:
        """Return recall@1 in percent, the mean of both ways, among the scenes of seen pairs."""
        return 50 * (self.facts["image_to_text"] + self.facts["text_to_image"])


Results = dict[StudyRun, Result]


def read_result(folder: Folder, one_run: StudyRun) -> Result:
    """Return the results of a finished run in ``cells/``."""
    table = read_columns(folder.at("cells", f"{one_run.name}.parquet"))
    columns = {name: table[name].to_numpy() for name in table.column_names}
    values = {name: columns[name] for name in (RIGHT, AUGMENTED, BRITTLE)}
    facts = folder.read_json("cells", f"{one_run.name}.json")
    return Result(one_run, facts, columns["scene"], columns["category"].astype(str), columns["seen"], values)


def count_by_scene(result: Result, value_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sums and numbers of the primary rows of every seen scene, both [G, C]."""
    num_scenes = int(result.scene_R[result.seen_R].max()) + 1
    sums, counts = [], []
    for category in PRIMARY:
        at_R = (result.category_R == category) & result.seen_R
        scene_P = result.scene_R[at_R]
        sums.append(np.bincount(scene_P, value_R[at_R], num_scenes))
        counts.append(np.bincount(scene_P, minlength=num_scenes))
    return np.stack(sums, 1), np.stack(counts, 1).astype(np.float64)


@dataclass(frozen=True)
class Compared:
    """A group minus another, in points of one metric."""

    first: str
    second: str
    by_seed: Contrast
    """Every seed has the same weight: the estimate is for other trainings in these worlds."""
    by_world: Contrast
    """Every world's mean difference has the same weight: the estimate is for other worlds, too, because a
    world has one choice of cpi50 and one of align50 for all of its seeds."""
    bootstrap: tuple[float, float] | None = None
    """95 %, over seeds and test images; of the primary metric alone."""
    p_holm: float | None = None

    @property
    def verdict(self) -> str:
        """Return the test's decision, by the adjusted p where there is one."""
        p = self.by_seed.p if self.p_holm is None else self.p_holm
        if not p < CLEAR:
            return "undecided"
        sign = "more" if self.by_seed.value > 0 else "less"
        is_shared = self.by_world.low > 0 or self.by_world.high < 0
        return sign if is_shared else f"{sign}, of these worlds alone"


def list_groups(results: Results) -> list[str]:
    return list(dict.fromkeys(one_run.group for one_run in results))


def of_group(results: Results, group: str) -> dict[int, Result]:
    return {one_run.seed: result for one_run, result in results.items() if one_run.group == group}


def compare(
    results: Results, first: str, second: str, metric: Callable[[Result], float] = Result.macro
) -> Compared | None:
    """Compare two groups over the seeds that both have; none if there is no such seed."""
    one, other = of_group(results, first), of_group(results, second)
    seeds = [seed for seed in one if seed in other]
    if not seeds:
        return None
    difference_S = np.array([metric(one[seed]) - metric(other[seed]) for seed in seeds])
    world_S = np.array([one[seed].facts["world"] for seed in seeds])
    return Compared(first, second, contrast(difference_S), contrast(mean_by(difference_S, world_S)))


def compare_planned(results: Results, seed: int) -> list[Compared]:
    """Return the planned contrasts, with Holm's adjustment, and CLEANED, where their runs exist, with the
    bootstrap drawn by ``seed``."""
    found = [_bootstrap(results, pair, seed) for pair in (*PLANNED, CLEANED)]
    planned = [one for one in found[: len(PLANNED)] if one]
    adjusted = iter(holm([one.by_seed.p for one in planned]))
    done = [replace(one, p_holm=next(adjusted)) for one in planned]
    return done + [one for one in found[len(PLANNED) :] if one]


def _bootstrap(results: Results, pair: tuple[str, str], seed: int) -> Compared | None:
    found = compare(results, *pair)
    if found is None:
        return None
    one, other = (of_group(results, group) for group in pair)
    seeds = [seed for seed in one if seed in other]
    blocks = []
    for world in sorted({one[seed].facts["world"] for seed in seeds}):
        own = [seed for seed in seeds if one[seed].facts["world"] == world]
        moved = [count_by_scene(one[seed], _subtract(one[seed], other[seed])) for seed in own]
        blocks.append((np.stack([sums for sums, _ in moved]), moved[0][1]))
    _, low, high = bootstrap_seeds(blocks, np.random.default_rng(seed))
    return replace(found, bootstrap=(low, high))


def _subtract(one: Result, other: Result) -> np.ndarray:
    """Return the difference of every row in percent; both runs have the same test set."""
    assert np.array_equal(one.scene_R, other.scene_R), "of other worlds"
    return 100 * (one.values[RIGHT].astype(np.float64) - other.values[RIGHT])
