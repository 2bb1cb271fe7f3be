"""Hard negatives of captions: propose candidates, judge them, choose the hardest."""

from raycomp.config.commands import Command

COMMANDS = {
    "negatives": Command(
        "write hard negatives of captions",
        "raycomp.negatives.command:negatives",
        "job --set --out --verify",
        "raycomp.negatives.config:NegativesConfig",
    ),
}
