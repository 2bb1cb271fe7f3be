"""The little world as WebDataset samples: (key, {"jpg": ..., "txt": ..., "json": ...})."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lab.worlds.captions import TEMPLATES, describe
from lab.worlds.faults import DEFAULT_MIX, FAULTS, NO_FAULT
from lab.worlds.render import encode_jpeg, render
from lab.worlds.scenes import Pairs, draw_scene, scene_to_dict

Sample = tuple[str, dict[str, bytes]]
SIDE = 128


def draw_sample(key: str, fault: str, rng: np.random.Generator, pairs: Pairs | None = None) -> Sample:
    """Draw one sample with ``fault`` ("none" or a name of FAULTS); it shows and names only ``pairs``.

    Its json holds ``caption`` (the txt), ``true_caption``, ``fault``, ``template`` and ``scene``.
    """
    scene, template = draw_scene(rng, pairs), int(rng.integers(len(TEMPLATES)))
    image = encode_jpeg(render(scene, SIDE))
    true_caption = caption = describe(scene, template)
    if fault != NO_FAULT:
        caption, image = FAULTS[fault](scene, template, image, rng, pairs)
    facts = {
        "key": key,
        "caption": caption,
        "true_caption": true_caption,
        "fault": fault,
        "template": template,
        "scene": scene_to_dict(scene),
        "width": SIDE,
        "height": SIDE,
    }
    return key, {"jpg": image, "txt": caption.encode(), "json": json.dumps(facts).encode()}


def draw_faults(
    num_clean: int, num_faulty: int, seed: int, mix: Mapping[str, float] = DEFAULT_MIX
) -> list[str]:
    """Return the fault of every sample, shuffled by ``seed``: exactly ``num_faulty`` are not "none".

    ``mix`` gives the shares of the faults (any positive scale); counts are its running sum, rounded.
    """
    unknown = set(mix) - set(FAULTS)
    if unknown or not mix or min(mix.values()) < 0 or sum(mix.values()) <= 0:
        raise ValueError(f"mix={dict(mix)}: must be shares, 0 or more, of {', '.join(FAULTS)}")
    edges = np.round(np.cumsum([0, *mix.values()]) / sum(mix.values()) * num_faulty).astype(int)
    faults = [NO_FAULT] * num_clean
    for fault, count in zip(mix, np.diff(edges), strict=True):
        faults += [fault] * count
    order = np.random.default_rng(seed).permutation(len(faults))
    return [faults[i] for i in order]


@dataclass(frozen=True)
class Shard:
    """A shard that is not drawn yet."""

    number: int
    faults: list[str]
    seed: int
    digits: int
    """Decimal digits of a sample's position in its key."""
    pairs: Pairs | None

    @property
    def name(self) -> str:
        return f"{self.number:05d}.tar"

    def draw(self) -> list[Sample]:
        """Return its samples, each by the seed and its position alone."""
        samples = []
        for position, fault in enumerate(self.faults):
            key = f"{self.number * 10**self.digits + position:0{5 + self.digits}d}"
            rng = np.random.default_rng([self.seed, self.number, position])
            samples.append(draw_sample(key, fault, rng, self.pairs))
        return samples


def plan_shards(
    num_clean: int, num_faulty: int, seed: int, mix: Mapping[str, float], per_shard: int, pairs: Pairs | None
) -> Iterator[Shard]:
    """Yield the shards of ``world_shards``, to be drawn anywhere."""
    if per_shard < 1:
        raise ValueError(f"per_shard={per_shard}: must be at least 1")
    faults = draw_faults(num_clean, num_faulty, seed, mix)
    digits = math.ceil(math.log10(per_shard))
    for number, first in enumerate(range(0, len(faults), per_shard)):
        yield Shard(number, faults[first : first + per_shard], seed, digits, pairs)


def world_shards(
    num_clean: int,
    num_faulty: int,
    seed: int,
    mix: Mapping[str, float] = DEFAULT_MIX,
    per_shard: int = 500,
    pairs: Pairs | None = None,
) -> Iterator[tuple[str, list[Sample]]]:
    """Yield ``("00000.tar", samples)`` and on, named and keyed as img2dataset does.

    A sample depends only on ``seed`` and its position. ``pairs``: those allowed in scenes and captions.
    """
    for shard in plan_shards(num_clean, num_faulty, seed, mix, per_shard, pairs):
        yield shard.name, shard.draw()
