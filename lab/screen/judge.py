"""The pairs that rules keep of one corpus: correct pairs, and pairs with one kind of fault.

N pairs; scores are float64 [N], NaN where a pair has none: it then ranks last. B draws of a bootstrap, each
with the number of copies of every pair.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from raycomp.config import exact_share
from raycomp.core.metrics import auc
from raycomp.words import CONTENT, PER_DISPLACEMENT, TARGETS, UNITS

GATE, KEEP = 0.7, 0.5
KEEPS = (0.6, 0.5, 0.4, 0.3)
"""Shares of the corpus to keep behind an alignment gate of 70 %; the first, the paper's, is 50 %."""
AGGREGATES = ("mean", "min")
PAPER = "paper"
"""One nonce, mean drop of all nouns."""
READINGS = tuple(" ".join(parts) for parts in product(TARGETS, UNITS, AGGREGATES))
ALIGNMENT, TEXT = "alignment", "alignment + text"
REGISTERED = f"alignment + {CONTENT} {PER_DISPLACEMENT} min"
"""The rule selected on worlds 0 to 3, before others were drawn (lab/jobs/pas_screen.py)."""


@dataclass(frozen=True)
class Scored:
    """Pairs with their scores."""

    fault_N: np.ndarray
    """Bool."""
    alignment_N: np.ndarray
    text_N: np.ndarray
    """Log-odds of a correct pair by the caption alone."""
    readings: Mapping[str, np.ndarray]
    num_targets_N: np.ndarray
    """Number of nouns that PAS replaced."""
    draw_N: np.ndarray
    """Breaks ties."""


@dataclass(frozen=True)
class Corpus(Scored):
    """Pairs of a drawn world, with one kind of fault."""

    num_things_N: np.ndarray
    template_N: np.ndarray


@dataclass(frozen=True)
class Row:
    """The results of one rule on a corpus."""

    rule: str
    keep: float
    pairs: int
    planted: int
    planted_in_pool: int
    kept: int
    faults_kept: int
    faults_kept_in_strata: int
    """The faults kept if every number of targets keeps the same share of its pairs."""
    auc: float
    """AUC: correct above faulty, in the pool that passes the gate; of alignment, too."""
    auc_in_strata: float
    """The same AUC, where pairs are compared only with pairs of the same number of targets."""


def judge(corpus: Corpus) -> Iterator[Row]:
    """Yield the results of every rule at every share."""
    pool_N = keep_best(corpus.alignment_N, GATE, np.ones(len(corpus.fault_N), bool), corpus.draw_N)
    for rule, score_N in list_rules(corpus, pool_N):
        found = auc_of(score_N, corpus.fault_N, pool_N)
        by_targets = auc_in_strata(score_N, corpus.fault_N, pool_N, corpus.num_targets_N)
        for keep in KEEPS:
            kept_N = keep_of_pool(score_N, pool_N, keep, corpus.draw_N)
            strata_N = keep_in_strata(score_N, pool_N, keep, corpus)
            yield Row(
                rule,
                keep,
                len(pool_N),
                int(corpus.fault_N.sum()),
                int((corpus.fault_N & pool_N).sum()),
                int(kept_N.sum()),
                int((corpus.fault_N & kept_N).sum()),
                int((corpus.fault_N & strata_N).sum()),
                found,
                by_targets,
            )


