"""The demo: a small CLIP learns from a random half of a rendered corpus, from the best half by alignment, and
from the half that raycomp keeps.

It runs the same commands as real data; only the models, the images and the test set are small. The trainings
run at the same time, a process for each, while this process writes negatives.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

from lab.demo.config import DemoConfig
from lab.demo.figures import describe_limits, find_figures, report_accuracies, report_others
from lab.demo.halves import (
    ALIGNMENT,
    CHOSEN,
    NAMES,
    RANDOM,
    Example,
    Half,
    count_faults,
    head,
    list_examples,
    plot_halves,
    report_halves,
    say_all,
    say_others,
)
from lab.demo.planted import FAULT, make_tables
from lab.worlds.benchmark import FILE, WORLD
from lab.worlds.shards import FIT, TEST_SEED, TrainedScorer, World, make_world
from lab.worlds.write_test_set import write_test_set
from raycomp.config import ClusterConfig, DryRun, ModelConfig, ScorerConfig, WavesConfig, from_dict
from raycomp.curation.command import curate, select
from raycomp.curation.config import AlignConfig, AttributeConfig, CurateConfig, describe_rule
from raycomp.data.files import absolute_uri, check_writable, is_dry_run
from raycomp.evaluation import retrieval
from raycomp.evaluation.command import evaluate
from raycomp.evaluation.compare import compare
from raycomp.evaluation.config import BenchmarkConfig, EvaluateConfig, RetrievalConfig
from raycomp.models import deferred
from raycomp.negatives.command import negatives
from raycomp.negatives.config import NegativesConfig
from raycomp.report.page import INDEX, intervals, link_index, render_page
from raycomp.run.progress import Progress
from raycomp.training.command import train
from raycomp.training.config import TrainConfig

# The study's (docs/study_world.md): from random weights, as many steps for each half.
STEPS = 300
# Added to the demo's seed: the three models share no start with the scoring model.
_START_SEED = 6_000_000
NUM_SCENES = 800
"""Of the test set, as in the study."""


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


def demo(config: DemoConfig, out: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run all steps below the local folder ``out``; return the contents of the curation's run.json.

    A world and a tiny CLIP that an earlier demo with this seed finished there are reused, as is each finished
    step; an interrupted step resumes. The curation's report is written first; index.html, written last, links
    all reports.
    """
    if "://" in out:
        raise ValueError(f"out={out!r}: the demo needs a local folder")
    check_writable(absolute_uri(out))
    if is_dry_run():
        raise DryRun("dry run of demo: all checks passed, nothing was written; the demo takes some minutes")
    clock, seed = _Clock(say), config.seed
    world, trained = _make(out, seed, clock)
    curation = make_config(world, trained, config.cluster)
    curated = curate(curation, f"{out}/curated", clock.report, lambda scores: make_tables(scores, curation))
    sources = _select_halves(out, seed)
    # All at once on any number of cores: three on two would leave a core idle during the last.
    with ProcessPoolExecutor(len(NAMES), get_context("spawn"), deferred.install) as pool:
        learning = _start_trainings(pool, sources, trained, world, out, seed)
        written = negatives(NegativesConfig(input=f"{out}/curated"), f"{out}/negatives", _say_nothing)
        clock.report(
            f"{written['written']:,} hard negatives of the kept captions: {out}/negatives/report.html"
        )
        for name, run in zip(NAMES, learning, strict=True):
            loss = f"loss {run['first_loss']:.3f} to {run['last_loss']:.3f}"
            report = f"{out}/trained/{name}/report.html"
            clock.report(f"trained on {NAMES[name]}: {run['steps']} steps, {loss}; {report}")
    halves = _compare_halves(sources, out)
    runs = {"curated": curated, "negatives": written}
    against = find_figures(f"{out}/evaluated/{ALIGNMENT}", f"{out}/evaluated/{CHOSEN}")
    others = say_others(halves, against, describe_rule(curation))
    _write_index(trained, halves, others, runs, list_examples(curated, f"{out}/curated", world.curate), out)
    say(head(halves))
    say(others)
    say(f"demo done ({clock.spent}): {say_all(halves)}; open {out}/{INDEX}")
    return curated


def _make(out: str, seed: int, clock: _Clock) -> tuple[World, TrainedScorer]:
    """Return the world and the tiny CLIP, existing or new."""
    made, folder = Path(out) / "made.json", absolute_uri(out)  # made.json is valid in any working folder
    if made.is_file() and json.loads(made.read_text())["seed"] == seed:
        world, trained = _read_made(made)
        clock.report(f"little world and tiny CLIP: those in {out}")
    else:
        # Loading torch takes as long as the drawing, which other processes do.
        Thread(target=import_module, args=["lab.worlds.tiny_clip"]).start()
        world = make_world(f"{folder}/world", seed, processes=len(os.sched_getaffinity(0)))
        clock.report(f"little world: shards of rendered scenes in {out}/world")
        trained = _train(world, folder, seed)
        made.write_text(json.dumps({"seed": seed, "world": asdict(world), "trained": asdict(trained)}))
    clock.report(
        f"tiny CLIP: {len(trained.losses)} steps on {trained.num_train:,} clean pairs; recall@1 among "
        f"{trained.num_held_out:,} unseen pairs {trained.image_to_text:.3f} image to text, "
        f"{trained.text_to_image:.3f} text to image"
    )
    return world, trained


