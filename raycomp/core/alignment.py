"""Alignment of image and text, and its drop where a word is replaced: from cosines to one score per sample.

Go et al., arXiv:2605.22651, section 4.1 and Eqs. 3 and 5. Cosines in fp32 are independent of the batch in
which they are computed: torch's reductions choose their order of addition by shape, memory layout and device
(on CPU an einsum of the same rows gives other bits in another batch, a sum does in another layout). Here a
row is summed by halving, in elementwise additions only, whose order depends only on D; the rest is
elementwise too and correctly rounded.

Letters: B pairs or samples, D dimensions; P phrases of all samples, concatenated sample by sample; offset_E
with E = B + 1 marks them, as in an Arrow list column: sample i has the phrases
``offset_E[i]:offset_E[i + 1]``. A sample's K is the number of its phrases with a valid nonce; the drop of a
phrase without one is NaN. For the correlates of PAS, N pairs that have one, P targets that have a drop.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raycomp.core.metrics import CrossMoments, LinearFit, correlation_interval, pearson, spearman
from raycomp.words import AGGREGATES

if TYPE_CHECKING:
    from torch import Tensor


def _row_sum(x_BD: "Tensor") -> "Tensor":
    """Return the sums over D, shape (B,), adding the second half to the first until one is left."""
    from torch.nn.functional import pad  # selection needs no torch

    width = x_BD.shape[1]
    x_BD = pad(x_BD, (0, (1 << (width - 1).bit_length()) - width))
    while x_BD.shape[1] > 1:
        half = x_BD.shape[1] // 2
        x_BD = x_BD[:, :half] + x_BD[:, half:]
    return x_BD[:, 0]


def normalise(x_BD: "Tensor") -> "Tensor":
    """Return fp32 rows of length 1 from input of any precision; a row of zeros stays zero."""
    x_BD = x_BD.float()
    length_B = _row_sum(x_BD * x_BD).sqrt().clamp_min(1e-12)
    return x_BD / length_B[:, None]


def has_unit_length(x_BD: "Tensor") -> "Tensor":
    """Return which rows have length 1 within 1e-3, bool (B,): not rows of zeros, nor with NaN or infinity.

    An embedding that fails after ``normalise`` has no direction, so its cosines are meaningless.
    """
    return (x_BD.norm(dim=-1) - 1).abs() < 1e-3  # False for NaN


def pair_cosine(image_BD: "Tensor", text_BD: "Tensor") -> "Tensor":
    """Return s(I, T) of each pair, fp32 (B,): the cosine of row i with row i, in [-1, 1] up to rounding.

    Go et al., arXiv:2605.22651, section 4.1. Both sides are normalised here. The bits of a stored alignment
    repeat if the input has the same bits.
    """
    if image_BD.shape != text_BD.shape:
        raise ValueError(
            f"images {tuple(image_BD.shape)} and texts {tuple(text_BD.shape)}: must have equal shapes"
        )
    return _row_sum(normalise(image_BD) * normalise(text_BD))


def find_ranks(image_PD: "Tensor", phrase_PD: "Tensor", sample_SD: "Tensor") -> np.ndarray:
    """Return for each of P pairs of photo and phrase the share of S sample photos with a higher cosine to the
    phrase, float32 (P,), 0 to 1; a photo of the sample is not higher than itself. NaN without a sample, and
    for an embedding that is not finite."""
    import torch

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


# Cosines in float32 are off by some 1e-7.
_LEAST_DISPLACEMENT = 1e-6


def pair_drop(alignment: np.ndarray, counterfactual_alignment: np.ndarray) -> np.ndarray:
    """Return the phrase attribution score s(I, T) - s(I, T~), Eq. 3, float32, elementwise, in [-2, 2].

    Shapes broadcast. Positive: the alignment falls when the word is replaced.
    """
    return np.subtract(alignment, counterfactual_alignment, dtype=np.float32)


def drop_per_displacement(drop_P: np.ndarray, displacement_P: np.ndarray) -> np.ndarray:
    """Return drops divided by the distance that the nonces moved the text, float32 (P,).

    With one nonce (s(I, T) - s(I, T~)) / |t - t~|: the cosine of the image and the change of the text
    embedding, in [-1, 1]. |t - t~|^2 is 2 (1 - cos(t, t~)), twice the displacement. With several nonces,
    their means are used. NaN without a drop, or if the shift is within rounding.
    """
    moved_P = displacement_P > _LEAST_DISPLACEMENT
    distance_P = np.sqrt(2.0 * np.where(moved_P, displacement_P, 1.0))
    return np.where(moved_P, drop_P / distance_P, np.nan).astype(np.float32)


def aggregate_drops(drop_P: np.ndarray, offset_E: np.ndarray, how: str) -> np.ndarray:
    """Return each sample's score, float32 (B,): ``mean`` (mu of Eq. 5), ``min``, ``max`` or
    ``fraction_supported`` (share of its K phrases with drop > 0, in [0, 1]).

    A sample with K = 0 gets NaN: it has no score and can pass no gate. The mean adds in float64, in the order
    of the phrases, and is rounded once, so it does not depend on the rest of the batch. The same function
    averages a phrase's several nonces. Raises ValueError on another ``how`` and on offsets that do not rise
    within the phrases.
    """
    if how not in AGGREGATES:
        raise ValueError(f"attribute.aggregate={how!r}: must be one of {AGGREGATES}")
    size_B = np.diff(offset_E)
    if len(offset_E) == 0 or (size_B < 0).any() or not 0 <= offset_E[0] <= offset_E[-1] <= len(drop_P):
        raise ValueError(f"offsets must rise from 0 to at most the number of phrases, {len(drop_P)}")
    drop_P = np.asarray(drop_P, dtype=np.float32)[offset_E[0] : offset_E[-1]]
    sample_P = np.repeat(np.arange(len(size_B)), size_B)
    valid_P = ~np.isnan(drop_P)
    drop_P, sample_P = drop_P[valid_P], sample_P[valid_P]
    count_B = np.bincount(sample_P, minlength=len(size_B))
    if how == "mean":
        total_B = np.bincount(sample_P, weights=drop_P, minlength=len(size_B))
    elif how == "fraction_supported":
        total_B = np.bincount(sample_P[drop_P > 0], minlength=len(size_B))
    else:
        extreme_B = np.full(len(size_B), np.inf if how == "min" else -np.inf, dtype=np.float32)
        (np.minimum if how == "min" else np.maximum).at(extreme_B, sample_P, drop_P)
        return np.where(count_B > 0, extreme_B, np.float32(np.nan))
    with np.errstate(invalid="ignore"):
        return (total_B / count_B).astype(np.float32)


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations, in float64, of values seen in pieces.

    Pieces merge by Chan et al. 1979; that is not associative to the last bit, so the same pieces merged in
    the same order (by shard, say) give the same bits, and another order the same within rounding.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, value_N: np.ndarray) -> "Moments":
        """Return the moments of one piece; ValueError where a value is NaN or infinite."""
        value_N = np.ascontiguousarray(value_N, dtype=np.float64)
        if not np.isfinite(value_N).all():
            raise ValueError("moments of a value that is not finite: drop samples without a score")
        if not len(value_N):
            return cls()
        # Deviations from the first value first, so that equal values have exactly none.
        step_N = value_N - value_N[0]
        step = step_N.mean()
        return cls(len(value_N), float(value_N[0] + step), float(np.square(step_N - step).sum()))

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both pieces together."""
        count = self.count + other.count
        if not count:
            return self
        step = other.mean - self.mean
        mean = self.mean + step * other.count / count
        return Moments(count, mean, self.m2 + other.m2 + step**2 * self.count * other.count / count)

    @property
    def std(self) -> float:
        """The population's standard deviation; 0 without values."""
        return (self.m2 / self.count) ** 0.5 if self.count else 0.0


