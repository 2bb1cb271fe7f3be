"""The text-only classifier: finds what captions show and nothing else, and is at its minimum."""

import numpy as np
import pytest

from lab import text_classifier
from lab.text_classifier import fit_text_classifier, list_features
from raycomp.core.logistic import fit_logistic
from raycomp.core.metrics import auc


def draw(num: int, seed: int, hint: str) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    label_N = rng.random(num) < 0.4
    words = "dog cat hat tree".split()
    captions = [
        " ".join(rng.choice(words, rng.integers(2, 6))) + (hint if label and rng.random() < 0.8 else "")
        for label in label_N
    ]
    return captions, label_N


def test_features_are_n_grams_and_a_count():
    assert list(list_features("A dog, a hat")) == [
        *("a", "dog", ",", "a", "hat"),
        *("a dog", "dog ,", ", a", "a hat"),
        *("a dog ,", "dog , a", ", a hat"),
        "#5",
    ]


@pytest.mark.parametrize(("hint", "least", "most"), [(" now", 0.88, 0.95), ("", 0.44, 0.56)])
def test_it_finds_what_a_word_reveals_and_nothing_where_none_does(hint, least, most):
    found = fit_text_classifier(*draw(3000, 0, hint))
    captions, label_N = draw(3000, 1, hint)
    score_N = found.score(captions)
    assert least < auc(score_N[label_N], score_N[~label_N]) < most


def test_its_minimum_is_that_of_the_dense_solver():
    captions, label_N = draw(400, 2, " now")
    found = fit_text_classifier(captions, label_N)
    count_NF = text_classifier._count_features(captions, found.column).toarray()
    counterpart = fit_logistic(count_NF, label_N.astype(int), 2, 2 * text_classifier._PENALTY)
    score_N = counterpart.score(count_NF)
    np.testing.assert_allclose(found.score(captions), score_N[:, 1] - score_N[:, 0], rtol=0.01, atol=0.02)
