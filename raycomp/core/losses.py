"""Contrastive losses as functions of the global batch, and losses that keep a model near an earlier one.

N pairs, K hard negatives per caption, S kinds of them, Q queries, M keys, D embedding dims. Embeddings have
length 1; ``scale`` is the inverse temperature exp(logit_scale). A negative whose ``valid_NK`` is False is
padding and is ignored. The caller gathers the global batch over ranks.

``own`` selects rows of the batch. A loss is a sum over rows, divided by a number of the whole batch, so its
terms of the selected rows are a share of it: the shares of a batch's parts sum to the loss. A rank that
computes the share of its own Q rows does Q x N of the N x N work, as with open_clip's ``local_loss``.

Similarities are computed one tile of rows at a time, and again for the gradients, so that memory does not
grow with Q x M (Cheng et al. 2024, arXiv:2410.17243).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.utils.checkpoint import checkpoint

# Similarities at a time: 64 MB of fp32, plus as much for their gradients.
TILE = 1 << 24
ALL = slice(None)


def clip_loss(image_ND: Tensor, text_ND: Tensor, scale: Tensor | float, own: slice = ALL) -> Tensor:
    """Symmetric InfoNCE: every image selects its caption from the batch, every caption its image.

    Radford et al. 2021 (arXiv:2103.00020), figure 3. 0 or more; log N if all similarities are equal.
    """
    _check(image_ND=image_ND, text_ND=text_ND)
    return (_pick(image_ND, text_ND, scale, own) + _pick(text_ND, image_ND, scale, own)) / 2


def negclip_loss(
    image_ND: Tensor,
    text_ND: Tensor,
    negative_NKD: Tensor,
    valid_NK: Tensor,
    scale: Tensor | float,
    own: slice = ALL,
) -> Tensor:
    """CLIP loss in which every image also has the hard negatives of every caption as negatives.

    Yuksekgonul et al. 2023, arXiv:2210.01936, where an alternative image with its caption and negatives is
    one more pair of the batch. Without a valid negative it is ``clip_loss``.
    """
    _check(image_ND=image_ND, text_ND=text_ND)
    key_MD = torch.cat([text_ND, negative_NKD[valid_NK]])
    return (_pick(image_ND, key_MD, scale, own) + _pick(text_ND, image_ND, scale, own)) / 2


def triplet_loss(
    image_ND: Tensor,
    text_ND: Tensor,
    negative_image_ND: Tensor,
    negative_ND: Tensor,
    valid_N: Tensor,
    scale: Tensor | float,
    own: slice = ALL,
) -> Tensor:
    """NegCLIP's loss of the pairs, plus that of their negatives with the images that show the negatives.

    Patel et al. 2024, arXiv:2411.02545, with one negative caption and its image per pair; ``valid_N`` where
    both exist. The weight of the second part is the number of such pairs divided by N, so that a pair does
    not count more if others lack a negative. Without any it is ``clip_loss``.
    """
    _check(image_ND=image_ND, text_ND=text_ND, negative_image_ND=negative_image_ND, negative_ND=negative_ND)
    loss = negclip_loss(image_ND, text_ND, negative_ND[:, None], valid_N[:, None], scale, own)
    if not valid_N.any():
        return loss
    image_VD, text_VD = negative_image_ND[valid_N], negative_ND[valid_N]
    all_V1 = torch.ones_like(valid_N[valid_N])[:, None]
    # The pairs of negatives of the own rows, by their number among all such pairs.
    before = int(valid_N[: own.start or 0].sum())
    own_V = slice(before, before + int(valid_N[own].sum()))
    shown = negclip_loss(image_VD, text_VD, text_ND[valid_N][:, None], all_V1, scale, own_V)
    return loss + shown * (len(image_VD) / len(image_ND))


class CeClip(NamedTuple):
    """The parts of CE-CLIP's loss, and the margins of the next step."""

    negclip: Tensor
    imc: Tensor
    cmr: Tensor
    margin_S: Tensor