def _train(world: World, out: str, seed: int) -> TrainedScorer:
    from lab.worlds.tiny_clip import train_scorer

    assert FIT.steps
    with Progress("train", FIT.steps, unit="step") as progress:
        return train_scorer(world, f"{out}/scorer", seed, FIT, lambda step, loss: progress.finish_one())


def _read_made(path: Path) -> tuple[World, TrainedScorer]:
    made = json.loads(path.read_text())
    trained = {**made["trained"], "scorer": from_dict(ScorerConfig(), made["trained"]["scorer"])}
    return World(**made["world"]), TrainedScorer(**trained)


def make_config(world: World, trained: TrainedScorer, cluster: ClusterConfig) -> CurateConfig:
    """Return the config of the curation: the paper's rule; every pair has both scores."""
    return CurateConfig(
        input=world.curate,
        scorer=trained.scorer,
        align=AlignConfig(keep=0.7),
        attribute=AttributeConfig(keep=0.5, pool=1.0),
        cluster=cluster,
        waves=WavesConfig(shards_per_wave=4),
        extra_columns=(FAULT,),
        # A planted share of the images is corrupt.
        max_bad_fraction=0.2,
    )


def _select_halves(out: str, seed: int) -> dict[str, str]:
    """Return the folder of each half, by name."""
    sources = {CHOSEN: f"{out}/curated"}
    for name, rule in ((RANDOM, "random"), (ALIGNMENT, "align_only")):
        sources[name] = f"{out}/selected/{name}"
        settings = {"select.rule": rule, "seed": seed, "materialize": False}
        settings["cluster.executor"] = "local"
        select(f"{out}/curated", settings, sources[name], _say_nothing)
    return sources


def _start_trainings(
    pool: Executor, sources: dict[str, str], trained: TrainedScorer, world: World, out: str, seed: int
) -> Iterator[dict[str, Any]]:
    """Train a CLIP on each half from the same weights and evaluate it; return the records, in the order of
    ``NAMES``, as they end."""
    fit = replace(FIT, steps=STEPS, crop=(1.0, 1.0), fast_decode=True, seed=seed + _START_SEED)
    start = ModelConfig(trained.scorer.model, f"random:{fit.seed}")
    configs = [TrainConfig(input=sources[name], model=start, train=fit) for name in NAMES]
    learn = partial(_train_and_evaluate, out, _make_evaluation(world, out, seed))
    return pool.map(learn, NAMES, configs)


def _compare_halves(sources: dict[str, str], out: str) -> dict[str, Half]:
    """Compare the trained models; return the halves by name."""
    folders = [f"{out}/evaluated/{name}" for name in NAMES]
    compare(folders, None, f"{out}/compared", _say_nothing)
    figures = [None, *(find_figures(folders[0], other) for other in folders[1:])]
    counts = (count_faults(f"{out}/curated", sources[name]) for name in NAMES)
    found = zip(NAMES, counts, figures, strict=True)
    return {name: Half(name, *count, own) for name, count, own in found}


def _train_and_evaluate(
    out: str, evaluation: EvaluateConfig, name: str, config: TrainConfig
) -> dict[str, Any]:
    """Train on a half and evaluate the model; return the record of the training."""
    # One thread: as fast for so small a model, and the weights are the same on any number of cores.
    run = train(config, f"{out}/trained/{name}", _say_nothing, num_threads=1)
    model = ModelConfig(weights=f"{out}/trained/{name}")
    evaluate(replace(evaluation, model=model), f"{out}/evaluated/{name}", _say_nothing)
    return run


def _make_evaluation(world: World, out: str, seed: int) -> EvaluateConfig:
    """Return the evaluation on unseen scenes and pairs; write the scenes if they are missing."""
    test_set = Path(out, "exam")
    if not (test_set / FILE).is_file():  # written last
        write_test_set(str(test_set), NUM_SCENES, seed + TEST_SEED)
    return EvaluateConfig(
        benchmarks=(WORLD, retrieval.NAME),
        own=BenchmarkConfig(str(test_set)),
        retrieval=RetrievalConfig(world.held_out),
    )


def _say_nothing(line: str) -> None:
    """Its lines are those of the page."""


def _write_index(
    trained: TrainedScorer,
    halves: dict[str, Half],
    others: str,
    runs: dict[str, dict[str, Any]],
    examples: Sequence[Example],
    out: str,
) -> None:
    figures = halves[CHOSEN].figures
    assert figures is not None
    page = render_page(
        Path(__file__).with_name("page.html.jinja"),
        learned=asdict(trained),
        runs=runs,
        head=head(halves),
        others=others,
        halves=report_halves(list(halves.values())),
        steps=STEPS,
        chart=intervals(plot_halves(list(halves.values()))),
        examples=examples,
        reported=describe_limits(figures),
        figures=[report_accuracies(figures), report_others(figures)],
    )
    Path(out, INDEX).write_text(page, "utf-8")
    for report in (*Path(out).glob("*/report.html"), *Path(out).glob("*/*/report.html")):
        up = "../" * len(report.parent.relative_to(out).parts)
        report.write_text(link_index(report.read_text("utf-8"), f"{up}{INDEX}"), "utf-8")
