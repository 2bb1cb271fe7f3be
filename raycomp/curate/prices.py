"""What a million pairs cost on machines that the user prices, from the seconds measured on this one."""

from collections.abc import Sequence
from typing import NamedTuple

from raycomp.config.check import Machine
from raycomp.table import Column, Table

_CPUS, _GPUS = "its CPUs", "its GPUs"


class Measured(NamedTuple):
    """Seconds for a million pairs."""

    cpu_s: float
    """Of one core: reading, and the stages on CPUs."""
    scorer_s: float
    """Of one GPU, or of ``scorer_cores`` cores: the stages of scorers."""
    scorer_cores: int
    """0 where scorers had a GPU."""


def price_machines(measured: Measured, machines: Sequence[Machine]) -> Table:
    """Return hours and cost of a million pairs on one of each kind of machine, and what binds there.

    Stages work side by side, so the slower of CPUs and GPUs is what a machine takes. GPUs, and cores, count
    as equals of those that were measured; a machine whose scorers were not measured here is left open.
    """
    per_million = (Column("hours", "per million pairs", 2), Column("cost", "per million pairs", 2))
    rows = [_price(measured, machine) for machine in machines]
    return Table("", ("machine", *per_million, "bound by"), rows)


def _price(measured: Measured, machine: Machine) -> tuple[str, float | None, float | None, str]:
    on_gpus = measured.scorer_cores == 0
    if on_gpus != (machine.gpus > 0):
        return machine.name, None, None, f"not known: run plan {'without' if on_gpus else 'with'} a GPU"
    cpu_s, gpu_s = measured.cpu_s / machine.cpus, 0.0
    if on_gpus:
        gpu_s = measured.scorer_s / machine.gpus
    else:
        cpu_s += measured.scorer_s * measured.scorer_cores / machine.cpus
    hours = max(cpu_s, gpu_s) / 3600
    return machine.name, hours, hours * machine.price_per_hour, _GPUS if gpu_s > cpu_s else _CPUS
