"""A text-only baseline: logistic regression on a caption's n-grams and counts.

N captions, F features.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_PENALTY = 1e-4
_LEAST_COUNT = 5
"""Minimum number of captions with a feature; rarer ones are left out."""


@dataclass(frozen=True)
class TextClassifier:
    """Features by their column, and a weight for each; the last weight is the bias."""

    column: Mapping[str, int]
    weight_F: np.ndarray

    def score(self, captions: Sequence[str]) -> np.ndarray:
        """Return the log-odds of the positive class, float64 (N,)."""
        return _count_features(captions, self.column) @ self.weight_F[:-1] + self.weight_F[-1]


def list_features(caption: str) -> Iterator[str]:
    """Yield a caption's words, pairs and triples of words in a row, and how many words it has."""
    words = caption.lower().replace(",", " ,").split()
    for length in (1, 2, 3):
        for start in range(len(words) - length + 1):
            yield " ".join(words[start : start + length])
    yield f"#{len(words)}"


def fit_text_classifier(captions: Sequence[str], positive_N: np.ndarray) -> TextClassifier:
    """Fit to captions of two classes: mean cross-entropy + penalty / 2 * |weight|^2, by L-BFGS from 0."""
    from scipy.optimize import minimize

    seen: dict[str, int] = {}
    for caption in captions:
        for feature in set(list_features(caption)):
            seen[feature] = seen.get(feature, 0) + 1
    column = {feature: i for i, feature in enumerate(f for f, n in sorted(seen.items()) if n >= _LEAST_COUNT)}
    count_NF, sign_N = _count_features(captions, column), np.where(positive_N, 1.0, -1.0)

    def evaluate(weight_F: np.ndarray) -> tuple[float, np.ndarray]:
        margin_N = sign_N * (count_NF @ weight_F[:-1] + weight_F[-1])
        slope_N = -sign_N / (1 + np.exp(np.clip(margin_N, -700, 700))) / len(sign_N)
        loss = float(np.logaddexp(0, -margin_N).mean() + _PENALTY / 2 * weight_F[:-1] @ weight_F[:-1])
        return loss, np.append(count_NF.T @ slope_N + _PENALTY * weight_F[:-1], slope_N.sum())

    found = minimize(
        evaluate, np.zeros(len(column) + 1), jac=True, method="L-BFGS-B", options={"maxiter": 300}
    )
    return TextClassifier(column, found.x)


def _count_features(captions: Sequence[str], column: Mapping[str, int]) -> Any:
    """Return how often each caption has each feature, sparse (N, F)."""
    from scipy.sparse import csr_array

    lists = [[column[f] for f in list_features(caption) if f in column] for caption in captions]
    ends = np.cumsum([0, *map(len, lists)])
    places = np.fromiter((place for one in lists for place in one), np.int64, int(ends[-1]))
    return csr_array((np.ones(len(places)), places, ends), (len(captions), len(column)))
