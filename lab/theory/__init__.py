"""``python -m lab theory``: a causal model of the theorems on hard negatives, and which premises hold."""

from raycomp.config.commands import Command

COMMANDS = {
    "theory": Command(
        "compare encoders with and without composition in a causal model",
        "lab.theory.command:theory",
        "job --set --out",
        "lab.theory.config:TheoryConfig",
    ),
}
