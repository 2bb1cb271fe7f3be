"""A tiny CLIP and two little tasks of pixels and words: what tests of methods that train the model share."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycomp.continual.config import ContinualConfig, TuneConfig
from raycomp.continual.data import Keys, Pixels, Split
from raycomp.continual.loop import TUNERS
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip
from raycomp.models.images import ImageSpec
from tests.training.fitting import CONTEXT, draw_texts, write_model

TEXTS, SAMPLES, STEPS, BATCH = 5, 12, 4, 6
TUNE = TuneConfig(STEPS, BATCH, learning_rate=1e-3, rank=2, contexts=2, experts=3, ensemble=2)


class Few:
    """A model, what is known of it, and what is learned: two tasks whose images and texts lie far apart."""

    def __init__(self, folder: Path, **more: Any):
        self.clip = Clip(write_model(folder, **more), device="cpu", num_threads=1)
        mean, std = (tuple(values.flatten().tolist()) for values in (self.clip.mean_3, self.clip.std_3))
        self.spec = ScorerSpec(ImageSpec(32, 32, mean, std), CONTEXT, 32, shares_prefixes=True)
        self.tasks = [self.draw(number) for number in range(2)]

    def draw(self, number: int) -> Split:
        """Return a task, some samples of each text; pixels of the first are dark, of the second bright."""
        generator = torch.Generator().manual_seed(number)
        low, high = ((0, 90), (160, 255))[number]
        pixel = torch.randint(low, high, (SAMPLES, 32, 32, 3), generator=generator, dtype=torch.uint8).numpy()
        token = draw_texts(generator, TEXTS).int().numpy()
        token[:, 1] = 7 + 20 * number  # texts of a task share their first word
        return Split(
            image_ND=self.clip.embed_pixels(pixel).numpy(),
            own_N=np.arange(SAMPLES) % TEXTS,
            texts=tuple(f"text {number} {place}" for place in range(TEXTS)),
            text_TD=self.clip.text.embed(token)[0].numpy(),
            primitives=(("thing",),) * TEXTS,
            pixels=Pixels((pixel,), np.zeros(SAMPLES, np.int64), np.arange(SAMPLES)),
            token_TL=token,
        )

    def make(self, learner: str, **options: Any) -> Any:
        config = ContinualConfig(tune=replace(TUNE, **options))
        more = [self.tasks[1]] if learner == "zscl" else []
        return TUNERS[learner](self.clip, self.spec, config, 0, *more)

    def start(self, learner: str, stop: int = STEPS, **options: Any) -> tuple[Any, list[dict[str, float]]]:
        """Return a learner after some steps of the first task, which stays open, and what they reported."""
        made = self.make(learner, **options)
        made.start_task(0, self.tasks[0])
        return made, learn(made, 0, stop=stop)

    def through(self, learner: str, num_tasks: int = 2, **options: Any) -> Any:
        """Return a learner of tasks, one after another."""
        made = self.make(learner, **options)
        for number, task in enumerate(self.tasks[:num_tasks]):
            made.start_task(number, task)
            learn(made, number)
            made.end()
        return made

    def frozen(self, number: int) -> Keys:
        """Return a task as a method sees it that has learned nothing."""
        return self.make("finetune").find_keys(self.tasks[number])

    def shape(self, pixels: np.ndarray) -> torch.Tensor:
        """Return pixels as the model takes them, by plain arithmetic."""
        mean, std = (torch.tensor(values) for values in (self.spec.image.mean, self.spec.image.std))
        return ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)


def rows(number: int, step: int) -> np.ndarray:
    return np.random.default_rng([number, step]).permutation(SAMPLES)[:BATCH]


def learn(learner: Any, number: int, start: int = 0, stop: int = STEPS) -> list[dict[str, float]]:
    """Take steps of a task that is open; return what they report."""
    return [learner.step(step, rows(number, step)) for step in range(start, stop)]


def on_disk(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one: Keys, other: Keys) -> bool:
    return np.array_equal(one.image_ND, other.image_ND) and np.array_equal(one.text_TD, other.text_TD)
