"""The demo: a little world with planted faults; a tiny CLIP trained on a clean part, another part curated.

The very curate command that real data go through; only the scorer and the photos are small.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raycomp.cluster.curate.command import curate
from raycomp.cluster.demo.planted import FAULT, make_tables
from raycomp.cluster.progress import Progress
from raycomp.config import AlignConfig, AttributeConfig, CurateConfig, ScorerConfig, WavesConfig
from raycomp.loops.train.little_world import FIT, TrainedScorer, World, make_world, train_scorer


def demo(out: str, seed: int = 0, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Make the world, train, curate and report below the local folder ``out``; return what run.json holds.

    A world and a scorer that an earlier demo with this seed finished there are used again.
    """
    started = time.perf_counter()
    made = Path(out) / "made.json"
    if "://" in out:
        raise ValueError(f"out={out!r}: the demo needs a local folder")
    if made.is_file() and json.loads(made.read_text())["seed"] == seed:
        world, trained = _read_made(made)
        say(f"little world and tiny CLIP: those in {out}")
    else:
        world = make_world(f"{out}/world", seed)
        say(f"little world: shards of rendered scenes in {out}/world ({_spent(started)})")
        trained = _train(world, out, seed)
        made.write_text(json.dumps({"seed": seed, "world": asdict(world), "trained": asdict(trained)}))
    say(
        f"tiny CLIP: {len(trained.losses)} steps on {trained.num_train:,} clean pairs; recall@1 among "
        f"{trained.num_held_out:,} unseen pairs {trained.image_to_text:.3f} image to text, "
        f"{trained.text_to_image:.3f} text to image ({_spent(started)})"
    )
    config = make_config(world, trained)
    run = curate(config, f"{out}/curated", say, lambda scores: make_tables(scores, config))
    say(f"demo done ({_spent(started)}); open {out}/curated/report.html")
    return run


def _train(world: World, out: str, seed: int) -> TrainedScorer:
    assert FIT.steps
    with Progress("train", FIT.steps, unit="step") as progress:
        return train_scorer(world, f"{out}/scorer", seed, FIT, lambda step, loss: progress.finish_one())


def _read_made(path: Path) -> tuple[World, TrainedScorer]:
    made = json.loads(path.read_text())
    trained = {**made["trained"], "scorer": ScorerConfig(**made["trained"]["scorer"])}
    return World(**made["world"]), TrainedScorer(**trained)


def _spent(started: float) -> str:
    return f"{time.perf_counter() - started:.0f} s"


def make_config(world: World, trained: TrainedScorer) -> CurateConfig:
    """Return the demo's config: the paper's ratios, every pair attributed, so both scores see all rows."""
    return CurateConfig(
        input=world.curate,
        scorer=trained.scorer,
        align=AlignConfig(keep=0.7),
        attribute=AttributeConfig(keep=0.5, pool=1.0),
        waves=WavesConfig(shards_per_wave=4),
        extra_columns=(FAULT,),
        # A planted share of the images is corrupt.
        max_bad_fraction=0.2,
    )