def list_rules(corpus: Scored, pool_N: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each rule and its ranking score of the pool; sums are of values standardized over the pool."""
    aligned_N = standardise(corpus.alignment_N, pool_N)
    yield ALIGNMENT, corpus.alignment_N
    yield TEXT, aligned_N + standardise(corpus.text_N, pool_N)
    for name, score_N in corpus.readings.items():
        yield f"cpi {name}", score_N
        yield f"alignment + {name}", aligned_N + standardise(score_N, pool_N)


def standardise(score_N: np.ndarray, pool_N: np.ndarray) -> np.ndarray:
    """Return the score with mean 0 and standard deviation 1 over the pool; 0 where it does not vary."""
    std = np.nanstd(score_N[pool_N])
    return (score_N - np.nanmean(score_N[pool_N])) / std if std > 0 else np.zeros(len(score_N))


def keep_best(score_N: np.ndarray, share: float, among_N: np.ndarray, draw_N: np.ndarray) -> np.ndarray:
    """Return the best ``floor(share * N)`` of the candidate pairs, bool [N]."""
    order = np.lexsort((draw_N, -np.nan_to_num(score_N, nan=-np.inf), ~among_N))
    kept_N = np.zeros(len(score_N), bool)
    kept_N[order[: exact_share(share, len(score_N))]] = True
    return kept_N & among_N


def keep_of_pool(score_N: np.ndarray, pool_N: np.ndarray, keep: float, draw_N: np.ndarray) -> np.ndarray:
    """Return the pairs of the pool that a second gate keeps, a share of all pairs."""
    return keep_best(score_N, keep, pool_N, draw_N)


def keep_in_strata(score_N: np.ndarray, pool_N: np.ndarray, keep: float, corpus: Corpus) -> np.ndarray:
    """Return the same number of pairs, where each number of targets keeps the same share of its pairs in the
    pool."""
    share = exact_share(keep, len(pool_N)) / max(int(pool_N.sum()), 1)
    order = np.lexsort((corpus.draw_N, -np.nan_to_num(score_N, nan=-np.inf)))
    kept_N = np.zeros(len(score_N), bool)
    for targets in np.unique(corpus.num_targets_N[pool_N]):
        own = order[(pool_N & (corpus.num_targets_N == targets))[order]]
        kept_N[own[: round(share * len(own))]] = True
    return kept_N


def keep_copies(
    score_N: np.ndarray, copies_BN: np.ndarray, num_B: np.ndarray, draw_N: np.ndarray
) -> np.ndarray:
    """Return the copies that are kept in every draw, the best ``num_B``: ``keep_best`` of draws."""
    order = np.lexsort((draw_N, -np.nan_to_num(score_N, nan=-np.inf)))
    ranked_BN = copies_BN[:, order]
    before_BN = np.cumsum(ranked_BN, axis=1) - ranked_BN
    kept_BN = np.empty_like(copies_BN)
    kept_BN[:, order] = np.clip(num_B[:, None] - before_BN, 0, ranked_BN)
    return kept_BN


def auc_copies(
    score_N: np.ndarray, copies_BN: np.ndarray, true_N: np.ndarray, false_N: np.ndarray
) -> np.ndarray:
    """Return ``auc`` of every draw, float64 [B]: true above false pairs; NaN where a draw lacks either."""
    at_N = ~np.isnan(score_N)
    _, which_N = np.unique(score_N[at_N], return_inverse=True)
    order, size = np.argsort(which_N, kind="stable"), np.bincount(which_N)
    ranked_BN, start = copies_BN[:, at_N][:, order], np.cumsum(size) - size
    true_BU, false_BU = (
        np.add.reduceat(ranked_BN * side_N[at_N][order], start, axis=1) for side_N in (true_N, false_N)
    )
    above_BU = true_BU.sum(1, keepdims=True) - np.cumsum(true_BU, axis=1) + true_BU / 2
    pairs_B = true_BU.sum(1) * false_BU.sum(1)
    return np.where(pairs_B > 0, (false_BU * above_BU).sum(1) / np.maximum(pairs_B, 1), np.nan)


def auc_of(score_N: np.ndarray, fault_N: np.ndarray, pool_N: np.ndarray) -> float:
    """Return the probability that a correct pair of the pool scores above a faulty one; NaN without
    either."""
    at_N = pool_N & ~np.isnan(score_N)
    sound, faulty = score_N[at_N & ~fault_N], score_N[at_N & fault_N]
    return float(auc(sound, faulty)) if len(sound) and len(faulty) else float("nan")


def auc_in_strata(
    score_N: np.ndarray, fault_N: np.ndarray, pool_N: np.ndarray, stratum_N: np.ndarray
) -> float:
    """Return the same over pairs of one stratum, each stratum weighted by its number of such pairs."""
    total = weight = 0.0
    for stratum in np.unique(stratum_N[pool_N]):
        own_N = pool_N & (stratum_N == stratum) & ~np.isnan(score_N)
        pairs = float((own_N & fault_N).sum()) * float((own_N & ~fault_N).sum())
        if pairs:
            total += pairs * auc_of(score_N, fault_N, own_N)
            weight += pairs
    return total / weight if weight else float("nan")


def count_traits(corpus: Corpus) -> Iterator[tuple[str, str, int, int]]:
    """Yield (rule, trait, number of correct pairs with it, how many of them are kept at 50 %)."""
    pool_N = keep_best(corpus.alignment_N, GATE, np.ones(len(corpus.fault_N), bool), corpus.draw_N)
    traits = {f"{num} things": corpus.num_things_N == num for num in np.unique(corpus.num_things_N)}
    traits |= {f"template {one}": corpus.template_N == one for one in np.unique(corpus.template_N)}
    for rule, score_N in list_rules(corpus, pool_N):
        kept_N = keep_of_pool(score_N, pool_N, KEEP, corpus.draw_N)
        for trait, has_N in traits.items():
            sound_N = has_N & ~corpus.fault_N
            yield rule, trait, int(sound_N.sum()), int((sound_N & kept_N).sum())
