"""Tasks one after another: what they are, who learns them, what is left of each."""

from raycomp.config.commands import Command

COMMANDS = {
    "continual": Command(
        "let methods learn task after task, and tell what is left",
        "continual.command:continual",
        "job --set --out",
        "continual.config:ContinualConfig",
    ),
}
