"""Is a new phrase true of a photo? Where the photo stands among others for it, against the phrase's rate."""

import numpy as np
import torch
from torch import Tensor

from raycomp.core.alignment import normalise


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
