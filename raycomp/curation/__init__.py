"""Curation, stage by stage: score shards, choose a subset, keep it up to date, recompute what it states."""

from raycomp.config.commands import Command

COMMANDS = {
    "curate": Command(
        "score shards and choose a subset",
        "raycomp.curation.command:curate",
        "job --set --out",
        "raycomp.curation.config:CurateConfig",
    ),
    "select": Command(
        "choose again from the scores of a curation; loads no model",
        "raycomp.curation.command:select",
        "source --set --out --verify",
        "raycomp.curation.config:CurateConfig",
        mark="select",
    ),
    "update": Command(
        "bring a curation, or its negatives, up to date: new shards, removed rows, other options",
        "raycomp.curation.update:update",
        "source --add --remove --set --dry-run --verify",
        "raycomp.curation.config:CurateConfig",
        mark="update",
    ),
    "verify": Command(
        "recompute a curation's counts and gates, and the scores of random rows",
        "raycomp.curation.verify:verify",
        "source --rows --seed",
    ),
}
