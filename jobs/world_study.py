"""Which pairs and which negatives teach a CLIP composition, on the little world, where all is known.

    raycomp study jobs/world_study.py:quick --out out/world-study-quick
    raycomp study jobs/world_study.py --out bench/results/world-study

Cost: 3 hours on 2 cores; `quick` 20 minutes.
Expected: unverified.
"""

from dataclasses import replace

from raycomp.config import StudyConfig

PRIMARY = ("clip-cpi50", "clip-align50", "clip-align70_random50", "clip-oracle50", "clip-random50")


def config() -> StudyConfig:
    """The whole study."""
    return StudyConfig()


def quick() -> StudyConfig:
    """The five cells of the primary contrasts on one seed of each of two worlds."""
    return replace(config(), worlds=2, seeds=2, cells=PRIMARY)
