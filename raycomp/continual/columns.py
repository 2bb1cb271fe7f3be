"""Columns of means over runs, for every table of methods."""

from collections.abc import Mapping, Sequence

from raycomp.continual.results import Measured, Results, estimate
from raycomp.core.contrasts import Contrast
from raycomp.table import Cell, Column, Columns, Estimate

_SMALL = ("CRR", "sigma", "step taken", "gamma")


def as_estimate(found: Contrast | None) -> Estimate | None:
    return None if found is None else Estimate(found.value, found.low, found.high)


def tell_metrics(
    results: Results, measured: Measured, stream: str, methods: Sequence[str], metrics: Mapping[str, str]
) -> tuple[Columns, list[tuple[Cell, ...]]]:
    """Return a row of each method that has any of the metrics, which are named by the heads of columns."""
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        found = [estimate(results, measured, stream, method, metric) for metric in metrics.values()]
        if any(found):
            runs = max(one.num for one in found if one is not None)
            rows.append((method, runs, *map(as_estimate, found)))
    return ("Method", "runs", *(Column(head, digits=_digits(head)) for head in metrics)), rows


def _digits(head: str) -> int:
    return 3 if head in _SMALL or head.startswith(("alpha", "CCE", "PR", "ROC")) else 1
