"""Overlap between the halves of a stream's tasks: test images that a task trains on, and repeated tasks.

N samples of a half.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from raycomp.continual.streams.samples import StreamSamples
from raycomp.core.leaks import (
    Known,
    count_shared,
    find_shared,
    join_keys,
    key_texts,
    merge_keys,
    merge_known,
)
from raycomp.run.leaks import Leak
from raycomp.words import CONTAMINATED

Named = Mapping[str, StreamSamples]
"""The train or the test halves of tasks, by their names."""


class Repeat(NamedTuple):
    """Samples of a half, image and text, that earlier tasks have in the same half."""

    task: str
    before: tuple[str, ...]
    half: str
    num_samples: int
    samples: int

    def describe(self) -> dict[str, Any]:
        """Return the contents for run.json."""
        return {**self._asdict(), "before": list(self.before)}


def find_leaks(stream: str, trains: Named, tests: Named) -> list[Leak]:
    """Return, for every test, its overlap with the training halves of all tasks.

    A task's own training half counts like those of others: after all tasks the model has trained on all of
    them.
    """
    known = {task: collect_known(samples) for task, samples in trains.items()}
    everything = merge_known(list(known.values()))
    leaks = []
    for task, samples in tests.items():
        image_N, text_N = key_samples(samples)
        counts = {name: int(find_shared(one.image_K, image_N).sum()) for name, one in known.items()}
        train = f"the training images of {_list_counts(counts)}"
        leaks.append(Leak(f"{stream}, {task}", train, count_shared(everything, image_N, text_N)))
    return leaks


def _list_counts(counts: Mapping[str, int]) -> str:
    """Return the tasks with an overlap, with the amount where there are several; all if none has one."""
    own = {name: count for name, count in counts.items() if count}
    return ", ".join(own if len(own) == 1 else (f"{name} ({own[name]:,})" for name in own)) or "all tasks"


def key_samples(samples: StreamSamples) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of the good samples' images and of their captions, (N,) each."""
    return samples.key_N[samples.is_good_N], key_texts([one.caption for one in samples.good])


def collect_known(samples: StreamSamples) -> Known:
    """Return the images and captions of a training half."""
    image_N, text_N = key_samples(samples)
    return Known(merge_keys([image_N]), merge_keys([text_N]))


def drop_shared(trains: Sequence[StreamSamples], test: StreamSamples) -> StreamSamples:
    """Return a test whose good samples are contaminated if a training half has their image."""
    known_K = merge_keys(one.key_N[one.is_good_N] for one in trains)
    is_shared_N = find_shared(known_K, test.key_N)
    statuses = np.where(is_shared_N & test.is_good_N, CONTAMINATED, np.array(test.status_N, object))
    return replace(test, status_N=tuple(statuses.tolist()))


def find_repeats(half: str, tasks: Named) -> list[Repeat]:
    """Return, for every task, how many samples of earlier tasks it repeats: two tasks on one data set repeat
    samples.

    An image with another text is another sample, because tasks may ask different questions of one image.
    """
    pairs = {name: join_keys(*key_samples(samples)) for name, samples in tasks.items()}
    before: dict[str, np.ndarray] = {}
    repeats = []
    for name, pair_N in pairs.items():
        found = {other: find_shared(known, pair_N) for other, known in before.items()}
        own = tuple(other for other, is_shared_N in found.items() if is_shared_N.any())
        if own:
            num = int(np.logical_or.reduce([found[other] for other in own]).sum())
            repeats.append(Repeat(name, own, half, len(pair_N), num))
        before[name] = merge_keys([pair_N])
    return repeats


def warn_repeat(stream: str, repeat: Repeat) -> str:
    """Return a line."""
    share = 100 * repeat.samples / repeat.num_samples
    counts = f"{repeat.samples:,} of {repeat.num_samples:,} {repeat.half} samples"
    others = ", ".join(repeat.before)
    return f"{stream}, {repeat.task}: {counts} are {repeat.half} samples of {others}, too ({share:.1f} %)"
