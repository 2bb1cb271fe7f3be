"""Sequential fine-tuning of the whole model, unprotected: what every other method is held against."""

import numpy as np
from torch import Tensor

from raycomp.continual.methods.tuner import Tuner, contrast_batch, encode


class Finetune(Tuner):
    """CLIP's loss of each task's own rows, all weights trained; of all tasks at once it is the joint one."""

    def losses(self, step: int, row_B: np.ndarray) -> dict[str, Tensor]:
        """Return CLIP's loss alone."""
        image_BD, text_BD = encode(self.model, self.batch(row_B))
        return {"clip": contrast_batch(image_BD, text_BD, self.group(row_B), self.model.logit_scale)}
