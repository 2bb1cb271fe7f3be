"""The results of a run: its matrices and metrics. T tasks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycomp.continual.judge import (
    ANSWERS,
    BEFORE,
    BOTH,
    FUSED,
    MERGED,
    METHOD,
    OWN,
    SCORES,
    TASK,
    TEXT,
    ZERO_SHOT,
)
from raycomp.continual.runs import StreamRun, name_stream
from raycomp.core.continual import summarise, zero_shot_drift
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns

RUNS = "cells"
_BOUND = ("crr", "a_pair", "a_attribute", "a_object")


@dataclass(frozen=True)
class Result:
    """One run's figures and facts."""

    one_run: StreamRun
    facts: dict[str, Any]
    """backbone, order, tasks, zero_shot, steps, seconds, config of the method."""
    values: Mapping[tuple[str, str], Mapping[tuple[int, int], float]]
    """Figures by subject and name, by evaluation (after) and number."""

    @property
    def num_tasks(self) -> int:
        return len(self.facts["order"])

    def matrix(self, figure: str) -> np.ndarray:
        """Return R[t, i] of a figure, in percent, float64 (T, T); NaN where it was not evaluated."""
        found, num = self.values[TASK, figure], self.num_tasks
        nan = float("nan")
        return np.array([[100 * found.get((after, i), nan) for i in range(num)] for after in range(num)])

    def before(self, figure: str) -> np.ndarray:
        """Return the figure of every task before any training, in percent, float64 (T,)."""
        found = self.values[TASK, figure]
        return np.array([100 * found.get((BEFORE, i), float("nan")) for i in range(self.num_tasks)])

    def of_method(self, figure: str) -> np.ndarray:
        """Return a figure of the method after each task, float64 (T,); NaN where there is none."""
        found = self.values.get((METHOD, figure), {})
        return np.array([found.get((after, 0), np.nan) for after in range(self.num_tasks)])

    @property
    def main(self) -> str:
        """The main figure: fused, of the merged gallery, both ways; or of answers."""
        answers = f"{FUSED} {ANSWERS}"
        return answers if (TASK, answers) in self.values else f"{FUSED} {MERGED} {BOTH}"


def read_result(folder: Folder, one_run: StreamRun) -> Result:
    """Return the results of a finished run. Raises ValueError if the file is another run's, or cannot be
    read."""
    facts = _read_facts(folder, one_run)
    if facts is None:
        where = folder.at(RUNS, f"{one_run.name}.json")
        raise ValueError(
            f"{where}: belongs to another run than {name_stream(one_run.stream)}, {one_run.method}, "
            f"seed {one_run.seed}; remove it"
        )
    table = read_columns(folder.at(RUNS, f"{one_run.name}.parquet"))
    values: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for row in table.to_pylist():
        values.setdefault((row["of"], row["figure"]), {})[row["after"], row["number"]] = row["value"]
    return Result(one_run, facts, values)


def is_done(folder: Folder, one_run: StreamRun) -> bool:
    """Whether a run has ended: a damaged file of its name, or another run's file, does not count."""
    return folder.exists(RUNS, f"{one_run.name}.json") and _read_facts(folder, one_run) is not None


def _read_facts(folder: Folder, one_run: StreamRun) -> dict[str, Any] | None:
    """Return the contents of the file of a run's name; none if it is not of this run."""
    try:
        facts = folder.read_json(RUNS, f"{one_run.name}.json")
    except (ValueError, RecursionError):
        return None
    known = facts.get("cell") if isinstance(facts, dict) else None
    return facts if isinstance(known, dict) and {"rate": None, **known} == vars(one_run) else None


def measure(result: Result) -> dict[str, float]:
    """Return the metrics of one run, shares in percent, by name: score, gallery and direction, then the
    metric, as ``core.continual.MatrixSummary`` names them. The main figure's metrics have no such prefix."""
    found: dict[str, float] = dict(_measure_matrix(result, result.main))
    for of, figure in result.values:
        if of == TASK and not figure.endswith(_BOUND):
            found |= {f"{figure} {name}": value for name, value in _measure_matrix(result, figure)}
    for score in SCORES:
        if (TASK, f"{score} crr") in result.values:
            last = {name: result.matrix(f"{score} {name}")[-1] / 100 for name in _BOUND}
            found |= {f"{score} {name}": float(value.mean()) for name, value in last.items()}
    for score in SCORES:
        drift = _find_drift(result, score)
        if drift is not None:
            found[f"{score} zstd"] = drift
    found |= {
        name: float(result.of_method(name)[-1])
        for of, name in result.values
        if of == METHOD and not name.endswith("_last")
    }
    found |= {"sigma_max": float(np.nanmax([*result.of_method("sigma_max"), -np.inf]))}
    found["seconds"] = result.facts["seconds"]
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _measure_matrix(result: Result, figure: str) -> Iterator[tuple[str, float]]:
    """Yield the figures of a matrix; the figure before training is by captions alone, for all methods the
    frozen model, not by an untrained composer."""
    score, _, rest = figure.partition(" ")
    text_figure = f"{TEXT} {rest}" if score in SCORES else figure
    return iter(summarise(result.matrix(figure), result.before(text_figure))._asdict().items())


def _find_drift(result: Result, score: str) -> float | None:
    """Return ZSTD in points, of zero-shot sets' own galleries: by the score after the last task, minus the
    frozen model's; none without a set."""
    rest = ANSWERS if result.main.endswith(ANSWERS) else f"{OWN} {BOTH}"
    before, found = (result.values.get((ZERO_SHOT, f"{one} {rest}")) for one in (TEXT, score))
    if not before or not found:
        return None
    numbers = sorted({number for _, number in found})
    last = result.num_tasks - 1
    initial = [100 * before[BEFORE, number] for number in numbers]
    return zero_shot_drift(initial, [100 * found[last, number] for number in numbers])
