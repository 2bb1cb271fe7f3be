"""Sequential fine-tuning of the whole model without protection: the reference for the other methods."""

from raycomp.continual.methods.tuner import Tuner


class Finetune(Tuner):
    """CLIP's loss of each task's own rows, all weights trained; on all tasks at once it is joint training."""
