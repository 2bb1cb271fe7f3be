"""Sequential fine-tuning of the whole model, unprotected: what every other method is held against."""

from raycomp.continual.methods.tuner import Tuner


class Finetune(Tuner):
    """CLIP's loss of each task's own rows, all weights trained; of all tasks at once it is the joint one."""
