"""The share of a corpus that is kept by alignment, and the composition of a CLIP trained on it.

    raycomp sweep jobs/sweep_retention.py --out out/retention
    raycomp sweep jobs/sweep_retention.py:quick --out out/retention-quick
    raycomp sweep jobs/sweep_retention.py:methods --out out/methods

The retention-ratio curve of Go et al. (arXiv 2605.22651), Table 1, on the little world: the best aligned 100,
80, 70 and 50 % of a world's 4,000 pairs, a third of which have a planted fault. Two worlds are for selection,
two more are held out for the report. The paper's own figures (CC3M, one seed) are drawn with the curve and
labelled. ``quick`` omits the two held-out worlds, has 2,000 pairs and 400 scenes in a world, half as many,
and takes 200 steps instead of 300. ``methods`` tunes the learning rate alike for CLIP and NegCLIP: the same
three draws of one range for each.

Cost: 4 worlds and 10 trainings of 300 steps, two at a time: 23 minutes on 2 cores under light load; ``quick``
14.5 on idle cores. The same command resumes an interrupted sweep; no training is repeated.
Result: bench/RESULTS.md.
"""

from dataclasses import replace

from raycomp.sweep.config import SweepConfig, WorldsConfig
from raycomp.training.config import FitConfig, TrainConfig

FIT = FitConfig(
    steps=300, batch_size=64, learning_rate=7e-4, warmup=0.1, crop=(1.0, 1.0), checkpoint_steps=100
)


def config() -> SweepConfig:
    """Four ratios, two seeds each, two more for the best."""
    return SweepConfig(
        space="select.rule=align_only attribute.keep=grid(1.0,0.8,0.7,0.5)",
        metric="world.accuracy",
        seeds=2,
        report_seeds=2,
        published="retention",
        train=TrainConfig(train=FIT),
    )


def quick() -> SweepConfig:
    """Four ratios, two seeds each, in smaller worlds: the curve, without the best trial on held-out
    worlds."""
    worlds = WorldsConfig(pairs=2000, scenes=400)
    return replace(config(), report_seeds=0, worlds=worlds, train=TrainConfig(train=replace(FIT, steps=200)))


def methods() -> SweepConfig:
    """CLIP and NegCLIP on the paper's subset, the learning rate of each tuned alike."""
    space = "train.loss=grid(clip,negclip) train.num_negatives=2 train.learning_rate=loguniform(2e-4,2e-3)"
    return replace(config(), space=space, search="random", num_samples=3, per="train.loss", published=None)
