"""Hyperparameter sweeps: trials, their results, the best trial."""

from raycomp.config.commands import Command
from raycomp.training import COMMANDS as TRAINING

COMMANDS = {
    "sweep": Command(
        "try options with Ray Tune, report the best on other seeds",
        "raycomp.sweep.command:sweep",
        "job --preset --set --out --verify",
        "raycomp.sweep.config:SweepConfig",
        short={name: path for name, path in TRAINING["train"].short.items() if name != "--seed"},
        matter="space command metric search num_samples scheduler seeds report_seeds curated max_concurrent",
        example="--curated out/photos --space 'attribute.keep=grid(0.5,0.3)' "
        "--metric retrieval.r1 --out out/sweep",
        writes="report.html, trials.parquet, best.py (the config of the best), run.json",
    ),
}
