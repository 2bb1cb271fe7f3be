"""The command ``explore``: pages on which the samples of a curation are looked at, filtered and ticked."""

from raycomp.config.commands import Command

COMMANDS = {
    "explore": Command(
        "write pages to look at the samples of a curation, filter them and list those to leave out",
        "look.explore.command:explore",
        "source --where --set --atlas --out",
        "look.explore.config:ExploreConfig",
    ),
}
