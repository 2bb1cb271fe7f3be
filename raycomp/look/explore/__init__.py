"""The command ``explore``: pages on which the samples of a curation are looked at, filtered and ticked."""

from raycomp.config.commands import Command

COMMANDS = {
    "explore": Command(
        "write pages to look at the samples of a curation, filter them and list those to leave out",
        "raycomp.look.explore.command:explore",
        "source --where --set --atlas --out",
        "raycomp.look.explore.config:ExploreConfig",
    ),
}
