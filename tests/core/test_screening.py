"""Where a photo stands among others for a phrase: against a plain count, and where truth is known."""

import numpy as np
import torch

from raycomp.core.alignment import find_ranks, is_suspect


def test_ranks_are_plain_counts():
    rng = np.random.default_rng(0)
    image, phrase, sample = (rng.normal(size=(num, 8)) for num in (20, 20, 50))
    sample[3] = 7 * image[5]  # the photo itself, of another length, is not better than itself

    def cosine(a, b) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    want = [
        np.mean([cosine(other, p) > cosine(own, p) + 1e-9 for other in sample])
        for own, p in zip(image, phrase, strict=True)
    ]
    found = find_ranks(*map(torch.tensor, (image, phrase, sample)))
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_what_is_not_finite_has_no_rank():
    bad = torch.tensor([[1.0, 0.0], [float("nan"), 0.0]])
    rank = find_ranks(bad, torch.ones(2, 2), torch.eye(2))
    assert np.isfinite(rank[0]) and np.isnan(rank[1])
    assert not is_suspect(rank, np.ones(2), 4.0)[1]
