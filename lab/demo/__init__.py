"""``python -m lab demo``: a little world with planted faults, curated."""

from raycomp.config.commands import Command

COMMANDS = {
    "demo": Command(
        "make a little world, train on it, curate it, report",
        "lab.demo.command:demo",
        "job --set --out",
        "lab.demo.config:DemoConfig",
    ),
}
