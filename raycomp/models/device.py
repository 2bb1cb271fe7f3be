"""Where a model runs: moving arrays there ahead of the work, and how long it computed."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


class Device:
    """The CPU, or one GPU with a stream of its own for copies, so that they run beside computing."""

    def __init__(self, name: str | None = None):
        self.torch = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.is_gpu = self.torch.type == "cuda"
        self._copies = torch.cuda.Stream(self.torch) if self.is_gpu else None
        self._intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def move(self, array: np.ndarray) -> Tensor:
        """Return the array on the device; to a GPU from pinned memory, while it computes something else."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self._copies is None:
            return tensor
        with torch.cuda.stream(self._copies):
            moved = tensor.pin_memory().to(self.torch, non_blocking=True)
        current = torch.cuda.current_stream(self.torch)
        current.wait_stream(self._copies)
        moved.record_stream(current)
        return moved

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Count what the block gives a GPU to do as busy time."""
        if not self.is_gpu:
            yield
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._intervals.append((start, end))

    def take_busy_seconds(self) -> float | None:
        """Return the GPU's busy seconds since the last call, None on a CPU; waits for it to finish."""
        if not self.is_gpu:
            return None
        torch.cuda.synchronize(self.torch)
        seconds = sum(start.elapsed_time(end) for start, end in self._intervals) / 1000
        self._intervals.clear()
        return seconds
