"""The device's accounting: nothing to tell on a CPU, true seconds on a GPU."""

import numpy as np
import pytest
import torch

from raycomp.models.device import Device


def test_a_cpu_has_no_busy_seconds_to_report():
    device = Device("cpu")
    with device.computing():
        assert device.move(np.arange(6).reshape(2, 3).T).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert device.take_busy_seconds() is None


@pytest.mark.gpu
def test_a_gpu_counts_what_it_computed_once():
    device = Device("cuda")
    moved = device.move(np.ones((4096, 4096), np.float32))
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    with device.computing():
        for _ in range(20):
            moved = moved @ moved / 4096
    ended.record()
    torch.cuda.synchronize()
    at_most_s = started.elapsed_time(ended) / 1000  # by the device's own clock
    assert 0.5 * at_most_s < device.take_busy_seconds() <= at_most_s
    assert device.take_busy_seconds() == 0
    assert moved.mean().item() == pytest.approx(1)
