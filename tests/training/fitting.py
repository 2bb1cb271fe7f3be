"""A CLIP of few words, batches for it, and ranks on one machine: what tests of the training loop share."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from raycomp.config import ModelConfig
from raycomp.core.batches import slice_of
from raycomp.data.files import Folder
from raycomp.models.clip import load_start
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.journal import Evaluate, Training
from raycomp.training.loop import Batch, Trainer, Writer, copy_state, load_state, write_state
from raycomp.training.losses import LOSSES, get_loss
from raycomp.training.towers import PairsObjective

STEPS, BATCH, SLOTS, KINDS = 20, 12, 2, 3
# Of 64 words the first begins a text and the last ends it.
WORDS, CONTEXT = 64, 16
OF_PARTS: tuple[dict[str, Any], ...] = ({}, {"freeze": ("image",), "lora_rank": 2})
ARCHITECTURE = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": CONTEXT, "vocab_size": WORDS, "width": 32, "heads": 2, "layers": 1},
}


def write_model(folder: Path, name: str = "few-words", **more: Any) -> ModelConfig:
    """Write the architecture, with more keys or others, as a json file; the model of it is random."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**ARCHITECTURE, **more}))
    return ModelConfig(name=str(path), weights="random:0")


def write_dropping_model(folder: Path) -> ModelConfig:
    """Write one that draws in training: which patches it drops."""
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
    return write_model(folder, "drops", vision_cfg={**vision, "patch_dropout": 0.5})


def draw_images(generator: torch.Generator, num: int = BATCH) -> Tensor:
    return torch.randn(num, 3, 32, 32, generator=generator)


def draw_texts(generator: torch.Generator, *shape: int) -> Tensor:
    """Return token ids, (*shape, N), of texts of one to eight words."""
    token = torch.randint(1, WORDS - 1, (*shape, CONTEXT), generator=generator)
    end = torch.randint(2, 10, (*shape, 1), generator=generator)
    place = torch.arange(CONTEXT)
    token = torch.where(place < end, token, torch.where(place == end, WORDS - 1, 0))
    token[..., 0] = 0
    return token


def batches(own: slice, loss: str = "clip", num_steps: int = STEPS) -> Iterator[Batch]:
    """Yield a rank's rows of the same batches."""
    generator, needs = torch.Generator().manual_seed(0), get_loss(loss)
    kind_BK = torch.arange(BATCH * SLOTS).reshape(BATCH, SLOTS) % KINDS
    for _ in range(num_steps):
        image, shown = draw_images(generator), draw_images(generator)
        token, negative = draw_texts(generator, BATCH), draw_texts(generator, BATCH, SLOTS)
        valid = torch.rand(BATCH, SLOTS, generator=generator) < 0.7
        more = (negative, valid, kind_BK) if needs.negatives else ()
        whole = Batch(image, token, *more, negative_image_RCHW=shown if needs.negative_images else None)
        yield whole.cut(own)


def start_trainer(
    model: ModelConfig, loss: str, rank: int = 0, num_ranks: int = 1, num_steps: int = STEPS, **options: Any
) -> Trainer:
    """Return a trainer of a rank before its first step."""
    config = FitConfig(loss=loss, **{"learning_rate": 3e-4, "warmup": 0.25, **options})
    clip = load_start(model, get_loss(loss).bias)
    return Trainer(PairsObjective(clip, config, num_steps, BATCH, num_kinds=KINDS), num_steps)


def start_writer(
    trainer: Trainer, config: TrainConfig, out: str, report: Callable, evaluate: Evaluate | None = None
) -> Writer:
    """Return what writes for a trainer into the folder ``out``."""
    spec: Any = None  # only held-out pairs need one
    training = Training(config, out, None, None, trainer.num_steps, KINDS, spec, None, evaluate)
    return Writer(trainer, training, report)


def run(trainer: Trainer, rank: int = 0, num_ranks: int = 1, until: int = STEPS) -> list[float]:
    """Take the steps up to ``until``, the batches being those of their steps; return their losses."""
    all_steps = batches(slice_of(rank, num_ranks, BATCH), trainer.config.loss, until)
    return [reported.loss for reported in trainer.run(list(all_steps)[trainer.step :])]


def on_ranks(measure: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Return what ``measure(rank, num_ranks, *arguments)`` returns on every rank of three.

    The processes are forks of one that has imported all, so that they begin at once.
    """
    mp.get_context("forkserver").set_forkserver_preload([__name__, "peft.tuners.lora"])
    folder.mkdir(parents=True, exist_ok=True)
    mp.start_processes(_run_rank, (measure, str(folder), arguments), nprocs=3, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt") for rank in range(3)]


def _run_rank(rank: int, measure: Callable[..., Any], folder: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    late = timedelta(minutes=5)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=3, timeout=late)
    torch.save(measure(rank, 3, *arguments), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def measure_all(rank: int, num_ranks: int, model: ModelConfig, drops: ModelConfig, folder: str) -> Any:
    """Return what several tests compare, so that the processes start once."""
    parts = [
        measure_parts(rank, num_ranks, model, "triplet", {**options, "accumulate": 3}) for options in OF_PARTS
    ]
    curves = {loss: run(start_trainer(model, loss, rank, num_ranks), rank, num_ranks, 8) for loss in LOSSES}
    return {"curves": curves, "parts": parts, "resumed": measure_resumed(rank, num_ranks, drops, folder)}


def measure_parts(rank: int, num_ranks: int, model: ModelConfig, loss: str, options: Any) -> dict[str, Any]:
    """Return losses and weights of some steps.

    AdamW divides by the gradient's size: where that is as small as eps, a rounding error is a whole step.
    """
    trainer = start_trainer(model, loss, rank, num_ranks, **{"eps": 1e-4, **options})
    losses = run(trainer, rank, num_ranks, 5)
    return {"losses": losses, **trainer.clip.state_dict()}


def measure_resumed(rank: int, num_ranks: int, model: ModelConfig, folder: str) -> list[dict[str, Any]]:
    """Return losses and weights of six steps: in one go, and with a stop after the third."""
    found = []
    for stop in (None, 3):
        trainer, losses = start_trainer(model, "ceclip", rank, num_ranks, 6), []
        if stop:
            out = Folder(f"{folder}/{num_ranks}")
            losses = run(trainer, rank, num_ranks, stop)
            if rank == 0:
                write_state(copy_state(trainer), out)
            dist.barrier()
            trainer = start_trainer(model, "ceclip", rank, num_ranks, 6)
            load_state(trainer, out, stop)
        losses += run(trainer, rank, num_ranks, 6)
        found.append({"losses": losses, "weights": trainer.clip.state_dict()})
    return found
