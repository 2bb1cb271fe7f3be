"""Hard negatives: captions in, candidates judged, the hardest chosen."""

from raycomp.config.commands import Command

COMMANDS = {
    "negatives": Command(
        "write hard negatives of captions",
        "negatives.command:negatives",
        "job --set --out --verify",
        "negatives.config:NegativesConfig",
    ),
}
