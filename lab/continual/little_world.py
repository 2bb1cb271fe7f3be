"""The little world's streams on disk, and the clean training pairs of their tiny CLIPs."""

from collections.abc import Iterable
from typing import NamedTuple

from lab.worlds.samples import Sample, world_shards
from lab.worlds.shards import HELD_OUT_SEED, TRAIN_SEED, World
from lab.worlds.tasks import WorldTask, backbone_pairs, check_gallery, draw_scenes, list_tasks, to_sample
from raycomp.continual.config import ContinualConfig
from raycomp.data.folder import Folder
from raycomp.data.tar import write_tar
from raycomp.words import WORLD_STREAMS

# Added to a backbone's seed, as those of training/little_world are.
_TASK_SEED = 6_000_000
_TRAIN, _TEST = 0, 1
# Number of clean pairs of the backbone's own world that measure its retrieval.
_NUM_HELD_OUT = 500


class TaskInputs(NamedTuple):
    """Locations of a task's samples; each is an input for ``expand_input``."""

    name: str
    train: str | None
    """None for zero-shot sets."""
    test: str


def find_seed(config: ContinualConfig, backbone: int) -> int:
    """Return the seed of a backbone's own world."""
    return 100 * config.seed + backbone


def make_backbone_world(config: ContinualConfig, folder: str, backbone: int) -> World:
    """Write a backbone's clean training pairs, and others that measure its retrieval.

    Both have the 24 pairs of colour and shape of ``backbone_pairs`` alone. They need no curation.
    """
    files, seed, pairs = Folder(folder), find_seed(config, backbone), backbone_pairs(backbone)
    world = World(files.at("train"), "", files.at("held_out"))
    for part, num, part_seed in (
        (world.train, config.little.backbone_pairs, seed + TRAIN_SEED),
        (world.held_out, _NUM_HELD_OUT, seed + HELD_OUT_SEED),
    ):
        for name, samples in world_shards(num, 0, part_seed, pairs=pairs):
            _write(Folder(part), name, samples)
    return world


def check_tasks(stream: str, config: ContinualConfig) -> None:
    """Raise ValueError if ``little.test`` is more than a task has scenes for."""
    tasks, zero_shot = list_tasks(stream)
    for task in (*tasks, *zero_shot):
        check_gallery(task, config.little.test)


def make_tasks(
    stream: str, config: ContinualConfig, folder: str, backbone: int
) -> tuple[list[TaskInputs], list[TaskInputs]]:
    """Write the shards of a stream's tasks and of its zero-shot sets, unless they exist.

    Same arguments, same bytes. Raises ValueError if ``little.test`` is more than a task has scenes for.
    """
    tasks, zero_shot = list_tasks(stream, backbone)
    files, seed = Folder(folder), [find_seed(config, backbone) + _TASK_SEED, WORLD_STREAMS.index(stream)]

    def make(number: int, task: WorldTask, part: int) -> str:
        name = f"{task.name}/{'test' if part == _TEST else 'train'}.tar"
        num = config.little.test if part == _TEST else config.little.train
        scenes = draw_scenes(task, num, [*seed, number, part], is_gallery=part == _TEST)
        _write(files, name, (to_sample(f"{i:06d}", scene) for i, scene in enumerate(scenes)))
        return files.at(name)

    asked = enumerate(zero_shot, len(tasks))
    return (
        [TaskInputs(one.name, make(i, one, _TRAIN), make(i, one, _TEST)) for i, one in enumerate(tasks)],
        [TaskInputs(one.name, None, make(i, one, _TEST)) for i, one in asked],
    )


def _write(folder: Folder, name: str, samples: Iterable[Sample]) -> None:
    if not folder.exists(name):
        write_tar(folder.at(name), samples)
