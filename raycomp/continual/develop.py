"""Development: select the learning rate and the weight w of each method on seeds that are not reported.

Methods are developed on the first stream. All trained methods are tried at the same multiples of their
learning rate.
"""

from collections.abc import Iterator, Mapping
from math import log

import numpy as np

from raycomp.continual.config import ContinualConfig
from raycomp.continual.judge import name_weighed
from raycomp.continual.method import find_method, name_method
from raycomp.continual.results import Result, measure
from raycomp.continual.runs import Choice, StreamRun, list_methods, name_stream
from raycomp.table import Cell as Shown
from raycomp.table import Column, Columns, Table

_METRICS = ("last", "learned", "forgetting_best")


def list_trials(config: ContinualConfig) -> list[StreamRun]:
    """Return the development runs, all methods of a seed in sequence; none if nothing is selected."""
    first, made = config.first_seed + max(config.seeds, config.tune_seeds or 0), []
    for name in list_methods(config):
        method = find_method(name)
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
    rows: list[tuple[Shown, ...]] = []
    for method in dict.fromkeys(one_run.method for one_run in results):
        stream = next(one_run.stream for one_run in results if one_run.method == method)
        for choice, means in _score(results, method, config):
            found = (None if np.isnan(means[name]) else means[name] for name in _METRICS)
            mark = "selected" if choice == chosen[method] else ""
            weight = choice.weight
            rows.append((name_method(method), name_stream(stream), f"{choice.rate:g}", weight, *found, mark))
    columns: Columns = (
        "Method",
        "stream",
        "rate x",
        Column("w", digits=2),
        Column("last", digits=1),
        Column("learned", digits=1),
        Column("forgotten", digits=1),
        "",
    )
    note = (
        f"Means over {config.develop.seeds} development seeds, in percent, used only for selection. The row "
        "with the highest Last is selected; all other tables use other seeds. Rate: multiple of the method's "
        "learning rate. A method that forgets less at a lower rate may only have learned less."
    )
    return Table("Development seeds: learning and forgetting", columns, rows, note)
