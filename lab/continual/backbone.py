"""The little world's tiny CLIPs, each trained on its allowed pairs of colour and shape."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from lab.continual.little_world import find_seed, make_backbone_world
from lab.worlds.shards import FIT
from raycomp.config import ModelConfig
from raycomp.continual.config import ContinualConfig
from raycomp.data.folder import Folder
from raycomp.run.progress import Progress

_MADE, _STEPS = "made.json", "steps.json"
# Seconds between two reads of the step count, and between two writes of it.
_POLL_S = 1.0


def is_made(folder: Folder) -> bool:
    """Whether the tiny CLIP in a folder is trained."""
    return folder.exists(_MADE)


def make_backbone(config: ContinualConfig, folder: Folder, backbone: int) -> None:
    """Train a tiny CLIP on one thread; write its weights, and its recall among pairs like its own.

    A file is updated with the number of steps taken: the process may be on another machine.
    """
    import torch

    from lab.worlds.tiny_clip import train_scorer

    torch.set_num_threads(1)
    world = make_backbone_world(config, folder.at("world"), backbone)
    fit = replace(FIT, steps=config.little.backbone_steps)
    said_at = time.monotonic()

    def say_step(step: int, loss: float) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= _POLL_S:
            folder.write_json(step + 1, _STEPS)
            said_at = time.monotonic()

    trained = train_scorer(world, folder.at("scorer"), find_seed(config, backbone), fit, say_step)
    figures = {name: getattr(trained, name) for name in ("image_to_text", "text_to_image", "train_s")}
    folder.write_json(figures, _MADE)
    folder.remove("world", "train")
    folder.remove(_STEPS)


def count_steps(folder: Folder, num_steps: int) -> int:
    """Return the number of steps taken by the tiny CLIP in a folder, from its file."""
    if is_made(folder):
        return num_steps
    try:
        return int(folder.read_json(_STEPS))
    except FileNotFoundError:  # not one yet, or all of them just now
        return 0


@contextmanager
def follow_steps(folders: Sequence[Folder], num_steps: int) -> Iterator[None]:
    """Report, while the block runs, the total number of steps taken by the tiny CLIPs in these folders."""
    ended = threading.Event()
    with Progress("backbones", len(folders) * num_steps, unit="step") as progress:

        def follow() -> None:
            while not ended.wait(_POLL_S):
                taken = sum(count_steps(folder, num_steps) for folder in folders)
                progress.reach(max(taken, progress.shards), FIT.batch_size)

        follower = threading.Thread(target=follow, name="steps of backbones", daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()


def find_reference(folder: Folder) -> str:
    """Return the input of pairs like the training pairs of the tiny CLIP in a folder."""
    return folder.at("world", "held_out")


def find_tiny(folder: Folder) -> ModelConfig:
    """Return the tiny CLIP in a folder, also if the folder was moved."""
    return ModelConfig(folder.at("scorer", "model.json"), folder.at("scorer", "model.safetensors"))