def ceclip_parts(
    image_ND: Tensor,
    text_ND: Tensor,
    negative_NKD: Tensor,
    valid_NK: Tensor,
    kind_NK: Tensor,
    margin_S: Tensor,
    scale: Tensor | float,
    most: float = 10.0,
    own: slice = ALL,
) -> CeClip:
    """Return NegCLIP's loss, the intra-modal contrast and the cross-modal rank, to be summed with weights.

    Zhang et al. 2024, arXiv:2306.08832. ``kind_NK`` numbers a negative's kind, 0 to S - 1, whose margin is
    ``margin_S``, in logits, 0 before the first step. The next margin is the gap between captions and
    negatives of the kind in this step, from 0 to ``most``. A kind that is absent in a step keeps its margin.
    Margins carry over from epoch to epoch; the authors' code resets each to 0.
    The margins are those of the whole batch, whatever the ``own`` rows.
    """
    _check(image_ND=image_ND, text_ND=text_ND)
    own_N = scale * (image_ND * text_ND).sum(-1)
    negative_NK = scale * torch.einsum("nd,nkd->nk", image_ND, negative_NKD.where(valid_NK[..., None], 0))
    excess_NK = F.relu(margin_S[kind_NK] + negative_NK - own_N[:, None])
    negative_VD = negative_NKD[valid_NK]

    def miss(text_TD: Tensor, own_T: Tensor) -> Tensor:
        """The loss of each caption's own image against every negative text."""
        logit_TM = torch.cat([own_T[:, None], scale * text_TD @ negative_VD.T], 1)
        return (logit_TM.logsumexp(1) - own_T).sum()

    with torch.no_grad():
        kind_V, zero_S = kind_NK[valid_NK], torch.zeros_like(margin_S)
        sum_S = zero_S.index_add(0, kind_V, negative_NK[valid_NK].to(margin_S.dtype))
        count_S = kind_V.bincount(minlength=len(margin_S))
        gap_S = (own_N.mean() - sum_S / count_S.clamp_min(1)).clamp(0, most)
    return CeClip(
        negclip=negclip_loss(image_ND, text_ND, negative_NKD, valid_NK, scale, own),
        imc=_sum_tiles(miss, len(negative_VD) + 1, text_ND[own], own_N[own]) / len(text_ND),
        # The mean is over all slots, also empty ones, as in the authors' code.
        cmr=excess_NK.where(valid_NK, 0)[own].sum() / max(1, valid_NK.numel()),
        margin_S=torch.where(count_S > 0, gap_S, margin_S),
    )


def siglip_loss(
    image_ND: Tensor, text_ND: Tensor, scale: Tensor | float, bias: Tensor | float, own: slice = ALL
) -> Tensor:
    """Sum over all images and captions of the sigmoid loss of belonging together; the mean per image.

    Zhai et al. 2023, arXiv:2303.15343. ``bias`` is added to every logit.
    """
    _check(image_ND=image_ND, text_ND=text_ND)

    def miss(image_TD: Tensor, own_T: Tensor) -> Tensor:
        logit_TN = scale * image_TD @ text_ND.T + bias
        is_own_TN = own_T[:, None] == torch.arange(len(text_ND), device=own_T.device)
        return F.softplus(torch.where(is_own_TN, -logit_TN, logit_TN)).sum()

    own_N = torch.arange(len(image_ND), device=image_ND.device)
    return _sum_tiles(miss, len(text_ND), image_ND[own], own_N[own]) / len(image_ND)


def _pick(query_ND: Tensor, key_MD: Tensor, scale: Tensor | float, own: slice) -> Tensor:
    """Return the share of the ``own`` queries in the mean cross-entropy of each query selecting the key of
    its own number among all."""

    def miss(query_TD: Tensor, own_T: Tensor) -> Tensor:
        return F.cross_entropy(scale * query_TD @ key_MD.T, own_T, reduction="sum")

    own_N = torch.arange(len(query_ND), device=query_ND.device)
    return _sum_tiles(miss, len(key_MD), query_ND[own], own_N[own]) / len(query_ND)


