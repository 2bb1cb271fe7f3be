"""The published curve of the share kept by alignment, next to a finished sweep's own.

python -m lab curves out/retention
"""

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycomp.data.files import Folder, absolute_uri
from raycomp.data.runs import read_finished
from raycomp.sweep.page import name_metric
from raycomp.sweep.result import TABLE, estimate
from raycomp.sweep.trials import DEVELOPMENT, FINISHED
from raycomp.table import Column, Estimate, Table

SOURCE = "Go et al. (arXiv 2605.22651), Table 1: CC3M, ViT-B/32, one seed"
SHARE = "attribute.keep"


class Kept(NamedTuple):
    """A row of the table; figures in percent."""

    keep: float
    """Share of the corpus, 0 to 1."""
    sugarcrepe: float
    """Overall."""
    sugarcrepe_pp: float
    """Overall."""
    imagenet: float
    """Zero-shot, top 1."""
    text_to_image: float
    """Flickr recall@1."""


# Selection by alignment alone: trained from scratch on the best aligned shares; the authors call it
# exploratory.
TABLE_1 = (
    Kept(1.0, 57.69, 45.32, 7.413, 10.260),
    Kept(0.9, 57.86, 45.64, 7.492, 10.700),
    Kept(0.8, 57.82, 45.36, 7.458, 10.700),
    Kept(0.7, 58.34, 45.95, 7.558, 11.020),
    Kept(0.6, 58.10, 45.72, 7.592, 10.560),
    Kept(0.5, 57.92, 45.69, 7.477, 10.225),
)


def compare_curves(source: str) -> Iterator[str]:
    """Yield the paper's rows with the results of a finished sweep at the same shares, and what differs.

    Raises ValueError unless ``source`` holds a finished sweep over ``attribute.keep``.
    """
    folder = Folder(absolute_uri(source))
    run = read_finished(folder.uri)
    if run["kind"] != "sweep" or SHARE not in pq.read_schema(folder.at(TABLE)).names:
        raise ValueError(f"{source}: must hold a sweep over {SHARE}")
    table = tabulate_published(read_shares(folder), run["metric"])
    yield f"{table.title}\n{table.to_text()}"
    yield table.note


def read_shares(folder: Folder) -> dict[float, Estimate]:
    """Return a sweep's metric by the share kept: the mean over trials with this share, by Student's t over
    the development seeds."""
    table = pq.read_table(folder.at(TABLE))
    is_used = pc.and_(pc.equal(table["split"], DEVELOPMENT), pc.equal(table["status"], FINISHED))
    found: dict[float, dict[int, list[float]]] = {}
    for row in table.filter(is_used).to_pylist():
        found.setdefault(row[SHARE], {}).setdefault(row["seed"], []).append(row["metric"])
    return {
        share: estimate([fmean(values) for values in by_seed.values()]) for share, by_seed in found.items()
    }


def tabulate_published(mine: dict[float, Estimate], metric: str) -> Table:
    """Return the paper's rows, each with the sweep's own estimate at its share."""
    rows = [
        (f"{row.keep:.0%}", *row[1:], mine[row.keep].times(100) if row.keep in mine else None)
        for row in TABLE_1
    ]
    columns = (
        "Kept by alignment",
        Column("published: SugarCrepe", "%", 2),
        Column("SugarCrepe++", "%", 2),
        Column("ImageNet", "%", 2),
        Column("Flickr text to image", "%", 2),
        Column(f"here: {name_metric(metric)}", "%", 2),
    )
    note = (
        f"Published: {SOURCE}; its authors call it exploratory. Here pairs, model and test set differ, so "
        "compare the shapes, not the levels."
    )
    return Table("Comparison with the published curve", columns, rows, note)
