"""The device of a model: moves arrays there ahead of the work, runs passes in parallel, counts time."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from raycomp.core.ahead import ahead
from raycomp.models.kernels import pinned

Result = TypeVar("Result")
# Passes that are sent ahead.
_AHEAD = 2


def name_device() -> str:
    """Return the default device of a model here, cpu or gpu."""
    return "gpu" if torch.cuda.is_available() else "cpu"


def describe_gpu() -> dict[str, Any] | None:
    """Return what the last bits of a GPU's results depend on, json-compatible; None where torch finds none.

    Kernels, and the splitting of sums, depend on the kind of GPU, its multiprocessors and the libraries.
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


class Sent(NamedTuple):
    """A tensor on its way to the device."""

    tensor: Tensor
    arrival: torch.cuda.Event | None


class Device:
    """The CPU, or one GPU with its own stream for copies, so that they overlap with computing.

    ``num_threads`` counts parallel passes on a CPU; None = torch's default number of threads. With
    ``with_tf32`` a GPU may round factors of fp32 products to 10 bits of mantissa. With ``overlaps`` a thread
    sends passes ahead, and results come back without waiting for the work of another thread's call.
    ``attention``: a backend's name, as in ``scorer.attention``.
    """

    def __init__(
        self,
        name: str | None = None,
        num_threads: int | None = None,
        with_tf32: bool = False,
        overlaps: bool = False,
        attention: str | None = None,
    ):
        self.place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.is_gpu = self.place.type == "cuda"
        self.overlaps = overlaps
        self.launching = Lock()
        """Held while a call launches its passes, but not while it waits for their results."""
        self._attention = attention
        self._copies = torch.cuda.Stream(self.place) if self.is_gpu else None
        self._threads = None if self.is_gpu else ThreadPoolExecutor(num_threads or torch.get_num_threads())
        if self.is_gpu:
            # cuDNN's attention makes a new plan for every number of rows, and may sum in another order.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self._with_tf32 = with_tf32
        self._intervals: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._counting = Lock()

    def move(self, array: np.ndarray) -> Tensor:
        """Return the array on the device; to a GPU from pinned memory, while it computes other work."""
        return self.receive(self.send(array))

    def send(self, array: np.ndarray) -> Sent:
        """Start to move an array; any thread may do so ahead of the one that receives it."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return self._send(tensor.pin_memory() if self.is_gpu else tensor)

    def gather(self, byte_NM: np.ndarray, row_B: np.ndarray, size: int) -> Sent:
        """Start to move rows of bytes, in this order, then zeros up to ``size`` rows.

        The one copy on the host goes into new memory, pinned for a GPU, which torch reuses once it was read.
        ``byte_NM`` may be read-only.
        """
        held_SM = torch.empty((size, *byte_NM.shape[1:]), dtype=torch.uint8, pin_memory=self.is_gpu)
        # With mode="raise" numpy copies twice.
        np.take(byte_NM, row_B, axis=0, out=held_SM.numpy()[: len(row_B)], mode="clip")
        held_SM[len(row_B) :] = 0
        return self._send(held_SM)

    def _send(self, tensor: Tensor) -> Sent:
        if self._copies is None:
            return Sent(tensor, None)
        with torch.cuda.stream(self._copies):
            return Sent(tensor.to(self.place, non_blocking=True), self._copies.record_event())

    def receive(self, sent: Sent) -> Tensor:
        """Return a sent tensor; what this thread launches from now on waits for it."""
        if sent.arrival is not None:
            current = torch.cuda.current_stream(self.place)
            current.wait_event(sent.arrival)
            sent.tensor.record_stream(current)
        return sent.tensor

    def feed(self, prepare: Callable[..., Result], *items: Iterable) -> Generator[Result, None, None]:
        """Yield ``prepare`` of every item; where calls overlap, a thread does so a few items ahead."""
        made = map(prepare, *items)
        yield from ahead(made, _AHEAD) if self.overlaps else made

    def fetch(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Return a call that returns the tensor on the CPU, when what was launched so far has computed it."""
        if not (self.is_gpu and self.overlaps):
            return tensor.cpu
        fetched = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        fetched.copy_(tensor, non_blocking=True)
        computed = torch.cuda.current_stream(self.place).record_event()

        def wait() -> Tensor:
            computed.synchronize()
            return fetched

        return wait

    def map(self, run: Callable[..., Result], *items: Iterable) -> list[Result]:
        """Return ``run`` of every item, without gradients.

        On a CPU each thread computes its own pass: the halves of one pass would wait for each other at every
        step, longest where another process needs a core. The sums in a pass are then also independent of the
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
    def launch(self, has_mask: bool = False) -> Iterator[None]:
        """Launch a call's passes in the block; one thread at a time does. ``has_mask``: of attention."""
        with self.launching, pinned(self._attention, has_mask):
            yield

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in the block with this device's settings.

        A GPU counts as busy from the block's first kernel to its last, gaps between them included.
        """
        if not self.is_gpu:
            yield
            return
        # They hold for the whole process, and torch's default is tf32 in convolutions.
        torch.backends.cuda.matmul.allow_tf32 = self._with_tf32
        torch.backends.cudnn.allow_tf32 = self._with_tf32
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._intervals.append((start, end))

    def is_broken(self) -> bool:
        """Whether this process has lost the GPU's context, after which all computation there fails."""
        if not self.is_gpu:
            return False
        try:
            torch.cuda.synchronize(self.place)
        except RuntimeError:
            return True
        return False

    def take_busy_seconds(self) -> float | None:
        """Return the GPU's busy seconds since the last call, None on a CPU; waits for it to finish.

        Where calls overlap, it does not wait: what runs now is counted later.
        """
        if not self.is_gpu:
            return None
        if not self.overlaps:
            torch.cuda.synchronize(self.place)
        seconds = 0.0
        with self._counting:
            while self._intervals and self._intervals[0][1].query():
                start, end = self._intervals.popleft()
                seconds += start.elapsed_time(end) / 1000
        return seconds
