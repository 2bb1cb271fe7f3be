"""Step scale and memory size: gamma and the buffer of compo_realign_adapted.

    raycomp sweep lab/jobs/sweep_gamma_buffer.py --out out/gamma-buffer
    raycomp sweep lab/jobs/sweep_gamma_buffer.py:gammas --out out/gammas
    raycomp sweep lab/jobs/sweep_gamma_buffer.py:rates --out out/rates
    raycomp sweep lab/jobs/sweep_gamma_buffer.py:primitives --out out/primitives

The space: the quantile of the first sigmas that sets gamma, and the number of texts kept per task, on four
tasks of new pairs of the little world; each seed has its own backbone and order of tasks. ``gammas`` has
gamma itself, as a number. ``rates`` has five methods at three learning rates each. A method with less
forgetting may have learned less, which a single learning rate does not show; its page draws learning over
forgetting. ``primitives`` has three methods on the primitives that the world names, and on those the parser
finds. Metric: Last by the fused score among the candidates of all tasks, minus the frozen model's. Streams
are embedded once for all trials, those of parsed primitives within the first trial that has them.

Cost: 10 tiny backbones (6.5 minutes), their streams (4), 12 trials on 6 seeds (4), the best on 4 more; 15:11
on two idle cores.
Result: by Last minus the frozen model's, no trial differs significantly from the best: 4.2 [-0.6, 9.1] (0.9,
no buffer), on report seeds 3.7 [-4.2, 11.6]. 64 texts halve forgetting, 16.7 to 8.2 points, and reduce
learning by 6.8 [5.3, 8.3]; a wider gamma increases learning (0.6 [0.4, 0.9]) and forgetting (0.5 [0.2, 0.8]).
"""

from dataclasses import replace
from pathlib import Path

from lab.continual.ablations import name_ablation
from raycomp.continual.config import ContinualConfig
from raycomp.sweep.config import SweepConfig

STREAM = f"{Path(__file__).resolve().parents[1] / 'continual' / 'streams.py'}:world"
ADAPTED, ADAPTED_NO_BUFFER = map(name_ablation, ("compo_realign_adapted", "adapted_no_buffer"))


def config() -> SweepConfig:
    """Three quantiles, four sizes, six seeds each; four more for the best."""
    return SweepConfig(
        command="continual",
        space="trust.quantile=grid(0.1,0.5,0.9) buffer.size=grid(0,16,64,256)",
        metric="world.last_minus_frozen",
        seeds=6,
        report_seeds=4,
        continual=ContinualConfig(stream=(STREAM,), method=(ADAPTED,)),
    )


def gammas() -> SweepConfig:
    """Gamma as a number, at the paper's buffer."""
    return replace(config(), space="trust.gamma=grid(0.25,0.5,1,2) buffer.size=64")


def rates() -> SweepConfig:
    """Learning and forgetting over learning rates, method by method."""
    methods = f"sequential,compo-realign,{ADAPTED_NO_BUFFER},{ADAPTED},image-buffer"
    space = f"method=grid({methods}) head.learning_rate=grid(2e-4,1e-3,5e-3)"
    return replace(config(), space=space, per="method", report="all", report_seeds=0)


def primitives() -> SweepConfig:
    """Primitives as named by the world, and as parsed."""
    methods = f"{ADAPTED_NO_BUFFER},{ADAPTED},image-buffer"
    space = f"method=grid({methods}) primitives=grid(gold,parsed)"
    return replace(config(), space=space, per="method", report="all", report_seeds=0)
