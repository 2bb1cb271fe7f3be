"""PAS repeated with other nonces, and compared with real words and wrong pictures.

Go et al. (arXiv 2605.22651, section 7) find the mean drop of nonces between those of words of the same and of
another category. They read this as a sign that PAS measures the replaced word, not the strangeness of nonces.

Targets are not independent.
Targets of a picture share its embedding. A word has the same nonces and control words everywhere, and a few
nonces serve all words. Even an encoder of random weights shifts with a few frequent words and nonces. So a
difference counts only if its intervals over pictures, over words and over nonces all exclude 0, and if there
are ``LEAST_WORDS`` words.

Letters: N or B samples; P targets or phrases of all samples, ``offset_E`` marking them as in
``core.alignment``; G groups; T nonces of a phrase, drawn alike, so all pairs of columns are equivalent; S
splits into two halves. PAS of a sample is its true score plus an error of the drawn nonces. The reliability
is the true score's share of the variance over samples: the correlation of two scores from separate draws.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycomp.core.alignment import aggregate_drops, drop_per_displacement
from raycomp.core.intervals import clustered_variance
from raycomp.core.metrics import student_95
from raycomp.core.probe import Interval, bootstrap_ratio
from raycomp.words import KINDS

SAME, NONCE, CROSS, WRONG = "same_category", "nonce", "cross_category", "nonce_wrong_image"
CONDITIONS = (SAME, NONCE, CROSS, WRONG)
PAPER = {SAME: 0.0177, NONCE: 0.0227, CROSS: 0.0257}
"""Mean drops of 100,000 interventions on CC3M under OpenAI's CLIP ViT-B/16."""
DIFFERENCES = {
    "nonce_over_same": (NONCE, SAME),
    "cross_over_nonce": (CROSS, NONCE),
    "right_over_wrong": (NONCE, WRONG),
}
WRONG_SHARE = "share_left_with_wrong_image"
"""Mean drop with a wrong image, divided by that with the caption's own."""
ALL = "all"
NUM_DRAWS = 1000
WORDS, NONCES = "words", "nonces"
LEAST_WORDS = 20
"""With fewer words the spread between words is not known well enough to determine a sign."""
MOST_TRIES = 1000


def draw_others(
    image_N: Sequence[int],
    caption_N: Sequence[str],
    target_N: Sequence[Collection[str]],
    said_N: Sequence[Collection[str]],
    hash_N: np.ndarray,
) -> np.ndarray:
    """Return for each sample the index of one with another image and another caption, int (N,); -1 for none.

    The caption of that sample must not contain (``said_N``, words) the sample's own target (``target_N``):
    its picture would show the target. The result is the next such sample in the order of ``hash_N``, among
    the ``MOST_TRIES`` next, so that every picture is used about equally often.
    """
    order = np.argsort(hash_N, kind="stable").tolist()
    num = len(order)
    other_N = np.full(num, -1)
    for place, i in enumerate(order):
        behind = (order[(place + step) % num] for step in range(1, min(num, MOST_TRIES + 1)))
        fitting = (j for j in behind if image_N[j] != image_N[i] and caption_N[j] != caption_N[i])
        other_N[i] = next((j for j in fitting if not {*target_N[i]} & {*said_N[j]}), -1)
    return other_N


def calibrate(
    drops: Mapping[str, np.ndarray],
    kind_P: np.ndarray,
    picture_P: np.ndarray,
    word_P: np.ndarray,
    nonces_P: Sequence[Sequence[str]],
    seed: int,
) -> list[dict[str, Any]]:
    """Return a line for all targets and one for each kind of phrase that occurs.

    A line has ``kind``, ``num_targets``, ``num_pictures``, ``num_words`` and, for each x of ``CONDITIONS``
    and ``DIFFERENCES``, the mean over targets of the drop s(I, T) - s(I, T~) (Eq. 3), or of the difference of
    two drops, with the 95 % interval over pictures in x_low and x_high; for differences and ``WRONG_SHARE``
    also those over words and over nonces in x_words_low, x_words_high, x_nonces_low, x_nonces_high.
    ``picture_P`` and ``word_P`` hold each target's picture and word, as any values that can be compared for
    equality.
    """
    values = dict(drops) | {name: drops[a] - drops[b] for name, (a, b) in DIFFERENCES.items()}
    values[WRONG_SHARE] = drops[WRONG]
    lines = []
    for kind in (ALL, *KINDS):
        in_P = (kind_P == kind) | (kind == ALL)
        if not in_P.any():
            continue
        picture_Q, word_Q = picture_P[in_P], word_P[in_P]
        members: dict[str, Sequence[Sequence[Any]]] = {WORDS: [[word] for word in word_Q.tolist()]}
        members[NONCES] = [nonces_P[i] for i in np.flatnonzero(in_P).tolist()]
        line: dict[str, Any] = {"kind": kind, "num_targets": int(in_P.sum())}
        line |= {"num_pictures": len(np.unique(picture_Q)), "num_words": len(np.unique(word_Q))}
        for name, value_P in values.items():
            value_Q, rng = value_P[in_P].astype(np.float64), np.random.default_rng(seed)
            below_Q = drops[NONCE][in_P].astype(np.float64) if name == WRONG_SHARE else np.ones(len(value_Q))
            found = bootstrap_ratio(value_Q, below_Q, picture_Q, rng, NUM_DRAWS)
            line |= found.under(name)
            if name not in CONDITIONS and not math.isnan(found.value):
                # Linearised: of a mean the values, of a ratio the deviations from it.
                rest_Q = found.value + (value_Q - found.value * below_Q) / below_Q.mean()
                for over, groups in members.items():
                    line |= Interval(found.value, *spread_over(rest_Q, groups)).under(name, f"_{over}")
        lines.append(line)
    return lines


