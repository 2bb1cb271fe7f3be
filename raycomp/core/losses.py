"""Contrastive losses as functions of the global batch; who gathers it over ranks is the caller.

B pairs, D embedding dims.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def clip_loss(image_BD: Tensor, text_BD: Tensor, scale: Tensor | float) -> Tensor:
    """Symmetric InfoNCE: every image picks its caption out of the batch, every caption its image.

    Radford et al. 2021 (arXiv:2103.00020), figure 3. Embeddings have length 1 and ``scale`` is the inverse
    temperature exp(logit_scale). 0 or more; log B where all similarities are equal.
    """
    if image_BD.shape != text_BD.shape:
        raise ValueError(f"image_BD and text_BD differ: {tuple(image_BD.shape)}, {tuple(text_BD.shape)}")
    logits_BB = scale * image_BD @ text_BD.T
    label_B = torch.arange(len(logits_BB), device=logits_BB.device)
    return (F.cross_entropy(logits_BB, label_B) + F.cross_entropy(logits_BB.T, label_B)) / 2
