"""Hyperparameter sweeps: trials, their results, the best trial."""

from raycomp.config.commands import Command

COMMANDS = {
    "sweep": Command(
        "try options of a command with Ray Tune, choose the best and report it on other seeds",
        "raycomp.sweep.command:sweep",
        "job --space --set --out --verify",
        "raycomp.sweep.config:SweepConfig",
    ),
}