def spread_over(value_P: np.ndarray, groups_P: Sequence[Sequence[Any]]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over groups; a target may be in several groups.

    Linearised (each group's sum of deviations), by Student's t of G - 1 degrees of freedom: with few groups a
    bootstrap's percentiles are too narrow. A target's deviation counts in full in each of its groups, because
    the target holds only a part of each group's effect. NaN below 2 groups.
    """
    pairs = [(group, row) for row, groups in enumerate(groups_P) for group in groups]
    group_Q, row_Q = (np.array(column) for column in zip(*pairs, strict=True))
    num_groups = len(np.unique(group_Q))
    if num_groups < 2:
        return float("nan"), float("nan")
    mean = float(value_P.mean())
    error = math.sqrt(clustered_variance(value_P[row_Q] - mean, group_Q)) / len(value_P)
    half = student_95(num_groups - 1) * error
    return mean - half, mean + half


def join_intervals(line: Mapping[str, Any], name: str) -> Interval:
    """Return a difference or share with the hull of its intervals; NaN below ``LEAST_WORDS`` words."""
    if line["num_words"] < LEAST_WORDS or math.isnan(line[name]):
        return Interval(line[name], math.nan, math.nan)
    ends = [[line[f"{name}{over}_{end}"] for over in ("", "_words", "_nonces")] for end in ("low", "high")]
    return Interval(line[name], float(np.min(ends[0])), float(np.max(ends[1])))


NUM_SPLITS = 20


def spearman_brown(reliability: float, times: float) -> float:
    """Return the reliability of a score whose errors are the mean of ``times`` as many draws, at most 1.

    Spearman 1910 and Brown 1910. ``times`` = m / k extrapolates from k nonces per target to m. Raises
    ValueError unless ``times`` is above 0, and if the reliability is so negative that no share of the
    variance is left.
    """
    if times <= 0:
        raise ValueError(f"times={times}: must be above 0")
    rest = 1 + (times - 1) * reliability
    if rest <= 0:
        raise ValueError(f"reliability={reliability}: too far below 0 for times={times}")
    return times * reliability / rest


def draw_halves(
    drop_PT: np.ndarray,
    offset_E: np.ndarray,
    count: int,
    rng: np.random.Generator,
    num_splits: int = NUM_SPLITS,
    displacement_PT: np.ndarray | None = None,
    how: str = "mean",
) -> np.ndarray:
    """Return PAS (B, S, 2) from two disjoint sets of ``count`` nonces, ``num_splits`` times over.

    ``how`` aggregates a sample's drops, or with ``displacement_PT`` its drops per displacement.

    One draw assigns columns to halves for all phrases, as one seed gives a target its nonces in every
    caption. NaN in ``drop_PT`` is a missing nonce: a phrase with v below 2 ``count`` nonces gives its halves
    v/2 each, rounded up and down; one with fewer than 2 is left out of both. A sample without a phrase is
    NaN.
    """
    if not 1 <= count <= drop_PT.shape[1] // 2:
        raise ValueError(f"count={count}: two sets of {drop_PT.shape[1]} nonces hold 1 to half as many")
    half_BS2 = np.empty((len(offset_E) - 1, num_splits, 2))
    # The drops, and the displacements if there are any.
    value_VPT = np.stack([drop_PT] if displacement_PT is None else [drop_PT, displacement_PT])
    for split in range(num_splits):
        turned_VPT = value_VPT[..., rng.permutation(drop_PT.shape[1])]
        gaps_last_VPT = np.argsort(np.isnan(turned_VPT), axis=2, kind="stable")
        turned_VPT = np.take_along_axis(turned_VPT, gaps_last_VPT, axis=2)[..., : 2 * count]
        has_both_P = ~np.isnan(turned_VPT[0, :, 1])
        for half in (0, 1):
            mean_VP = np.full(turned_VPT.shape[:2], np.nan)
            mean_VP[:, has_both_P] = np.nanmean(turned_VPT[:, has_both_P, half::2], axis=2)
            value_P = mean_VP[0] if displacement_PT is None else drop_per_displacement(*mean_VP)
            half_BS2[:, split, half] = aggregate_drops(value_P, offset_E, how)
    return half_BS2


@dataclass(frozen=True)
class Retest:
    """``reliability`` of ``count`` nonces per target, ``predicted`` from that of one by Spearman-Brown.

    ``in_common`` is the share of the kept set of one half that the
    other keeps too; two unrelated scores share ``keep`` of it.
    """

    count: int
    reliability: Interval
    predicted: Interval
    in_common: float


def measure_retest(
    drop_PT: np.ndarray,
    offset_E: np.ndarray,
    counts: tuple[int, ...],
    keep: float,
    group_B: np.ndarray,
    rng: np.random.Generator,
    num_draws: int = 1000,
    base_B: np.ndarray | float = 0.0,
    **reading: Any,
) -> list[Retest]:
    """Return the reliability of each count, with percentile intervals over resamples of groups.

    The score is PAS by the ``reading`` that ``draw_halves`` takes, plus ``base_B``, which no nonce changes.
    ``group_B`` names what was drawn together, for example the photo of several captions. All counts and the
    prediction are resampled together. ``keep`` is the share of the pool that is kept. An interval holds the
    nonces' draws (their splits) fixed: it covers the sampling of samples. It is NaN if a resample correlates
    so negatively that Spearman-Brown is undefined, and with one group.
    """
    _, which_B = np.unique(group_B, return_inverse=True)
    num_groups = which_B.max() + 1
    times_RG = rng.multinomial(num_groups, np.full(num_groups, 1 / num_groups), num_draws)
    once_RB = np.concatenate([np.ones((1, len(which_B))), times_RG[:, which_B]])
    base_B11 = np.reshape(base_B, (-1, 1, 1))
    halves = {c: base_B11 + draw_halves(drop_PT, offset_E, c, rng, **reading) for c in {1, *counts}}
    value_R = {count: _correlate(half, once_RB) for count, half in halves.items()}
    results = []
    for count in counts:
        has_share_R = 1 + (count - 1) * value_R[1] > 0
        predicted_R = np.full(len(has_share_R), np.nan)
        predicted_R[has_share_R] = [spearman_brown(value, count) for value in value_R[1][has_share_R]]
        common = kept_in_common(halves[count], keep)
        if num_groups < 2:
            value_R[count], predicted_R = (
                np.append(of_R[:1], [np.nan] * num_draws) for of_R in (value_R[count], predicted_R)
            )
        results.append(Retest(count, _interval(value_R[count]), _interval(predicted_R), common))
    return results


def kept_in_common(half_BS2: np.ndarray, keep: float) -> float:
    """Return the share of the ``keep`` best by one half that are also among the best by the other; mean of
    splits.

    NaN if no sample is kept and if all samples of a half have the same score.
    """
    scored_BS2 = half_BS2[~np.isnan(half_BS2).any(axis=(1, 2))]
    num_kept = int(keep * len(scored_BS2))
    if not num_kept or (np.ptp(scored_BS2, axis=0) == 0).any():
        return float("nan")
    rank_BS2 = np.argsort(np.argsort(-scored_BS2, axis=0, kind="stable"), axis=0)
    return float(((rank_BS2 < num_kept).all(axis=2).sum(axis=0) / num_kept).mean())


def split_variance(drop_PT: np.ndarray) -> tuple[float, float]:
    """Return two standard deviations: of phrases' true drops, and of the drops of one phrase's nonces.

    One-way analysis of variance: the variance of phrases' means less the part due to their nonces; 0 if the
    rest is negative. Phrases with fewer than 2 nonces are left out.
    """
    size_P = (~np.isnan(drop_PT)).sum(axis=1)
    drop_PT, size_P = drop_PT[size_P > 1], size_P[size_P > 1]
    within = float(np.average(np.nanvar(drop_PT, axis=1, ddof=1), weights=size_P - 1))
    means = float(np.nanmean(drop_PT, axis=1).var(ddof=1))
    return max(means - within * float((1 / size_P).mean()), 0.0) ** 0.5, within**0.5


def _correlate(half_BS2: np.ndarray, times_RB: np.ndarray) -> np.ndarray:
    """Return Pearson's r of the two halves, mean of the splits, each sample weighted by ``times``: (R,)."""
    scored_B = ~np.isnan(half_BS2).any(axis=(1, 2))
    half_BS2, times_RB = half_BS2[scored_B], times_RB[:, scored_B].astype(np.float64)
    x_BS, y_BS = np.moveaxis(half_BS2 - half_BS2.mean(axis=0), 2, 0)
    total_R1 = times_RB.sum(axis=1, keepdims=True)
    x_RS, y_RS, xx_RS, yy_RS, xy_RS = (
        times_RB @ value_BS / total_R1 for value_BS in (x_BS, y_BS, x_BS**2, y_BS**2, x_BS * y_BS)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return ((xy_RS - x_RS * y_RS) / np.sqrt((xx_RS - x_RS**2) * (yy_RS - y_RS**2))).mean(axis=1)


def _interval(value_R: np.ndarray) -> Interval:
    return Interval(float(value_R[0]), *np.percentile(value_R[1:], [2.5, 97.5]).tolist())
