"""``trials.parquet``: a row for every training of a sweep, with a column for each option of its trial."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa

from raycomp.sweep.journal import STOPPED, Outcome, SeedTraining, Trial
from raycomp.sweep.plan import Plan
from raycomp.sweep.rungs import find_rung
from raycomp.table import Estimate, is_numeral

_OWN = [
    ("trial", pa.string()),
    ("split", pa.string()),
    ("seed", pa.int32()),
    ("world", pa.int32()),
    ("status", pa.string()),
    ("metric", pa.float64()),
    ("low", pa.float64()),
    ("high", pa.float64()),
    ("rung", pa.int32()),
    ("steps", pa.int64()),
    ("seconds", pa.float64()),
    ("starts", pa.int32()),
    ("why", pa.string()),
]


def make_rows(
    plan: Plan, trials: Sequence[Trial], development: Sequence[SeedTraining], metric: str
) -> pa.Table:
    """Return the rows of trials in the order of their start.

    Development seeds on which a stopped trial was not trained have a row, too. ``metric`` has the interval
    over examples of one training; ``world`` is null if the data are the user's. ``rung``, from 1, is null on
    report seeds and without rungs=steps; ``steps`` is null if the training did not finish or does not report
    them.
    """
    numbers = {option for option in plan.space if is_number(plan, option)}
    fields = [*_OWN, *((option, pa.float64() if option in numbers else pa.string()) for option in plan.space)]
    rows = [row for trial in trials for row in _list_rows(plan, trial, development, metric, numbers)]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def _list_rows(
    plan: Plan, trial: Trial, development: Sequence[SeedTraining], metric: str, numbers: Collection[str]
) -> Iterator[dict[str, Any]]:
    stopped = {training: Outcome(STOPPED, {}, starts=0) for training in development}
    outcomes = {**stopped, **trial.outcomes}
    found = sorted(outcomes.items(), key=lambda item: (-item[0].divisor, item[0].number))
    for training, outcome in found:
        one = outcome.metrics.get(metric, Estimate(float("nan")))
        figures = {name: value if value == value else None for name, value in vars(one).items()}
        yield {
            "trial": trial.name,
            "split": training.split,
            "seed": training.number,
            "world": training.number if plan.config.has_worlds else None,
            "status": outcome.status,
            "metric": figures["value"],
            "low": figures["low"],
            "high": figures["high"],
            "rung": find_rung(plan.config, training),
            "steps": outcome.steps,
            "seconds": outcome.seconds,
            "starts": outcome.starts,
            "why": outcome.why or None,
            **{
                option: float(value) if option in numbers else value
                for option, value in trial.options.items()
            },
        }


def is_number(plan: Plan, option: str) -> bool:
    return all(is_numeral(value) for value in plan.space[option].values)
