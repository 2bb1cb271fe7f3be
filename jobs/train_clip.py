"""CLIP, a ViT-B/32 from scratch, on a curated half of CC3M; and a variant on the little world.

    raycomp curate --set input='/data/cc3m/*.tar' --out out/cc3m
    raycomp train jobs/train_clip.py --out out/cc3m-clip

    python -m lab demo --out out/demo                                  # 5 to 7 minutes on 2 cores
    raycomp train jobs/train_clip.py:little --out out/demo-clip

Settings. The model, the corpus and its half of 1,111,131 pairs by the paper's rule, the default of
``curate``, are from Go et al. (arXiv 2605.22651), who train every subset from one initialisation and state
neither batch, rate nor steps. Those are from TripletCLIP's public script, which pretrains at this size: batch
1,024, 10 epochs (10,850 steps here), AdamW 5e-4 with weight decay .5, betas .9 and .999, eps 1e-8, 1,000
steps of warm-up, bf16. All losses share them.

Cost: an estimate, about 1 hour of one A100 with 16 cores to decode. A pair takes 33 GFLOP (8.8 for an image,
2.1 for a text of 27 tokens, three times with the gradients), a third of the card's peak in bf16 is 100
TFLOP/s, so 3,000 of the 11.1 million pairs each second. The little-world variant: some 2 minutes on 2 cores.
Expected, from Go et al.: SugarCrepe 58.49 (all pairs: 57.78), VL-CheckList-VG relation 39.62 (37.71), with
other steps and another rate than these. Unverified: was not run here.
Result of the little-world variant, seed 0, on the pairs of an earlier default rule: loss 4.304 to 0.285,
recall@1 among 1,000 unseen pairs .508 and .537; images score their caption above a SWAP of it in .629
(REPLACE .871, ADD .960). On 2 busy cores, 19,200 pairs in 242 s, half of the steps at 294 samples/s or more;
bench/RESULTS.md compares the losses.
"""

from raycomp.config import ModelConfig
from raycomp.training.config import FitConfig, TrainConfig


def config() -> TrainConfig:
    """The half of CC3M that the paper's rule keeps, the default of ``raycomp curate``."""
    return TrainConfig(
        input="out/cc3m",
        model=ModelConfig(name="ViT-B-32", weights="random:0"),
        train=FitConfig(
            epochs=10,
            batch_size=1024,
            learning_rate=5e-4,
            warmup=1000 / 10_850,
            weight_decay=0.5,
            beta2=0.999,
            eps=1e-8,
            autocast=True,
        ),
    )


def little() -> TrainConfig:
    """The 1,475 pairs that the demo keeps, the demo's architecture."""
    return TrainConfig(
        input="out/demo/curated",
        model=ModelConfig(name="out/demo/scorer/model.json", weights="random:0"),
        train=FitConfig(steps=300, batch_size=64, learning_rate=7e-4, warmup=0.1),
    )
