"""Metrics by name, BENCHMARK.METRIC.SPLIT: those an evaluation can give, and the values it gave."""

from collections.abc import Mapping, Sequence

import numpy as np

from raycomp.config.options import check_choice
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import name_stream
from raycomp.continual.tables import FROZEN, MAIN
from raycomp.core.selection import KEY
from raycomp.data.files import Folder
from raycomp.evaluation.choices import ChoiceEvaluation, Pictures, Texts
from raycomp.evaluation.config import EvaluateConfig
from raycomp.evaluation.open import open_evaluations
from raycomp.evaluation.results import CUTS, compute_outcomes, make_lines
from raycomp.table import Estimate, group_by, read_csv
from raycomp.words import ACC1, ACC5, MACRO, MEAN_PER_CLASS_RECALL, OK, RECALLS, TEST

_RETRIEVED = tuple(f"{metric}@{k}" for metric in RECALLS.values() for k in CUTS)
ALL = "all"
# Of continual learning, in addition to the main figure.
_FURTHER = ("fused zstd", "fused crr", "fused a_pair", "composed merged both last")
_CLASSIFIED = (ACC1, ACC5, MEAN_PER_CLASS_RECALL)


def check_metric(name: str, known: Sequence[str]) -> str:
    """Return the full name of a metric. Raises ValueError if it is not among the ``known`` ones.

    Without a split it is the macro mean, or the only split.
    """
    if name in known:
        return name
    splits = group_by(known, lambda one: one.rpartition(".")[0])
    means = {
        metric: f"{metric}.{MACRO}" if f"{metric}.{MACRO}" in some else some[0]
        for metric, some in splits.items()
        if len(some) == 1 or f"{metric}.{MACRO}" in some
    }
    more = ", or one of these with a split behind it" if len(known) > len(means) else ""
    check_choice("metric", name, tuple(means), more)
    return means[name]


def list_metrics(config: EvaluateConfig) -> list[str]:
    """Return all metrics that an evaluation may give. Raises ValueError if the evaluation cannot be built."""
    found = []
    for opened in open_evaluations(config, say=lambda line: None):
        one = opened.evaluation
        if isinstance(one, ChoiceEvaluation):
            found += _list_of_choices(one)
        else:
            metrics = _RETRIEVED if one.name == "retrieval" else _CLASSIFIED
            found += [f"{one.name}.{metric}.{TEST}" for metric in metrics]
    return found


def _list_of_choices(evaluation: ChoiceEvaluation) -> list[str]:
    # Any model's scores could have these names; here they belong to a text-only baseline.
    pictures = list(dict.fromkeys(evaluation.pictures))
    blank = np.zeros((len(pictures), 1), np.float32)
    keys = np.zeros(len(pictures), KEY)
    seen = Pictures({one: i for i, one in enumerate(pictures)}, [OK] * len(pictures), blank, {}, keys)
    texts = list(dict.fromkeys(evaluation.list_texts(seen)))
    read = Texts({text: i for i, text in enumerate(texts)}, np.zeros((len(texts), 1), np.float32))
    lines = make_lines(evaluation.name, compute_outcomes(evaluation.grade(seen, read)))
    return [f"{evaluation.name}.{line.metric}.{line.split}" for line in lines if not line.control]


def list_stream_metrics(config: ContinualConfig) -> list[str]:
    """Return the metrics of a method on its streams: those of the main figure, alone and minus the frozen
    model's, and a few more."""
    return _name_ends(config, [*MAIN, *(f"{name} minus {FROZEN}" for name in MAIN), *_FURTHER, "seconds"])


def list_main_metrics(config: ContinualConfig) -> list[str]:
    """Return the metrics that are reported for every trial."""
    return _name_ends(config, [*MAIN, *_FURTHER])


def _name_ends(config: ContinualConfig, ends: Sequence[str]) -> list[str]:
    return [
        f"{name_stream(stream)}.{end.replace(' ', '_')}.{ALL}" for stream in config.stream for end in ends
    ]


def read_stream_metrics(folder: Folder, table: str) -> dict[str, Estimate]:
    """Return the figures of the one method of a finished run that is not frozen."""
    rows = read_csv(folder.read_bytes(table).decode())
    method = next((row["method"] for row in rows if row["method"] != FROZEN), FROZEN)
    return {
        f"{row['track']}.{row['metric'].replace(' ', '_')}.{ALL}": _read_estimate(row, "mean")
        for row in rows
        if row["method"] == method
    }


def read_metrics(folder: Folder, table: str) -> dict[str, Estimate]:
    """Return the model's own figures of a finished evaluation by name."""
    return {
        f"{row['benchmark']}.{row['metric']}.{row['split']}": _read_estimate(row, "value")
        for row in read_csv(folder.read_bytes(table).decode())
        if not row["control"]
    }


def _read_estimate(row: Mapping[str, str], value: str) -> Estimate:
    return Estimate(*(float(row[name] or "nan") for name in (value, "low", "high")))
