"""The cost of a percentage point of faulty pairs for a CLIP that is trained on them, for each kind of fault.

    raycomp slope jobs/fault_slopes.py:quick --out out/slopes-quick
    raycomp slope jobs/fault_slopes.py --out out/slopes

Six worlds, four kinds of fault, a tiny CLIP trained from random weights on 2,000 pairs of which 0, 10, 20, 33
or 50 % are faulty, tested on 4,000 scenes. Captions, initial weights and batches of a world are the same at
every share. The registered figure is the slope of composition (mean accuracy over negatives that replace an
object, an attribute or a relation, or swap two attributes) up to 20 % of faulty pairs, the share that a gate
leaves. Wrong relations are left out: no rule of the screen finds them, because these CLIPs are near chance on
relations.

Expected before any training: .2 points per percentage point. In an earlier study a random half differed by 7
points from a half without faults (33 % faulty pairs); a single kind has a part of this. Detectable, if
composition of a training varies by 1.5 points between worlds: .15 points per percentage point up to 20 %, .06
over all shares.

Consequence: a training that compares two selection rules is worth its time only if one rule keeps fewer
faulty pairs, and two conditions hold. The difference in percentage points (lower end of its interval), times
the slope (lower end), is more than such a comparison can detect (1.5 points with 12 worlds). The difference
is at least 3.

Cost: some 40 CPU seconds a training: 120 trainings in 40 minutes (estimated) on 2 idle cores; 1 hour 42
minutes with other work. `quick`: 4 minutes.
Result: .04 to .06 points per percentage point up to 20 % for three kinds; for the missing stamp faulty pairs
raise composition, by .05. So no comparison of rules is worth a training here (docs/study_pas.md).
"""

from dataclasses import replace

from raycomp.screen.config import SlopeConfig

KINDS = ("wrong_object", "phantom_object", "wrong_attribute", "missing_stamp")


def config() -> SlopeConfig:
    """Four kinds, six worlds: 120 trainings."""
    return SlopeConfig(kinds=KINDS)


def quick() -> SlopeConfig:
    """Two kinds, one world, three shares."""
    return replace(config(), worlds=2, kinds=("wrong_object", "wrong_attribute"), shares=(0.0, 0.2, 0.5))
