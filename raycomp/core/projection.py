"""Embeddings in two dimensions, to be looked at. N rows, D dimensions."""

from collections.abc import Iterator

import numpy as np

_ROWS = 65_536


def project_pca(embedding_ND: np.ndarray) -> np.ndarray:
    """Return the rows along the two directions of largest variance, fp32 [N, 2], centred.

    The sign of a direction is free; here its largest component is positive. Memory beyond the result is a
    matrix of D x D and a part of the rows. Of one dimension the second column is 0.
    """
    num, dim = embedding_ND.shape
    if not num:
        return np.zeros((0, 2), np.float32)

    def cut() -> Iterator[np.ndarray]:
        return (embedding_ND[start : start + _ROWS].astype(np.float64) for start in range(0, num, _ROWS))

    mean_D = sum((part.sum(axis=0) for part in cut()), np.zeros(dim)) / num
    second_DD = sum((part.T @ part for part in cut()), np.zeros((dim, dim))) / num
    _, direction_DD = np.linalg.eigh(second_DD - np.outer(mean_D, mean_D))
    axis_DK = direction_DD[:, ::-1][:, :2]
    axis_DK = axis_DK * np.sign(axis_DK[np.abs(axis_DK).argmax(axis=0), np.arange(axis_DK.shape[1])])
    found = np.zeros((num, 2), np.float32)
    found[:, : axis_DK.shape[1]] = np.concatenate([(part - mean_D) @ axis_DK for part in cut()])
    return found
