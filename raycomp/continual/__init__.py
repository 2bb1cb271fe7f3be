"""Continual learning: streams of tasks, methods that learn them in order, metrics after each task."""

from raycomp.config.commands import Command

COMMANDS = {
    "continual": Command(
        "let methods learn task after task, and tell what is left",
        "continual.command:continual",
        "job --set --out",
        "continual.config:ContinualConfig",
    ),
}
