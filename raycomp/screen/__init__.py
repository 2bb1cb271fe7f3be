"""The screen: which planted faults PAS finds and alignment does not; no model is trained on the selected
pairs."""

from raycomp.config.commands import Command

COMMANDS = {
    "screen": Command(
        "tell which planted faults PAS finds and alignment does not, without training on a choice",
        "screen.command:screen",
        "job --set --out",
        "screen.config:ScreenConfig",
    ),
    "slope": Command(
        "measure what a growing share of faulty pairs costs a CLIP that is trained on them",
        "screen.slope_command:slope",
        "job --set --out",
        "screen.config:SlopeConfig",
    ),
}
