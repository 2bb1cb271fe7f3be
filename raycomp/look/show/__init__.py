"""The commands ``show`` and ``explain``: a finished run from its files alone."""

from raycomp.config.commands import Command

COMMANDS = {
    "show": Command(
        "print the result, counts and warnings of a run", "raycomp.look.show.command:show", "source --verify"
    ),
    "list": Command(
        "list the runs in a folder, each with its result", "raycomp.look.show.runs:list_runs", "parent"
    ),
    "explain": Command(
        "print every score and gate of one sample", "raycomp.look.show.command:explain", "source uid --verify"
    ),
}
