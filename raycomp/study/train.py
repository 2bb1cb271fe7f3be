"""One cell: a tiny CLIP from random weights, on some pairs of a world, judged by the world's exams.

B pairs of a batch, K negatives per caption, J slots of negatives, S scenes, R negatives of an exam, D dims.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.config import ScorerConfig
from raycomp.data.folder import Folder
from raycomp.data.parquet import write_table
from raycomp.models.clip import Clip
from raycomp.models.describe import describe_scorer
from raycomp.models.images import ImageSpec
from raycomp.models.short_text import encode_text
from raycomp.models.weights_check import refuse_bad
from raycomp.schema import CELL_SCHEMA
from raycomp.study.arms import choose_rows, count_faults
from raycomp.study.cells import METHODS, Cell, Method
from raycomp.study.pool import NUM_ONCE, Exam, Pool, prepare
from raycomp.study.world import Place, load_exams, load_pool, load_scores
from raycomp.train.config import FitConfig
from raycomp.train.fit import Trainer
from raycomp.train.little_world import FIT
from raycomp.train.tiny_clip import draw_batches, recall_at_1
from raycomp.train.towers import Batch, Towers, to_batch
from raycomp.worlds.exam import CATEGORIES
from raycomp.worlds.render import encode_jpeg, render
from raycomp.worlds.samples import SIDE
from raycomp.worlds.scenes import show
from raycomp.worlds.training import take_apart

# Added to a cell's seed: worlds have theirs, and a scorer's weights and order shall be no cell's.
_CELL_SEED = 6_000_000
_ROWS_AT_ONCE = 256
_LAST_STEPS = 10


def run_cell(cell: Cell, place: Place, out: Folder) -> dict[str, Any]:
    """Train a cell on one thread and judge it; write cells/NAME.parquet, and NAME.json last: then it is done.

    The numbers depend on the cell, the world and the config's dials alone.
    """
    torch.set_num_threads(1)
    started = time.perf_counter()
    config, method, pool = place.config, METHODS[cell.method], load_pool(place)
    start = replace(place.scorer, weights=f"random:{_seed(place, cell)}")
    spec = describe_scorer(start)
    fit = replace(
        FIT,
        loss=method.loss,
        steps=config.steps,
        batch_size=config.batch_size,
        num_negatives=max(1, method.num_negatives),
        seed=_seed(place, cell),
    )
    scores = load_scores(place)
    row_N = choose_rows(scores, cell.arm, _seed(place, cell))
    model, losses = _train(start, fit, pool, row_N, cell, method, spec.image)
    facts: dict[str, Any] = {
        "world": place.number,
        "scorer": place.describe_scorer(),
        "pairs": len(row_N),
        "faults": count_faults(scores, row_N),
        "losses": [losses[0], float(np.mean(losses[-_LAST_STEPS:]))],
    }
    tables = []
    for is_seen, exam in load_exams(place).items():
        table, recall = judge(model, exam, is_seen, spec.image)
        tables.append(table)
        facts |= recall if is_seen else {}
    write_table(pa.concat_tables(tables), out.at("cells", f"{cell.name}.parquet"), CELL_SCHEMA)
    facts["seconds"] = time.perf_counter() - started
    out.write_json({"cell": vars(cell), **facts}, "cells", f"{cell.name}.json")
    return facts


def _seed(place: Place, cell: Cell) -> int:
    """Return what draws a cell's weights, order, negatives and random arms: of one seed the same in all."""
    return _CELL_SEED + 1000 * place.config.seed + cell.seed


def _train(
    start: ScorerConfig,
    fit: FitConfig,
    pool: Pool,
    row_N: np.ndarray,
    cell: Cell,
    method: Method,
    image: ImageSpec,
) -> tuple[Any, list[float]]:
    """Return the trained model and the loss of every step."""
    model = Clip(start, device="cpu", num_threads=1).model
    assert fit.steps
    trainer = Trainer(model, fit, fit.steps, fit.batch_size, len(pool.kinds))
    batches = _make_batches(pool, row_N, fit, method, cell.operation, image)
    losses = [told.loss for told in trainer.run(batches)]
    model.eval()
    return model, losses


def _make_batches(
    pool: Pool, row_N: np.ndarray, fit: FitConfig, method: Method, operation: str | None, image: ImageSpec
) -> Iterator[Batch]:
    order = torch.Generator().manual_seed(fit.seed)
    # Of its own, so that methods with negatives and without see the pairs in the same order.
    rng = np.random.default_rng([fit.seed, 1])
    allowed_2NJ = list_allowed(pool, method, operation)
    for chosen_B in draw_batches(len(row_N), fit.batch_size, order):
        row_B = row_N[chosen_B.numpy()]
        arrays = {"image": pool.pixel_NHWC[row_B], "token": pool.token_NL[row_B]}
        if method.num_negatives:
            slot_BK, valid_BK = draw_slots(allowed_2NJ[:, row_B], pool.kind_NJ[row_B], method, rng)
            arrays |= {
                "negative": pool.negative_NJL[row_B[:, None], slot_BK],
                "valid": valid_BK,
                "kind": np.maximum(pool.kind_NJ[row_B[:, None], slot_BK], 0).astype(np.int64),
            }
            if method.loss == "triplet":
                texts = pool.text_NJ[row_B, slot_BK[:, 0]]
                arrays["negative_image"] = np.stack([_show(text, image) for text in texts])
        yield to_batch(arrays, "cpu", image)


