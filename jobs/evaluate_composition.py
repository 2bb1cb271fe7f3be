"""Composition benchmarks with hard positives and text-only baselines, for any model.

    raycomp evaluate jobs/evaluate_composition.py --set model.weights=out/cc3m-negclip --out out/scores
    raycomp evaluate jobs/evaluate_composition.py:openai --out out/openai-scores
    raycomp compare out/openai-scores out/scores --out out/openai-negclip

Files: docs/benchmarks.md lists the downloads. Here below data/: sugarcrepe/ and scpp/ are clones of the
authors' repositories, coco/val2017/ has COCO's images, karpathy/coco_train.json captions of other images, in
the format of docs/evaluation.md.

Cost: both share 1,560 images and have some 20,000 texts: minutes on 2 cores with a ViT-B/32.
Expected of `openai`: SugarCrepe 90.9, 80.1, 69.2 (replace object, attribute, relation), 61.2, 64.0 (swap
object, attribute), 77.2, 68.8 (add object, attribute), as others report it for OpenAI's ViT-B/32. Unverified:
these weights were not available here.
"""

from dataclasses import replace

from raycomp.config import ModelConfig
from raycomp.evaluation.config import BenchmarkConfig, ControlsConfig, EvaluateConfig

COCO = "data/coco/val2017"


def config() -> EvaluateConfig:
    """SugarCrepe and SugarCrepe++."""
    return EvaluateConfig(
        benchmarks=("sugarcrepe", "sugarcrepe_pp"),
        sugarcrepe=BenchmarkConfig("data/sugarcrepe/data", COCO),
        sugarcrepe_pp=BenchmarkConfig("data/scpp/data", COCO),
        controls=ControlsConfig(captions="data/karpathy/coco_train.json"),
    )


def openai() -> EvaluateConfig:
    """OpenAI's weights, as a reference."""
    return replace(config(), model=ModelConfig("ViT-B-32", "openai"))
