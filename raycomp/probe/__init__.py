"""Probes: measurements, one file each, and their tables."""

from raycomp.config.commands import Command

COMMANDS = {
    "probe": Command(
        "measure composition: overlap, composition; or PAS: pas",
        "raycomp.probe.overlap:probe",
        "probe job --set --out --verify",
        "raycomp.probe.config:ProbeConfig",
    ),
}
