"""The composition probe: embeddings of edited, paraphrased and shuffled captions by an encoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from raycomp.core.distance import LEAST_PAIRS, NO_DISTANCE, ADistance, bound_a_distance, draw_pairs
from raycomp.core.probe import (
    NO_INTERVAL,
    Interval,
    bootstrap_ratio,
    count_wins,
    pair_distance,
    pair_similarity,
    two_way_choice,
)
from raycomp.probe.probe_pairs import (
    EditedPairs,
    Embeddings,
    Encode,
    embed,
    index_texts,
    list_pairs,
    shuffle_captions,
)

# A row of fewer pairs does not lower the common number of pairs of all A-distances, where others have more.
FEWEST_PAIRS = 100
MOST_PAIRS = 2000
_NUM_DRAWS = 200
_NUM_REFITS = 50


@dataclass(frozen=True)
class ProbeResult:
    """Two tables of plain rows; a value ``x`` has its 95 % interval, resampling uids, in x_low and x_high.

    A row of ``operations`` is one operation and number of calls, with ``num_uids`` and ``num_pairs``. First
    come two baselines for every other row: paraphrases, with the same meaning, and other captions of the
    same image, with other true statements; last all operations of a number of calls together. Values:

    ``distance`` = |g(T) - g(T~)|; ``relative`` and ``over_other`` = that over the paraphrases' and the other
    captions' distance, for rows that have one; ``farther`` = share of pairs whose edit is farther from the
    caption than its paraphrase, ties half; ``text_drop`` = 1 - cos, ``image_drop`` = s(I, T) - s(I, T~),
    ``accuracy`` of choosing T, chance 0.5. ``a_distance``, a lower bound of the A-distance, uses one drawn
    pair of each of ``num_compared`` captions, the same number in every row, whatever their uids: no caption
    and no edit is in it twice, ignoring white space and case. With it come a_null_mean, a_null_low,
    a_null_high and its learning curve: ``a_eighth``, ``a_quarter`` and ``a_half`` of the pairs. NaN: not
    available.
    A row of ``permutation`` is a ``share`` of shuffled words and the mean ``cosine`` to the caption.
    """

    operations: list[dict[str, Any]]
    permutation: list[dict[str, Any]]
    num_uids: int
    num_paraphrased: int
    num_with_other: int
    num_compared: int
    has_images: bool


def probe_composition(
    encode: Encode,
    rows: Sequence[Mapping[str, Any]],
    image_embeddings: np.ndarray | None = None,
    seed: int = 0,
    num_compared: int | None = None,
) -> ProbeResult:
    """Embed captions, paraphrases, other captions, negatives and shuffled captions once each, and measure.

    ``rows`` are rows of the negatives' table (uid, caption, negatives with text, op, calls), optionally with
    a ``paraphrase`` and an ``other caption``; one equal to its caption counts as none. ``encode`` maps texts
    to [texts, dims], of any length; ``image_embeddings`` has one row per row. The seed draws shuffles, pairs,
    folds and resamples, the same for every encoder. A-distances use ``num_compared`` captions; None = the
    size of the smallest line of one call that has ``FEWEST_PAIRS`` or more, else of the smallest of all lines
    that have them, else of the smallest line; at most ``MOST_PAIRS``. Raises ValueError on no rows and on
    embeddings of another number or rank, or that are not finite.
    """
    if not rows:
        raise ValueError("rows: must be at least 1, are 0")
    shuffled = shuffle_captions(rows, np.random.default_rng([seed, 0]))
    index = index_texts(rows, shuffled)
    embeddings = embed(encode, rows, index, image_embeddings)
    lines = list_pairs(rows, index, embeddings)
    drawn = [_draw(pairs, embeddings, np.random.default_rng([seed, 3])) for pairs in lines]
    num_compared = num_compared or _choose_number([pairs.calls for pairs in lines], list(map(len, drawn)))
    return ProbeResult(
        operations=[
            _measure(pairs, embeddings, seed)
            | _measure_sets(pairs, rows_M, embeddings, num_compared, np.random.default_rng([seed, 4]))
            for pairs, rows_M in zip(lines, drawn, strict=True)
        ],
        permutation=_measure_shuffles(shuffled, index, embeddings, np.random.default_rng([seed, 2])),
        num_uids=len(np.unique(embeddings.uid_B)),
        num_paraphrased=_count_uids(lines[0], embeddings),
        num_with_other=_count_uids(lines[1], embeddings),
        num_compared=num_compared,
        has_images=embeddings.image_BD is not None,
    )


def _draw(pairs: EditedPairs, embeddings: Embeddings, rng: np.random.Generator) -> np.ndarray:
    """Return the pairs of a line that its A-distance may use, in drawn order."""
    caption_N = embeddings.caption_B[pairs.row_N]
    return draw_pairs(embeddings.same_T[caption_N], embeddings.same_T[pairs.edit_N], rng)


def _count_uids(pairs: EditedPairs, embeddings: Embeddings) -> int:
    return len(np.unique(embeddings.uid_B[pairs.row_N]))


def _choose_number(calls: Sequence[int], num_pairs: Sequence[int]) -> int:
    """Return the number of pairs of every line's A-distance; the lines with the fewest have two calls."""
    many = [(call, num) for call, num in zip(calls, num_pairs, strict=True) if num >= FEWEST_PAIRS]
    enough = (
        [num for call, num in many if call == 1]
        or [num for _, num in many]
        or [num for num in num_pairs if num >= LEAST_PAIRS]
    )
    return min([*enough, MOST_PAIRS]) if enough else 0


