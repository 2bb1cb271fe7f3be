"""What is left of task after task on the little world: COMPO-REALIGN, its ablations, its rivals and controls.

    raycomp continual jobs/continual_world.py:quick --out out/continual-quick
    raycomp continual jobs/continual_world.py --out out/continual

Three tracks. A, ``world``: a tiny CLIP that was trained on 24 of the 64 pairs of colour and shape meets four
tasks of 8 new pairs each; 8 more are never learned. B, ``domains``: four domains whose shapes are disjoint.
C, ``questions-scene`` and ``questions-function``: questions with candidate answers that are ranked as texts.
Main figure, fixed in advance: recall@1 by the fused score (w = .5) among what all tasks ask together, the
mean of both ways, after the last task, less that of the frozen model; of questions the share answered right.
Ten seeds over five backbones, each with an order of tasks of its own, intervals over backbones; three seeds
of the methods that train the model itself, at most 60 steps a task. No dial was tuned here: learning rates
are those of the prototype, 1e-3 of a head and 1e-4 of a model.

Cost: 79 minutes on 2 cores, with tests beside it for a quarter of them; `quick` 14.5.
Result: bench/RESULTS.md, bench/results/continual_world.csv. Heads gain little over the frozen model without
images in their memory; of 37 published differences of COMPO-REALIGN 8 reappear on ``world``, 7 are reversed.
"""

from dataclasses import replace

from raycomp.continual.config import ContinualConfig, LittleConfig

TRACKS = ("world", "domains", "questions-scene", "questions-function")


def config() -> ContinualConfig:
    """All methods on all tracks."""
    little = LittleConfig(backbones=5)
    return ContinualConfig(stream=TRACKS, method=("all",), seeds=10, tune_seeds=3, little=little)


def quick() -> ContinualConfig:
    """One backbone, one seed."""
    return replace(config(), seeds=1, tune_seeds=1, little=LittleConfig())
