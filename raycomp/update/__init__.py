"""``raycomp update``, ``checkout`` and ``prune``: a run that follows its input, and what it was before."""

from raycomp.config.commands import Command

COMMANDS = {
    "update": Command(
        "bring a curation, or its negatives, up to date: new shards, removed rows, other options",
        "raycomp.update.command:update",
        "source --add --remove --changed --set --refit --verify",
        "raycomp.curation.config:CurateConfig",
        mark="select",
    ),
    "checkout": Command(
        "copy a version of a run, DIR@3, into a folder",
        "raycomp.update.history:checkout",
        "source --out --verify",
    ),
    "prune": Command(
        "remove old versions of a run, or what they hold of removed rows",
        "raycomp.update.history:prune",
        "source --keep --removed",
    ),
}