def list_allowed(pool: Pool, method: Method, operation: str | None) -> np.ndarray:
    """Return which slots the two halves of a caption's negatives may come from, bool [2, N, J].

    Both halves are of one edit, or the second of two. Triplet takes only what a picture can show.
    """
    allowed_NJ = pool.kind_NJ >= 0
    if operation is not None:
        allowed_NJ = allowed_NJ & _is_of(pool, operation)
    if method.loss == "triplet":
        allowed_NJ = allowed_NJ & pool.shown_NJ
    once_J = np.arange(allowed_NJ.shape[1]) < NUM_ONCE
    return np.stack([allowed_NJ & once_J, allowed_NJ & (once_J if method.calls == 1 else ~once_J)])


def _is_of(pool: Pool, operation: str) -> np.ndarray:
    numbers = [i for i, name in enumerate(pool.kinds.tolist()) if name.startswith(f"{operation} ")]
    return np.isin(pool.kind_NJ, numbers)


def draw_slots(
    allowed_2BJ: np.ndarray, kind_BJ: np.ndarray, method: Method, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw K slots per caption and return them with whether there is a negative in each, both [B, K].

    No slot comes twice. Half of them are of either half; a single one is of either at even odds. Kinds of
    edits take turns, all as likely to be first, as in the training of real pairs.
    """
    num_rows, num = allowed_2BJ.shape[1], method.num_negatives
    if method.calls == 1:
        parts = [(allowed_2BJ[0], num)]
    elif num == 1:
        is_second_B1 = rng.random((num_rows, 1)) < 0.5
        parts = [(np.where(is_second_B1, allowed_2BJ[1], allowed_2BJ[0]), 1)]
    else:
        parts = [(allowed_2BJ[0], num // 2), (allowed_2BJ[1], num - num // 2)]
    slots, valid = [], []
    for allowed_BJ, count in parts:
        slot_BK = np.argsort(_draw_turns(allowed_BJ, kind_BJ, rng), axis=1)[:, :count]
        slots.append(slot_BK)
        valid.append(np.take_along_axis(allowed_BJ, slot_BK, axis=1))
    return np.concatenate(slots, axis=1), np.concatenate(valid, axis=1)


def _draw_turns(allowed_BJ: np.ndarray, kind_BJ: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return what orders the slots of each caption: a first one of every kind, a second one; unused last."""
    key_BJ = rng.random(allowed_BJ.shape)
    is_like_BJJ = (kind_BJ[:, :, None] == kind_BJ[:, None, :]) & allowed_BJ[:, None, :]
    turn_BJ = (is_like_BJJ & (key_BJ[:, None, :] < key_BJ[:, :, None])).sum(axis=2)
    return np.where(allowed_BJ, turn_BJ + rng.random(allowed_BJ.shape), np.inf)


def _show(text: bytes, image: ImageSpec) -> np.ndarray:
    """Return pixels of a scene that the text of a negative is true of; blank where there is no text."""
    if not text:
        return np.zeros((image.height, image.width, 3), np.uint8)
    rng = np.random.default_rng(list(hashlib.sha256(text).digest()))
    return prepare(encode_jpeg(render(show(take_apart(text.decode()).claim, rng), SIDE)), image)


def judge(model: Any, exam: Exam, is_seen: bool, image: ImageSpec) -> tuple[pa.Table, dict[str, float]]:
    """Return a row of CELL_SCHEMA for each negative of an exam, and the retrieval among its scenes.

    Right: the caption's cosine with the picture is above the negative's; augmented: the paraphrase's, too;
    brittle: the negative's lies between the two. A tie is none of these.
    """
    image_SD, caption_SD = _embed(model, exam.pixel_SHWC, exam.caption_SL, image)
    paraphrase_SD, negative_RD = (_embed_texts(model, ids) for ids in (exam.paraphrase_SL, exam.negative_RL))
    scene_R = torch.from_numpy(exam.scene_R).long()
    own_R = (image_SD * caption_SD).sum(1)[scene_R].numpy()
    again_R = (image_SD * paraphrase_SD).sum(1)[scene_R].numpy()
    other_R = (image_SD[scene_R] * negative_RD).sum(1).numpy()
    right_R = own_R > other_R
    brittle_R = (np.minimum(own_R, again_R) < other_R) & (other_R < np.maximum(own_R, again_R))
    names = [" ".join(category) for category in CATEGORIES]
    columns = {
        "scene": exam.scene_R,
        "category": [names[i] for i in exam.category_R],
        "seen": np.full(len(scene_R), is_seen),
        "right": right_R,
        "augmented": right_R & (again_R > other_R),
        "brittle": brittle_R,
    }
    recall = {
        "image_to_text": recall_at_1(image_SD, caption_SD),
        "text_to_image": recall_at_1(caption_SD, image_SD),
    }
    return pa.table(columns).cast(CELL_SCHEMA), recall


@torch.inference_mode()
def _embed(
    model: Any, pixel_SHWC: np.ndarray, token_SL: np.ndarray, image: ImageSpec
) -> tuple[Tensor, Tensor]:
    towers, found = Towers(model), []
    for start in range(0, len(pixel_SHWC), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        batch = to_batch({"image": pixel_SHWC[rows], "token": token_SL[rows]}, "cpu", image)
        found.append(towers(batch.image_RCHW, batch.token_RN)[:2])
    image_SD, text_SD = (_check(torch.cat(parts)) for parts in zip(*found, strict=True))
    return image_SD, text_SD


@torch.inference_mode()
def _embed_texts(model: Any, token_RL: np.ndarray) -> Tensor:
    parts = torch.from_numpy(token_RL).long().split(_ROWS_AT_ONCE)
    return _check(torch.cat([F.normalize(encode_text(model, part).float(), dim=-1) for part in parts]))


def _check(x_SD: Tensor) -> Tensor:
    """Return the rows; UserError where training left a model that gives none."""
    refuse_bad(x_SD, "the trained model", "rows", "change steps or batch_size")
    return x_SD
