"""The share of a little world's pairs that is kept by alignment, and the composition of a CLIP trained on it.

    python -m lab worlds --out out/worlds
    raycomp sweep lab/jobs/sweep_worlds.py --out out/retention
    python -m lab curves out/retention

    python -m lab worlds --set count=2 --set pairs=2000 --set scenes=400 --out out/small-worlds
    raycomp sweep lab/jobs/sweep_worlds.py:quick --out out/retention-quick
    raycomp sweep lab/jobs/sweep_worlds.py:methods --out out/methods

The retention-ratio curve of Go et al. (arXiv 2605.22651), Table 1: the best aligned 100, 80, 70 and 50 % of
a world's 4,000 pairs, a third of which have a planted fault. Two worlds are for selection, two more are held
out for the report. ``quick`` omits the two held-out worlds, has half as many pairs and scenes in a world, and
takes 200 steps instead of 300. ``methods`` tunes the learning rate alike for CLIP and NegCLIP: the same three
draws of one range for each.

Cost: 4 worlds and 10 trainings of 300 steps, two at a time: 23 minutes on 2 cores under light load; ``quick``
14.5 on idle cores (measured at commit 99f0179, whose sweeps made their worlds themselves). The same commands
resume what was interrupted; no training is repeated.
Result: bench/RESULTS.md.
"""

from dataclasses import replace

from lab.sweep.worlds import name_worlds
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import FitConfig

WORLDS, SMALL_WORLDS = "out/worlds", "out/small-worlds"
FIT = FitConfig(
    steps=300, batch_size=64, learning_rate=7e-4, warmup=0.1, crop=(1.0, 1.0), checkpoint_steps=100
)


def config() -> SweepConfig:
    """Four ratios, two worlds each, two more for the best."""
    space = "select.rule=align_only attribute.keep=grid(1.0,0.8,0.7,0.5)"
    return SweepConfig(space=space, metric="world.accuracy", train=FIT, **name_worlds(WORLDS))


def quick() -> SweepConfig:
    """Four ratios, two small worlds each: the curve, without the best trial on held-out worlds."""
    fit = replace(FIT, steps=200)
    return replace(config(), report_seeds=0, train=fit, **name_worlds(SMALL_WORLDS))


def methods() -> SweepConfig:
    """CLIP and NegCLIP on the paper's subset, the learning rate of each tuned alike."""
    space = "train.loss=grid(clip,negclip) train.num_negatives=2 train.learning_rate=loguniform(2e-4,2e-3)"
    return replace(config(), space=space, search="random", num_samples=3, per="train.loss")
