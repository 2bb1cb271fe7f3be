"""The little world's tiny CLIPs, each trained on the pairs of colour and shape that it may have seen."""

from dataclasses import replace

from raycomp.config import ModelConfig
from raycomp.continual.config import ContinualConfig
from raycomp.continual.streams.little_world import find_seed, make_backbone_world
from raycomp.data.folder import Folder
from raycomp.train.little_world import FIT

_MADE = "made.json"


def is_made(folder: Folder) -> bool:
    """Whether the tiny CLIP in a folder is trained."""
    return folder.exists(_MADE)


def make_backbone(config: ContinualConfig, folder: Folder, backbone: int) -> None:
    """Train a tiny CLIP on one thread; its weights, and its recall among pairs like its own, stay there."""
    import torch

    from raycomp.train.tiny_clip import train_scorer

    torch.set_num_threads(1)
    world = make_backbone_world(config, folder.at("world"), backbone)
    fit = replace(FIT, steps=config.little.backbone_steps)
    trained = train_scorer(world, folder.at("scorer"), find_seed(config, backbone), fit)
    figures = {name: getattr(trained, name) for name in ("image_to_text", "text_to_image", "train_s")}
    folder.write_json(figures, _MADE)
    folder.remove("world", "train")


def find_reference(folder: Folder) -> str:
    """Return the input of pairs like those that the tiny CLIP in a folder was trained on."""
    return folder.at("world", "held_out")


def find_tiny(folder: Folder) -> ModelConfig:
    """Return the tiny CLIP in a folder, wherever that was moved."""
    return ModelConfig(folder.at("scorer", "model.json"), folder.at("scorer", "model.safetensors"))
