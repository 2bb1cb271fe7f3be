"""The little-world study: which subsets and which negatives teach composition, with known ground truth."""

from raycomp.config.commands import Command

COMMANDS = {
    "study": Command(
        "compare subsets and negatives on the little world, where every fault is known",
        "study.command:study",
        "job --set --out",
        "study.config:StudyConfig",
    ),
}
