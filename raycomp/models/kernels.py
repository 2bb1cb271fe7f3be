"""How a GPU computes passes of one shape: the attention backend, compiled kernels, a CUDA graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from raycomp.config import UserError
from raycomp.models.faults import one_line

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
# Libraries make their handles and workspaces in the first calls, which a capture does not allow.
_WARM_UPS = 3


def list_backends(attention: str, has_mask: bool) -> list[SDPBackend]:
    """Return the backends that torch may take.

    No flash kernel of a GPU takes a mask, and cuDNN makes a plan for every number of rows, so with a mask the
    efficient backend is allowed in their place. A CPU's flash kernel takes masks.
    """
    if not has_mask or attention in ("efficient", "math"):
        return [_BACKENDS[attention]]
    return [SDPBackend.EFFICIENT_ATTENTION] + [SDPBackend.FLASH_ATTENTION] * (attention == "flash")


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
    try:
        with sdpa_kernel(list_backends(attention, has_mask)):
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


def compile_tower(encode: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a tower, compiled at its first call, for the shape of that call alone.

    Nothing is chosen by time, and another shape would be an error: bits must repeat.
    """
    return torch.compile(encode, fullgraph=True, dynamic=False, options={"deterministic": True})


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
