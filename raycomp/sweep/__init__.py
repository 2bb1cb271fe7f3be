"""Hyperparameter sweeps: trials, their results, the best trial."""

from raycomp.config.commands import Command

COMMANDS = {
    "sweep": Command(
        "try dials of a command with Ray Tune, choose the best, tell what it is worth",
        "sweep.command:sweep",
        "job --space --set --out --verify",
        "sweep.config:SweepConfig",
    ),
}
