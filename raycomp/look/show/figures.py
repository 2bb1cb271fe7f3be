"""The results of a finished run as numbers: the figures of its headline with intervals and units."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from raycomp.words import MACRO, MICRO

SHARE, PERCENT, POINTS = "share", "percent", "points"
Row = Mapping[str, Any]


class Figure(NamedTuple):
    """A value with its 95 % interval, None where there is none.

    ``unit``: the counted things ("rows"); share, 0 to 1; percent; points, a difference of percents; "" for
    values without a unit.
    """

    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""


def find_figures(run: Mapping[str, Any], read_main: Callable[[], Sequence[Row]]) -> dict[str, Figure]:
    """Return the figures of a run by name: the counts of its rows, then the figures of its kind.

    ``read_main`` returns the rows of its main table; it is called only if figures come from that table.
    """
    funnel = run["funnel"]
    found = {f"rows {name}": Figure(funnel[name], unit="rows") for name in ("read", "kept")}
    kind = run["kind"]
    if kind in _OF_RECORD:
        return found | _OF_RECORD[kind](run)
    return found | (_OF_TABLE[kind](read_main()) if kind in _OF_TABLE else {})


def _of_curation(run: Mapping[str, Any]) -> dict[str, Figure]:
    funnel, scorer = run["funnel"], run.get("scorer_check") or {}
    found = {}
    if funnel["corpus"]:
        found["kept of the corpus"] = Figure(funnel["kept"] / funnel["corpus"], unit=SHARE)
    return found | ({"scorer's AUC": Figure(scorer["auc"], unit=SHARE)} if "auc" in scorer else {})


def _of_negatives(run: Mapping[str, Any]) -> dict[str, Figure]:
    counts = {"negatives": run["written"]}
    counts |= {f"negatives, {op}": count for op, count in run["negatives"].items()}
    return {name: Figure(count, unit="negatives") for name, count in counts.items()}


def _of_training(run: Mapping[str, Any]) -> dict[str, Figure]:
    units = {"steps": "steps", "epochs": "epochs", "pairs": "pairs", "first_loss": "", "last_loss": ""}
    found = {name.replace("_", " "): Figure(run[name], unit=unit) for name, unit in units.items()}
    last = (run.get("evaluations") or [{}])[-1]
    return found | {name: Figure(value) for name, value in last.items() if name != "step"}


def _of_sweep(run: Mapping[str, Any]) -> dict[str, Figure]:
    found = {}
    for one in run["best"]:
        group = "".join(f"{name}={value}: " for name, value in one["group"].items())
        for split in ("development", "report"):
            figure = _figure(one[split], "value")
            if figure is not None:
                found[f"{group}{run['metric']}, {split} seeds"] = figure
    return found


def _of_evaluation(rows: Sequence[Row]) -> dict[str, Figure]:
    names = (f"{row['benchmark']}: {row['metric']}, {row['split']}" for row in _choose_means(rows))
    return _name(names, _choose_means(rows), "value", SHARE)


def _of_comparison(rows: Sequence[Row]) -> dict[str, Figure]:
    rows = _choose_means(rows)
    names = (f"{row['benchmark']}: {row['metric']}, {row['split']}, {_name_difference(row)}" for row in rows)
    return _name(names, rows, "difference", SHARE)


def _name_difference(row: Row) -> str:
    return f"{row['run']} minus {row['reference']}" if "run" in row else "second minus first"


def _choose_means(rows: Sequence[Row]) -> list[Row]:
    """Return the model's own means, and of benchmarks with one split that split's rows."""
    with_means = {row["benchmark"] for row in rows if row["split"] == MACRO}
    return [
        row
        for row in rows
        if not row.get("control") and (row["split"] in (MICRO, MACRO) or row["benchmark"] not in with_means)
    ]


def _of_stream(rows: Sequence[Row]) -> dict[str, Figure]:
    main = [row for row in rows if row["metric"] in ("last", "forgetting_best", "last minus frozen")]
    found: dict[str, Figure] = {}
    for row in main:
        unit = PERCENT if row["metric"] == "last" else POINTS
        names = [f"{row['track']}, {row['method']}: {row['metric'].replace('_', ' ')}"]
        found |= _name(names, [row], "mean", unit)
    return found


def _name(names: Any, rows: Sequence[Row], value: str, unit: str) -> dict[str, Figure]:
    found = {name: _figure(row, value, unit) for name, row in zip(names, rows, strict=True)}
    return {name: figure for name, figure in found.items() if figure is not None}


def _figure(row: Row, value: str, unit: str = "") -> Figure | None:
    """Return the figure of a row whose interval is ``low`` and ``high``; None if there is none."""
    found, low, high = (_number(row.get(name)) for name in (value, "low", "high"))
    return None if found is None else Figure(found, low, high, unit)


def _number(value: Any) -> float | None:
    return None if value is None or value != value else value


_OF_RECORD: dict[str, Callable[[Mapping[str, Any]], dict[str, Figure]]] = {
    "curate": _of_curation,
    "select": _of_curation,
    "negatives": _of_negatives,
    "train": _of_training,
    "sweep": _of_sweep,
}
_OF_TABLE: dict[str, Callable[[Sequence[Row]], dict[str, Figure]]] = {
    "evaluate": _of_evaluation,
    "compare": _of_comparison,
    "continual": _of_stream,
}
