"""The screen: which planted faults PAS finds and alignment does not; no model is trained on a choice."""

from raycomp.config.commands import Command

COMMANDS = {
    "screen": Command(
        "tell which planted faults PAS finds and alignment does not, without training on a choice",
        "screen.command:screen",
        "job --set --out",
        "screen.config:ScreenConfig",
    ),
}
