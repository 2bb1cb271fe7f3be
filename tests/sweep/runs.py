"""Trainings that take no time, for tests of what Ray Tune makes of trials; workers import them by name."""

import math
import time

from raycomp.config import to_dict
from raycomp.curation.config import AlignConfig, AttributeConfig, CurateConfig
from raycomp.sweep.trials import Result
from raycomp.table import Estimate

METRIC = "sugarcrepe.accuracy.macro"
SCORED = to_dict(CurateConfig(align=AlignConfig(keep=0.7), attribute=AttributeConfig(keep=0.5, pool=1.0)))
"""The options of a curation to select from."""


def note(job, options, training, folder) -> Result:
    """Leave a file for each start; the higher the learning rate below 1, the better; 1 fails, 2 breaks."""
    rate = float(options["train.learning_rate"])
    started = f"{job.folder}/started-{options['train.learning_rate']}-{training.name}-{time.time_ns()}"
    open(started, "x").close()
    if rate == 1:
        raise ValueError("train.loss: is not finite")
    if rate == 2:
        raise KeyError("ours")
    if rate == 3:
        raise OSError("disk full")
    value = rate + training.number / 100
    return {METRIC: Estimate(value, math.nan, math.nan)}, 90 // training.divisor
