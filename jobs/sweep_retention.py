"""The share of a corpus that is kept by alignment, and the composition of a CLIP trained on it.

    raycomp sweep jobs/sweep_retention.py --set curated=out/curated --out out/retention
    raycomp sweep jobs/sweep_retention.py:quick --set curated=out/curated --out out/retention-quick
    raycomp sweep jobs/sweep_retention.py:methods --set curated=out/curated --set negatives=out/negatives \\
        --out out/methods

The retention-ratio curve of Go et al. (arXiv 2605.22651), Table 1, on your own curation: its best aligned
100, 80, 70 and 50 %. Two seeds are for selection, two more are for the report. ``quick`` has one seed and no
report. ``methods`` tunes the learning rate alike for CLIP and NegCLIP on the paper's subset: the same three
draws of one range for each; ``negatives`` were written for all pairs (select.rule=full).

Files: SugarCrepe's annotations and COCO's images below data/, as in jobs/evaluate_composition.py.

Cost: 10 trainings of 3,000 steps at 256 pairs (``quick`` 4, ``methods`` 16), evaluations of 1,560 images.
Expected: in the paper the best share is 70 %: SugarCrepe 58.3, of all pairs 57.7. lab/jobs/sweep_worlds.py
has the same curve on drawn worlds, where it was run.
"""

from dataclasses import replace

from raycomp.config import ModelConfig
from raycomp.evaluation.config import BenchmarkConfig, EvaluateConfig
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import FitConfig


def config() -> SweepConfig:
    """Four ratios, two seeds each, two more for the best."""
    files = BenchmarkConfig("data/sugarcrepe/data", "data/coco/val2017")
    return SweepConfig(
        space="select.rule=align_only attribute.keep=grid(1.0,0.8,0.7,0.5)",
        metric="sugarcrepe.accuracy",
        model=ModelConfig("ViT-B-32", "random:0"),
        train=FitConfig(steps=3000),
        evaluate=EvaluateConfig(benchmarks=("sugarcrepe",), sugarcrepe=files),
    )


def quick() -> SweepConfig:
    """Four ratios with one seed each: the curve, without intervals and without a report."""
    return replace(config(), seeds=1, report_seeds=0)


def methods() -> SweepConfig:
    """CLIP and NegCLIP on the paper's subset, the learning rate of each tuned alike."""
    space = "train.loss=grid(clip,negclip) train.num_negatives=2 train.learning_rate=loguniform(2e-4,2e-3)"
    return replace(config(), space=space, search="random", num_samples=3, per="train.loss")
