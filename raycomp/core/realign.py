"""Multi-positive InfoNCE: an image and the views of its caption, one of them composed of primitives.

COMPO-REALIGN (ICLR 2026, openreview.net/forum?id=eiTy6AYeQi), second and third key design. Readings that the
paper leaves open have names here. B samples, M views of all of them, K entries of the buffer, D dims.
Embeddings have length 1; ``scale`` is 1 / tau. Samples with the same number in ``group_B`` have the same
composition: they are neither positive nor negative for each other.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from raycomp.config.check import check_choice

OWN, JOINT = "own", "joint"
QUERIES = (OWN, JOINT)
"""From compositions to images: each view has its own term, or all views of a sample share one quotient, which
trains the composed view away from images."""
ANCHORED, LITERAL, NEGATIVES = "anchored", "literal", "negatives"
READINGS = (ANCHORED, LITERAL, NEGATIVES)
"""The use of the buffer's texts. literal, the paper's: one more positive of the samples of the same
composition. anchored: each text aligns its own composition with itself, as an image does. negatives: one more
negative of all images."""


class Views(NamedTuple):
    """M views of B samples, at least one of each."""

    view_MD: Tensor
    owner_M: Tensor
    """The sample of each view, 0 to B - 1."""


class Past(NamedTuple):
    """K entries drawn from the buffer."""

    text_KD: Tensor
    """e'_c, frozen."""
    composed_KD: Tensor
    """e^'_c, by the current head."""
    group_K: Tensor
    """The number of the composition, as in the batch."""


class Parts(NamedTuple):
    """The terms of a loss, each a mean over queries."""

    image_to_composition: Tensor
    composition_to_image: Tensor
    anchor: Tensor
    """The term of past texts and their compositions; 0 without."""

    @property
    def total(self) -> Tensor:
        """L_Tri, plus the anchors' term."""
        return (self.image_to_composition + self.composition_to_image) / 2 + self.anchor


def compo_realign(
    image_BD: Tensor,
    text_BD: Tensor,
    composed_BD: Tensor | None,
    group_B: Tensor,
    scale: Tensor | float,
    past: Past | None = None,
    reading: str = LITERAL,
    c2v: str = OWN,
) -> Parts:
    """Return the objective of a batch: e_c and e^_c both belong to their image.

    Without ``composed_BD``, the ablation, only e_c does; if it is frozen, there is no gradient and no
    training. ``text_BD`` are frozen captions, or in the reading ``adapted`` the result of ``Composer.adapt``
    on them. ``past`` is used as ``reading`` specifies.
    """
    check_choice("reading", reading, READINGS)
    past = past if past is not None and len(past.text_KD) else None
    own_B = torch.arange(len(image_BD), device=image_BD.device)
    views = [(text_BD, own_B)] + ([] if composed_BD is None else [(composed_BD, own_B)])
    if past is not None and reading == LITERAL:
        says_BK = group_B[:, None] == past.group_K
        said_S = says_BK.any(1).nonzero()[:, 0]
        views.append((past.text_KD[says_BK.int().argmax(1)[said_S]], said_S))
    view_MD, owner_M = (torch.cat(parts) for parts in zip(*views, strict=True))
    others = (past.text_KD, past.group_K) if past is not None and reading == NEGATIVES else None
    found = contrast_views(image_BD, Views(view_MD, owner_M), group_B, scale, c2v, others)
    if past is None or reading != ANCHORED:
        return found
    own_K = torch.arange(len(past.text_KD), device=image_BD.device)
    anchored = contrast_views(past.text_KD, Views(past.composed_KD, own_K), past.group_K, scale)
    return found._replace(anchor=anchored.total)


def contrast_views(
    image_BD: Tensor,
    views: Views,
    group_B: Tensor,
    scale: Tensor | float,
    c2v: str = OWN,
    negatives: tuple[Tensor, Tensor] | None = None,
) -> Parts:
    """Return both directions of the multi-positive InfoNCE; with one view of each sample it is ``clip_loss``.

    Image to composition: - log of the share of an image's own views among all views, with exp(scale * s)
    summed. Composition to image: by ``c2v``, over images. ``negatives``: further negative texts of all
    images, and their compositions.
    """
    check_choice("c2v", c2v, QUERIES)
    own_B = torch.arange(len(image_BD), device=image_BD.device)
    is_own_BM = own_B[:, None] == views.owner_M
    logit_BM = scale * image_BD @ views.view_MD.T
    own_BM = logit_BM.masked_fill(~is_own_BM, -torch.inf)
    is_same_BM = (group_B[:, None] == group_B[views.owner_M]) & ~is_own_BM
    rival_BM = logit_BM.masked_fill(is_same_BM, -torch.inf)
    all_BX = rival_BM
    if negatives is not None:
        text_KD, group_K = negatives
        other_BK = scale * image_BD @ text_KD.T
        all_BX = torch.cat([rival_BM, other_BK.masked_fill(group_B[:, None] == group_K, -torch.inf)], 1)
    picked_B = all_BX.logsumexp(1) - own_BM.logsumexp(1)
    if c2v == OWN:
        asked = rival_BM.logsumexp(0) - logit_BM[views.owner_M, torch.arange(len(views.owner_M))]
    else:
        sum_BM = rival_BM.logsumexp(0).expand_as(logit_BM).masked_fill(~is_own_BM, -torch.inf)
        asked = sum_BM.logsumexp(1) - own_BM.logsumexp(1)
    return Parts(picked_B.mean(), asked.mean(), torch.zeros_like(picked_B[0]))
