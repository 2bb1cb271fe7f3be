"""Pairs and negatives that teach a CLIP composition, on the little world, with known ground truth.

    raycomp study jobs/world_study.py:quick --out out/world-study-quick
    raycomp study jobs/world_study.py --out out/world-study

Two contrasts are registered, on the mean accuracy of SWAP object, SWAP attribute, REPLACE object and REPLACE
relation: CLIP on cpi50 minus align50 (Go et al., arXiv 2605.22651, whose gains are .5 to 1.9 points), and
cpi50 minus align70_random50, which isolates the gain of PAS over an alignment gate. A third one, oracle50
minus random50, measures the gain from removing faulty pairs. cpi50 and align50 are one choice per world,
whatever the seed of a training. With few worlds and many seeds the interval over seeds covers only these
worlds' choices, so every seed has a world of its own. Then seven methods on all pairs, NegCLIP on the halves,
and NegCLIP with negatives of one operation, three seeds each. CE-CLIP with multi-call negatives is our own
addition: its paper and that of multi-call negatives (arXiv 2510.26302) have none. The same command resumes an
interrupted study.

Cost: an estimate from the CPU seconds of a step on one thread (CLIP .18, NegCLIP .31, CE-CLIP .45,
TripletCLIP .35), of a run's evaluation (9), of a world (some 150) and of its negatives (some 420, in three
worlds): 2 hours on 2 idle cores.
`quick`: 8 minutes.
Result: docs/study_world.md, from trainings with other negatives and draws; both contrasts undecided, 0.04
[-1.05, 1.14] and 0.95 [-0.29, 2.19] points. Ten null contrasts (same start, two random halves) had a paired
SD of 1.9 points: with 12 seeds a difference of 1.7 is found in 80 % of studies.
"""

from dataclasses import replace

from raycomp.study.config import StudyConfig

PRIMARY = ("clip-cpi50", "clip-align50", "clip-align70_random50", "clip-oracle50", "clip-random50")


def config() -> StudyConfig:
    """The whole study: 105 trainings."""
    return StudyConfig(worlds=12, seeds=12)


def quick() -> StudyConfig:
    """The five runs of the contrasts, one seed on each of two worlds."""
    return replace(config(), worlds=2, seeds=2, runs=PRIMARY)
