"""Makes batches of rows of loaded shards; all draws depend on seed, epoch and uid alone.

A pair that a subset lists several times has as many rows, its copies; each is drawn separately.

B pairs of the global batch, R those of a rank, K hard negatives per caption, N tokens of context, H x W
pixels, C channels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.config import ModelConfig, UserError
from raycomp.core.epochs import EpochPlan, locate_rows
from raycomp.data.parquet import readable
from raycomp.data.runs import fetch_model
from raycomp.models.architecture import load_tokens
from raycomp.models.images import ImageFault, ImageSpec, crop_image, prepare_image
from raycomp.training.config import FitConfig
from raycomp.training.losses import Loss, get_loss
from raycomp.training.pairs import Pairs, load_shard
from raycomp.words import CAPTIONS, FIRST_ROW, IMAGE, NEGATIVE_IMAGES, NEGATIVES, UID

_COPY = "copy"
_fetch = lru_cache(maxsize=2)(fetch_model)


@dataclass(frozen=True)
class Drawing:
    """The settings that batches are made with."""

    image: ImageSpec
    model: ModelConfig
    """The model whose tokenizer is used."""
    fit: FitConfig
    max_pixels: int
    """The limit of the pairs: larger images are not decoded."""
    kinds: tuple[tuple[str, str], ...] = ()
    """Every (operation, kind) of negatives, sorted."""
    most_negatives: int | None = None
    """Maximum number of negatives of a pair, which bounds the slots of a batch; none = the slots of
    ``fit``."""

    @property
    def loss(self) -> type[Loss]:
        """The loss that the batches are for."""
        return get_loss(self.fit.loss)

    @property
    def num_slots(self) -> int:
        """K of a batch, the same in all of a run."""
        asked = self.fit.num_negatives
        return asked if self.most_negatives is None else max(1, min(asked, self.most_negatives))


def make_batch(
    tables: Mapping[int, pa.Table], shard_R: np.ndarray, row_R: np.ndarray, epoch: int, draw: Drawing
) -> dict[str, np.ndarray]:
    """Return rows of loaded shards as arrays: image uint8 (R, H, W, C), token int32 (R, N).

    With a loss of hard negatives: negative int32 (R, K, N), valid bool (R, K), kind int64 (R, K), the
    number in ``draw.kinds``; a slot that is not valid has the caption's tokens and kind 0. triplet takes only
    negatives with a picture, K = 1: negative_image uint8 (R, H, W, C), 0 where not valid. Raises UserError
    where an image does not decode.
    """
    drawn = [_draw(row, epoch, draw) for row in _take(tables, shard_R, row_R, draw)]
    pixels, captions, negatives, shown = map(list, zip(*drawn, strict=True))
    batch = {"image": np.stack(pixels)}
    flat, num_slots = [negative for own in negatives for negative in own], draw.num_slots
    texts = [readable(text) for text in (*captions, *(negative["text"] for negative in flat))]
    token_TN = load_tokens(_fetch(draw.model))(texts)
    batch["token"] = token_TN[: len(drawn)]
    if not draw.loss.negatives:
        return batch
    batch["negative"] = np.repeat(batch["token"][:, None], num_slots, 1)
    batch["valid"] = np.arange(num_slots) < np.array([[len(own)] for own in negatives])
    batch["negative"][batch["valid"]] = token_TN[len(drawn) :]
    batch["kind"] = np.zeros((len(drawn), num_slots), np.int64)
    number = {kind: i for i, kind in enumerate(draw.kinds)}
    batch["kind"][batch["valid"]] = [number[negative["op"], negative["kind"]] for negative in flat]
    if draw.loss.negative_images:
        blank = np.zeros_like(batch["image"][0])
        batch["negative_image"] = np.stack([blank if one is None else one for one in shown])
    return batch


def cut_shard(table: pa.Table, rows: Sequence[np.ndarray]) -> list[pa.Table]:
    """Return, for each of some arrays of rows of a loaded shard, the samples that have them."""
    first_N = table[FIRST_ROW].to_numpy()
    samples = [np.unique(locate_rows(first_N, row_R)[0]) for row_R in rows]
    return [table.take(pa.array(sample_M)).combine_chunks() for sample_M in samples]


def _take(
    tables: Mapping[int, pa.Table], shard_R: np.ndarray, row_R: np.ndarray, draw: Drawing
) -> list[dict[str, Any]]:
    """Return the rows as Python values, and the number of each row among its pair's copies; rows of a shard
    are taken together."""
    names = [UID, CAPTIONS, IMAGE]
    names += [NEGATIVES] if draw.loss.negatives else []
    names += [NEGATIVE_IMAGES] if draw.loss.negative_images else []
    rows: list[dict[str, Any]] = [{}] * len(shard_R)
    for shard in np.unique(shard_R).tolist():
        mine = np.flatnonzero(shard_R == shard)
        sample_R, copy_R = locate_rows(tables[shard][FIRST_ROW].to_numpy(), row_R[mine])
        found = tables[shard].select(names).take(pa.array(sample_R)).to_pylist()
        for place, row, copy in zip(mine.tolist(), found, copy_R.tolist(), strict=True):
            rows[place] = {**row, _COPY: copy}
    return rows


def _draw(
    row: dict[str, Any], epoch: int, draw: Drawing
) -> tuple[np.ndarray, str, list[dict[str, Any]], np.ndarray | None]:
    """Draw pixels, caption, negatives and the first negative's pixels of a pair from separate generators, so
    the loss does not change the caption or crops. The first copy equals the pair's draw without copies."""
    copy = [row[_COPY]] if row[_COPY] else []
    of_caption, of_crop, of_negatives = (
        np.random.default_rng((draw.fit.seed, epoch, int(row[UID], 16), what, *copy)) for what in range(3)
    )
    captions = row[CAPTIONS]
    caption = captions[of_caption.integers(len(captions))]
    pixels, shown = _make_pixels(row[IMAGE], row[UID], draw, of_crop), None
    chosen = _choose(row[NEGATIVES], draw, of_negatives) if draw.loss.negatives else []
    if chosen and draw.loss.negative_images:
        shown = _make_pixels(row[NEGATIVE_IMAGES][chosen[0]], row[UID], draw, of_crop)
    return pixels, caption, [row[NEGATIVES][place] for place in chosen], shown


