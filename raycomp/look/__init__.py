"""Commands that look at runs and data: show, list, explain, audit, explore, diff, card."""

from raycomp.config.commands import Command

COMMANDS = {
    "audit": Command(
        "list what is odd about a data set, with pictures and the filter that drops it; runs no model",
        "raycomp.look.audit:audit",
        "job --set --out",
        "raycomp.look.config:AuditConfig",
    ),
    "explore": Command(
        "write pages to look at the samples of a curation, filter them and list those to leave out",
        "raycomp.look.explore:explore",
        "source --where --set --atlas --out",
        "raycomp.look.config:ExploreConfig",
    ),
    "show": Command(
        "print the result, counts and warnings of a run", "raycomp.look.show:show", "source --verify"
    ),
    "list": Command(
        "list the runs in a folder, each with its result", "raycomp.look.show:list_runs", "parent"
    ),
    "explain": Command(
        "print every score and gate of one sample", "raycomp.look.show:explain", "source uid --verify"
    ),
    "diff": Command(
        "compare two curations or selections: options, rows, outcomes, concepts",
        "raycomp.look.diff:diff",
        "first second --out --verify",
        "raycomp.look.config:DiffConfig",
    ),
    "card": Command(
        "write a subset's data card and Croissant description",
        "raycomp.look.card:card",
        "source --out --verify",
    ),
}
