"""Probes: measurements, one file each, and their tables."""

from raycomp.config.commands import Command

COMMANDS = {
    "probe": Command(
        "measure composition: overlap, composition, theory; or PAS: pas",
        "probe.command:probe",
        "probe job --set --out --verify",
        "probe.config:ProbeConfig",
    ),
}
