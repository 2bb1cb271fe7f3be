"""Curation, stage by stage: score shards, choose a subset, estimate the cost."""

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
}
