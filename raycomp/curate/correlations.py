"""Correlation of PAS with alignment, and of drops with the displacement of the text embedding.

The paper measures both inside the pool that passed its alignment gate, so that value is shown first. Over all
rows the value differs, because the gate restricts the range of alignment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from raycomp.core.metrics import PairMoments, Reservoir, correlation_interval, spearman
from raycomp.curate.rules import find_rule
from raycomp.curate.summary import DISPLACEMENT, DROP, POOL, Summary
from raycomp.report.charts import Layer, scatter
from raycomp.report.markup import Html
from raycomp.table import Cell, Column, Estimate, Table, number, write_cell
from raycomp.words import ALIGNMENT, KEPT, KINDS, MEAN_PAS

PAPER = "Go et al., arXiv 2605.22651, section 7"
PAPER_CORRELATIONS = {MEAN_PAS: (0.084, 0.088), DROP: (-0.215, -0.204)}
"""(Pearson, Spearman): CC3M, ViT-B/16. mean_pas: mean PAS inside the pool D_align70. drop: drops over 50,000
interventions; the paper does not state whether they are in the pool."""
MOST_DRIVEN = 0.3
"""Cohen's medium correlation: displacement alone then explains a tenth of the variance of drops."""
BOTH_SIDES = (Layer("kept", "kept"), Layer("dropped", "dropped"))
NAMES = {MEAN_PAS: ("alignment, mean PAS", "pairs"), DROP: ("displacement, drop", "phrases")}
AXES = {MEAN_PAS: (ALIGNMENT, MEAN_PAS), DROP: (DISPLACEMENT, DROP)}


@dataclass(frozen=True)
class Correlation:
    """One row of the section: a correlation and the rows it is measured on."""

    what: str
    """``mean_pas`` with alignment, or ``drop`` with displacement."""
    over: str
    inside: bool
    """Whether it is measured over the pool, as in the paper."""
    count: int
    """Pairs, or phrases."""
    num_apart: int
    """The n of the interval. For phrases it is the number of their pairs, or the number of different targets
    if that is less: the phrases of one caption may all agree. So may those of one target, which has the same
    nonces everywhere."""
    pearson: Estimate
    spearman: Estimate
    num_points: int
    """Points drawn for Spearman's rho."""


def has_pool(config: Mapping[str, Any]) -> bool:
    """Return whether the rule ranks inside a pool that a gate by alignment left."""
    return find_rule(config.get("select", {}).get("rule", "cpi")).attribute_by is not None


def correlate(summary: Summary, config: Mapping[str, Any]) -> list[Correlation]:
    """Return each correlation inside the pool, then over all rows if there are more."""
    found = []
    for what, (_, unit) in NAMES.items():
        points = summary.points.get(what)
        if points is None or points.num_seen < 2:
            continue
        inside, whole = summary.pool[what], _all(summary, what)
        most = whole.count if what == MEAN_PAS else _count_targets(summary)
        pooled = has_pool(config)
        if pooled:
            pairs = inside.count if what == MEAN_PAS else summary.with_drop[POOL]
            over, at_M = f"{unit} inside the pool", points.columns[POOL]
            found.append(_correlate(what, over, True, inside, min(pairs, most), points, at_M))
        if not pooled or inside.count < whole.count:
            pairs = whole.count if what == MEAN_PAS else summary.with_drop[DROP]
            over = f"all {unit}" if pooled else f"all {unit}, no pool"
            at_M = np.ones(len(points.uid_M2), bool)
            found.append(_correlate(what, over, False, whole, min(pairs, most), points, at_M))
    return found


def _count_targets(summary: Summary) -> int:
    """Return the number of different targets; a lower bound if not all of them are stored."""
    return len({word for words in summary.heads.values() for word in words.counts})


def _all(summary: Summary, what: str) -> PairMoments:
    kinds = [MEAN_PAS] if what == MEAN_PAS else KINDS
    return reduce(PairMoments.merge, (summary.moments[kind] for kind in kinds))


def _correlate(
    what: str,
    over: str,
    inside: bool,
    moments: PairMoments,
    num_apart: int,
    points: Reservoir,
    at_M: np.ndarray,
) -> Correlation:
    x_M, y_M = (points.columns[name][at_M] for name in AXES[what])
    # A phrase's uid starts with its sample's.
    drawn = len(np.unique(points.uid_M2[at_M][:, 0])) if what == DROP else len(x_M)
    r, rho = moments.pearson, spearman(x_M, y_M)
    return Correlation(
        what=what,
        over=over,
        inside=inside,
        count=moments.count,
        num_apart=num_apart,
        pearson=Estimate(r, *correlation_interval(r, num_apart)),
        spearman=Estimate(rho, *correlation_interval(rho, min(drawn, num_apart), ranks=True)),
        num_points=len(x_M),
    )


def warn_of_displacement(summary: Summary, config: Mapping[str, Any]) -> list[str]:
    """Return a warning if the whole interval of r(displacement, drop) is above ``MOST_DRIVEN``."""
    found = [one for one in correlate(summary, config) if one.what == DROP]
    if not found or not found[0].pearson.low > MOST_DRIVEN:
        return []
    one = found[0]
    over = f"{number(one.count)} {one.over} (n of the interval {number(one.num_apart)})"
    line = (
        "Displacement explains drops: Pearson's r of the shift of the text embedding (displacement) and the "
        f"drop is {write_cell(one.pearson, 3)} over {over}, above {MOST_DRIVEN}; the paper has "
        f"{number(PAPER_CORRELATIONS[DROP][0], 3)}. PAS here partly measures how far a nonsense word moves "
        "the text. Compare with the baselines select.rule=displacement and select.rule=pas_residual; raycomp "
        "probe pas measures the drops with a wrong picture."
    )
    return [line]


def report_correlations(found: list[Correlation]) -> Table:
    """Return the correlations with the paper's values."""
    ours = Column("Pearson r", digits=3), Column("Spearman rho", digits=3)
    theirs = Column("r in paper", digits=3), Column("rho in paper", digits=3)
    columns = ("Correlation of", "over", "n", *ours, "points", *theirs)
    return Table("Correlates of PAS", columns, [_report(one) for one in found])


def _report(one: Correlation) -> tuple[Cell, ...]:
    theirs = PAPER_CORRELATIONS[one.what] if one.inside else (None, None)
    return (NAMES[one.what][0], one.over, one.count, one.pearson, one.spearman, one.num_points, *theirs)


def draw_points(summary: Summary) -> list[Html]:
    """Return both scatters."""
    charts = []
    pairs, phrases = summary.points.get(MEAN_PAS), summary.points.get(DROP)
    if pairs and pairs.num_seen > 1:
        x_M, y_M, kept_M = (pairs.columns[name] for name in (ALIGNMENT, MEAN_PAS, KEPT))
        sides = zip(BOTH_SIDES, (kept_M, ~kept_M), strict=True)
        points = [(layer, x_M[at_M], y_M[at_M]) for layer, at_M in sides]
        charts.append(scatter("Mean PAS by alignment, pairs", "alignment", "mean PAS", points))
    if phrases and phrases.num_seen > 1:
        x_M, y_M = (phrases.columns[name] for name in (DISPLACEMENT, DROP))
        points = [(Layer("phrase", "kind-object"), x_M, y_M)]
        title = "Drop by displacement of the text embedding, phrases"
        charts.append(scatter(title, "displacement of the text embedding, 1 - cosine", "drop", points))
    return charts
