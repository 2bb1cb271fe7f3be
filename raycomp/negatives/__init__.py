"""Hard negatives of captions: propose candidates, judge them, choose the hardest."""

from raycomp.config.commands import Command

COMMANDS = {
    "negatives": Command(
        "write hard negatives of captions",
        "negatives.command:negatives",
        "job --set --out --verify",
        "negatives.config:NegativesConfig",
    ),
}
