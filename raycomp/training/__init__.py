"""Training of CLIP on pairs and hard negatives, on one rank or many."""

from raycomp.config.commands import Command

COMMANDS = {
    "train": Command(
        "train a CLIP on pairs, with hard negatives or without",
        "raycomp.training.command:train",
        "job --set --out --verify",
        "raycomp.training.config:TrainConfig",
    ),
    "publish": Command(
        "write a trained model in the layout of open_clip's hub models",
        "raycomp.training.command:publish",
        "source --out --verify",
    ),
}
