"""Curation, stage by stage: score shards, choose a subset, estimate the cost."""

from raycomp.config.commands import Command

COMMANDS = {
    "curate": Command(
        "score shards and choose a subset",
        "curate.command:curate",
        "job --set --out",
        "curate.config:CurateConfig",
    ),
    "select": Command(
        "choose again from the scores of a curation; loads no model",
        "curate.command:select",
        "source --set --out --verify",
        "curate.config:CurateConfig",
        mark="select",
    ),
}
