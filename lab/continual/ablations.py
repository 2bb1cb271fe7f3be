"""Ablations and controls of COMPO-REALIGN: ``raycomp continual --set
method=frozen,compo-realign,lab/continual/ablations.py:experts``.

N samples, T texts, B samples of a step, E experts, D dims.
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Split, Stream
from raycomp.continual.method import Method
from raycomp.continual.methods.head import HeadLearner, Rows
from raycomp.continual.streams.build import make_tokens
from raycomp.core.continual import BufferEntry
from raycomp.data.runs import fetch_model
from raycomp.models.clip import Clip

# Number of randomly drawn texts, each of two or three names.
_NUM_DRAWN, _DRAWN_SEED = 1024, 31


class Experts:
    """Independent heads, none of which forgets. An image takes the head of the task with the nearest mean
    image."""

    def __init__(self, config: ContinualConfig, stream: Stream, seed: int):
        self.heads = [HeadLearner(config, stream, seed) for _ in stream.tasks]
        self.centre_ED: list[np.ndarray] = []

    def start_task(self, number: int, train: Split) -> None:
        """Open the next head."""
        self.number, self.train = number, train
        self.heads[number].start_task(number, train)

    def step(self, step: int, row_B: np.ndarray) -> dict[str, float]:
        """Take a step of the task's head."""
        return self.heads[self.number].step(step, row_B)

    def end(self) -> None:
        """Store the task's mean image."""
        self.centre_ED.append(self.train.image_ND.astype(np.float64).mean(0))

    def find_keys(self, split: Split) -> Keys:
        """Return the split with the compositions of all heads; before the first task, those of the first
        head."""
        if not self.centre_ED:
            return self.heads[0].find_keys(split)
        composed_ETD = np.stack([head.compose(split) for head in self.heads[: len(self.centre_ED)]])
        away_NE = [np.linalg.norm(split.image_ND - centre_D, axis=1) for centre_D in self.centre_ED]
        return Keys(split.image_ND, split.text_TD, composed_ETD, np.argmin(away_NE, axis=0))

    def state(self) -> dict[str, Any]:
        """Return all heads, and the mean images."""
        heads = [head.state() for head in self.heads[: self.number + 1]]
        return {"heads": heads, "centres": [centre_D.tolist() for centre_D in self.centre_ED]}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from this state."""
        for head, own in zip(self.heads, state["heads"], strict=False):
            head.restore(own)
        self.centre_ED = [np.array(centre) for centre in state["centres"]]


class CurrentTexts(HeadLearner):
    """No memory: the batch's own captions take the place of past texts, from the second task on."""

    def gather(self, step: int, row_B: Tensor) -> tuple[Tensor, Rows, Rows | None]:
        """Return the images and texts of a step, and the same texts as past ones."""
        rows = self.rows.take(self.own_N[row_B])
        return self.image_ND[row_B], rows, rows if self.number else None


class RandomTexts(HeadLearner):
    """No memory: past texts are random sets of the names met so far."""

    def __init__(self, config: ContinualConfig, stream: Stream, seed: int):
        super().__init__(config, stream, seed)
        own = {name for task in stream.tasks for name in _list_names(task.train)}
        self.drawn = list(draw_texts(sorted(own), config.seed).items())
        texts = [text for text, _ in self.drawn]
        text_TD = self.embed(texts)
        self.text_of = dict(zip(texts, text_TD, strict=True)) | self.text_of
        self.met: set[str] = set()

    def embed(self, texts: list[str]) -> np.ndarray:
        """Return the backbone's embeddings, fp32 (T, D)."""
        model = fetch_model(self.config.model)
        found, _ = Clip(model, device="cpu").text.embed(make_tokens(texts, model))
        return found.numpy()

    def start_task(self, number: int, train: Split) -> None:
        """Open the task, whose names are then known."""
        super().start_task(number, train)
        self.met |= {name for names in train.primitives for name in names}

    def draw_past(self, rng: np.random.Generator) -> list[BufferEntry]:
        """Draw texts of names seen so far, from the second task on."""
        if not self.number:
            return []
        known = [place for place, (_, names) in enumerate(self.drawn) if self.met.issuperset(names)]
        chosen = rng.choice(known, min(self.config.buffer.draw, len(known)), replace=False)
        return [BufferEntry(*self.drawn[place]) for place in chosen]

    def state(self) -> dict[str, Any]:
        """Return the head's state and the names met."""
        return {**super().state(), "met": sorted(self.met)}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from this state."""
        super().restore(state)
        self.met |= set(state["met"])


def _list_names(train: Split) -> set[str]:
    """Return the names of primitives of the right texts."""
    return {name for place in np.unique(train.own_N) for name in train.primitives[place]}


def draw_texts(names: list[str], seed: int) -> dict[str, tuple[str, ...]]:
    """Return texts of two or three names each, drawn at random, with these names."""
    rng = np.random.default_rng([seed, _DRAWN_SEED])
    texts: dict[str, tuple[str, ...]] = {}
    for _ in range(_NUM_DRAWN):
        num = min(len(names), int(rng.integers(2, 4)))
        chosen = tuple(names[place] for place in rng.choice(len(names), num, replace=False))
        said = [f"{'an' if name[:1] in 'aeiou' else 'a'} {name}" for name in chosen]
        texts.setdefault(" and ".join(said), tuple(sorted(chosen)))
    return texts


_PLAIN = {"buffer.kind": "none", "trust.mode": "off"}
_ANCHORED = {**_PLAIN, "buffer.reading": "anchored"}
# Selected on the drawn world itself, so its differences there are not evidence.
_ADAPTED = {
    "head.c2v": "own",
    "buffer.reading": "anchored",
    "trust.primitives": "raw",
    "trust.power_steps": None,
    "trust.apply": "update",
}
_SGD = {"head.optimizer": "sgd", "head.learning_rate": 0.3}

untrained = Method("head", {"head.steps": 0, **_PLAIN})
random_texts = Method(RandomTexts, _ANCHORED)
current_texts = Method(CurrentTexts, _ANCHORED)
experts = Method(Experts, _PLAIN)
fixed_clip = Method("head", {"trust.mode": "fixed"})
"""Set ``trust.alpha`` to the mean ``alpha_realised`` of a finished run of compo-realign."""
joint_queries = Method("head", {"head.c2v": "joint"})
shaped_trust = Method("head", {"trust.primitives": "shaped"})
sgd = Method("head", _SGD)
sgd_no_trust = Method("head", {**_SGD, "trust.mode": "off"})
compo_realign_adapted = Method("head", _ADAPTED)
adapted_no_trust = Method("head", {**_ADAPTED, "trust.mode": "off"})
adapted_no_buffer = Method("head", {**_ADAPTED, "buffer.kind": "none"})

ABLATIONS = {name: value for name, value in globals().items() if isinstance(value, Method)}
"""Every method of this file by its name."""


def name_ablation(name: str) -> str:
    """Return the value of ``method`` that names an ablation, FILE.py:NAME."""
    assert name in ABLATIONS, name
    return f"{Path(__file__).resolve()}:{name}"
