"""The results of a run, its matrices and metrics; the options selected on development seeds. T tasks.

Methods are developed on the first stream. All trained methods are tried at the same multiples of their
learning rate.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from raycomp.continual.config import ContinualConfig
from raycomp.continual.method import get_method, name_method
from raycomp.continual.schedule import Choice, StreamRun, list_methods, name_stream
from raycomp.continual.scoring import (
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
    name_weighed,
)
from raycomp.core.continual import summarise, zero_shot_drift
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns
from raycomp.table import Cell, Column, Columns, Table

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
        own = f"{name_stream(one_run.stream)}, {one_run.method}, seed {one_run.seed}"
        where = folder.at(RUNS, f"{one_run.name}.json")
        raise ValueError(f"{where}: belongs to another run than {own}; remove it")
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
    found = _measure_matrix(result, result.main)
    for of, figure in result.values:
        if of == TASK and not figure.endswith(_BOUND):
            found |= {f"{figure} {name}": value for name, value in _measure_matrix(result, figure).items()}
    for score in SCORES:
        if (TASK, f"{score} crr") in result.values:
            last = {name: result.matrix(f"{score} {name}")[-1] / 100 for name in _BOUND}
            found |= {f"{score} {name}": float(value.mean()) for name, value in last.items()}
    for score in SCORES:
        drift = _compute_drift(result, score)
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


def _measure_matrix(result: Result, figure: str) -> dict[str, float]:
    """Return the figures of a matrix; the figure before training is by captions alone, for all methods the
    frozen model, not by an untrained composer."""
    score, _, rest = figure.partition(" ")
    text_figure = f"{TEXT} {rest}" if score in SCORES else figure
    return summarise(result.matrix(figure), result.before(text_figure))._asdict()


def _compute_drift(result: Result, score: str) -> float | None:
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


_METRICS = ("last", "learned", "forgetting_best")


def list_trials(config: ContinualConfig) -> list[StreamRun]:
    """Return the development runs, all methods of a seed in sequence; none if nothing is selected."""
    first, made = config.first_seed + max(config.seeds, config.tune_seeds or 0), []
    for name in list_methods(config):
        method = get_method(name)
        if method.trains is None:
            continue
        takes_steps = method.settings.get("head.steps") != 0
        rates = dict.fromkeys(config.develop.rates) if takes_steps else (1.0,)
        for seed in range(first, first + config.develop.seeds):
            made += [StreamRun(config.stream[0], name, seed, rate) for rate in rates]
    return sorted(made, key=lambda one_run: one_run.seed)


def choose(results: Mapping[StreamRun, Result], config: ContinualConfig) -> dict[str, Choice]:
    """Return each method's selected values: the highest mean of Last over development seeds; ties go to the
    values nearest to the default."""
    chosen: dict[str, Choice] = {}
    for method in dict.fromkeys(one_run.method for one_run in results):
        found = dict(_score(results, method, config))
        nearest = sorted(found, key=lambda one: (abs(log(one.rate)), abs((one.weight or 0) - config.weight)))
        chosen[method] = max(nearest, key=lambda one: found[one]["last"])
    return chosen


def _score(
    results: Mapping[StreamRun, Result], method: str, config: ContinualConfig
) -> Iterator[tuple[Choice, dict[str, float]]]:
    """Yield the tried values of a method, with the means of its metrics over seeds."""
    own = {one_run: result for one_run, result in results.items() if one_run.method == method}
    for rate in dict.fromkeys(one_run.rate for one_run in own):
        some = [result for one_run, result in own.items() if one_run.rate == rate]
        measured, figure = [measure(one) for one in some], some[0].main.partition(" ")[2]
        is_weighed = any(name.startswith("w=") for name in measured[0])
        weights = tuple(dict.fromkeys(config.develop.weights)) if is_weighed else (None,)
        for weight in weights:
            prefix = "" if weight is None else f"{name_weighed(weight, figure)} "
            values = {name: [one.get(prefix + name, np.nan) for one in measured] for name in _METRICS}
            yield Choice(rate or 1.0, weight), {name: float(np.mean(found)) for name, found in values.items()}


def report_trials(
    results: Mapping[StreamRun, Result], chosen: Mapping[str, Choice], config: ContinualConfig
) -> Table:
    """Return a table of learning and forgetting at each rate and weight, with the selected ones."""
    rows: list[tuple[Cell, ...]] = []
    for method in dict.fromkeys(one_run.method for one_run in results):
        stream = next(one_run.stream for one_run in results if one_run.method == method)
        for choice, means in _score(results, method, config):
            found = (None if np.isnan(means[name]) else means[name] for name in _METRICS)
            mark = "selected" if choice == chosen[method] else ""
            weight = choice.weight
            rows.append((name_method(method), name_stream(stream), f"{choice.rate:g}", weight, *found, mark))
    columns: Columns = (
        *("Method", "stream", "rate x", Column("w", digits=2)),
        *(Column(name, digits=1) for name in ("last", "learned", "forgotten")),
        "",
    )
    note = (
        f"Means over {config.develop.seeds} development seeds, in percent, used only for selection. The row "
        "with the highest Last is selected; all other tables use other seeds. Rate: multiple of the method's "
        "learning rate. A method that forgets less at a lower rate may only have learned less."
    )
    return Table("Development seeds: learning and forgetting", columns, rows, note)
