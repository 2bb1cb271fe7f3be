"""Copies batches to a GPU while it computes: from pinned memory, by a thread, on a stream of its own."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raycomp.core.ahead import ahead
from raycomp.models.images import ImageSpec
from raycomp.training.towers import Batch, to_batch


def prefetch(
    arrays: Iterable[Mapping[str, np.ndarray]], device: torch.device, spec: ImageSpec
) -> Iterator[Batch]:
    """Yield ``to_batch`` of each, one made ahead by a thread. On a CPU nothing is pinned."""
    if device.type != "cuda":
        yield from ahead((to_batch(one, device, spec) for one in arrays), 1)
        return
    stream = torch.cuda.Stream(device)
    for batch, copied in ahead(_copy_all(arrays, device, spec, stream), 1):
        current = torch.cuda.current_stream(device)
        current.wait_event(copied)
        for value in (getattr(batch, one.name) for one in fields(batch)):
            if isinstance(value, Tensor) and value.is_cuda:
                value.record_stream(current)  # its memory is free again once this stream has used it
        yield batch


def _copy_all(
    arrays: Iterable[Mapping[str, np.ndarray]], device: torch.device, spec: ImageSpec, stream: Any
) -> Iterator[tuple[Batch, Any]]:
    for one in arrays:
        pinned = {name: torch.from_numpy(np.array(value)).pin_memory().numpy() for name, value in one.items()}
        copied = torch.cuda.Event()
        with torch.cuda.stream(stream):
            batch = to_batch(pinned, device, spec)
            copied.record(stream)
        # The pinned arrays must live until they are copied; this thread has time to wait.
        copied.synchronize()
        yield batch, copied
