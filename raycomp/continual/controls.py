"""Baselines without the right image, and margins to captions that are one edit away.

N samples, M edits, T texts, D dims.
"""

from collections.abc import Iterator, Sequence
from posixpath import commonprefix

import numpy as np

from raycomp.continual.data import Edits, Keys, Split
from raycomp.continual.judge import ANSWERS, SCORES, Figure, Questions, answer, score_pairs, weigh
from raycomp.core.continual import score_by_prior
from raycomp.core.contrasts import wilcoxon

PRIOR, SHUFFLED, CHANCE = "prior", "shuffled", "chance"
_SHUFFLE_SEED = 41


def judge_text_only(
    asked: Questions, keys: Keys, weight: float, trainings: Sequence[Split]
) -> Iterator[Figure]:
    """Yield the accuracies of two baselines on each task's questions, as shares.

    Text-only: the answer that was right most often for questions of the same kind in all training data; ties
    are guessed. Shuffled image: the fused score with the image of another question of the task; a tie is
    wrong.
    """
    split = asked.split
    if split.candidate_NK is None or split.kind_N is None:
        return
    rng, order_N = np.random.default_rng(_SHUFFLE_SEED), np.arange(len(split))
    for sample_N in asked.sample_IN:
        order_N[sample_N] = rng.permutation(sample_N)
    expert_N = None if keys.expert_N is None else keys.expert_N[order_N]
    others = keys._replace(image_ND=keys.image_ND[order_N], expert_N=expert_N)
    num_N = (split.candidate_NK >= 0).sum(1)
    found = {
        PRIOR: answer_by_prior(split, trainings),
        SHUFFLED: answer(split, others, weight),
        CHANCE: 1 / num_N,
    }
    for name, right_N in found.items():
        for task, sample_N in enumerate(asked.sample_IN):
            yield Figure(task, f"{name} {ANSWERS}", float(right_N[sample_N].mean()))


def answer_by_prior(split: Split, trainings: Sequence[Split]) -> np.ndarray:
    """Return the probability that the text-only baseline chooses the right answer, float64 (N,): 1 if that
    answer was right more often than all other candidates, a share if it ties with the most frequent, else
    0."""
    assert split.candidate_NK is not None and split.kind_N is not None
    places: dict[str, int] = {}
    seen = [number_answers(one, places)[_is_own(one)] for one in trainings]
    kinds = [one.kind_N for one in trainings if one.kind_N is not None]
    asked_NK = number_answers(split, places)
    score_NK = score_by_prior(np.concatenate(seen), np.concatenate(kinds), split.kind_N, asked_NK)
    is_own_NK = _is_own(split)
    own_N, best_N = np.where(is_own_NK, score_NK, -np.inf).max(1), score_NK.max(1)
    return np.where(own_N == best_N, 1 / (score_NK == best_N[:, None]).sum(1), 0.0)


def number_answers(split: Split, places: dict[str, int]) -> np.ndarray:
    """Return an answer number for every candidate, int64 (N, K), -1 = padding; new answers are added to
    ``places``.

    If all candidates start with the same question, the answer is the text after it. The question is the
    shared words up to one that ends in "?". Example: "what is it? a dog" and "what is it? a cat" have the
    answers "a dog" and "a cat".
    """
    assert split.candidate_NK is not None
    number_NK = np.full(split.candidate_NK.shape, -1, np.int64)
    for row, candidate_K in enumerate(split.candidate_NK):
        said = [split.texts[text].split() for text in candidate_K[candidate_K >= 0]]
        asked = [place for place, word in enumerate(commonprefix(said), 1) if word.endswith("?")]
        answers = [" ".join(words[max(asked, default=0) :]) for words in said]
        number_NK[row, candidate_K >= 0] = [places.setdefault(answer, len(places)) for answer in answers]
    return number_NK


def _is_own(split: Split) -> np.ndarray:
    """Return whether each candidate is the right one, bool (N, K)."""
    assert split.candidate_NK is not None
    return split.candidate_NK == split.own_N[:, None]


def judge_margins(
    tests: Sequence[Split], edits: Sequence[Edits], keys: Sequence[tuple[Keys, Keys]], weight: float
) -> Iterator[Figure]:
    """Yield, by score and category, the margins s(image, caption) - s(image, edit), over all tasks together.

    Mean, share above 0, share that is exactly 0, and Wilcoxon's p. ``keys``: of each test, and its edits.
    """
    category_M = np.concatenate([one.category_M for one in edits])
    for score in SCORES:
        own = weigh(score, weight)
        margin_M = np.concatenate(
            [_find_margins(test, one, pair, own) for test, one, pair in zip(tests, edits, keys, strict=True)]
        )
        for category in np.unique(category_M).tolist():
            some = margin_M[category_M == category].astype(np.float64)
            name = f"{score} margin {category}"
            yield Figure(0, name, float(some.mean()))
            yield Figure(0, f"{name} above", float((some > 0).mean()))
            yield Figure(0, f"{name} zero", float((some == 0).mean()))
            yield Figure(0, f"{name} p", wilcoxon(some))


def _find_margins(test: Split, edits: Edits, keys: tuple[Keys, Keys], weight: float) -> np.ndarray:
    """Return the margin of every edit, fp32 (M,)."""
    of_test, of_edits = keys
    rights, wrongs = [], []
    for row, text in zip(edits.row_M.tolist(), edits.text_M.tolist(), strict=True):
        row_1 = np.array([row])
        rights.append(score_pairs(of_test, weight, row_1, test.own_N[row_1])[0, 0])
        seen = of_edits._replace(image_ND=of_test.image_ND[row_1], expert_N=_take(of_test.expert_N, row_1))
        wrongs.append(score_pairs(seen, weight, np.zeros(1, np.int64), np.array([text]))[0, 0])
    return np.array(rights) - np.array(wrongs)


def _take(expert_N: np.ndarray | None, row_1: np.ndarray) -> np.ndarray | None:
    return None if expert_N is None else expert_N[row_1]