def _sum_tiles(miss: Callable[..., Tensor], num_keys: int, *rows: Tensor) -> Tensor:
    """Return the sum of ``miss`` over tiles of these rows, each against ``num_keys`` keys."""
    tiles = list(zip(*(row.split(max(1, TILE // max(1, num_keys))) for row in rows), strict=True))
    if len(tiles) == 1:
        return miss(*tiles[0])
    parts = [checkpoint(miss, *tile, use_reentrant=False) for tile in tiles]
    return torch.stack(parts).sum()


def _check(**named: Tensor) -> None:
    """Raise ValueError where embeddings that belong together differ in shape."""
    (first, found), *others = named.items()
    for name, other in others:
        if other.shape != found.shape:
            raise ValueError(
                f"{first} and {name} must have equal shapes: {tuple(found.shape)}, {tuple(other.shape)}"
            )


# Added to all variances, as in DIKI: identical samples have variance 0.
RIDGE = 1e-7


class Gaussian(NamedTuple):
    """Mean and covariance, float64."""

    mean_D: Tensor
    covariance_DD: Tensor


def fit_gaussian(sample_ND: Tensor) -> Gaussian:
    """Return the samples' mean and their covariance, shrunk towards a sphere, more so for few samples.

    Oracle approximating shrinkage, Chen et al. 2010 (arXiv:0907.4698), equation 23. With N well above D the
    covariance is nearly that of the samples; below, the sample covariance would be singular.
    """
    sample_ND = sample_ND.double()
    num, dim = sample_ND.shape
    mean_D = sample_ND.mean(0)
    away_ND = sample_ND - mean_D
    raw_DD = away_ND.T @ away_ND / num
    trace, square = raw_DD.trace(), raw_DD.square().sum()
    rest = (num + 1 - 2 / dim) * (square - trace**2 / dim)
    share = ((1 - 2 / dim) * square + trace**2) / rest if rest > 0 else torch.ones_like(rest)
    share = share.clamp(0, 1)
    sphere_DD = torch.eye(dim, dtype=raw_DD.dtype, device=raw_DD.device)
    return Gaussian(mean_D, (1 - share) * raw_DD + (share * trace / dim + RIDGE) * sphere_DD)


def log_density(sample_ND: Tensor, gaussian: Gaussian) -> Tensor:
    """Return the log density of each sample, (N,), float64."""
    return MultivariateNormal(*gaussian, validate_args=False).log_prob(sample_ND.double())


TEMPERATURE = 2.0
"""ZSCL's temperature, of both softmaxes."""
TAU = 0.07
"""C-CLIP's temperature, of new features against old ones."""


def distil(student_BM: Tensor, teacher_BM: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return T^2 KL(softmax(teacher / T) || softmax(student / T)), the mean over rows of logits.

    Zheng et al. 2023 (arXiv:2303.06628), whose cross-entropy has the same gradients; 0 if both agree.
    """
    teacher = F.log_softmax(teacher_BM / temperature, dim=1)
    student = F.log_softmax(student_BM / temperature, dim=1)
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def consolidate(new: tuple[Tensor, Tensor], old: tuple[Tensor, Tensor], tau: float = TAU) -> Tensor:
    """Return the symmetric InfoNCE of pairs under a model and under its earlier state.

    C-CLIP (Liu et al., ICLR 2025), equation 5. Each model's images and texts, (B, D) at the length of the
    tower outputs (for the new model: the projector's), are concatenated to (B, 2 D) and only then scaled to
    length 1: the longer of the two weighs more. Other pairs of the batch are the negatives.
    """
    new_BX, old_BX = (F.normalize(torch.cat(pair, dim=1), dim=-1) for pair in (new, old))
    return clip_loss(new_BX, old_BX, 1 / tau)


def expert_momentum(share_GE: Tensor, top: int = 2, keep: float = 0.7) -> Tensor:
    """Return lambda of each of E experts; the last of G tasks sets the expert to lambda old + (1 - lambda)
    new.

    CL-MoE (arXiv:2503.00413): lambda is ``keep`` for an expert with shared knowledge and 1 - ``keep`` for one
    of this task alone. The latter is among the ``top`` experts of this task, by how often they were chosen
    (``share_GE``), and of no earlier task. After the first task lambda is 0: nothing of the initial experts
    is kept.
    """
    num_tasks, num_experts = share_GE.shape
    if num_tasks == 1:
        return torch.zeros(num_experts)
    order_GE = share_GE.argsort(dim=1, descending=True, stable=True)[:, :top]
    is_top_GE = torch.zeros(num_tasks, num_experts, dtype=torch.bool).scatter(1, order_GE.cpu(), True)
    is_own_E = is_top_GE[-1] & ~is_top_GE[:-1].any(0)
    return torch.where(is_own_E, 1 - keep, keep)
