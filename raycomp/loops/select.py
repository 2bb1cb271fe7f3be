"""Which samples stay: what each rule ranks by, on one scores table at a time.

The corpus is the rows that have an alignment. cpi passes two gates (Go et al., arXiv 2605.22651, section
5.3): the floor(align.keep * N) best by alignment, of these the floor(attribute.keep * N) best by aggregated
PAS. The controls pass one: align_only and random keep floor(attribute.keep * N) of all N, full keeps N.

The paper's own counts (1,557,650 and 1,111,131 of 2,222,261) are not floors: 0.7 N is 1,555,582.7 and
0.5 N 1,111,130.5, so its second count is rounded up and its first lies 0.09 % above. Here it is always floor.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import CurateConfig, exact_share
from raycomp.core.attribution import aggregate_drops
from raycomp.core.selection import KthSearch, Threshold, keep_mask, kth_datacomp, parse_uids, random_scores
from raycomp.schema import (
    ALIGNMENT,
    DROPPED_ALIGNMENT,
    DROPPED_ATTRIBUTION,
    DROPPED_RANDOM,
    DROPPED_UNSCORED,
    KEPT,
    MEAN_PAS,
    PHRASES,
    STATUS,
    UID,
)


@dataclass(frozen=True)
class Corpus:
    """The rows of one scores file that have an alignment: M of its N rows."""

    row_M: np.ndarray
    uid_M2: np.ndarray
    alignment_M: np.ndarray
    pas_M: np.ndarray
    """The aggregated PAS, NaN where none."""


def corpus_columns(config: CurateConfig, with_pas: bool) -> list[str]:
    """Return the columns that selection reads; nothing of a sample's content."""
    pas = [MEAN_PAS if config.attribute.aggregate == "mean" else PHRASES] if with_pas else []
    return [UID, STATUS, ALIGNMENT, *pas]


def read_corpus(table: pa.Table, config: CurateConfig) -> Corpus:
    """Take the corpus rows out of a scores table with ``corpus_columns``."""
    row_M = np.flatnonzero(table[ALIGNMENT].is_valid().to_numpy())
    taken = table.take(pa.array(row_M))
    if PHRASES in table.column_names:
        pas_M = _aggregate(taken[PHRASES].combine_chunks(), config.attribute.aggregate)
    elif MEAN_PAS in table.column_names:
        pas_M = taken[MEAN_PAS].to_numpy().astype(np.float32)
    else:
        pas_M = np.full(len(row_M), np.nan, np.float32)
    return Corpus(row_M, parse_uids(taken[UID]), taken[ALIGNMENT].to_numpy(), pas_M)


def _aggregate(phrases: pa.ListArray, how: str) -> np.ndarray:
    drops = pc.list_flatten(phrases).field("drop") if len(phrases) else pa.array([], pa.float32())
    sizes = pc.fill_null(pc.list_value_length(phrases), 0).to_numpy()
    drop_P = drops.to_numpy(zero_copy_only=False).astype(np.float32)
    return aggregate_drops(drop_P, np.concatenate([[0], np.cumsum(sizes)]), how)


@dataclass(frozen=True)
class Gates:
    """A committed choice: the corpus' size and where each gate cuts; none = there is no such gate."""

    num_corpus: int
    align: Threshold | None = None
    attribute: Threshold | None = None
    num_scored: int | None = None
    """Rows past the first gate that have a score for the second."""

    def to_dict(self) -> dict[str, Any]:
        """Return what json can hold."""
        cuts = {
            name: cut and cut.to_dict()
            for name, cut in (("align", self.align), ("attribute", self.attribute))
        }
        return {"num_corpus": self.num_corpus, **cuts, "num_scored": self.num_scored}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Gates":
        """Return the gates that ``to_dict`` wrote."""
        cuts = {name: values[name] and Threshold.from_dict(values[name]) for name in ("align", "attribute")}
        return cls(values["num_corpus"], cuts["align"], cuts["attribute"], values["num_scored"])


