"""The device of a model: moves arrays ahead of the work, runs passes in parallel, counts time, picks
kernels.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from raycomp.config import UserError
from raycomp.core.batches import ahead
from raycomp.models.architecture import one_line

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Libraries make their handles and workspaces in the first calls, which a capture does not allow.
_WARM_UPS = 3
Result = TypeVar("Result")
# Passes that are sent ahead.
_AHEAD = 2


@contextmanager
def pinned(attention: str | None, has_mask: bool) -> Iterator[None]:
    """Compute attention in the block with the backend that ``scorer.attention`` names; None = torch's choice.

    torch's switches hold for the whole process, so one thread at a time may be in such a block. The fast path
    of ``nn.MultiheadAttention`` does not follow the switches and is off in it. Raises UserError where torch
    has no such kernel.
    """
    if attention is None:
        yield
        return
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    allowed = [_BACKENDS[attention]]
    if has_mask and attention not in ("efficient", "math"):
        # No flash kernel of a GPU takes a mask, and cuDNN makes a plan for every number of rows, so the
        # efficient backend is allowed in their place. A CPU's flash kernel takes masks.
        allowed = [SDPBackend.EFFICIENT_ATTENTION] + [SDPBackend.FLASH_ATTENTION] * (attention == "flash")
    try:
        with sdpa_kernel(allowed):
            yield
    except RuntimeError as error:
        if "No available kernel" not in str(error) and "No viable backend" not in str(error):
            raise
        raise UserError(
            f"scorer.attention={attention}: torch has no such kernel for this model and device; "
            "name another backend, or leave the option out"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)


@contextmanager
def compiling() -> Iterator[None]:
    """Raise UserError where torch cannot compile what the block runs first."""
    from torch._dynamo.exc import TorchDynamoException  # takes a second

    try:
        yield
    except TorchDynamoException as error:
        raise UserError(
            "scorer.compile=true: torch cannot compile this model's image tower here; set it to false "
            f"({one_line(error)})"
        ) from error


class Graph:
    """A function of one tensor of a fixed shape on a GPU, whose kernels are launched together.

    Capture needs a warm-up on a stream of its own. Input and output of the graph have fixed memory: the input
    is copied there, and the output is copied from it, because the next replay overwrites it. Threads may
    call it in turn on one stream.
    """

    def __init__(self, run: Callable[[Tensor], Tensor], example: Tensor):
        self._input = example.clone()
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                run(self._input)
        current.wait_stream(side)
        self._graph: Any = torch.cuda.CUDAGraph()
        # Another model of this process may allocate memory meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._output = run(self._input)

    def __call__(self, x: Tensor) -> Tensor:
        self._input.copy_(x)
        self._graph.replay()
        return self._output.clone()


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


def start_fetch(tensor: Tensor) -> Callable[[], Tensor]:
    """Start to copy a GPU's tensor to the CPU; return a call that waits for it alone and returns it."""
    fetched = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    fetched.copy_(tensor, non_blocking=True)
    computed = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> Tensor:
        computed.synchronize()
        return fetched

    return wait


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
        return start_fetch(tensor) if self.is_gpu and self.overlaps else tensor.cpu

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
        """Launch a call's passes in the block; one thread at a time does. ``has_mask``: of attention.

        Raises UserError where the GPU's memory is too small.
        """
        try:
            with self.launching, pinned(self._attention, has_mask):
                yield
        except torch.OutOfMemoryError as error:
            said = "needs more memory than the GPU has; lower scorer.pass_size, or name a smaller model"
            raise UserError(f"the model {said} ({one_line(error)})") from error

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
