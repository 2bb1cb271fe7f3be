"""The commands ``show`` and ``explain``: a finished run from its files alone."""

from raycomp.config.commands import Command

COMMANDS = {
    "show": Command("print the funnel of a run", "inspect.command:show", "source --verify"),
    "explain": Command(
        "print every score and gate of one sample", "inspect.command:explain", "source uid --verify"
    ),
}