_LEAST = 4


class Agreement(NamedTuple):
    """A correlation or a share of the variance, -1 to 1; NaN with too few pairs or no variance."""

    value: float
    low: float
    high: float
    """Ends of the 95 % interval; NaN if there is none."""
    num: int


class PasProfile(NamedTuple):
    """Correlates of PAS."""

    alignment: Agreement
    """Pearson correlation of PAS and alignment over pairs."""
    displacement: Agreement
    """Pearson correlation of drop and displacement over targets; the interval counts pairs, whose targets may
    all agree."""
    text: Agreement
    """R^2 of PAS on text-only measures: the number of words, the number of targets, their mean displacement.
    Without an interval."""
    alignment_ranks: Agreement
    """Spearman's correlation in place of Pearson's, as the next one."""
    displacement_ranks: Agreement


def profile_pas(
    alignment_N: np.ndarray,
    pas_N: np.ndarray,
    text_N3: np.ndarray,
    drop_P: np.ndarray,
    displacement_P: np.ndarray,
) -> PasProfile:
    """Return the correlates of PAS.

    ``text_N3``: words of the caption, targets with a drop, their mean displacement.
    """
    nan, names = float("nan"), ("num_words", "num_targets", "displacement")
    fit = LinearFit.of(names, CrossMoments.of([*text_N3.T, pas_N])) if len(pas_N) >= 2 * _LEAST else None
    explained = nan if fit is None or fit.explained is None else fit.explained
    text = Agreement(explained, nan, nan, len(pas_N))
    r_alignment, r_displacement, rho_alignment, rho_displacement = (
        _correlate(x_N, y_N, min(len(pas_N), len(y_N)), ranks)
        for ranks in (False, True)
        for x_N, y_N in ((alignment_N, pas_N), (displacement_P, drop_P))
    )
    return PasProfile(r_alignment, r_displacement, text, rho_alignment, rho_displacement)


def _correlate(x_N: np.ndarray, y_N: np.ndarray, num: int, ranks: bool) -> Agreement:
    """Return the correlation of two columns, or of their ranks, with the interval for ``num`` independent
    rows."""
    nan = float("nan")
    if num < _LEAST or not np.ptp(x_N) or not np.ptp(y_N):
        return Agreement(nan, nan, nan, len(x_N))
    r = (spearman if ranks else pearson)(np.asarray(x_N, np.float64), np.asarray(y_N, np.float64))
    return Agreement(r, *correlation_interval(r, num, ranks), len(x_N))
