"""What sweeps of the laboratory need: numbered little worlds, and a published curve to compare with."""

from raycomp.config.commands import Command

COMMANDS = {
    "worlds": Command(
        "make numbered little worlds for a sweep: scored pairs, negatives, a test set in each",
        "lab.sweep.worlds:make_worlds",
        "job --set --out",
        "lab.sweep.config:WorldsConfig",
    ),
    "curves": Command(
        "compare a finished sweep with the published curve of the share kept by alignment",
        "lab.sweep.curves:compare_curves",
        "source",
    ),
}
