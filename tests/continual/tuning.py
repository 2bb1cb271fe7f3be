"""A tiny CLIP and two little tasks of pixels and words: what tests of methods that train the model share."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycomp.continual.config import ContinualConfig, TuneConfig
from raycomp.continual.data import Keys, Pixels, Split
from raycomp.continual.loop import make_tuner
from raycomp.continual.methods.zscl import Reference
from raycomp.models.architecture import ScorerSpec
from raycomp.models.clip import Clip
from raycomp.models.images import ImageSpec
from tests.training.fitting import CONTEXT, draw_texts, write_model

TEXTS, SAMPLES, STEPS, BATCH = 5, 12, 4, 6
CONFIG = ContinualConfig(
    tune=TuneConfig(
        steps=STEPS, batch_size=BATCH, learning_rate=1e-3, rank=2, contexts=2, experts=3, ensemble=2
    )
)


class Few:
    """A model, what is known of it, and what is learned: two tasks whose images and texts lie far apart."""

    def __init__(self, folder: Path, **more: Any):
        model = write_model(folder, **more)
        self.clip = Clip(model, device="cpu", num_threads=1)
        mean, std = (tuple(values.flatten().tolist()) for values in (self.clip.mean_3, self.clip.std_3))
        image = ImageSpec(32, 32, mean, std)
        self.spec = ScorerSpec(image, CONTEXT, 32, shares_prefixes=True)
        self.tasks = [self.draw(number) for number in range(2)]

    def draw(self, number: int) -> Split:
        """Return a task, some samples of each text; pixels of the first are dark, of the second bright."""
        generator = torch.Generator().manual_seed(number)
        low, high = ((0, 90), (160, 255))[number % 2]
        pixel = torch.randint(low, high, (SAMPLES, 32, 32, 3), generator=generator, dtype=torch.uint8).numpy()
        token = draw_texts(generator, TEXTS).int().numpy()
        # Texts of a task share their first words.
        token[:, 1] = 7 + 20 * (number % 2)
        return Split(
            image_ND=self.clip.embed_pixels(pixel).numpy(),
            own_N=np.arange(SAMPLES) % TEXTS,
            texts=tuple(f"text {number} {place}" for place in range(TEXTS)),
            text_TD=self.clip.text.embed(token)[0].numpy(),
            primitives=(("thing",),) * TEXTS,
            pixels=to_pixels(pixel),
            token_TL=token,
        )

    def make(self, learner: str, seed: int = 0, **options: Any) -> Any:
        tune = dataclasses.replace(CONFIG.tune, **options)
        config = dataclasses.replace(CONFIG, tune=tune)
        other = self.tasks[1]
        assert other.pixels is not None and other.token_TL is not None
        reference = Reference(other.pixels, other.token_TL)
        return make_tuner(learner, self.clip, self.spec, config, seed, reference)

    def frozen(self, number: int) -> Keys:
        """Return a task as a method sees it that has learned nothing."""
        return self.make("finetune").find_keys(self.tasks[number])


def to_pixels(pixel_NHWC: np.ndarray) -> Pixels:
    """Return pictures as those of samples, each its own."""
    num = len(pixel_NHWC)
    return Pixels((pixel_NHWC,), np.zeros(num, np.int64), np.arange(num))


def rows(number: int, step: int) -> np.ndarray:
    return np.random.default_rng([number, step]).permutation(SAMPLES)[:BATCH]


def learn(learner: Any, few: Few, number: int, start: int = 0, stop: int = STEPS) -> list[dict[str, float]]:
    """Take steps of a task that is open; return what they tell."""
    return [learner.step(step, rows(number, step)) for step in range(start, stop)]


def through(learner: Any, few: Few, num_tasks: int = 2) -> Any:
    """Learn tasks one after another; return the learner."""
    for number, task in enumerate(few.tasks[:num_tasks]):
        learner.start_task(number, task)
        learn(learner, few, number)
        learner.end()
    return learner


def on_disk(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one: Keys, other: Keys) -> bool:
    return np.array_equal(one.image_ND, other.image_ND) and np.array_equal(one.text_TD, other.text_TD)
