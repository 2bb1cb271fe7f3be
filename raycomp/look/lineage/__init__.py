"""``raycomp diff`` and ``card``: the differences between two subsets, and the documents of one."""

from raycomp.config.commands import Command

COMMANDS = {
    "diff": Command(
        "compare two curations or selections: options, rows, outcomes, concepts",
        "raycomp.look.lineage.diff:diff",
        "first second --out --verify",
        "raycomp.look.lineage.config:DiffConfig",
    ),
    "card": Command(
        "write a subset's data card and Croissant description",
        "raycomp.look.lineage.card:card",
        "source --out --verify",
    ),
}
