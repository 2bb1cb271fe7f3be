"""Streams of the drawn world for ``raycomp continual --set stream=lab/continual/streams.py:world``.

A variant has its own scenes and its own backbone, a tiny CLIP trained on 24 of the 64 pairs of colour and
shape. Streams of other sizes are in a file of yours:

    from lab.continual.streams import Sizes, draw_stream
    from lab.words import WORLD

    world = draw_stream(WORLD, Sizes(train=100), variants=2)
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.words import DOMAINS, FUNCTION, SCENE, STREAMS, WORLD
from lab.worlds.captions import phrases
from lab.worlds.samples import Sample, world_shards
from lab.worlds.shards import FIT, HELD_OUT_SEED, TINY_CLIP, TRAIN_SEED, World
from lab.worlds.tasks import TaskScene, WorldTask, backbone_pairs, check_gallery, draw_scenes, list_tasks
from lab.worlds.tasks import to_sample as to_plain_sample
from lab.worlds.tiny_clip import train_scorer
from lab.worlds.training import draw_lessons, take_apart
from raycomp.config import ModelConfig
from raycomp.config.options import OptionGroup, count_from
from raycomp.continual.method import MadeStream, StreamMaker
from raycomp.data.runs import digest
from raycomp.data.samples import write_tar
from raycomp.run.progress import Progress

NUM_VARIANTS = 12
# Added to a variant's seed, as those of worlds/shards are.
_TASK_SEED, _EDIT_SEED = 6_000_000, 32
_TRAIN, _TEST = 0, 1
# Number of clean pairs of the backbone's own world that measure its retrieval.
_NUM_HELD_OUT = 500


@dataclass(frozen=True)
class Sizes(OptionGroup):
    """The size of a stream and of its backbone."""

    backbone_pairs: int = field(default=6000, metadata=count_from(64))
    """Training scenes of the tiny CLIP, of 24 of the 64 pairs of colour and shape."""
    backbone_steps: int = field(default=500, metadata=count_from(1))
    train: int = field(default=400, metadata=count_from(2))
    """Training scenes per task."""
    test: int = field(default=250, metadata=count_from(2))
    """Test scenes per task, each with different contents."""


def draw_stream(name: str, sizes: Sizes = Sizes(), variants: int = NUM_VARIANTS) -> StreamMaker:
    """Return the maker of a stream of STREAMS. Raises ValueError if ``sizes.test`` is more than a task has
    scenes for."""
    for task in (one for some in list_tasks(name) for one in some):
        check_gallery(task, sizes.test)
    return StreamMaker(partial(make_stream, name, sizes), variants)


def make_stream(name: str, sizes: Sizes, folder: str, variant: int, seed: int) -> MadeStream:
    """Write a variant into ``folder``; train its backbone unless another stream of the same run has."""
    own_seed = 100 * seed + variant
    backbone = make_backbone(sizes, Path(folder), variant, own_seed)
    file, scorer = write_tasks(name, sizes, folder, variant, own_seed), backbone / "scorer"
    model = ModelConfig(f"{scorer}/model.json", f"{scorer}/model.safetensors")
    return MadeStream(file, model, f"{backbone}/world/held_out")


def write_tasks(name: str, sizes: Sizes, folder: str, variant: int, seed: int) -> str:
    """Write the tasks of a stream and the json file that lists them; return the file. Same arguments, same
    bytes."""
    seeds = [seed + _TASK_SEED, STREAMS.index(name)]
    tasks, zero_shot = list_tasks(name, variant)

    def make(number: int, task: WorldTask, part: int) -> str:
        num, is_test = (sizes.test, True) if part == _TEST else (sizes.train, False)
        scenes = draw_scenes(task, num, [*seeds, number, part], is_gallery=is_test)
        shard = f"{task.name}/{'test' if is_test else 'train'}.tar"
        has_edits = is_test and not task.asked
        write_tar(f"{folder}/{shard}", (to_sample(i, scene, has_edits) for i, scene in enumerate(scenes)))
        return shard

    content: dict[str, list[dict[str, str]]] = {
        "tasks": [
            {"name": one.name, "train": make(i, one, _TRAIN), "test": make(i, one, _TEST)}
            for i, one in enumerate(tasks)
        ],
        "zero_shot": [
            {"name": one.name, "test": make(i, one, _TEST)} for i, one in enumerate(zero_shot, len(tasks))
        ],
    }
    file = Path(folder) / f"{name}.json"
    file.write_text(json.dumps(content, indent=2))
    return str(file)


def to_sample(row: int, drawn: TaskScene, has_edits: bool) -> Sample:
    """Return a scene as a sample; ``has_edits``: with one edit of each category of its caption."""
    key, members = to_plain_sample(f"{row:06d}", drawn)
    if not has_edits:
        return key, members
    lessons = draw_lessons(drawn.caption, np.random.default_rng([_EDIT_SEED, row]))
    edits: list[dict[str, Any]] = [
        {
            "text": one.text,
            "primitives": phrases(take_apart(one.text).claim),
            "category": f"{one.operation} {one.kind}",
        }
        for one in lessons
    ]
    facts = {**json.loads(members["json"]), "edits": edits}
    return key, {**members, "json": json.dumps(facts).encode()}


def make_backbone(sizes: Sizes, folder: Path, variant: int, seed: int) -> Path:
    """Train a tiny CLIP on one thread; return its folder, which streams of the same run share.

    ``scorer/`` has its weights, ``world/held_out`` pairs like its own.
    """
    of_scorer = {name: value for name, value in asdict(sizes).items() if name.startswith("backbone_")}
    shared = folder.parent / f"backbone-{variant:02d}-{digest([seed, TINY_CLIP, of_scorer])[:12]}"
    if shared.exists():
        return shared
    own = folder / "backbone"
    world = make_backbone_world(sizes.backbone_pairs, own / "world", variant, seed)
    steps, torch_threads = sizes.backbone_steps, torch.get_num_threads()
    torch.set_num_threads(1)
    with Progress("backbone", steps, unit="step") as progress:
        fit = replace(FIT, steps=steps)

        def report(step: int, loss: float) -> None:
            progress.reach(step + 1, FIT.batch_size)

        trained = train_scorer(world, own / "scorer", seed, fit, report)
    torch.set_num_threads(torch_threads)
    figures = {name: getattr(trained, name) for name in ("image_to_text", "text_to_image", "train_s")}
    (own / "made.json").write_text(json.dumps(figures))
    shutil.rmtree(world.train)
    try:
        os.rename(own, shared)
    except OSError:  # another stream's has just been written there, of the same bytes
        shutil.rmtree(own)
    return shared


def make_backbone_world(num_pairs: int, folder: Path, variant: int, seed: int) -> World:
    """Write a backbone's clean training pairs, and others that measure its retrieval.

    Both have the 24 pairs of colour and shape of ``backbone_pairs`` alone. They need no curation.
    """
    pairs = backbone_pairs(variant)
    world = World(f"{folder}/train", "", f"{folder}/held_out")
    parts: Iterable[tuple[str, int, int]] = (
        (world.train, num_pairs, seed + TRAIN_SEED),
        (world.held_out, _NUM_HELD_OUT, seed + HELD_OUT_SEED),
    )
    for part, num, part_seed in parts:
        for name, samples in world_shards(num, 0, part_seed, pairs=pairs):
            write_tar(f"{part}/{name}", samples)
    return world


world = draw_stream(WORLD)
domains = draw_stream(DOMAINS)
questions_scene = draw_stream(SCENE)
questions_function = draw_stream(FUNCTION)
