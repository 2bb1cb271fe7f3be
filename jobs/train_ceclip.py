"""CE-CLIP (arXiv 2306.08832): NegCLIP's loss, a contrast among captions, and a rank with growing margins.

    raycomp train jobs/train_ceclip.py --out out/cc3m-ceclip
    raycomp train jobs/train_ceclip.py:finetune --out out/cc3m-ceclip-tuned
    raycomp train jobs/train_ceclip.py:mc --out out/cc3m-ceclip-mc
    raycomp train jobs/train_ceclip.py:little --out out/demo-ceclip
    raycomp train jobs/train_ceclip.py:little_mc --out out/demo-ceclip-mc

First run the curations and negatives of jobs/train_negclip.py, with all 4 of a caption's negatives in a
batch: `--set negatives.per_caption=4`. The little-world variants use the 3 that are written without it.

Settings: those of jobs/train_negclip.py; the method's own are 4 negatives and the weights .3 (captions) and
.2 (rank). `finetune` has all of the method's: OpenAI's weights, batch 1,512 (4 x 378), 10 epochs of which it
evaluates the fifth, rate 5e-6, 50 steps of warm-up, weight decay .1; it was made for COCO.

Cost: an estimate, about 1.8 hours of one A100 (jobs/train_clip.py explains it; 4 more texts add 25 GFLOP to a
pair's 33), without the negatives. The little-world variants: some 5 minutes on 2 cores.
Expected: SugarCrepe 61.07 on the half by the paper's rule, 60.20 on all pairs (Go et al., arXiv 2605.22651);
no figure is published for several calls. Unverified: was not run here, nor was `little_mc`.
Result of `little`, seed 0: loss 10.278 to 1.292, recall@1 among 1,000 unseen pairs .305 and .377; images
score their caption above a SWAP of it in .624 (REPLACE .821, ADD .950): worse than jobs/train_clip.py's at
each. The method's weights were made for fine-tuning; here they train a model from scratch. On 2 busy cores,
19,200 pairs in 390 s, half of the steps at 92 samples/s or more.
"""

from dataclasses import replace
from pathlib import Path

from raycomp.config import load_job
from raycomp.training.config import TrainConfig


def config() -> TrainConfig:
    """Negatives of one call."""
    return _rank("config")


def mc() -> TrainConfig:
    """Negatives of one call and of two."""
    return _rank("mc")


def finetune() -> TrainConfig:
    """OpenAI's weights, at the method's own rate."""
    tuned, steps = _rank("finetune"), 10 * (1_111_131 // 1512)
    fit = replace(tuned.train, epochs=10, batch_size=1512, learning_rate=5e-6, warmup=50 / steps)
    return replace(tuned, train=replace(fit, weight_decay=0.1))


def little() -> TrainConfig:
    """The variant of ``config`` on the little world."""
    return _rank("little")


def little_mc() -> TrainConfig:
    """The variant of ``mc`` on the little world."""
    return _rank("little_mc")


def _rank(variant: str) -> TrainConfig:
    negclip = load_job(f"{Path(__file__).with_name('train_negclip.py')}:{variant}")
    return replace(negclip, train=replace(negclip.train, loss="ceclip", num_negatives=4, imc=0.3, cmr=0.2))
