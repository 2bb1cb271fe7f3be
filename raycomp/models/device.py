"""Where a model runs: arrays moved there ahead of the work, passes side by side, seconds counted."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Result = TypeVar("Result")


def name_device() -> str:
    """Return what a model runs on here if nothing else is said, cpu or gpu."""
    return "gpu" if torch.cuda.is_available() else "cpu"


class Device:
    """The CPU, or one GPU with a stream of its own for copies, so that they run beside computing.

    ``num_threads`` counts passes side by side on a CPU; none = as many threads as torch would use. With
    ``with_tf32`` a GPU may round what it multiplies in fp32 to 10 bits of mantissa.
    """

    def __init__(self, name: str | None = None, num_threads: int | None = None, with_tf32: bool = False):
        self.place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.is_gpu = self.place.type == "cuda"
        self._copies = torch.cuda.Stream(self.place) if self.is_gpu else None
        self._threads = None if self.is_gpu else ThreadPoolExecutor(num_threads or torch.get_num_threads())
        if self.is_gpu:
            # cuDNN's attention plans anew for every number of rows, and might add up in another order.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self._fp32 = "tf32" if with_tf32 else "ieee"
        self._intervals: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def move(self, array: np.ndarray) -> Tensor:
        """Return the array on the device; to a GPU from pinned memory, while it computes something else."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if self._copies is None:
            return tensor
        with torch.cuda.stream(self._copies):
            moved = tensor.pin_memory().to(self.place, non_blocking=True)
        current = torch.cuda.current_stream(self.place)
        current.wait_stream(self._copies)
        moved.record_stream(current)
        return moved

    def map(self, run: Callable[..., Result], *items: Iterable) -> list[Result]:
        """Return ``run`` of every item, without gradients.

        On a CPU each thread computes a pass of its own: the halves of one pass would wait for each other at
        every step, longest where something else needs a core. What a pass adds up then also depends on no
        number of threads.
        """
        run = torch.inference_mode()(run)
        if self._threads is None:
            return list(map(run, *items))
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return list(self._threads.map(run, *items))
        finally:
            torch.set_num_threads(num_threads)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in the block as this device does.

        A GPU counts as busy from the block's first kernel to its last: gaps between them included.
        """
        if not self.is_gpu:
            yield
            return
        # They hold for the whole process, and torch begins with tf32 in convolutions.
        torch.backends.cuda.matmul.fp32_precision = self._fp32
        torch.backends.cudnn.conv.fp32_precision = self._fp32
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._intervals.append((start, end))

    def take_busy_seconds(self) -> float | None:
        """Return the GPU's busy seconds since the last call, None on a CPU; waits for it to finish."""
        if not self.is_gpu:
            return None
        torch.cuda.synchronize(self.place)
        seconds = sum(start.elapsed_time(end) for start, end in self._intervals) / 1000
        self._intervals.clear()
        return seconds
