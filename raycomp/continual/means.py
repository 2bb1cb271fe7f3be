"""Means over the runs of a stream, and paired differences of two methods in runs of the same seed.

S runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from raycomp import table
from raycomp.continual.judge import TASK, ZERO_SHOT
from raycomp.continual.method import name_method
from raycomp.continual.results import Result
from raycomp.continual.runs import StreamRun, name_stream
from raycomp.core.contrasts import Contrast, contrast, mean_by
from raycomp.table import Column, Columns, Estimate, Table, group_by

Results = Mapping[StreamRun, Result]
Measured = Mapping[StreamRun, Mapping[str, float]]
_SMALL = ("CRR", "sigma", "step taken", "gamma")


@dataclass(frozen=True)
class Runs:
    """All runs on one stream, and the metrics of each."""

    stream: str
    results: Results
    measured: Measured

    @property
    def methods(self) -> list[str]:
        """Methods that have a run, in their order."""
        return list(dict.fromkeys(one_run.method for one_run in self.results))

    @property
    def main(self) -> str:
        """The main figure."""
        return next(iter(self.results.values())).main

    def title(self, what: str) -> str:
        """Return the title of a table of this stream."""
        return f"{name_stream(self.stream)}: {what}"

    def estimate(self, method: str, metric: str) -> Contrast | None:
        """Return the mean of a metric over runs, with its interval over backbones if there are several, else
        over seeds; none if no run has it."""
        own = {one_run: found for one_run, found in self.measured.items() if one_run.method == method}
        return self._spread({one_run: found[metric] for one_run, found in own.items() if metric in found})

    def compare(self, method: str, other: str, metric: str) -> Contrast | None:
        """Return the mean difference of two methods in runs of the same seed, as ``estimate`` does."""
        return self._spread(self.list_gaps(method, other, metric))

    def list_gaps(self, method: str, other: str, metric: str) -> dict[StreamRun, float]:
        """Return one method's metric minus another's in runs of the same seed, by the first method's runs."""
        pairs = {
            one_run: (found, self.measured.get(replace(one_run, method=other), {}))
            for one_run, found in self.measured.items()
            if one_run.method == method
        }
        return {
            one_run: a[metric] - b[metric] for one_run, (a, b) in pairs.items() if metric in a and metric in b
        }

    def count_blocks(self, method: str) -> int:
        """Return the number of independent units of a method's interval: backbones if there are several, else
        seeds."""
        own = [one_run for one_run in self.results if one_run.method == method]
        backbones = {self.results[one_run].facts["backbone"] for one_run in own}
        return len(backbones) if len(backbones) > 1 else len(own)

    def are_equal(self, method: str, other: str) -> bool:
        """Whether two methods have runs of the same seeds and bit-identical evaluation figures; the methods'
        own figures are not compared."""
        pairs = [
            (result, self.results.get(replace(one_run, method=other)))
            for one_run, result in self.results.items()
            if one_run.method == method
        ]
        return bool(pairs) and all(b is not None and _ask(a) == _ask(b) for a, b in pairs)

    def _spread(self, value: Mapping[StreamRun, float]) -> Contrast | None:
        if not value:
            return None
        backbone_S = np.array([self.results[one_run].facts["backbone"] for one_run in value])
        value_S = np.array(list(value.values()))
        is_many = len(set(backbone_S.tolist())) > 1
        return contrast(mean_by(value_S, backbone_S) if is_many else value_S)._replace(num=len(value_S))

    def tabulate(self, title: str, metrics: Mapping[str, str], note: str, digits: int | None = None) -> Table:
        """Return a row for each method that has any of the metrics, by column header."""
        rows: list[tuple[table.Cell, ...]] = []
        for method in self.methods:
            found = [self.estimate(method, metric) for metric in metrics.values()]
            if any(found):
                runs = max(one.num for one in found if one is not None)
                rows.append((name_method(method), runs, *map(as_estimate, found)))
        heads = (Column(head, digits=digits or _choose_digits(head)) for head in metrics)
        columns: Columns = ("Method", "runs", *heads)
        return Table(self.title(title), columns, rows, note)


def _ask(result: Result) -> dict[tuple[str, str], dict[tuple[int, int], str]]:
    """Return the evaluation figures of a run as text, so that NaN equals NaN."""
    return {
        name: {place: repr(value) for place, value in found.items()}
        for name, found in result.values.items()
        if name[0] in (TASK, ZERO_SHOT)
    }


def by_stream(results: Results, measured: Measured) -> dict[str, Runs]:
    """Return the runs of each stream, in their order."""
    parts = group_by(results, lambda one_run: one_run.stream)
    return {
        stream: Runs(
            stream,
            {one_run: results[one_run] for one_run in own},
            {one_run: measured[one_run] for one_run in own},
        )
        for stream, own in parts.items()
    }


def list_groups(results: Results) -> list[tuple[str, str]]:
    """Return streams and methods that have a run, in their order."""
    return list(dict.fromkeys((one_run.stream, one_run.method) for one_run in results))


def as_estimate(found: Contrast | None) -> Estimate | None:
    """Return a table cell; none for none."""
    return None if found is None else Estimate.of(found)


def _choose_digits(head: str) -> int:
    return 3 if head in _SMALL or head.startswith(("alpha", "CCE", "PR", "ROC")) else 1
