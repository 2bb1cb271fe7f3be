"""The laboratory: drawn worlds with known answers, and what is measured in them. Not a tool for users."""

from raycomp.config.commands import Program, add_program

LAB = add_program(
    Program(
        "python -m lab",
        "Measure raycomp in drawn worlds, where all answers are known.",
        {
            "demo": "lab.demo",
            "screen": "lab.screen",
            "theory": "lab.theory",
            "published": "lab.continual",
            "worlds": "lab.sweep",
            "curves": "lab.sweep",
        },
    )
)
