"""Select samples: the measure that each rule ranks by, on one scores table at a time.

The corpus is the rows that have an alignment. cpi passes two gates (Go et al., arXiv 2605.22651, section
5.3): floor(align.keep * N) rows, the best by alignment, and of these floor(attribute.keep * N), the best by
aggregated PAS. align_only and random keep floor(attribute.keep * N) of all N, full keeps N.

The other controls (length and phrase count are from section 7, the rest are ours) pass the same first gate.
At the second gate they rank the rows that cpi ranks there, those past gate 1 with a PAS, by another measure.
A caption without a phrase is in none of them (0.21 % of the paper's captions have no valid counterfactual).
So these rules differ only in their measure, and each keeps as many rows as cpi.

The paper's own counts (1,557,650 and 1,111,131 of 2,222,261) are not rounded down: 0.7 N is 1,555,582.7 and
0.5 N is 1,111,130.5, so its second count is rounded up and its first is 0.09 % higher. Here it is always
floor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import exact_share
from raycomp.config.check import check
from raycomp.core.regression import CrossMoments, LinearFit
from raycomp.core.selection import (
    KthSearch,
    Threshold,
    count_digit,
    keep_mask,
    kth_datacomp,
    random_scores,
)
from raycomp.curation.config import SelectionRule
from raycomp.curation.measures import Corpus, corpus_columns, read_corpus, take_columns
from raycomp.curation.rules import (
    ALIGN_PAS,
    DISPLACEMENT,
    DRAW,
    MINUS_PAS,
    NUM_PHRASES,
    NUM_WORDS,
    PAS,
    RESIDUAL,
)
from raycomp.curation.scored import ScoresFile
from raycomp.words import (
    ALIGNMENT,
    DROPPED_ALIGNMENT,
    DROPPED_ATTRIBUTION,
    DROPPED_CONTROL,
    DROPPED_RANDOM,
    DROPPED_UNSCORED,
    KEPT,
    MARK,
    MARK_AFTER,
    NEAR_DUPLICATE,
    STATUS,
)

EXPLAINING = (NUM_WORDS, NUM_PHRASES, ALIGNMENT, DISPLACEMENT)
"""Regressors of pas_residual; the response is the aggregated PAS."""
_LOST = {
    DRAW: DROPPED_RANDOM,
    ALIGNMENT: DROPPED_ALIGNMENT,
    PAS: DROPPED_ATTRIBUTION,
    ALIGN_PAS: DROPPED_ATTRIBUTION,
}


@dataclass(frozen=True)
class Gates:
    """A committed choice: the size of the corpus and each gate's threshold; none = no such gate."""

    num_corpus: int
    align: Threshold | None = None
    attribute: Threshold | None = None
    num_scored: int | None = None
    """Rows past the align gate that have a PAS, which the attribute gate ranks."""
    fit: LinearFit | None = None
    """The prediction that is subtracted from the PAS, fitted over these rows; align_pas uses it for its
    sum."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for json."""
        cuts = {
            name: cut and cut.to_dict()
            for name, cut in (("align", self.align), ("attribute", self.attribute))
        }
        fit = self.fit and self.fit.to_dict()
        return {"num_corpus": self.num_corpus, **cuts, "num_scored": self.num_scored, "fit": fit}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Gates":
        """Return the gates that ``to_dict`` wrote."""
        cuts = {name: values[name] and Threshold.from_dict(values[name]) for name in ("align", "attribute")}
        fit = values.get("fit") and LinearFit.from_dict(values["fit"])
        return cls(values["num_corpus"], cuts["align"], cuts["attribute"], values["num_scored"], fit)


def make_search(selection: SelectionRule, num_corpus: int, num_ranked: int, share: float) -> KthSearch:
    """Return the search for a gate that keeps ``share`` of the corpus out of ``num_ranked`` rows.

    With fewer rows than that, all are kept. Raises ValueError if DataComp's rule has no rows to cut.
    """
    if selection.datacomp_compat:
        check(num_corpus > 0, "select.datacomp_compat", True, "false: no row has an alignment")
        wanted = kth_datacomp(num_corpus, share).k
        return KthSearch(min(wanted, num_ranked), keep_ties=True)
    return KthSearch(min(exact_share(share, num_corpus), num_ranked))


def align_scores(corpus: Corpus, selection: SelectionRule) -> np.ndarray:
    """Return the values by which the rule's align gate ranks the corpus, float32 [M]."""
    if selection.rule.align_by == DRAW:
        return random_scores(corpus.uid_M2, selection.seed)
    return corpus.measures[selection.rule.align_by]


