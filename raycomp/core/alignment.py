"""Cosines in fp32 that are independent of the batch in which they are computed, and ranks among photos.

Letters: B pairs, D dimensions. torch's reductions choose their order of addition by shape, memory layout and
device (on CPU an einsum of the same rows gives other bits in another batch, a sum does in another layout).
Here a row is summed by halving, in elementwise additions only, whose order depends only on D; the rest is
elementwise too and correctly rounded.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


def _row_sum(x_BD: Tensor) -> Tensor:
    """Return the sums over D, shape (B,), adding the second half to the first until one is left."""
    width = x_BD.shape[1]
    x_BD = pad(x_BD, (0, (1 << (width - 1).bit_length()) - width))
    while x_BD.shape[1] > 1:
        half = x_BD.shape[1] // 2
        x_BD = x_BD[:, :half] + x_BD[:, half:]
    return x_BD[:, 0]


def normalise(x_BD: Tensor) -> Tensor:
    """Return fp32 rows of length 1 from input of any precision; a row of zeros stays zero."""
    x_BD = x_BD.float()
    length_B = _row_sum(x_BD * x_BD).sqrt().clamp_min(1e-12)
    return x_BD / length_B[:, None]


def has_unit_length(x_BD: Tensor) -> Tensor:
    """Return which rows have length 1 within 1e-3, bool (B,): not rows of zeros, nor with NaN or infinity.

    An embedding that fails after ``normalise`` has no direction, so its cosines are meaningless.
    """
    return (x_BD.norm(dim=-1) - 1).abs() < 1e-3  # False for NaN


def pair_cosine(image_BD: Tensor, text_BD: Tensor) -> Tensor:
    """Return s(I, T) of each pair, fp32 (B,): the cosine of row i with row i, in [-1, 1] up to rounding.

    Go et al., arXiv:2605.22651, section 4.1. Both sides are normalised here. The bits of a stored alignment
    repeat if the input has the same bits.
    """
    if image_BD.shape != text_BD.shape:
        raise ValueError(
            f"images {tuple(image_BD.shape)} and texts {tuple(text_BD.shape)}: must have equal shapes"
        )
    return _row_sum(normalise(image_BD) * normalise(text_BD))


def find_ranks(image_PD: Tensor, phrase_PD: Tensor, sample_SD: Tensor) -> np.ndarray:
    """Return for each of P pairs of photo and phrase the share of S sample photos with a higher cosine to the
    phrase, float32 (P,), 0 to 1; a photo of the sample is not higher than itself. NaN without a sample, and
    for an embedding that is not finite."""
    image_PD, phrase_PD, sample_SD = (normalise(one.double()) for one in (image_PD, phrase_PD, sample_SD))
    own_P = (image_PD * phrase_PD).sum(1)
    rank_P = (phrase_PD @ sample_SD.T > own_P[:, None] + 1e-9).double().mean(1)
    return torch.where(own_P.isfinite(), rank_P, torch.nan).float().numpy()


def is_suspect(rank_P: np.ndarray, rate_P: np.ndarray, times: float) -> np.ndarray:
    """Report for each phrase whether the photo is among the ``times`` x rate of all photos that fit it best.

    If the captions of a share ``rate`` of the photos say a phrase, and cosines order photos by how well it
    fits, then the first ``rate`` of them show it. Captions do not say all there is, hence ``times``.
    """
    return rank_P < times * rate_P
