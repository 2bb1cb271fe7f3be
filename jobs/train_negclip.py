"""NegCLIP (arXiv 2210.01936): hard negatives of the captions are additional negatives for every image.

    raycomp curate --set input='/data/cc3m/*.tar' --out out/cc3m
    raycomp negatives --set input=out/cc3m --set negatives.engine=vllm --out out/cc3m-negatives
    raycomp train jobs/train_negclip.py --out out/cc3m-negclip
    raycomp train jobs/train_negclip.py:finetune --out out/cc3m-negclip-tuned
    raycomp negatives --set input=out/cc3m --set negatives.engine=vllm --set negatives.calls=2 \
        --out out/cc3m-negatives-2
    raycomp train jobs/train_negclip.py:mc --out out/cc3m-negclip-mc

    python -m lab demo --out out/demo
    raycomp negatives --set input=out/demo/curated --out out/demo-negatives
    raycomp train jobs/train_negclip.py:little --out out/demo-negclip
    raycomp negatives --set input=out/demo/curated --set negatives.calls=2 --out out/demo-negatives-2
    raycomp train jobs/train_negclip.py:little_mc --out out/demo-negclip-mc

Settings: those of jobs/train_clip.py, so that only the loss and the negatives differ. Go et al. (arXiv
2605.22651) compare losses in this way, and arXiv 2510.26302 numbers of calls; neither states its settings.
With several calls each caption has negatives of one call and of two. `finetune` has the method's own:
OpenAI's weights, batch 256, 5 epochs, rate 1e-6, 50 steps of warm-up; it was made for COCO.

Cost: an estimate, about 1.2 hours of one A100 (jobs/train_clip.py explains it; a second text adds 6 GFLOP to
a pair's 33), without the negatives. The little-world variants: some 4 minutes on 2 cores.
Expected: SugarCrepe 59.53 on the half by the paper's rule, 58.91 on all pairs (Go et al.); "overall" on CC3M
57.18 with one call, 59.02 with two (arXiv 2510.26302). Unverified: was not run here, nor was `little_mc`.
Result of `little`, seed 0, older code: loss 4.642 to 0.400, recall@1 among 1,000 unseen pairs .590 and .594;
images score their caption above a SWAP of it in .637 (REPLACE .881, ADD .965), jobs/train_clip.py's in .629
(.871, .960). On 2 very busy cores, 19,200 pairs in 564 s, half of the steps at 91 samples/s or more.
"""

from dataclasses import replace
from pathlib import Path

from raycomp.config import ModelConfig, load_job
from raycomp.training.config import TrainConfig


def config() -> TrainConfig:
    """Negatives of one call."""
    return _add_negatives("config", "out/cc3m-negatives")


def mc() -> TrainConfig:
    """Negatives of one call and of two."""
    return replace(config(), negatives="out/cc3m-negatives-2")


def finetune() -> TrainConfig:
    """OpenAI's weights, at the method's own rate."""
    steps = 5 * (1_111_131 // 256)
    fit = replace(config().train, epochs=5, batch_size=256, learning_rate=1e-6, warmup=50 / steps)
    fit = replace(fit, weight_decay=0.2, beta2=0.98, eps=1e-6)
    return replace(config(), model=ModelConfig(name="ViT-B-32", weights="openai"), train=fit)


def little() -> TrainConfig:
    """The variant of ``config`` on the little world."""
    return _add_negatives("little", "out/demo-negatives")


def little_mc() -> TrainConfig:
    """The variant of ``mc`` on the little world."""
    return replace(little(), negatives="out/demo-negatives-2")


def _add_negatives(variant: str, negatives: str) -> TrainConfig:
    clip = load_job(f"{Path(__file__).with_name('train_clip.py')}:{variant}")
    return replace(clip, negatives=negatives, train=replace(clip.train, loss="negclip"))
