"""Streams of the drawn world, their backbones, the ablations of the paper, and its verdicts."""

from raycomp.config.commands import Command

COMMANDS = {
    "published": Command(
        "compare a finished run of raycomp continual with the paper's figures",
        "lab.continual.published:published",
        "source",
    ),
}
