"""Correlation of PAS with alignment, and of drops with the displacement of the text embedding.

PAS is the value by which the run's own rule and reading rank; under a rule without PAS it is what cpi would
rank by. The paper measures both inside the pool that passed its alignment gate, so that value is shown first.
Over all rows the value differs, because the gate restricts the range of alignment.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from raycomp.core.metrics import PairMoments, Reservoir, correlation_interval, spearman
from raycomp.curation.config import PAPER_READING, SelectionRule
from raycomp.curation.rules import PAS
from raycomp.curation.summary import DISPLACEMENT, DROP, POOL, Summary
from raycomp.report.charts import Layer, scatter
from raycomp.report.markup import Html
from raycomp.table import Cell, Column, Estimate, Table, number, write_cell
from raycomp.words import ALIGNMENT, KEPT, KINDS, PER_TARGET

PAPER = "Go et al., arXiv 2605.22651, section 7"
PAPER_CORRELATIONS = {PAS: (0.084, 0.088), DROP: (-0.215, -0.204)}
"""(Pearson, Spearman): CC3M, ViT-B/16. pas: mean drop of nouns inside the pool D_align70. drop: drops over
50,000 interventions; the paper does not state whether they are in the pool."""
MOST_DRIVEN = 0.3
"""Cohen's medium correlation: displacement alone then explains a tenth of the variance of drops."""
BOTH_SIDES = (Layer("kept", "kept"), Layer("dropped", "dropped"))
UNITS = {PAS: "pairs", DROP: "phrases"}
AXES = {PAS: (ALIGNMENT, PAS), DROP: (DISPLACEMENT, DROP)}


@dataclass(frozen=True)
class Correlation:
    """One row of the section: a correlation and the rows it is measured on."""

    what: str
    """``pas`` with alignment, or ``drop`` with displacement."""
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


def correlate(summary: Summary, selection: SelectionRule) -> list[Correlation]:
    """Return each correlation inside the pool, then over all rows if there are more."""
    found, pooled = [], selection.attribute_share is not None
    for what, unit in UNITS.items():
        points = summary.points.get(what)
        if points is None or points.num_seen < 2:
            continue
        inside, whole = summary.pool[what], _all(summary, what)
        most = whole.count if what == PAS else _count_targets(summary)
        if pooled:
            pairs = inside.count if what == PAS else summary.with_drop[POOL]
            over, at_M = f"{unit} inside the pool", points.columns[POOL]
            found.append(_correlate(what, over, True, inside, min(pairs, most), points, at_M))
        if not pooled or inside.count < whole.count:
            pairs = whole.count if what == PAS else summary.with_drop[DROP]
            over = f"all {unit}" if pooled else f"all {unit}, no pool"
            at_M = np.ones(len(points.uid_M2), bool)
            found.append(_correlate(what, over, False, whole, min(pairs, most), points, at_M))
    return found


def _count_targets(summary: Summary) -> int:
    """Return the number of different targets; a lower bound if not all of them are stored."""
    return len({word for words in summary.heads.values() for word in words.counts})


def _all(summary: Summary, what: str) -> PairMoments:
    kinds = [PAS] if what == PAS else KINDS
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


def warn_of_displacement(summary: Summary, selection: SelectionRule) -> list[str]:
    """Return a warning if drops make PAS, and all of the interval of r(displacement, drop) is too high."""
    found = [one for one in correlate(summary, selection) if one.what == DROP]
    if selection.unit != PER_TARGET or not found or not found[0].pearson.low > MOST_DRIVEN:
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


def report_correlations(found: list[Correlation], pas: str) -> Table:
    """Return the correlations with the paper's values; of PAS, named ``pas``, only if it is the paper's."""
    ours = Column("Pearson r", digits=3), Column("Spearman rho", digits=3)
    theirs = Column("r in paper", digits=3), Column("rho in paper", digits=3)
    columns = ("Correlation of", "over", "n", *ours, "points", *theirs)
    return Table("Correlates of PAS", columns, [_report(one, pas) for one in found])


def _report(one: Correlation, pas: str) -> tuple[Cell, ...]:
    is_theirs = one.inside and (one.what == DROP or pas == PAPER_READING)
    theirs = PAPER_CORRELATIONS[one.what] if is_theirs else (None, None)
    what = "displacement, drop" if one.what == DROP else f"alignment, {pas}"
    return (what, one.over, one.count, one.pearson, one.spearman, one.num_points, *theirs)


def draw_points(summary: Summary, pas: str) -> list[Html]:
    """Return both scatters; ``pas`` names PAS."""
    charts = []
    pairs, phrases = summary.points.get(PAS), summary.points.get(DROP)
    if pairs and pairs.num_seen > 1:
        x_M, y_M, kept_M = (pairs.columns[name] for name in (ALIGNMENT, PAS, KEPT))
        sides = zip(BOTH_SIDES, (kept_M, ~kept_M), strict=True)
        points = [(layer, x_M[at_M], y_M[at_M]) for layer, at_M in sides]
        charts.append(scatter("PAS by alignment, pairs", "alignment", pas, points))
    if phrases and phrases.num_seen > 1:
        x_M, y_M = (phrases.columns[name] for name in (DISPLACEMENT, DROP))
        points = [(Layer("phrase", "kind-object"), x_M, y_M)]
        title = "Drop by displacement of the text embedding, phrases"
        charts.append(scatter(title, "displacement of the text embedding, 1 - cosine", "drop", points))
    return charts
