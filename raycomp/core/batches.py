"""Which rows are computed together: of a training's step, of a scorer's pass; and making items ahead of time.

The order of training rows: one whole number is the whole state of a run's position in it. S shards, B rows of
a batch. An epoch orders the shards anew and shuffles the rows of a few neighbouring shards, a window,
together: a worker then reads each shard once, from start to end. ``ahead`` makes items in a thread before
their turn.

Packing: captions and their counterfactuals in flat passes of a fixed number of positions. Go et al. (arXiv
2605.22651), Eq. 2 needs K + 1 texts per pair. A counterfactual shares every position before its first changed
token with its caption, so only its suffix is stored. The layout of a caption and its suffixes within their
part depends only on that caption, not on the pass or the position in it. G captions, T counterfactuals
(concatenated caption by caption), P parts, S segments, M positions of a pass, R rows of W positions for
attention.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The rows of every global batch, for any number of workers. Compared by identity: it is used many times
    and may hold a thousand shards."""

    rows_S: tuple[int, ...]
    """Rows of every shard, at least 0. A repeated sample has several rows, see ``locate_rows``."""
    batch_size: int
    """B, the rows of a global batch."""
    window: int
    """Shards whose rows are shuffled together, at least 1."""
    seed: int
    """Seed of every epoch's order, at least 0."""
    mates_S: tuple[np.ndarray, ...] = ()
    """For each row of each shard, rows of the shard that may follow it, int (n, K), -1 for none."""

    def __post_init__(self) -> None:
        if self.batch_size > sum(self.rows_S):
            most = f"{sum(self.rows_S):,} available pairs; set --batch-size"
            raise ValueError(f"train.batch_size={self.batch_size}: must be at most the {most}")

    @cached_property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch. The remainder, fewer rows than a batch, differs in every epoch."""
        return sum(self.rows_S) // self.batch_size

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return shards and rows, int64 (B,), of the batch of ``step``: 0 is the first of all epochs."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        first, parts = batch * self.batch_size, []
        for window in self.windows_of(step):
            start, end = _bounds(self, epoch)[window % self._windows_per_epoch :][:2]
            low, high = max(first, start), min(first + self.batch_size, end)
            parts.append(_shuffle(self, window)[:, low - start : high - start])
        shard_B, row_B = np.concatenate(parts, 1)
        return shard_B, row_B

    def windows_of(self, step: int) -> range:
        """Return the windows, counted over all epochs, that may hold rows of the batch of ``step``."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        ends = _bounds(self, epoch)[1:]
        first = batch * self.batch_size
        low, high = np.searchsorted(ends, [first, first + self.batch_size - 1], side="right")
        before = epoch * self._windows_per_epoch
        return range(before + int(low), before + int(high) + 1)

    def shards_of(self, window: int) -> tuple[int, ...]:
        """Return the shards of a window, counted over all epochs."""
        epoch, number = divmod(window, self._windows_per_epoch)
        return _order(self, epoch)[number * self.window :][: self.window]

    def shards(self, step: int) -> set[int]:
        """Return the shards of the windows that the batch of ``step`` takes rows from."""
        return {shard for window in self.windows_of(step) for shard in self.shards_of(window)}

    def rows_of(self, window: int, num_ranks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return shard, row and rank of the rows of a window, in the order of training, int64 (n,) each.

        The rank is -1 for rows after the epoch's last batch, which no rank trains on.
        """
        epoch, number = divmod(window, self._windows_per_epoch)
        shard_n, row_n = _shuffle(self, window)
        place_n = int(_bounds(self, epoch)[number]) + np.arange(len(row_n))
        ends = [slice_of(rank, num_ranks, self.batch_size).stop for rank in range(num_ranks)]
        rank_n = np.searchsorted(ends, place_n % self.batch_size, side="right")
        return shard_n, row_n, np.where(place_n < self.steps_per_epoch * self.batch_size, rank_n, -1)

    @property
    def _windows_per_epoch(self) -> int:
        return -(-len(self.rows_S) // self.window)


@lru_cache(maxsize=4)
def _order(plan: EpochPlan, epoch: int) -> tuple[int, ...]:
    """Return the shards in the order of an epoch."""
    return tuple(np.random.default_rng((plan.seed, epoch, 0)).permutation(len(plan.rows_S)).tolist())


@lru_cache(maxsize=4)
def _bounds(plan: EpochPlan, epoch: int) -> np.ndarray:
    """Return the number of an epoch's rows before each window, and the total last."""
    row_S = np.array([plan.rows_S[shard] for shard in _order(plan, epoch)], np.int64)
    sizes = np.add.reduceat(row_S, np.arange(0, len(row_S), plan.window))
    return np.concatenate([[0], sizes.cumsum()])


@lru_cache(maxsize=4)
def _shuffle(plan: EpochPlan, window: int) -> np.ndarray:
    """Return the rows of a window in their order, int64 (2, n): shard and row."""
    shards = plan.shards_of(window)
    sizes = [plan.rows_S[shard] for shard in shards]
    shard_n = np.repeat(shards, sizes)
    row_n = np.concatenate([np.arange(size) for size in sizes])
    draw = np.random.default_rng((plan.seed, window // plan._windows_per_epoch, 1 + shards[0]))
    order_n = draw.permutation(len(row_n))
    if plan.mates_S:
        starts_n = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
        mate_nK = np.concatenate([plan.mates_S[shard] for shard in shards])
        order_n = let_follow(order_n, np.where(mate_nK < 0, -1, mate_nK + starts_n[:, None]), draw)
    return np.stack([shard_n, row_n])[:, order_n]


def let_follow(order_n: np.ndarray, mate_nK: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return an order of n rows in which each is followed by one of its mates, where one is left.

    Rows come in ``order_n``, each with a mate drawn among its own, -1 for none, that has not come yet.
    """
    turn_n = draw.random(len(order_n))
    come_n = np.zeros(len(order_n), bool)
    found: list[int] = []
    for row in order_n.tolist():
        if come_n[row]:
            continue
        come_n[row] = True
        found.append(row)
        left = [mate for mate in mate_nK[row].tolist() if mate >= 0 and not come_n[mate]]
        if left:
            mate = left[int(turn_n[row] * len(left))]
            come_n[mate] = True
            found.append(mate)
    return np.array(found, np.int64)


def locate_rows(first_N: np.ndarray, row_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sample of each row of a shard, int64 (R,), and the index of its copy, from 0.

    ``first_N`` is the first row of each of N samples of the shard, ascending: of all, or of some that have
    the rows. The rows of a sample are adjacent.
    """
    sample_R = np.searchsorted(first_N, row_R, side="right") - 1
    return sample_R, row_R - first_N[sample_R]


def slice_of(rank: int, num_ranks: int, batch_size: int) -> slice:
    """Return the rows of a global batch that belong to a rank: contiguous, counts differ by at most one."""
    return slice(rank * batch_size // num_ranks, (rank + 1) * batch_size // num_ranks)


Item = TypeVar("Item")


def ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield the items; a thread, started at once, makes up to ``count`` of them ahead.

    An error of making one comes in its place. Closing the generator ends the thread.
    """
    made, end = iter(items), object()

    def take() -> Iterator[Any]:
        with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
            waiting = deque[Future[Any]](pool.submit(next, made, end) for _ in range(count + 1))
            try:
                yield None
                while (item := waiting.popleft().result()) is not end:
                    yield item
                    waiting.append(pool.submit(next, made, end))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    taken = take()
    next(taken)  # so that the thread starts, and closing ends it
    return taken


WIDTH_STEP = 16
"""Attention rows are as wide as their part and the start token, rounded up to a multiple of this, or to the
next of a few given widths."""


@dataclass(frozen=True)
class Segments:
    """One caption or one suffix each; a part is a caption's segment and some or all of its suffixes'.

    The first token of all texts is the same and is stored once in a pass, at its position 0, so segments
    start at position 1 or later.
    """

    part_S: np.ndarray
    text_S: np.ndarray
    """Index of the text: 0 to G - 1 for captions, G + t for counterfactual t."""
    first_S: np.ndarray
    """Position in its text of the first stored token."""
    size_S: np.ndarray

    @property
    def size_P(self) -> np.ndarray:
        """Positions of every part."""
        return np.bincount(self.part_S, self.size_S).astype(np.int64)


@dataclass(frozen=True)
class PackedPass:
    """One forward pass of M positions; unused positions repeat position 0 and are never read."""

    segment_S: np.ndarray
    """The segments of this pass, in order."""
    last_S: np.ndarray
    """Position of each segment's last token, where the tower reads the text's result."""
    text_M: np.ndarray
    place_M: np.ndarray
    rows: tuple[np.ndarray, ...]
    """By attention width: int [R, W] the positions of each part."""
    prefix_M: np.ndarray
    begin_M: np.ndarray
    """What each position attends to, in columns of its row; see ``may_attend``."""
    source_M: np.ndarray
    """Index of each position among all rows, flattened and concatenated."""


def cut_segments(
    length_G: np.ndarray, count_G: np.ndarray, first_T: np.ndarray, num_positions: int
) -> Segments:
    """Return the segments of all texts, a caption's before its counterfactuals'.

    ``length_G`` counts tokens up to and including end-of-text (at least 2), ``count_G`` counterfactuals,
    ``first_T`` is the first position where each differs from its caption (1 or later). A caption whose
    suffixes do not fit in ``num_positions`` (at least twice the longest text) is split into parts by its own
    lengths; each part repeats the caption.
    """
    num_captions, num_others = len(length_G), len(first_T)
    owner_T = np.repeat(np.arange(num_captions), count_G)
    suffix_T = length_G[owner_T] - first_T
    total_G = length_G - 1 + np.bincount(owner_T, suffix_T, num_captions).astype(np.int64)
    per_part_G = np.where(total_G < num_positions, count_G, (num_positions - 1) // (length_G - 1) - 1)
    per_part_G = np.maximum(1, per_part_G)
    parts_G = np.maximum(1, -(-count_G // per_part_G))
    local_T = np.arange(num_others) - np.repeat(np.cumsum(count_G) - count_G, count_G)
    part_T = (np.cumsum(parts_G) - parts_G)[owner_T] + local_T // per_part_G[owner_T]
    owner_P = np.repeat(np.arange(num_captions), parts_G)
    part_S = np.concatenate([np.arange(len(owner_P)), part_T])
    order = np.argsort(part_S, kind="stable")
    return Segments(
        part_S[order],
        np.concatenate([owner_P, num_captions + np.arange(num_others)])[order],
        np.concatenate([np.ones(len(owner_P), np.int64), first_T])[order],
        np.concatenate([length_G[owner_P] - 1, suffix_T])[order],
    )


def pack(segments: Segments, num_positions: int, widths: tuple[int, ...] = ()) -> Iterator[PackedPass]:
    """Yield the passes that hold all parts, each part whole in one of them.

    With ``widths``, ascending, a pass holds parts of one width, and its rows are a fixed number for each
    width: twice as many as fill the pass, so that parts of half a row fill it too. The last width must hold
    every part and the start token.
    """
    size_P = segments.size_P
    class_P = np.searchsorted(widths, size_P + 1)
    for number, width in enumerate(widths or [0]):
        # Rows and width of every pass; none = as needed.
        shape = (max(1, 2 * num_positions // width), width) if width else None
        chosen_P = np.flatnonzero(class_P == number)
        bin_P = np.full(len(size_P), -1)
        bin_P[chosen_P] = _first_fit(size_P[chosen_P], num_positions - 1, shape[0] if shape else len(size_P))
        for bin in range(bin_P.max(initial=-1) + 1):
            yield _pack(segments, np.flatnonzero(bin_P[segments.part_S] == bin), num_positions, shape)


def _first_fit(size_P: np.ndarray, capacity: int, most: int) -> np.ndarray:
    """Return a bin per part: the largest first, each into the first bin with room (little is wasted).

    A bin has room for parts of ``capacity`` in all, and for ``most`` parts.
    """
    bin_P = np.zeros(len(size_P), np.int64)
    free: list[int] = []
    left: list[int] = []
    for part in np.argsort(-size_P, kind="stable").tolist():
        size = int(size_P[part])
        chosen = next((number for number, space in enumerate(free) if space >= size), len(free))
        if chosen == len(free):
            free.append(capacity)
            left.append(most)
        left[chosen] -= 1
        free[chosen] = free[chosen] - size if left[chosen] else 0
        bin_P[part] = chosen
    return bin_P


def _pack(
    segments: Segments, chosen_S: np.ndarray, num_positions: int, shape: tuple[int, int] | None
) -> PackedPass:
    size_S, first_S, part_S = segments.size_S[chosen_S], segments.first_S[chosen_S], segments.part_S[chosen_S]
    end_S = np.cumsum(size_S) + 1  # position 0 is the start token
    start_S, used = end_S - size_S, int(end_S[-1])
    text_M, place_M, source_M = np.zeros((3, num_positions), np.int64)
    text_M[1:used] = np.repeat(segments.text_S[chosen_S], size_S)
    text_M[0] = text_M[1]
    place_M[1:used] = np.arange(1, used) - np.repeat(start_S - first_S, size_S)
    is_caption_S = np.diff(part_S, prepend=-1) > 0
    start_P = start_S[is_caption_S]
    # The start token and unused positions attend to the start token alone.
    prefix_M, begin_M = np.ones(num_positions, np.int64), np.full(num_positions, num_positions)
    prefix_M[1:used] = np.repeat(first_S, size_S)
    begin_M[1:used] = np.repeat(start_S - start_P[np.cumsum(is_caption_S) - 1] + 1, size_S)
    rows = tuple(_cut_rows(start_P, np.diff(start_P, append=used), shape))
    before = 0
    for index_RW in rows:
        inside_RW = index_RW > 0
        source_M[index_RW[inside_RW]] = before + np.flatnonzero(inside_RW)
        before += index_RW.size
    return PackedPass(chosen_S, end_S - 1, text_M, place_M, rows, prefix_M, begin_M, source_M)


def _cut_rows(start_P: np.ndarray, size_P: np.ndarray, shape: tuple[int, int] | None) -> Iterator[np.ndarray]:
    """Yield the rows of each width: position 0, then the part's positions, then 0 as padding.

    ``shape``: rows and width of the only ones, of which the last are padding alone.
    """
    width_P = -(-(size_P + 1) // WIDTH_STEP) * WIDTH_STEP
    if shape is not None:
        start_P, size_P = (np.pad(values, (0, shape[0] - len(values))) for values in (start_P, size_P))
        width_P = np.full(shape[0], shape[1])
    for width in np.unique(width_P):
        chosen = width_P == width
        place_W = np.arange(width)
        index_RW = start_P[chosen][:, None] + place_W - 1
        yield np.where((place_W > 0) & (place_W <= size_P[chosen][:, None]), index_RW, 0)


def may_attend(prefix_RW: Any, begin_RW: Any, column_W: Any) -> Any:
    """Return where a query (rows) may attend to a key (columns), bool [R, W, W], of numpy or torch arrays.

    A row is the start token, a caption from column 1 on, then its suffixes. A position attends to the columns
    before its text's first change, ``prefix``, and from its segment's ``begin`` up to itself.
    """
    key_W, query_W1 = column_W, column_W[:, None]
    own_RWW = (key_W >= begin_RW[:, :, None]) & (key_W <= query_W1)
    return own_RWW | (key_W < prefix_RW[:, :, None])
