"""The screen: which planted faults PAS finds and alignment does not; no model is trained on the selected
pairs."""

from raycomp.config.commands import Command

COMMANDS = {
    "screen": Command(
        "measure which planted faults PAS removes and alignment keeps",
        "screen.command:screen",
        "job --set --out",
        "screen.config:ScreenConfig",
    ),
    "slope": Command(
        "measure a trained CLIP's loss of accuracy per share of faulty pairs",
        "screen.slope_command:slope",
        "job --set --out",
        "screen.config:SlopeConfig",
    ),
}
