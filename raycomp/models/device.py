"""Where a model runs: arrays moved there ahead of the work, passes side by side, seconds counted."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

Result = TypeVar("Result")


def name_device() -> str:
    """Return what a model runs on here if nothing else is said, cpu or gpu."""
    return "gpu" if torch.cuda.is_available() else "cpu"


def describe_gpu() -> dict[str, Any] | None:
    """Return what the last bits of a GPU's results depend on, as json holds it; None where torch finds none.

    Kernels are chosen, and sums cut, by the kind of GPU, its number of multiprocessors and the libraries.
    """
    if not torch.cuda.is_available():
        return None
    device = torch.cuda.get_device_properties(0)
    return {
        "name": device.name,
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


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
        self._with_tf32 = with_tf32
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
        torch.backends.cuda.matmul.allow_tf32 = self._with_tf32
        torch.backends.cudnn.allow_tf32 = self._with_tf32
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._intervals.append((start, end))

    def is_broken(self) -> bool:
        """Whether a GPU's context is lost to this process, after which all that it computes there fails."""
        if not self.is_gpu:
            return False
        try:
            torch.cuda.synchronize(self.place)
        except RuntimeError:
            return True
        return False

    def take_busy_seconds(self) -> float | None:
        """Return the GPU's busy seconds since the last call, None on a CPU; waits for it to finish."""
        if not self.is_gpu:
            return None
        torch.cuda.synchronize(self.place)
        seconds = sum(start.elapsed_time(end) for start, end in self._intervals) / 1000
        self._intervals.clear()
        return seconds
