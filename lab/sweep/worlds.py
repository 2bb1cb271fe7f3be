"""Little worlds: pairs scored once by the world's own scorer, test sets, rule-based negatives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.worlds.benchmark import FILE
from lab.worlds.faults import DEFAULT_MIX
from lab.worlds.scenes import ALL_PAIRS, hold_out
from lab.worlds.shards import FIT, TEST_SEED, TINY_CLIP, World, make_world
from lab.worlds.write_test_set import write_test_set
from raycomp.config import ClusterConfig, ScorerConfig, WavesConfig, from_dict, to_dict
from raycomp.curation.command import curate, select
from raycomp.curation.config import AlignConfig, AttributeConfig, CurateConfig
from raycomp.data.folder import Folder
from raycomp.data.runs import digest
from raycomp.negatives.command import negatives
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.run.run import Run, Say
from raycomp.run.tasks import map_some
from raycomp.sweep.config import WorldsConfig

CURATED, ALL, NEGATIVES, TEST_SET, UNSEEN = "curated", "all", "negatives", "exam", "unseen"
FAULT = "fault"
# Added to a world's seed; the world's parts have the offsets of training/little_world.
_UNSEEN_SEED = 4_000_000
# Number of pairs that measure a scorer's retrieval.
_NUM_HELD_OUT = 500
_FAULTY = 3
"""One pair in this many has a fault; no image fails to decode."""
_MIX = {fault: share for fault, share in DEFAULT_MIX.items() if fault != "corrupt_image"}
# All pairs by both scores, and the paper's rule.
_SCORED = CurateConfig(
    align=AlignConfig(keep=0.7),
    attribute=AttributeConfig(keep=0.5, pool=1.0),
    waves=WavesConfig(shards_per_wave=4),
    extra_columns=(FAULT,),
    materialize=False,
)
_MADE, _READY = "made.json", "ready.json"
_FIGURES = ("image_to_text", "text_to_image", "train_s")


@dataclass(frozen=True)
class Place:
    """One world and its folder."""

    number: int
    """Seed that determines the colours and shapes the world never shows together."""
    folder: str
    seed: int
    sizes: WorldsConfig
    cluster: ClusterConfig
    unseen_scenes: int = 0
    """Scenes of a second test set, each with a colour and a shape that no pair has together."""

    @property
    def files(self) -> Folder:
        return Folder(self.folder)

    @property
    def is_made(self) -> bool:
        """Whether its scorer is trained."""
        return self.files.exists(_MADE)

    @property
    def scorer(self) -> ScorerConfig:
        return from_dict(ScorerConfig(), self.files.read_json(_MADE)["scorer"])

    def describe_scorer(self) -> dict[str, float]:
        """Return its retrieval among held-out clean pairs, 0 to 1, and the seconds of its training."""
        made = self.files.read_json(_MADE)
        return {name: made[name] for name in _FIGURES}

    @property
    def shards(self) -> str:
        return self.files.at("world", "curate")


def list_places(
    count: int, work: Folder, seed: int, sizes: WorldsConfig, cluster: ClusterConfig, unseen_scenes: int = 0
) -> list[Place]:
    """Return this number of worlds, each below ``work``."""
    return [
        Place(number, work.at(f"world-{number:02d}"), 100 * seed + number, sizes, cluster, unseen_scenes)
        for number in range(count)
    ]


def fingerprint_worlds() -> dict[str, Any]:
    """Return the inputs, other than options, that results of trials in worlds depend on."""
    return {"architecture": digest(TINY_CLIP)}


def scored_options() -> dict[str, Any]:
    """Return the options of every world's scoring, as in run.json."""
    return to_dict(_SCORED)


def make_worlds(places: Sequence[Place], num_tasks: int, run: Run, say: Say) -> None:
    """Build the missing parts of the worlds: pairs and a scorer, test sets, scores."""
    left = [place for place in places if not place.files.exists(_READY)]
    check = run.lease.check
    unmade = [(place,) for place in left if not place.is_made]
    for made, *_ in map_some(make_scorer, unmade, num_tasks, check, "scorers", "world"):
        say(f"world {made.number}: scorer trained")
    for _ in map_some(make_test_sets, [(place,) for place in left], num_tasks, check, "exams", "world"):
        pass
    for place in left:
        scored = place.files.at(CURATED)
        cluster = replace(place.cluster, gpu=False)
        config = replace(_SCORED, input=place.shards, scorer=place.scorer, cluster=cluster)
        curate(config, scored, say_nothing)
        everything = {"select.rule": "full", "materialize": False}
        select(scored, everything, place.files.at(ALL), say_nothing)
        place.files.write_json({}, _READY)
        say(f"world {place.number}: scored")


def make_scorer(place: Place) -> None:
    """Draw the world's shards; train its scorer on clean pairs of all colours and shapes, on one thread."""
    import torch

    from lab.worlds.tiny_clip import train_scorer

    torch.set_num_threads(1)
    sizes, num_faulty = place.sizes, place.sizes.pairs // _FAULTY
    world = make_world(
        place.files.at("world"),
        place.seed,
        num_train=sizes.scorer_pairs,
        num_clean=sizes.pairs - num_faulty,
        num_faulty=num_faulty,
        num_held_out=_NUM_HELD_OUT,
        mix=_MIX,
        pairs=ALL_PAIRS - hold_out(place.number),
    )
    assert World(world.train, place.shards, world.held_out) == world
    fit = replace(FIT, steps=sizes.scorer_steps, batch_size=sizes.batch_size)
    trained = train_scorer(world, place.files.at("scorer"), place.seed, fit)
    scorer = {"model": trained.scorer.model, "weights": trained.scorer.weights}
    facts = {name: getattr(trained, name) for name in _FIGURES}
    place.files.write_json({"scorer": scorer, **facts}, _MADE)
    for part in ("train", "held_out"):
        place.files.remove("world", part)


def make_test_sets(place: Place) -> None:
    """Write a world's test set, scenes of colours and shapes that its pairs show together, and the second
    one.

    The pictures and captions of the first are also a retrieval test set.
    """
    unseen = hold_out(place.number)
    write_test_set(place.files.at(TEST_SET), place.sizes.scenes, place.seed + TEST_SEED, ALL_PAIRS - unseen)
    captions = {row["image"]: row["caption"] for row in place.files.read_json(TEST_SET, FILE)}
    pairs = [{"image": image, "caption": caption} for image, caption in captions.items()]
    place.files.write_json(pairs, TEST_SET, "captions.json")
    if place.unseen_scenes:
        seed = place.seed + _UNSEEN_SEED
        write_test_set(place.files.at(UNSEEN), place.unseen_scenes, seed, some_of=unseen)


def write_negatives(place: Place, name: str, writing: WritingConfig) -> None:
    """Write negatives of all pairs of a world into its folder ``name``; existing ones are kept."""
    rules = NegativesConfig(input=place.files.at(ALL), negatives=writing, cluster=place.cluster)
    negatives(rules, place.files.at(name), say_nothing)


def say_nothing(line: str) -> None:
    """Messages of inner runs are discarded."""
