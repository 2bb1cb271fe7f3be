"""From a method's name to what learns."""

from raycomp.config.check import check_choice
from raycomp.config.continual import ContinualConfig
from raycomp.loops.continual.finetune import Finetune
from raycomp.loops.continual.learner import Learner
from raycomp.models.clip import Clip, ScorerSpec

TUNERS = {"finetune": Finetune}


def make_tuner(learner: str, clip: Clip, spec: ScorerSpec, config: ContinualConfig, seed: int) -> Learner:
    """Return a learner of a copy of the model, new. Raises UserError where the model does not fit it."""
    check_choice("learner", learner, tuple(TUNERS))
    return TUNERS[learner](clip, spec, config, seed)
