"""The cost of faulty pairs: tiny CLIPs trained on pairs with a growing share of one kind of fault.

S test scenes, D embedding dims.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raycomp.config import exact_share
from raycomp.data.folder import Folder
from raycomp.screen.config import SlopeConfig
from raycomp.screen.draws import HELD_OUT, TRAIN, WEIGHTS, write_pairs
from raycomp.screen.one_run import ARCHITECTURE
from raycomp.training.little_world import FIT, World
from raycomp.worlds.crowds import (
    CURATED_TEMPLATES,
    MISSING_STAMP,
    WRONG_ATTRIBUTE,
    WRONG_OBJECT,
    WRONG_RELATION,
    Crowd,
    Pair,
    draw_crowd,
    draw_pair,
    least_things,
    say_crowd,
    spoil,
    swap_colours,
)
from raycomp.worlds.faults import NO_FAULT

CATEGORIES = ("replace_object", "replace_attribute", "replace_relation", "swap_attribute")
"""The edits that make the negatives of test captions; the primary figure is their mean accuracy."""
_EDITS: dict[str, Callable[[Crowd, np.random.Generator], Crowd]] = {
    "replace_object": lambda said, rng: spoil(said, WRONG_OBJECT, rng),
    "replace_attribute": lambda said, rng: spoil(said, WRONG_ATTRIBUTE, rng),
    "replace_relation": lambda said, rng: spoil(said, WRONG_RELATION, rng),
    "swap_attribute": lambda said, rng: swap_colours(said),
}
_TEST_SCENES = 8


@dataclass(frozen=True)
class SlopeRun:
    """A world and a kind of fault; its trainings differ in the share of faulty pairs alone."""

    world: int
    kind: str

    @property
    def name(self) -> str:
        return f"{self.world:03d}-{self.kind}"


def run_slope(one_run: SlopeRun, config: SlopeConfig, work: Folder, out: Folder) -> None:
    """Write cells/NAME.json: the accuracy of each training, by its share of faulty pairs.

    All trainings of a run have the same captions, initial weights and order of batches; the pairs that are
    faulty at one share are faulty at every larger one.
    """
    import torch

    torch.set_num_threads(1)
    started, folder = time.perf_counter(), Folder(work.at(one_run.name))
    folder.remove()
    test = list(draw_test(one_run, config))
    write_pairs(folder.at("test"), (pair for pair, _ in test), [config.seed, one_run.world, _TEST_SCENES])
    rows = []
    for share in config.shares:
        rows.append({"share": share, **_train_and_test(one_run, share, config, folder, test)})
    seconds = time.perf_counter() - started
    facts = {"world": one_run.world, "kind": one_run.kind, "seconds": seconds, "rows": rows}
    out.write_json(facts, "cells", f"{one_run.name}.json")
    folder.remove()


def draw_training(one_run: SlopeRun, share: float, config: SlopeConfig) -> Iterator[Pair]:
    """Yield the pairs of a training, exactly floor(share * pairs) of them with the fault."""
    seed = [config.seed, one_run.world, TRAIN]
    order = np.random.default_rng(seed).permutation(config.pairs)
    faulty = {*order[: exact_share(share, config.pairs)].tolist()}
    least, stamp = least_things(one_run.kind), float(one_run.kind == MISSING_STAMP)
    for i in range(config.pairs):
        fault = one_run.kind if i in faulty else NO_FAULT
        yield draw_pair(np.random.default_rng([*seed, i]), fault, least=least, stamp=stamp)


def draw_test(one_run: SlopeRun, config: SlopeConfig) -> Iterator[tuple[Pair, dict[str, str]]]:
    """Yield correct pairs of at least two objects, each with a negative caption of every category."""
    for i in range(config.scenes):
        rng = np.random.default_rng([config.seed, one_run.world, _TEST_SCENES, i])
        said = draw_crowd(rng, 2, stamp=float(one_run.kind == MISSING_STAMP))
        while swap_colours(said) == said:
            said = draw_crowd(rng, 2, stamp=float(one_run.kind == MISSING_STAMP))
        number = int(rng.integers(len(CURATED_TEMPLATES)))
        template = CURATED_TEMPLATES[number]
        negatives = {name: say_crowd(edit(said, rng), template) for name, edit in _EDITS.items()}
        yield Pair(said, said, NO_FAULT, number, say_crowd(said, template)), negatives


def _train_and_test(
    one_run: SlopeRun,
    share: float,
    config: SlopeConfig,
    folder: Folder,
    test: list[tuple[Pair, dict[str, str]]],
) -> dict[str, Any]:
    """Train one CLIP; return its accuracy in percent by category, their mean, and recall@1."""
    from raycomp.training.tiny_clip import train_scorer

    seed = [config.seed, one_run.world]
    world = World(*(folder.at(part) for part in ("train", "test", "held_out")))
    Folder(world.train).remove()
    write_pairs(world.train, draw_training(one_run, share, config), [*seed, TRAIN])
    sound = (draw_pair(np.random.default_rng([*seed, HELD_OUT, i]), NO_FAULT, least=2) for i in range(500))
    write_pairs(world.held_out, sound, [*seed, HELD_OUT])
    fit = replace(FIT, steps=config.steps, batch_size=config.batch_size)
    weights = int(np.random.default_rng([*seed, WEIGHTS]).integers(2**31))
    trained = train_scorer(world, folder.at("clip"), weights, fit, architecture=ARCHITECTURE)
    found = _measure(trained.scorer, world.curate, [negatives for _, negatives in test])
    mean = float(np.mean([found[name] for name in CATEGORIES]))
    return {**found, "composition": mean, "recall": 50 * (trained.image_to_text + trained.text_to_image)}


def _measure(scorer: Any, shards: str, negatives: list[dict[str, str]]) -> dict[str, float]:
    """Return how many true captions are nearer to their picture than the negative, in percent; ties count
    half."""
    from raycomp.models.clip import Clip
    from raycomp.models.describe import describe_scorer
    from raycomp.models.tokens import load_tokens
    from raycomp.training.tiny_clip import load_pairs

    clip, tokenize = Clip(scorer, device="cpu"), load_tokens(scorer)
    pixels, tokens = load_pairs(shards, scorer, describe_scorer(scorer))
    image_SD = clip.embed_pixels(pixels.numpy())
    true_S = (image_SD * clip.text.embed(tokens.numpy())[0]).sum(1).numpy()
    found = {}
    for name in CATEGORIES:
        text_SD, _ = clip.text.embed(np.asarray(tokenize([one[name] for one in negatives])))
        false_S = (image_SD * text_SD).sum(1).numpy()
        found[name] = 100 * float(np.mean((true_S > false_S) + (true_S == false_S) / 2))
    return found


def fit_slope(share_D: np.ndarray, points_D: np.ndarray) -> float:
    """Return the least-squares slope, in points per percentage point of faulty pairs."""
    centred_D = 100 * (share_D - share_D.mean())
    return float(centred_D @ points_D / (centred_D @ centred_D))