def make_search(config: CurateConfig, num_corpus: int, num_ranked: int, share: float) -> KthSearch:
    """Return the search for a gate that keeps ``share`` of the corpus out of ``num_ranked`` rows.

    Fewer rows than that: all of them stay.
    """
    if config.select.datacomp_compat:
        wanted = kth_datacomp(num_corpus, share).k
        return KthSearch(min(wanted, num_ranked), keep_ties=True)
    return KthSearch(min(exact_share(share, num_corpus), num_ranked))


def pool_config(config: CurateConfig) -> CurateConfig:
    """Return the config under which exactly the rows to be attributed are kept."""
    # DataComp's rule keeps ties too, so only a pool cut by it holds all that its gate keeps.
    compat = config.select.datacomp_compat and config.pool < 1
    select = replace(config.select, rule="align_only", datacomp_compat=compat)
    return replace(config, select=select, attribute=replace(config.attribute, keep=config.pool))


def first_scores(corpus: Corpus, config: CurateConfig) -> np.ndarray:
    """Return what the rule's first gate ranks all of the corpus by."""
    if config.select.rule == "random":
        return random_scores(corpus.uid_M2, config.seed)
    return corpus.alignment_M


def first_share(config: CurateConfig) -> float:
    """Return the share of the corpus that the rule's first gate keeps."""
    return {"cpi": config.align.keep, "full": 1.0}.get(config.select.rule, config.attribute.keep)


def passes_first(corpus: Corpus, config: CurateConfig, gates: Gates) -> np.ndarray:
    """Return which corpus rows pass the first gate, bool [M]."""
    assert gates.align is not None, "the first gate is not cut yet"
    return keep_mask(gates.align, first_scores(corpus, config), corpus.uid_M2)


def enters_second(corpus: Corpus, config: CurateConfig, gates: Gates) -> np.ndarray:
    """Return which corpus rows the second gate ranks: past the first, with a score."""
    return passes_first(corpus, config, gates) & ~np.isnan(corpus.pas_M)


def judge(table: pa.Table, config: CurateConfig, gates: Gates) -> tuple[np.ndarray, np.ndarray]:
    """Return the reason (KEPT, a gate's, or the status) and the last gate's score of every row of a table.

    Reasons are an object array of str, scores float32 with NaN where the row was not ranked.
    """
    reason_N = np.array(table[STATUS].to_pylist(), dtype=object)
    score_N = np.full(len(table), np.nan, np.float32)
    corpus = read_corpus(table, config)
    first_M = passes_first(corpus, config, gates)
    lost = DROPPED_RANDOM if config.select.rule == "random" else DROPPED_ALIGNMENT
    reason_M = np.where(first_M, KEPT, lost).astype(object)
    score_M = first_scores(corpus, config)
    if gates.attribute is not None:
        scored_M = enters_second(corpus, config, gates)
        kept_M = np.zeros(len(scored_M), bool)
        kept_M[scored_M] = keep_mask(gates.attribute, corpus.pas_M[scored_M], corpus.uid_M2[scored_M])
        reason_M[first_M & ~scored_M] = DROPPED_UNSCORED
        reason_M[scored_M & ~kept_M] = DROPPED_ATTRIBUTION
        score_M = np.where(scored_M, corpus.pas_M, np.float32(np.nan))
    reason_N[corpus.row_M] = reason_M
    score_N[corpus.row_M] = score_M
    return reason_N, score_N


def describe_shortage(config: CurateConfig, gates: Gates) -> list[str]:
    """Return a line for every gate that had fewer rows to rank than it was asked to keep."""
    wanted = exact_share(config.attribute.keep, gates.num_corpus)
    if gates.num_scored is not None and gates.num_scored < wanted:
        return [
            f"attribute.keep={config.attribute.keep} asks for {wanted:,} pairs, but only "
            f"{gates.num_scored:,} past the first gate have a score: all of them were kept"
        ]
    return []
