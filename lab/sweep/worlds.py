"""Numbered little worlds, one for each seed of a sweep: scored pairs, negatives by rules, a test set.

    python -m lab worlds --set count=4 --out out/worlds
    raycomp sweep lab/jobs/sweep_worlds.py --out out/retention

World N lies in OUT/N and lacks a few pairs of colour and shape, others in each world. The sweep names the
worlds of all of its seeds at once: ``curated=out/worlds/{seed}/curated`` (``name_worlds``).
"""

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

from lab.sweep.config import WorldsConfig
from lab.worlds.benchmark import FILE, WORLD
from lab.worlds.faults import DEFAULT_MIX
from lab.worlds.scenes import ALL_PAIRS, hold_out
from lab.worlds.shards import FIT, TEST_SEED, TINY_CLIP, World, make_world
from lab.worlds.write_test_set import write_test_set
from raycomp.config import ClusterConfig, DryRun, ModelConfig, ScorerConfig, WavesConfig, from_dict, to_dict
from raycomp.curation.config import AlignConfig, AttributeConfig, CurateConfig
from raycomp.data.files import Folder, absolute_uri, check_writable, is_dry_run
from raycomp.evaluation.config import BenchmarkConfig, EvaluateConfig
from raycomp.negatives.config import NegativesConfig
from raycomp.sweep.config import SEED

FAULT = "fault"
# Number of pairs that measure a scorer's retrieval.
_NUM_HELD_OUT = 500
_FAULTY = 3
"""One pair in this many has a fault; no image fails to decode."""
_MIX = {fault: share for fault, share in DEFAULT_MIX.items() if fault != "corrupt_image"}
_ALONE = ClusterConfig(executor="local", num_cpus=1, gpu=False)
# All pairs by both scores, and the paper's rule.
_SCORED = CurateConfig(
    align=AlignConfig(keep=0.7),
    attribute=AttributeConfig(keep=0.5, pool=1.0),
    waves=WavesConfig(shards_per_wave=4),
    extra_columns=(FAULT,),
    materialize=False,
    cluster=_ALONE,
)
_CONFIG, _MODEL, _MADE = "worlds.json", "model.json", "scorer.json"


def name_worlds(out: str) -> dict[str, Any]:
    """Return the options of a sweep whose seed N is trained and evaluated in world N below ``out``."""
    world = f"{out}/{SEED}"
    return {
        "curated": f"{world}/curated",
        "negatives": f"{world}/negatives",
        "model": ModelConfig(f"{out}/{_MODEL}", "random:0"),
        "evaluate": EvaluateConfig(benchmarks=(WORLD,), own=BenchmarkConfig(f"{world}/tests")),
    }


def make_worlds(config: WorldsConfig, out: str, say: Any = print) -> None:
    """Make the missing worlds below the local folder ``out``, as many at once as this machine has cores.

    Raises ValueError where the folder holds worlds of other options.
    """
    out = absolute_uri(str(out))
    if "://" in out:
        raise ValueError(f"out={out!r}: little worlds need a local folder")
    check_writable(out)
    if is_dry_run():
        raise DryRun(f"dry run of worlds: all checks passed, nothing was written; {config.count} worlds")
    folder, sizes = Folder(out), {**to_dict(config), "count": None}
    if folder.exists(_CONFIG) and folder.read_json(_CONFIG) != sizes:
        raise ValueError(f"out={out!r}: holds worlds of other options; name another folder")
    folder.write_json(sizes, _CONFIG)
    folder.write_json(TINY_CLIP, _MODEL)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        made = {pool.submit(make_one, config, out, number): number for number in range(config.count)}
        for future in as_completed(made):
            recalls = " and ".join(
                f"{future.result()[name]:.3f}" for name in ("image_to_text", "text_to_image")
            )
            say(f"world {made[future]}: made; scorer's recall@1 {recalls}")


def make_one(config: WorldsConfig, out: str, number: int) -> Mapping[str, float]:
    """Make one world, its missing parts alone; return its scorer's retrieval among held-out clean pairs."""
    from raycomp.curation.command import curate, select
    from raycomp.negatives.command import negatives

    folder, seed = Folder(f"{out}/{number}"), 100 * config.seed + number
    seen = ALL_PAIRS - hold_out(number)
    if not folder.exists(_MADE):
        _make_scorer(config, folder, seed, number)
    made = folder.read_json(_MADE)
    write_test_set(folder.at("tests"), config.scenes, seed + TEST_SEED, seen)
    captions = {row["image"]: row["caption"] for row in folder.read_json("tests", FILE)}
    # Its pictures and captions are a test set of retrieval, too.
    pairs = [{"image": image, "caption": caption} for image, caption in captions.items()]
    folder.write_json(pairs, "tests", "captions.json")
    scorer = from_dict(ScorerConfig(), made["scorer"])
    scored = replace(_SCORED, input=folder.at("world", "curate"), scorer=scorer)
    curate(scored, folder.at("curated"), _say_nothing)
    select(
        folder.at("curated"), {"select.rule": "full", "materialize": False}, folder.at("all"), _say_nothing
    )
    negatives(NegativesConfig(folder.at("all"), cluster=_ALONE), folder.at("negatives"), _say_nothing)
    return made


def _make_scorer(config: WorldsConfig, folder: Folder, seed: int, number: int) -> None:
    """Draw the world's shards; train its scorer on clean pairs of all colours and shapes, on one thread."""
    import torch

    from lab.worlds.tiny_clip import train_scorer

    torch.set_num_threads(1)
    num_faulty = config.pairs // _FAULTY
    world: World = make_world(
        folder.at("world"),
        seed,
        num_train=config.scorer_pairs,
        num_clean=config.pairs - num_faulty,
        num_faulty=num_faulty,
        num_held_out=_NUM_HELD_OUT,
        mix=_MIX,
        pairs=ALL_PAIRS - hold_out(number),
    )
    fit = replace(FIT, steps=config.scorer_steps, batch_size=config.batch_size)
    trained = train_scorer(world, folder.at("scorer"), seed, fit)
    scorer = {"model": trained.scorer.model, "weights": trained.scorer.weights}
    recalls = {name: getattr(trained, name) for name in ("image_to_text", "text_to_image")}
    folder.write_json({"scorer": scorer, **recalls}, _MADE)
    for part in ("train", "held_out"):
        folder.remove("world", part)


def _say_nothing(line: str) -> None:
    """Messages of inner runs are discarded."""
