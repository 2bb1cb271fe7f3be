"""The demo: curate a little world with planted faults, then train on hard negatives of the kept pairs.

It runs the same commands as real data, one after another in one Ray session; only the models, the photos and
the test set are small.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raycomp.config import ClusterConfig, ModelConfig, ScorerConfig, WavesConfig
from raycomp.config.check import MOST_WHOLE, check
from raycomp.curate.command import curate
from raycomp.curate.config import AlignConfig, AttributeConfig, CurateConfig
from raycomp.demo.figures import describe_limits, find_figures, report_accuracies, report_others
from raycomp.demo.planted import FAULT, make_tables
from raycomp.evaluate import retrieval
from raycomp.evaluate.benchmarks import world as world_benchmark
from raycomp.evaluate.command import evaluate
from raycomp.evaluate.compare_command import compare
from raycomp.evaluate.config import BenchmarkConfig, EvaluateConfig, RetrievalConfig
from raycomp.evaluate.world import write_test_set
from raycomp.negatives.command import negatives
from raycomp.negatives.config import NegativesConfig
from raycomp.report.frame import INDEX, link_index
from raycomp.report.page import render_page
from raycomp.run.progress import Progress
from raycomp.run.session import connect
from raycomp.train.command import train
from raycomp.train.config import FitConfig, TrainConfig
from raycomp.train.little_world import FIT, TEST_SEED, TrainedScorer, World, make_world

# About a minute on two cores. The rate was selected in another world, that of seed 1: docs/training.md.
NEGCLIP = FitConfig(
    loss="negclip",
    steps=200,
    batch_size=64,
    num_negatives=2,
    learning_rate=2e-4,
    warmup=0.1,
    checkpoint_steps=100,
)
NUM_SCENES = 1000
"""Sizes of the test set."""


class _Clock:
    """Prints lines, each with the seconds since the previous one."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._started = self._reported_at = time.perf_counter()

    def report(self, line: str) -> None:
        now = time.perf_counter()
        self._say(f"{line} ({now - self._reported_at:.0f} s)")
        self._reported_at = now

    @property
    def spent(self) -> str:
        return f"{time.perf_counter() - self._started:.0f} s"


def demo(out: str, seed: int = 0, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run all steps below the local folder ``out``; return the contents of the curation's run.json.

    A world and a tiny CLIP that an earlier demo with this seed finished there are reused, as is each finished
    step; an interrupted step resumes. The curation's report is written first; index.html, written last, links
    all reports.
    """
    if "://" in out:
        raise ValueError(f"out={out!r}: the demo needs a local folder")
    check(0 <= seed <= MOST_WHOLE, "--seed", seed, f"between 0 and {MOST_WHOLE:,}")
    clock = _Clock(say)
    world, trained = _make(out, seed, clock)
    config = make_config(world, trained)
    with connect(ClusterConfig(), scores=False, say=clock.report):
        curated = curate(config, f"{out}/curated", clock.report, lambda scores: make_tables(scores, config))
        start = ModelConfig(trained.scorer.model, trained.scorer.weights)
        taught = _teach(start, out, clock)
        models = {"clip": start, "negclip": ModelConfig(weights=f"{out}/negclip")}
        compared = _examine(models, world, out, seed, clock)
    _write_index(trained, {"curated": curated, **taught, "compared": compared}, out)
    say(f"demo done ({clock.spent}); open {out}/{INDEX}")
    return curated


def _make(out: str, seed: int, clock: _Clock) -> tuple[World, TrainedScorer]:
    """Return the world and the tiny CLIP, existing or new."""
    made = Path(out) / "made.json"
    if made.is_file() and json.loads(made.read_text())["seed"] == seed:
        world, trained = _read_made(made)
        clock.report(f"little world and tiny CLIP: those in {out}")
    else:
        world = make_world(f"{out}/world", seed)
        clock.report(f"little world: shards of rendered scenes in {out}/world")
        trained = _train(world, out, seed)
        made.write_text(json.dumps({"seed": seed, "world": asdict(world), "trained": asdict(trained)}))
    clock.report(
        f"tiny CLIP: {len(trained.losses)} steps on {trained.num_train:,} clean pairs; recall@1 among "
        f"{trained.num_held_out:,} unseen pairs {trained.image_to_text:.3f} image to text, "
        f"{trained.text_to_image:.3f} text to image"
    )
    return world, trained


def _train(world: World, out: str, seed: int) -> TrainedScorer:
    from raycomp.train.tiny_clip import train_scorer

    assert FIT.steps
    with Progress("train", FIT.steps, unit="step") as progress:
        return train_scorer(world, f"{out}/scorer", seed, FIT, lambda step, loss: progress.finish_one())


def _read_made(path: Path) -> tuple[World, TrainedScorer]:
    made = json.loads(path.read_text())
    trained = {**made["trained"], "scorer": ScorerConfig(**made["trained"]["scorer"])}
    return World(**made["world"]), TrainedScorer(**trained)


def make_config(world: World, trained: TrainedScorer) -> CurateConfig:
    """Return the demo's config: the paper's ratios, every pair attributed, so both scores cover all rows."""
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


def _teach(model: ModelConfig, out: str, clock: _Clock) -> dict[str, Any]:
    """Write rule-based hard negatives of the kept pairs; fine-tune with them. Return both runs."""
    source = f"{out}/curated"
    written = negatives(NegativesConfig(input=source), f"{out}/negatives", clock.report)
    config = TrainConfig(input=source, negatives=f"{out}/negatives", model=model, train=NEGCLIP)
    return {"negatives": written, "negclip": train(config, f"{out}/negclip", clock.report)}


def _examine(
    models: dict[str, ModelConfig], world: World, out: str, seed: int, clock: _Clock
) -> dict[str, Any]:
    """Evaluate models on unseen scenes and pairs; return the run that compares two of them."""
    test_set = Path(out, "exam")
    if not (test_set / world_benchmark.FILE).is_file():  # written last
        write_test_set(str(test_set), NUM_SCENES, seed + TEST_SEED)
    before, after = (f"{out}/evaluated/{name}" for name in models)
    for folder, model in zip((before, after), models.values(), strict=True):
        config = EvaluateConfig(
            model,
            (world_benchmark.NAME, retrieval.NAME),
            world=BenchmarkConfig(str(test_set)),
            retrieval=RetrievalConfig(world.held_out),
        )
        evaluate(config, folder, _say_nothing)
        clock.report(f"evaluated: {folder}/report.html")
    return compare([before, after], f"{out}/compared", clock.report)


def _say_nothing(line: str) -> None:
    """Its lines are those of the page."""


def _write_index(trained: TrainedScorer, runs: dict[str, dict[str, Any]], out: str) -> None:
    figures = find_figures(f"{out}/evaluated/clip", f"{out}/evaluated/negclip")
    page = render_page(
        "demo/page.html.jinja",
        learned=asdict(trained),
        runs=runs,
        means=(figures.mean.before, figures.mean.after),
        reported=describe_limits(figures),
        figures=[report_accuracies(figures), report_others(figures)],
    )
    Path(out, INDEX).write_text(page, "utf-8")
    for report in (*Path(out).glob("*/report.html"), *Path(out).glob("*/*/report.html")):
        up = "../" * len(report.parent.relative_to(out).parts)
        report.write_text(link_index(report.read_text("utf-8"), f"{up}{INDEX}"), "utf-8")