def attribute_scores(corpus: Corpus, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return the values that the rule's attribute gate ranks, float32 [M]; numbers on
    ``enters_attribute``."""
    what = selection.rule.attribute_by
    if what == DRAW:
        return random_scores(corpus.uid_M2, selection.seed)
    if what == MINUS_PAS:
        return -corpus.measures[PAS]
    if what in (RESIDUAL, ALIGN_PAS):
        assert gates.fit is not None, "PAS is not fitted yet"
        return gates.fit.residuals(corpus.measures, corpus.measures[PAS])
    return corpus.measures[str(what)]


def passes_align(corpus: Corpus, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return which corpus rows pass the align gate, bool [M]."""
    assert gates.align is not None, "the align gate is not cut yet"
    return keep_mask(gates.align, align_scores(corpus, selection), corpus.uid_M2)


def enters_attribute(corpus: Corpus, selection: SelectionRule, gates: Gates) -> np.ndarray:
    """Return which corpus rows the attribute gate ranks, under any rule: past the align gate, with a PAS."""
    return passes_align(corpus, selection, gates) & ~np.isnan(corpus.measures[PAS])


def cut_gates(selection: SelectionRule, over: Callable[..., Iterable[Any]]) -> Gates:
    """Cut the gates of a selection rule over files that are never in one memory.

    ``over(measure, with_attribute, *args)`` yields ``measure(corpus, selection, *args)`` of every file, in
    order, with its corpus read from ``corpus_columns(selection, with_attribute)``. ``measure`` is a plain
    function.
    """
    rule = selection.rule
    num_corpus = sum(over(_count_rows, False))
    gates = Gates(num_corpus)
    search = make_search(selection, num_corpus, num_corpus, selection.align_share)
    while not search.done:
        search.advance(sum(over(_count_align, False, search)))
    gates = replace(gates, align=search.threshold)
    if selection.attribute_share is None:
        return gates
    num_scored = sum(over(_count_scored, True, gates))
    gates = replace(gates, num_scored=num_scored)
    if rule.attribute_by == RESIDUAL:
        moments = reduce(CrossMoments.merge, over(_explaining_moments, True, gates))
        gates = replace(gates, fit=LinearFit.of(EXPLAINING, moments))
    if rule.attribute_by == ALIGN_PAS:
        gates = replace(gates, fit=weigh_alike(reduce(CrossMoments.merge, over(_both_moments, True, gates))))
    search = make_search(selection, num_corpus, num_scored, selection.attribute_share)
    while not search.done:
        search.advance(sum(over(_count_attribute, True, gates, search)))
    return replace(gates, attribute=search.threshold)


def _count_rows(corpus: Corpus, selection: SelectionRule) -> int:
    return len(corpus.row_M)


def _count_align(corpus: Corpus, selection: SelectionRule, search: KthSearch) -> np.ndarray:
    return count_digit(search, align_scores(corpus, selection), corpus.uid_M2)


def _count_scored(corpus: Corpus, selection: SelectionRule, gates: Gates) -> int:
    return int(enters_attribute(corpus, selection, gates).sum())


def _explaining_moments(corpus: Corpus, selection: SelectionRule, gates: Gates) -> CrossMoments:
    enters_M = enters_attribute(corpus, selection, gates)
    return CrossMoments.of([corpus.measures[name][enters_M] for name in (*EXPLAINING, PAS)])


def _both_moments(corpus: Corpus, selection: SelectionRule, gates: Gates) -> CrossMoments:
    enters_M = enters_attribute(corpus, selection, gates)
    return CrossMoments.of([corpus.measures[name][enters_M] for name in (ALIGNMENT, PAS)])


def weigh_alike(moments: CrossMoments) -> LinearFit:
    """Return the fit whose residual is the sum of alignment and PAS, each divided by its standard deviation.

    The residual is the centred sum times the deviation of PAS. If either does not vary, the other alone
    ranks.
    """
    align_size, pas_size = np.sqrt(np.diag(moments.product_CC)).tolist()
    ratio = pas_size / align_size if align_size and pas_size else 1.0
    align_mean, pas_mean = moments.mean_C.tolist()
    return LinearFit(moments.count, pas_mean + ratio * align_mean, {ALIGNMENT: -ratio}, None)


def _count_attribute(corpus: Corpus, selection: SelectionRule, gates: Gates, search: KthSearch) -> np.ndarray:
    enters_M = enters_attribute(corpus, selection, gates)
    return count_digit(search, attribute_scores(corpus, selection, gates)[enters_M], corpus.uid_M2[enters_M])


def rank_attributed(table: pa.Table, selection: SelectionRule, gates: Gates) -> pa.Array:
    """Return the value by which ``selection.by_pas`` ranks each row with a PAS, past its gates or not.

    The table needs its ``corpus_columns``.
    """
    corpus = read_corpus(take_columns(table, selection.by_pas, with_attribute=True), selection.by_pas)
    value_N = np.full(len(table), np.nan, np.float32)
    value_N[corpus.row_M] = attribute_scores(corpus, selection.by_pas, gates)
    return pa.array(value_N, mask=np.isnan(value_N))


Judged = tuple[np.ndarray, np.ndarray]


def judge_table(table: pa.Table, selection: SelectionRule, gates: Gates) -> Judged:
    """Return the reason and the last gate's score of every row of a table.

    The reason is KEPT, a gate's, a mark's or the status. Reasons are an object array of str, scores float32
    with NaN where the row was not ranked.
    """
    rule = selection.rule
    reason_N = np.array(table[STATUS].to_pylist(), dtype=object)
    score_N = np.full(len(table), np.nan, np.float32)
    corpus = read_corpus(table, selection)
    passes_M = passes_align(corpus, selection, gates)
    reason_M = np.where(passes_M, KEPT, _LOST.get(rule.align_by, DROPPED_CONTROL)).astype(object)
    score_M = align_scores(corpus, selection)
    if gates.attribute is not None:
        enters_M = enters_attribute(corpus, selection, gates)
        score_M = np.where(enters_M, attribute_scores(corpus, selection, gates), np.float32(np.nan))
        kept_M = np.zeros(len(enters_M), bool)
        kept_M[enters_M] = keep_mask(gates.attribute, score_M[enters_M], corpus.uid_M2[enters_M])
        reason_M[passes_M & ~enters_M] = DROPPED_UNSCORED
        reason_M[enters_M & ~kept_M] = _LOST.get(str(rule.attribute_by), DROPPED_CONTROL)
    if MARK in table.column_names:
        _judge_marks(table, reason_N, reason_M, corpus.row_M)
    reason_N[corpus.row_M] = reason_M
    score_N[corpus.row_M] = score_M
    return reason_N, score_N


def judge_file(
    file: ScoresFile, selection: SelectionRule, gates: Gates, columns: Sequence[str] = ()
) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Return a scores file with ``columns`` and those of the gates, and each row's reason and score."""
    table = file.read(list(dict.fromkeys([*columns, *corpus_columns(selection, with_attribute=True)])))
    return table, *judge_table(take_columns(table, selection, with_attribute=True), selection, gates)


def _judge_marks(table: pa.Table, reason_N: np.ndarray, reason_M: np.ndarray, row_M: np.ndarray) -> None:
    """Set the marks of rows outside the corpus, and the marks after the gates of rows that would be kept."""
    is_marked_N = table[ALIGNMENT].is_valid().to_numpy() & table[MARK].is_valid().to_numpy()
    reason_N[is_marked_N] = table[MARK].to_numpy()[is_marked_N]
    if MARK_AFTER not in table.column_names:
        return
    after_M = table[MARK_AFTER].to_numpy()[row_M]
    is_lost_M = (reason_M == KEPT) & np.array([after is not None for after in after_M], bool)
    reason_M[is_lost_M] = after_M[is_lost_M]


def choose_tables(tables: Sequence[pa.Table], selection: SelectionRule) -> tuple[Gates, list[Judged]]:
    """Choose over scores tables in memory, as the cluster does over files; return the gates and each table's
    reasons and scores.

    The tables need the columns of ``corpus_columns(selection, True)``.
    """
    corpora = [read_corpus(table, selection) for table in tables]

    def over(measure: Callable, with_attribute: bool, *args: Any) -> Iterable[Any]:
        return (measure(corpus, selection, *args) for corpus in corpora)

    gates = cut_gates(selection, over)
    return gates, [judge_table(table, selection, gates) for table in tables]


def describe_shortage(selection: SelectionRule, gates: Gates) -> list[str]:
    """Return a warning if the attribute gate had fewer rows to rank than it should keep."""
    if selection.attribute_share is None or gates.num_scored is None:
        return []
    wanted = exact_share(selection.attribute_share, gates.num_corpus)
    if gates.num_scored < wanted:
        return [
            f"attribute.keep={selection.attribute_share} asks for {wanted:,} pairs, but only "
            f"{gates.num_scored:,} past the first gate have a PAS; all of them were kept"
        ]
    return []


def describe_duplicates(reasons: Mapping[str, int], num_corpus: int) -> list[str]:
    """Return a warning if most rows that no filter dropped are near-duplicates of others."""
    lost = reasons.get(NEAR_DUPLICATE, 0)
    if lost <= num_corpus:
        return []
    return [
        f"near.rules: {lost:,} of {lost + num_corpus:,} rows are near-duplicates of another row and were "
        "dropped; look at the groups in marks/, or set a stricter near.bits or near.cosine"
    ]
