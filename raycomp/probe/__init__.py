"""Probes: measurements, one file each, and their tables."""

from raycomp.config.commands import Command

COMMANDS = {
    "probe": Command(
        "measure composition: overlap, composition; or PAS: pas",
        "raycomp.probe.overlap:probe",
        "probe input job --set --out --verify",
        "raycomp.probe.config:ProbeConfig",
        short={"--model": "scorer.model", "--weights": "scorer.weights"},
        matter="input benchmarks sample scorer.model scorer.weights pairs seed",
        example="pas out/photos --out out/probe",
        writes="report.html, run.json",
    ),
}
