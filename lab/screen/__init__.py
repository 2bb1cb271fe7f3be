"""``python -m lab screen``: which planted faults PAS finds and alignment does not; no model is trained on the
selected pairs."""

from raycomp.config.commands import Command

COMMANDS = {
    "screen": Command(
        "measure which planted faults PAS removes and alignment keeps",
        "lab.screen.command:screen",
        "job --set --out",
        "lab.screen.config:ScreenConfig",
    ),
}
