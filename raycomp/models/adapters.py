"""The trained part of a model: all of it, all but frozen towers, or low-rank adapters of its attention."""

import copy
import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import nn

from raycomp.config import UserError
from raycomp.models.faults import LIBRARIES_FAIL, one_line
from raycomp.words import TOWERS

# Exceeds the number of layer groups of any tower.
_ALL = 1_000_000
_WEIGHT = "in_proj_weight"


def freeze(clip: Any, entries: Sequence[str]) -> None:
    """Freeze the weights of towers: ``image``, ``text``, or all of one but its last groups, ``text:3``.

    Groups are open_clip's, from the end: the projection, then each block. Raises UserError where no weight of
    a tower or all weights of both would be frozen, or where its kind can only be frozen as a whole.
    """
    for entry in entries:
        tower, _, count = entry.partition(":")
        if int(count or 0):
            _freeze_beginning(clip, tower, int(count), f"train.freeze={entry!r}")
        else:
            for parameter in _list_weights(clip, tower):
                parameter.requires_grad_(False)
    if not any(p.requires_grad for tower in TOWERS for p in _list_weights(clip, tower)):
        raise UserError(f"train.freeze={tuple(entries)}: freezes all weights; leave some to train")


def _freeze_beginning(clip: Any, tower: str, count: int, said: str) -> None:
    lock = clip.lock_image_tower if tower == "image" else clip.lock_text_tower
    weights = _list_weights(clip, tower)
    try:
        with redirect_stdout(io.StringIO()):  # some of them print
            lock(_ALL)
            # Weights that are still locked here belong to no group.
            has_rest = not all(parameter.requires_grad for parameter in weights)
            lock(count)
    except LIBRARIES_FAIL as error:
        raise UserError(f"{said}: this tower can only be frozen whole ({one_line(error)})") from error
    if has_rest:
        raise UserError(f"{said}: this tower can only be frozen whole, as its groups do not cover it")
    if all(parameter.requires_grad for parameter in weights):
        raise UserError(f"{said}: freezes nothing; the {tower} tower has fewer groups of layers")


def _list_weights(clip: Any, tower: str) -> list[nn.Parameter]:
    """Return a tower's weights. Logit scale and bias belong to no tower."""
    named = ((name, p) for name, p in clip.named_parameters() if not name.startswith("logit_"))
    return [p for name, p in named if name.startswith("visual.") == (tower == "image")]


def add_adapters(clip: Any, rank: int, seed: int) -> Any:
    """Add adapters to the trained part of both towers' attention; return peft's tuner of the model.

    Hu et al. 2021 (arXiv:2106.09685): 2 B A is added to the matrix of queries, keys and values; B is 0 at
    first, A is drawn by ``seed``. Everything else is frozen except logit scale and bias. Raises UserError
    where a trained tower has no such matrix.
    """
    # peft matches the ends of names: a full name is unique because all share a prefix.
    names = [f"clip.{name}.{_WEIGHT}" for name in _find_attention(clip)]
    for tower in TOWERS:
        is_adapted = any(name.startswith("clip.visual.") == (tower == "image") for name in names)
        if not is_adapted and any(p.requires_grad for p in _list_weights(clip, tower)):
            raise UserError(
                f"train.lora_rank={rank}: the {tower} tower has no attention layer for adapters; freeze it "
                f"(train.freeze={tower}), or train all weights"
            )
    from peft import LoraConfig  # takes seconds, and few trainings need it
    from peft.tuners.lora import LoraModel

    free = {name for name, p in clip.named_parameters() if p.requires_grad and name.startswith("logit_")}
    # A parameter as a target keeps its bits. Adapters of a whole nn.MultiheadAttention would be added and
    # subtracted in every pass, which makes the weights drift.
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=[], target_parameters=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tuner = LoraModel(nn.ModuleDict({"clip": clip}), config, "default")
    for name, parameter in clip.named_parameters():
        if name in free:
            parameter.requires_grad_(True)
    return tuner


def _find_attention(clip: Any) -> Iterator[str]:
    """Yield the names of modules with one trained matrix for queries, keys and values."""
    for name, module in clip.named_modules():
        weight = getattr(module, _WEIGHT, None) if isinstance(module, nn.MultiheadAttention) else None
        if weight is not None and weight.requires_grad:
            yield name


def merge_adapters(tuner: Any) -> Any:
    """Return a copy of the model with its adapters added to its weights: its modules are as before them."""
    return copy.deepcopy(tuner).merge_and_unload()["clip"]
