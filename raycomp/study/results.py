"""What the cells of a study came to: rows of their exams as arrays, and figures of one cell.

R rows of the seen exam and then the unseen one, G scenes, C categories of the primary metric.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns
from raycomp.study.cells import Cell

PRIMARY = ("SWAP object", "SWAP attribute", "REPLACE object", "REPLACE relation")
"""Their mean over scenes of seen pairs is the primary metric: the other categories are at their ceiling."""
RIGHT, AUGMENTED, BRITTLE = "right", "augmented", "brittle"


@dataclass(frozen=True)
class Result:
    """One cell's rows and facts."""

    cell: Cell
    facts: dict[str, Any]
    scene_R: np.ndarray
    category_R: np.ndarray
    seen_R: np.ndarray
    values: dict[str, np.ndarray]
    """right, augmented and brittle, bool [R]."""

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


Results = dict[Cell, Result]


def read_results(folder: Folder, cells: Iterable[Cell]) -> Results:
    """Return what finished cells left in ``cells/``."""
    return {cell: _read(folder, cell) for cell in cells}


def _read(folder: Folder, cell: Cell) -> Result:
    table = read_columns(folder.at("cells", f"{cell.name}.parquet"))
    columns = {name: table[name].to_numpy() for name in table.column_names}
    values = {name: columns[name] for name in (RIGHT, AUGMENTED, BRITTLE)}
    facts = folder.read_json("cells", f"{cell.name}.json")
    return Result(cell, facts, columns["scene"], columns["category"].astype(str), columns["seen"], values)


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