def _choose(negatives: list[dict[str, Any]], draw: Drawing, rng: np.random.Generator) -> list[int]:
    """Return the indices of a pair's negatives: drawn at random, over as many operations and kinds as
    possible."""
    places = rng.permutation(len(negatives)).tolist()
    if draw.loss.negative_images:
        places = [place for place in places if negatives[place]["image"]]
    seen: dict[tuple[str, str], int] = {}
    turns = {}
    for place in places:
        kind = negatives[place]["op"], negatives[place]["kind"]
        turns[place] = seen[kind] = seen.get(kind, -1) + 1
    return sorted(places, key=turns.__getitem__)[: draw.num_slots]


def _make_pixels(data: bytes, uid: str, draw: Drawing, rng: np.random.Generator) -> np.ndarray:
    fit = draw.fit
    try:
        if tuple(fit.crop) == (1, 1):
            return prepare_image(data, draw.image, draw.max_pixels, fit.fast_decode)[0]
        return crop_image(data, draw.image, draw.max_pixels, fit.crop, rng, fit.fast_decode)
    except ImageFault as fault:
        raise UserError(f"the image of uid {uid} cannot be trained on: {fault.status} ({fault})") from fault


def read_batches(
    pairs: Pairs,
    index: Callable[[int], pa.Table],
    plan: EpochPlan,
    draw: Drawing,
    first_step: int,
    num_steps: int,
    own: slice = slice(None),
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the batches of ``num_steps`` steps from ``first_step`` on, made in this process.

    ``index`` returns the table of a shard's pairs; ``own``: this rank's rows of a global batch. A shard is
    loaded with its window and dropped after it: memory holds the images of one window, or of two where a
    batch has rows of both.
    """
    tables: dict[int, pa.Table] = {}
    for step in range(first_step, first_step + num_steps):
        needed = plan.shards(step)
        tables = {shard: table for shard, table in tables.items() if shard in needed}
        for shard in sorted(needed - set(tables)):
            tables[shard] = load_shard(pairs, shard, index(shard))
        shard_B, row_B = plan.batch(step)
        yield make_batch(tables, shard_B[own], row_B[own], step // plan.steps_per_epoch, draw)
