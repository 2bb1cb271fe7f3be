"""What a million pairs cost on a machine: the slower of its CPUs and GPUs, times its price."""

import pytest

from raycomp.config import ClusterConfig, override
from raycomp.config.options import Machine
from raycomp.curation.score.score import price_machines

# An hour of a GPU for a million pairs, and 48 hours of a core to feed it.
ON_GPU = {"cpu_s": 48 * 3600, "scorer_s": 3600, "scorer_cores": 0}
ON_CPU = {"cpu_s": 48 * 3600, "scorer_s": 4 * 3600, "scorer_cores": 8}


def price(measured: dict[str, int], *machine: object) -> list[object]:
    return list(price_machines([Machine(*machine)], **measured).rows[0][1:])


def test_the_slower_of_cpus_and_gpus_is_what_it_takes():
    for cpus, gpus, hours, bound in [
        (16, 1, 3.0, "its CPUs"),
        (64, 1, 1.0, "its GPUs"),
        (48, 4, 1.0, "its CPUs"),
        (192, 8, 0.25, "its CPUs"),
        (192, 2, 0.5, "its GPUs"),
    ]:
        assert price(ON_GPU, "a", cpus, gpus, 2.5) == [hours, 2.5 * hours, bound]


def test_without_gpus_cores_share_all_of_the_work():
    # Scoring kept 8 cores busy for 4 hours: 32 hours of a core.
    assert price(ON_CPU, "a", 16, 0, 0.8) == [5.0, pytest.approx(4.0), "its CPUs"]


def test_what_was_not_measured_is_not_reported():
    for measured, gpus, how in [(ON_GPU, 0, "with"), (ON_CPU, 1, "without")]:
        assert price(measured, "a", 16, gpus, 1.0) == [None, None, f"not known: measured {how} a GPU"]


def test_a_machine_that_says_less_is_refused():
    for text in ["a:16:1", "a:16:1:x", "a:0:1:1", "a:16:-1:1", "a:16:1:inf", "a:1:1:1:1", "a"]:
        with pytest.raises(ValueError, match=r"cluster\.machines='.*': must be NAME:CPUS:GPUS:PRICE"):
            override(ClusterConfig(), "machines", f"b:16:1:1.5,{text}")