def _measure(pairs: EditedPairs, embeddings: Embeddings, seed: int) -> dict[str, Any]:
    """Return one line of the table, without values that compare sets. All values share resamples."""
    uid_N, text_TD = embeddings.uid_B[pairs.row_N], embeddings.text_TD
    first_ND, second_ND = text_TD[embeddings.caption_B[pairs.row_N]], text_TD[pairs.edit_N]
    distance_N = pair_distance(first_ND, second_ND)
    near_N, has_N = _distance_to(embeddings.paraphrase_B, pairs, embeddings)
    other_N, has_other_N = _distance_to(embeddings.other_B, pairs, embeddings)
    fresh = partial(np.random.default_rng, [seed, 1])
    near_M, other_M = near_N[has_N], other_N[has_other_N]
    values = {
        "distance": _mean(distance_N, uid_N, fresh()),
        "relative": bootstrap_ratio(distance_N[has_N], near_M, uid_N[has_N], fresh(), _NUM_DRAWS),
        "farther": _mean(count_wins(distance_N[has_N] - near_M), uid_N[has_N], fresh()),
        "over_other": bootstrap_ratio(
            distance_N[has_other_N], other_M, uid_N[has_other_N], fresh(), _NUM_DRAWS
        ),
        "text_drop": _mean(1 - pair_similarity(first_ND, second_ND), uid_N, fresh()),
        "image_drop": NO_INTERVAL,
        "accuracy": NO_INTERVAL,
    }
    if embeddings.image_BD is not None:
        image_ND = embeddings.image_BD[pairs.row_N]
        drop_N = pair_similarity(image_ND, first_ND) - pair_similarity(image_ND, second_ND)
        values["image_drop"] = _mean(drop_N, uid_N, fresh())
        values["accuracy"] = _mean(two_way_choice(image_ND, first_ND, second_ND), uid_N, fresh())
    line = {"op": pairs.op, "calls": pairs.calls, "num_uids": len(np.unique(uid_N)), "num_pairs": len(uid_N)}
    for name, value in values.items():
        line |= value.under(name)
    return line


def _distance_to(
    text_B: np.ndarray, pairs: EditedPairs, embeddings: Embeddings
) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair's distance from the caption to a text of its row, and whether the row has one."""
    text_N = text_B[pairs.row_N]
    caption_ND = embeddings.text_TD[embeddings.caption_B[pairs.row_N]]
    return pair_distance(caption_ND, embeddings.text_TD[text_N]), text_N >= 0


def _measure_sets(
    pairs: EditedPairs,
    rows_M: np.ndarray,
    embeddings: Embeddings,
    num_compared: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return the A-distance of one line, from the first ``num_compared`` of its drawn pairs."""
    a = NO_DISTANCE
    if LEAST_PAIRS <= num_compared <= len(rows_M):
        drawn = rows_M[:num_compared]
        first_MD = embeddings.text_TD[embeddings.caption_B[pairs.row_N[drawn]]]
        second_MD = embeddings.text_TD[pairs.edit_N[drawn]]
        a = bound_a_distance(first_MD, second_MD, rng, _NUM_REFITS, _NUM_DRAWS)
    return Interval(a.value, a.low, a.high).under("a_distance") | _describe(a)


def _describe(a: ADistance) -> dict[str, float]:
    null = {"a_null_mean": a.null_mean, "a_null_low": a.null_low, "a_null_high": a.null_high}
    return null | dict(zip(("a_eighth", "a_quarter", "a_half"), a.curve, strict=True))


def _mean(value_N: np.ndarray, uid_N: np.ndarray, rng: np.random.Generator) -> Interval:
    return bootstrap_ratio(value_N, np.ones(len(value_N)), uid_N, rng, _NUM_DRAWS)


def _measure_shuffles(
    shuffled: dict[float, list[str | None]],
    index: dict[str, int],
    embeddings: Embeddings,
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Return the permutation-sensitivity curve, one row per share."""
    curve = []
    for share, column in shuffled.items():
        row_N = np.array([i for i, text in enumerate(column) if text is not None], dtype=int)
        first_ND = embeddings.text_TD[embeddings.caption_B[row_N]]
        second_ND = embeddings.text_TD[[index[column[i]] for i in row_N]]
        cosine = _mean(pair_similarity(first_ND, second_ND), embeddings.uid_B[row_N], rng)
        curve.append({"share": share, "num": len(row_N), **cosine.under("cosine")})
    return curve
