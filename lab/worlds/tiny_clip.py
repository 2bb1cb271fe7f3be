"""Trains a tiny CLIP for the little world on the part without faults.

S pairs, H x W x C pixels, N tokens of context, D embedding dims.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from lab.worlds.shards import FIT, TINY_CLIP, TrainedScorer, World
from raycomp.config import ScorerConfig
from raycomp.core.alignment import normalise
from raycomp.curation.config import PrepareConfig
from raycomp.data.files import resolve
from raycomp.data.inputs import expand_input
from raycomp.data.samples import read_tar
from raycomp.models.architecture import ScorerSpec, describe_scorer, load_tokens
from raycomp.models.clip import Clip, encode_text
from raycomp.models.images import ImageFault, prepare_image
from raycomp.training.config import FitConfig
from raycomp.training.loop import Trainer
from raycomp.training.towers import Batch, Judged, PairsObjective
from raycomp.words import CAPTION, IMAGE, OK, STATUS

BLOCK_ROWS = 512


def train_scorer(
    world: World,
    folder: str | Path,
    seed: int,
    config: FitConfig = FIT,
    on_step: Callable[[int, float], None] | None = None,
    architecture: Mapping[str, Any] = TINY_CLIP,
) -> TrainedScorer:
    """Train a tiny CLIP from scratch on ``world.train``, ``config.steps`` steps; write it to ``folder``.

    Each tower is computed by one thread: for so small a model a second one makes it no faster, far slower
    where another process needs a core, and changes the bits. Images are prepared as in scoring. The seed
    draws the weights and the order. ``on_step`` is called with each step and its loss. Raises ValueError
    where a pair is not ok, there are fewer pairs than a batch needs, or a loss is not finite.
    """
    start = _write_architecture(folder, seed, architecture)
    spec = describe_scorer(start)
    model = Clip(start, device="cpu").model
    train, held_out = (load_pairs(part, start, spec) for part in (world.train, world.held_out))
    rows = draw_batches(len(train[0]), config.batch_size, torch.Generator().manual_seed(seed))
    batches = (Batch(_normalise(train[0][row_B], spec), train[1][row_B]) for row_B in rows)
    started = time.perf_counter()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        losses = _fit(model, batches, config, on_step)
        train_s = time.perf_counter() - started
        image_SD, text_SD = _embed(model, *held_out, spec)
    finally:
        torch.set_num_threads(num_threads)
    return TrainedScorer(
        scorer=_save(model, start),
        losses=losses,
        num_train=len(train[0]),
        num_held_out=len(image_SD),
        image_to_text=recall_at_1(image_SD, text_SD),
        text_to_image=recall_at_1(text_SD, image_SD),
        train_s=train_s,
    )


def _fit(
    model: Any, batches: Iterator[Batch], config: FitConfig, on_step: Callable[[int, float], None] | None
) -> tuple[float, ...]:
    """Train ``model`` in place and return the loss of every step."""
    assert config.steps, "the little world counts steps"
    losses = []
    objective = PairsObjective(model, config, config.steps, config.batch_size)
    for reported in _TwoThreads(objective, config.steps).run(batches):
        losses.append(reported.loss)
        if on_step:
            on_step(reported.step, reported.loss)
    model.eval()
    return tuple(losses)


class _TwoThreads(Trainer[PairsObjective]):
    """Computes the towers at the same time, a thread each; the bits are those of one after the other."""

    def __init__(self, objective: PairsObjective, num_steps: int):
        super().__init__(objective, num_steps)
        self._other = ThreadPoolExecutor(1, "images", torch.set_num_threads, (1,))

    def _compute_gradients(self, batch: Batch) -> Judged:
        clip = self.objective.clip
        images = self._other.submit(lambda: F.normalize(clip.encode_image(batch.image_RCHW), dim=-1))
        text_RD = F.normalize(encode_text(clip, batch.token_RN), dim=-1)
        made = {"image": images.result(), "text": text_RD}
        leaves = {name: rows.detach().requires_grad_() for name, rows in made.items()}
        judged = self.objective.judge({**leaves, "scale": clip.logit_scale.exp()}, batch)
        judged.loss.backward()
        images = self._other.submit(made["image"].backward, leaves["image"].grad)
        made["text"].backward(leaves["text"].grad)
        images.result()
        return judged


def draw_batches(num_rows: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield row numbers (B,) without end: each pass over the rows in a new order, without its last,
    incomplete batch."""
    if num_rows < batch_size:
        raise ValueError(f"train.batch_size={batch_size}: must be at most the {num_rows} pairs there are")
    while True:
        order = torch.randperm(num_rows, generator=generator)
        yield from order[: num_rows - num_rows % batch_size].split(batch_size)


def _write_architecture(
    folder: str | Path, seed: int, architecture: Mapping[str, Any] = TINY_CLIP
) -> ScorerConfig:
    path = Path(folder) / "model.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(architecture, indent=2) + "\n")
    return ScorerConfig(model=str(path), weights=f"random:{seed}")


def _save(model: Any, start: ScorerConfig) -> ScorerConfig:
    """Write the weights and the architecture; return the config of this scorer."""
    path = Path(start.model).with_suffix(".safetensors")
    state = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(state, path)
    return ScorerConfig(model=start.model, weights=str(path))


def load_pairs(part: str, scorer: ScorerConfig, spec: ScorerSpec) -> tuple[Tensor, Tensor]:
    """Return uint8 pixels (S, H, W, C) and token ids (S, N) of all pairs; ValueError if one is not ok."""
    tokenize, max_pixels = load_tokens(scorer), PrepareConfig().max_pixels

    def make(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        images = []
        for data, status in zip(table[IMAGE].to_pylist(), table[STATUS].to_pylist(), strict=True):
            try:
                if status != OK:
                    raise ImageFault(status, "")
                images.append(prepare_image(data, spec.image, max_pixels)[0])
            except ImageFault as fault:
                raise ValueError(f"{part}: every pair must be ok, one is {fault.status}") from fault
        return np.stack(images), tokenize(table[CAPTION].to_pylist())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pixels, tokens = zip(*pool.map(make, _read(part)), strict=True)
    return torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(np.concatenate(tokens)).long()


def _read(part: str) -> Iterator[pa.Table]:
    for shard in expand_input(part):
        filesystem, path = resolve(shard.uri)
        with filesystem.open_input_stream(path) as stream:
            yield from read_tar(stream, shard, BLOCK_ROWS)


def _normalise(pixels_BHWC: Tensor, spec: ScorerSpec) -> Tensor:
    """Return (B, C, H, W) as open_clip normalises it for evaluation."""
    mean, std = torch.tensor(spec.image.mean), torch.tensor(spec.image.std)
    return ((pixels_BHWC / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()


@torch.inference_mode()
def _embed(model: Any, pixels_SHWC: Tensor, token_SN: Tensor, spec: ScorerSpec) -> tuple[Tensor, Tensor]:
    image_SD, text_SD = model.encode_image(_normalise(pixels_SHWC, spec)), model.encode_text(token_SN)
    return normalise(image_SD), normalise(text_SD)


def recall_at_1(query_SD: Tensor, target_SD: Tensor) -> float:
    """Return the share of queries whose own target (same row) scores strictly above all others, 0 to 1."""
    score_SS = query_SD @ target_SD.T
    own_S = score_SS.diagonal().clone()
    score_SS.fill_diagonal_(-torch.inf)
    return float((own_S > score_SS.amax(dim=1)).float().mean())
