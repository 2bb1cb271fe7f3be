"""Mean drops of nonces compared with those of real words and of wrong pictures, target by target.

Go et al. (arXiv 2605.22651, section 7) find the mean drop of nonces between those of words of the same and of
another category. They read this as a sign that PAS measures the replaced word, not the strangeness of nonces.

Letters: N samples; P targets, each with one drop of every condition; G groups. Targets are not independent.
Targets of a picture share its embedding. A word has the same nonces and control words everywhere, and a few
nonces serve all words. Even an encoder of random weights shifts with a few frequent words and nonces. So a
difference counts only if its intervals over pictures, over words and over nonces all exclude 0, and if there
are ``LEAST_WORDS`` words.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

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
    two drops, with the 95 % interval over pictures in x_low and x_high; for differences also those over words
    and over nonces in x_words_low, x_words_high, x_nonces_low, x_nonces_high. ``picture_P`` and ``word_P``
    hold each target's picture and word, as any values that can be compared for equality.
    """
    values = dict(drops) | {name: drops[a] - drops[b] for name, (a, b) in DIFFERENCES.items()}
    lines = []
    for kind in (ALL, *KINDS):
        in_P = (kind_P == kind) | (kind == ALL)
        if not in_P.any():
            continue
        picture_Q, word_Q = picture_P[in_P], word_P[in_P]
        nonces_Q = [nonces_P[i] for i in np.flatnonzero(in_P).tolist()]
        members: dict[str, Sequence[Sequence[Any]]] = {
            WORDS: [[word] for word in word_Q.tolist()],
            NONCES: nonces_Q,
        }
        line: dict[str, Any] = {"kind": kind, "num_targets": int(in_P.sum())}
        line |= {"num_pictures": len(np.unique(picture_Q)), "num_words": len(np.unique(word_Q))}
        for name, value_P in values.items():
            found = _mean(value_P[in_P], picture_Q, seed)
            line |= found.under(name)
            if name in DIFFERENCES:
                for over, groups in members.items():
                    ends = spread_over(value_P[in_P], groups)
                    line |= Interval(found.value, *ends).under(name, f"_{over}")
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


def _mean(value_P: np.ndarray, group_P: np.ndarray, seed: int) -> Interval:
    rng = np.random.default_rng(seed)
    return bootstrap_ratio(value_P.astype(np.float64), np.ones(len(value_P)), group_P, rng, NUM_DRAWS)


def find_sign(line: Mapping[str, Any], name: str) -> int:
    """Return 1 or -1 if all intervals of a difference are above or below 0, else 0, also without intervals.

    Below ``LEAST_WORDS`` words it is 0.
    """
    if line["num_words"] < LEAST_WORDS:
        return 0
    ends = [(line[f"{name}{over}_low"], line[f"{name}{over}_high"]) for over in ("", "_words", "_nonces")]
    return all(low > 0 for low, _ in ends) - all(high < 0 for _, high in ends)


def describe_order(line: Mapping[str, Any]) -> str:
    """Return one sentence on the order of the means of a line, and whether the intervals support it."""
    few = line["num_words"] < LEAST_WORDS
    order = sorted(PAPER, key=lambda name: line[name])
    means = " < ".join(f"{name.replace('_', ' ')} {line[name]:.4f}" for name in order)
    held = "the paper's order" if order == [*PAPER] else "not the paper's order"
    words = {1: "more than", -1: "less than", 0: "not measurably more or less than"}
    same, cross = (words[find_sign(line, name)] for name in ("nonce_over_same", "cross_over_nonce"))
    reported = (
        f"by the intervals a nonce costs {same} a word of the same category, and a word of another category "
        f"costs {cross} a nonce."
    )
    if few:
        reported = f"the {line['num_words']} words that take part are too few to say more."
    return f"Ordering: {means} by the means, {held}; {reported}"


def describe_picture(line: Mapping[str, Any]) -> str:
    """Return one sentence on the share of a nonce's drop that a wrong picture also gives."""
    words = {1: "is above", -1: "is below", 0: "does not differ measurably from"}
    found = words[find_sign(line, "right_over_wrong")]
    if line["num_words"] < LEAST_WORDS:
        found = f"(too few words, {line['num_words']}, to judge) compared with"
    return (
        f"Picture: a nonce's drop {found} what it costs with a wrong "
        f"picture, {line[WRONG]:.4f}; the difference is {line['right_over_wrong']:.4f}."
    )
