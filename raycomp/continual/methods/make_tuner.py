"""Construct the learner of a method by its name."""

from raycomp.config.check import check_choice
from raycomp.continual.config import ContinualConfig
from raycomp.continual.methods.c_clip import CClip
from raycomp.continual.methods.cl_moe import ClMoe
from raycomp.continual.methods.diki import Diki
from raycomp.continual.methods.finetune import Finetune
from raycomp.continual.methods.learner import Learner
from raycomp.continual.methods.tuner import Tuner
from raycomp.continual.methods.zscl import Reference, Zscl
from raycomp.models.clip import Clip
from raycomp.models.spec import ScorerSpec

ZSCL = "zscl"
PLAIN: dict[str, type[Tuner]] = {"finetune": Finetune, "c-clip": CClip, "diki": Diki, "cl-moe": ClMoe}
TUNERS = (*PLAIN, ZSCL)


def make_tuner(
    learner: str | type,
    clip: Clip,
    spec: ScorerSpec,
    config: ContinualConfig,
    seed: int,
    reference: Reference | None = None,
) -> Learner:
    """Return a new learner of a copy of the model; zscl needs a reference. ``learner`` may be your own class.

    Raises UserError if the model does not fit the method.
    """
    if isinstance(learner, type):
        return learner(clip, spec, config, seed)
    check_choice("learner", learner, TUNERS)
    if learner == ZSCL:
        return Zscl(clip, spec, config, seed, reference)
    return PLAIN[learner](clip, spec, config, seed)
