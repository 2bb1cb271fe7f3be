"""What a nonce costs beside real words and beside a wrong picture, target by target.

Go et al. (arXiv 2605.22651, section 7) take it for a sign that PAS measures the replaced word, and not the
strangeness of nonces, that their mean drop lies between those of words of the same and of another category.

Letters: N samples; P targets, each with one drop of every condition. ``picture_P`` and ``word_P`` hold each
target's picture and word, as any values that compare equal. A picture's targets share its embedding, and a
word has the same nonce and the same control words wherever it stands; so intervals resample pictures whole,
those of differences words too. Even an encoder of random weights moves with the accidents of a few frequent
words: a difference counts where neither interval holds 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.core.probe import Interval, bootstrap_ratio
from raycomp.schema import KINDS

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


def draw_others(image_N: Sequence[int], caption_N: Sequence[str], hash_N: np.ndarray) -> np.ndarray:
    """Return for each sample another one of another image and another caption, int (N,); -1 for none.

    It is the next such sample in the order of ``hash_N``, so every picture serves about as often as another.
    """
    order = np.argsort(hash_N, kind="stable").tolist()
    num = len(order)
    other_N = np.full(num, -1)
    for place, i in enumerate(order):
        behind = (order[(place + step) % num] for step in range(1, num))
        fitting = (j for j in behind if image_N[j] != image_N[i] and caption_N[j] != caption_N[i])
        other_N[i] = next(fitting, -1)
    return other_N


def calibrate(
    drops: Mapping[str, np.ndarray],
    kind_P: np.ndarray,
    picture_P: np.ndarray,
    word_P: np.ndarray,
    seed: int,
) -> list[dict[str, Any]]:
    """Return a line for all targets and one for each kind of phrase that has some.

    A line has ``kind``, ``num_targets``, ``num_pictures``, ``num_words`` and, for each x of ``CONDITIONS``
    and ``DIFFERENCES``, the mean over targets of the drop s(I, T) - s(I, T~) (Eq. 3), or of the difference of
    two drops, with the 95 % interval over pictures in x_low and x_high; for differences also that over words
    in x_words_low and x_words_high.
    """
    values = dict(drops) | {name: drops[a] - drops[b] for name, (a, b) in DIFFERENCES.items()}
    lines = []
    for kind in (ALL, *KINDS):
        in_P = (kind_P == kind) | (kind == ALL)
        if not in_P.any():
            continue
        picture_Q, word_Q = picture_P[in_P], word_P[in_P]
        line: dict[str, Any] = {"kind": kind, "num_targets": int(in_P.sum())}
        line |= {"num_pictures": len(np.unique(picture_Q)), "num_words": len(np.unique(word_Q))}
        for name, value_P in values.items():
            value, low, high = _mean(value_P[in_P], picture_Q, seed)
            line |= {name: value, f"{name}_low": low, f"{name}_high": high}
            if name in DIFFERENCES:
                _, low, high = _mean(value_P[in_P], word_Q, seed)
                line |= {f"{name}_words_low": low, f"{name}_words_high": high}
        lines.append(line)
    return lines


def _mean(value_P: np.ndarray, group_P: np.ndarray, seed: int) -> Interval:
    rng = np.random.default_rng(seed)
    return bootstrap_ratio(np.float64(value_P), np.ones(len(value_P)), group_P, rng, NUM_DRAWS)


def find_sign(line: Mapping[str, Any], name: str) -> int:
    """Return 1 or -1 where both intervals of a difference lie above or below 0, else 0: also without one."""
    is_above = line[f"{name}_low"] > 0 and line[f"{name}_words_low"] > 0
    is_below = line[f"{name}_high"] < 0 and line[f"{name}_words_high"] < 0
    return is_above - is_below


def describe_order(line: Mapping[str, Any]) -> str:
    """Return one sentence: how the means of a line are ordered, and whether the intervals say so."""
    order = sorted(PAPER, key=lambda name: line[name])
    means = " < ".join(f"{name.replace('_', ' ')} {line[name]:.4f}" for name in order)
    held = "the paper's order" if order == [*PAPER] else "not the paper's order"
    words = {1: "more than", -1: "less than", 0: "not measurably more or less than"}
    same, cross = (words[find_sign(line, name)] for name in ("nonce_over_same", "cross_over_nonce"))
    return (
        f"Ordering: {means} by the means, {held}; by the intervals a nonce costs {same} a word of the same "
        f"category, and a word of another category costs {cross} a nonce."
    )


def describe_picture(line: Mapping[str, Any]) -> str:
    """Return one sentence: how much of a nonce's drop a wrong picture gives as well."""
    words = {1: "is above", -1: "is below", 0: "is not measurably other than"}
    return (
        f"Picture: a nonce's drop {words[find_sign(line, 'right_over_wrong')]} what it costs with a wrong "
        f"picture, {line[WRONG]:.4f}; the difference is {line['right_over_wrong']:.4f}."
    )
