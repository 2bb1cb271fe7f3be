"""The little world on disk, and the measures of the tiny CLIP that is trained on it (tiny_clip.py)."""

from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from lab.worlds.faults import DEFAULT_MIX
from lab.worlds.samples import Shard, plan_shards
from lab.worlds.scenes import Pairs
from raycomp.config import ScorerConfig
from raycomp.data.samples import write_tar
from raycomp.training.config import FitConfig

TINY_CLIP = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": 32, "layers": 3, "width": 128, "head_width": 64, "patch_size": 8},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 128, "heads": 2, "layers": 3},
}
# From scratch on two cores.
FIT = FitConfig(steps=500, batch_size=64, learning_rate=7e-4, warmup=0.1)
# Added to a seed, so that no part of the world repeats another.
TRAIN_SEED, HELD_OUT_SEED, TEST_SEED = 1_000_000, 2_000_000, 9_000_000


@dataclass(frozen=True)
class World:
    """The parts of a world; each is an input for ``expand_input``."""

    train: str
    """Clean pairs to train on."""
    curate: str
    """Other pairs, some with a planted fault, to curate."""
    held_out: str
    """Clean pairs for retrieval, used for nothing else."""


@dataclass(frozen=True)
class TrainedScorer:
    """A trained scorer and its retrieval among held-out clean pairs."""

    scorer: ScorerConfig
    losses: tuple[float, ...]
    num_train: int
    num_held_out: int
    image_to_text: float
    """Share of the held-out pictures whose own caption scores highest of all captions, 0 to 1."""
    text_to_image: float
    """Share of the held-out captions whose own picture scores highest of all pictures, 0 to 1."""
    train_s: float
    """Seconds of the training steps alone."""


def make_world(
    folder: str | Path,
    seed: int,
    num_train: int = 10_000,
    num_clean: int = 2000,
    num_faulty: int = 1000,
    num_held_out: int = 1000,
    per_shard: int = 500,
    mix: Mapping[str, float] = DEFAULT_MIX,
    pairs: Pairs | None = None,
    processes: int = 1,
) -> World:
    """Write the world's three parts as WebDataset shards below ``folder``: equal arguments, equal bytes, by
    any number of processes.

    ``pairs``: the pairs of colour and shape in the part to curate; the clean parts have all pairs.
    """
    world = World(*(str(Path(folder) / part) for part in ("train", "curate", "held_out")))
    shards: list[tuple[str, Shard]] = []
    for part, counts, part_seed, some in (
        (world.train, (num_train, 0), seed + TRAIN_SEED, None),
        (world.curate, (num_clean, num_faulty), seed, pairs),
        (world.held_out, (num_held_out, 0), seed + HELD_OUT_SEED, None),
    ):
        shards += [(part, shard) for shard in plan_shards(*counts, part_seed, mix, per_shard, some)]
    if processes == 1:
        for part, shard in shards:
            _write(part, shard)
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            list(pool.map(_write, *zip(*shards, strict=True)))
    return world


def _write(part: str, shard: Shard) -> None:
    write_tar(str(Path(part) / shard.name), shard.draw())
