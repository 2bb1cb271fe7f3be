"""Continual learning: streams of tasks, methods that learn them in order, metrics after each task."""

from raycomp.config.commands import Command

COMMANDS = {
    "continual": Command(
        "train methods task after task and measure forgetting",
        "raycomp.continual.command:continual",
        "job --set --out",
        "raycomp.continual.config:ContinualConfig",
    ),
}
