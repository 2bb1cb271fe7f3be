"""Training, on one rank or many, and the little world that it is tried on."""

from raycomp.config.commands import Command

COMMANDS = {
    "train": Command(
        "train a CLIP on pairs, with hard negatives or without",
        "train.command:train",
        "job --set --out --verify",
        "train.config:TrainConfig",
    ),
    "publish": Command(
        "lay a trained model out as open_clip's hub models are",
        "train.publish:publish",
        "source --out --verify",
    ),
}
