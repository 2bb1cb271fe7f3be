"""The study on the little world: which subset and which negatives teach composition, where all is known."""

from raycomp.config.commands import Command

COMMANDS = {
    "study": Command(
        "compare subsets and negatives on the little world, where all is known",
        "study.command:study",
        "job --set --out",
        "study.config:StudyConfig",
    ),
}
