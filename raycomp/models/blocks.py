"""The transformer blocks of a CLIP's towers, where methods add trained parts to frozen weights."""

from typing import Any

from torch import nn

from raycomp.config import UserError


def find_blocks(clip: Any, said: str) -> dict[str, list[Any]]:
    """Return the blocks of each tower, image and text, from the first.

    Raises UserError, which starts with ``said``, where a tower is not made of open_clip's plain blocks: one
    ``nn.MultiheadAttention`` with rows first, and an MLP of two linear layers.
    """
    found = {}
    for name, tower in (("image", clip.visual), ("text", getattr(clip, "text", clip))):
        blocks = list(getattr(getattr(tower, "transformer", None), "resblocks", ()))
        if not blocks or not all(map(_is_plain, blocks)):
            raise UserError(
                f"{said}: the {name} tower of the model is not made of open_clip's plain transformer blocks; "
                "take a model such as ViT-B-32, or leave the method out"
            )
        found[name] = blocks
    return found


def _is_plain(block: Any) -> bool:
    attention, mlp = getattr(block, "attn", None), getattr(block, "mlp", None)
    return (
        isinstance(attention, nn.MultiheadAttention)
        and attention.batch_first
        and attention.in_proj_weight is not None
        and all(isinstance(getattr(mlp, name, None), nn.Linear) for name in ("c_fc", "c_proj"))
    )
