"""The text micro-buffer: a few captions of every past task, with the primitives they name.

COMPO-REALIGN (ICLR 2026, openreview.net/forum?id=eiTy6AYeQi), third key design. An image buffer also holds
the image's embedding. Both kinds have a budget in entries and one in bytes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from raycomp.config.check import check


@dataclass(frozen=True)
class BufferEntry:
    """The stored part of a sample."""

    text: str
    primitives: tuple[str, ...]
    image: bytes = b""
    """The image's embedding, for an image buffer; the caller defines its content."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the entry: text and primitives in UTF-8, and the image."""
        words = (self.text, *self.primitives)
        return sum(len(word.encode("utf-8", "surrogatepass")) for word in words) + len(self.image)


class MicroBuffer:
    """At most ``per_task`` entries of each task, drawn uniformly from its distinct entries.

    The entries of the smallest hash of (seed, task, entry) are kept. The draw does not depend on the order
    and the batches of entries, nor on repetitions. A task with fewer entries is kept completely.
    ``max_bytes`` of each task is a second limit: entries are taken in this order until one does not fit.
    Entries that alone exceed the limit are skipped.
    """

    def __init__(self, per_task: int, seed: int, max_bytes: int | None = None):
        for name, value in (("buffer.per_task", per_task), ("buffer.max_bytes", max_bytes)):
            check(value is None or value >= 0, name, value, "at least 0")
        self.per_task, self.seed, self.max_bytes = per_task, seed, max_bytes
        self._tasks: dict[int, dict[bytes, BufferEntry]] = {}
        """By task, the entries sorted by hash, rising."""

    def add(self, task: int, entries: Iterable[BufferEntry]) -> None:
        """Add entries of a task."""
        most = float("inf") if self.max_bytes is None else self.max_bytes
        fitting = {self._hash(task, entry): entry for entry in entries if entry.num_bytes <= most}
        nearest = sorted((self._tasks.get(task, {}) | fitting).items())[: self.per_task]
        num_fit = sum(total <= most for total in accumulate(entry.num_bytes for _, entry in nearest))
        self._tasks[task] = dict(nearest[:num_fit])

    def entries(self, before: int | None = None) -> list[BufferEntry]:
        """Return the entries of all tasks, or those of tasks below ``before``, in the order of tasks."""
        tasks = sorted(task for task in self._tasks if before is None or task < before)
        return [entry for task in tasks for entry in self._tasks[task].values()]

    def draw(self, num: int, rng: np.random.Generator, before: int | None = None) -> list[BufferEntry]:
        """Draw ``num`` of these entries, each at most once; all of them where there are no more."""
        entries = self.entries(before)
        chosen = rng.choice(len(entries), min(num, len(entries)), replace=False)
        return [entries[place] for place in chosen]

    @property
    def num_bytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.num_bytes for entry in self.entries())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for json."""
        rows = [
            [task, entry.text, list(entry.primitives), entry.image.hex()]
            for task, own in self._tasks.items()
            for entry in own.values()
        ]
        return {"per_task": self.per_task, "seed": self.seed, "max_bytes": self.max_bytes, "rows": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "MicroBuffer":
        """Return the buffer that ``to_dict`` wrote."""
        buffer = cls(values["per_task"], values["seed"], values["max_bytes"])
        by_task: dict[int, list[BufferEntry]] = {}
        for task, text, primitives, image in values["rows"]:
            by_task.setdefault(task, []).append(BufferEntry(text, tuple(primitives), bytes.fromhex(image)))
        for task, entries in by_task.items():
            buffer.add(task, entries)
        return buffer

    def _hash(self, task: int, entry: BufferEntry) -> bytes:
        named = json.dumps([self.seed, task, entry.text, entry.primitives])
        return hashlib.blake2b(named.encode() + entry.image, digest_size=16).digest()
