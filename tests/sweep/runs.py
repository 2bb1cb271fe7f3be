"""Trainings that take no time, for tests of what Ray Tune makes of trials; workers import them by name."""

import math
import time

from raycomp.sweep.seed_training import Result
from raycomp.table import Estimate

METRIC = "world.accuracy.macro"


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
    return Result({METRIC: Estimate(value, math.nan, math.nan)}, 90 // training.divisor)
