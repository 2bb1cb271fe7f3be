"""The little world's streams: what each of their tasks shows, and scenes of it drawn from a seed.

Pairs are of a colour and a shape. A tiny CLIP meets every stream after it was trained on 24 of the 64.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from raycomp.config.check import check, check_choice
from raycomp.words import DOMAINS, FUNCTION, WORLD, WORLD_STREAMS
from raycomp.worlds.captions import TEMPLATES, describe, phrases
from raycomp.worlds.questions import ASKED, Question, draw_question
from raycomp.worlds.render import encode_jpeg, render
from raycomp.worlds.samples import SIDE, Sample
from raycomp.worlds.scenes import (
    COLOURS,
    RELATIONS,
    SHAPES,
    SIZES,
    Claim,
    Pairs,
    Scene,
    Thing,
    diagonal,
    perpendicular,
    scene_to_dict,
    show,
)
from raycomp.worlds.styles import DUSK, HAZE, PLAIN, SEPIA, STRIPES, change_style

# Diagonals of the square of colours and shapes. No two colours have more than one shape of the backbone's in
# common.
_BACKBONE, _TASKS, _HELD_OUT = (0, 1, 3), (2, 4, 5, 6), 7
_NAMING_SIZES = tuple(i for i, one in enumerate(TEMPLATES) if one.names_sizes)
_DOMAINS = (DUSK, HAZE, STRIPES, SEPIA)


@dataclass(frozen=True)
class WorldTask:
    """What the scenes of a task may have."""

    name: str
    pairs: frozenset[tuple[str, str]]
    templates: tuple[int, ...] = _NAMING_SIZES
    """Whose captions say sizes, so that a caption names all that its scene is made of."""
    style: str = PLAIN
    """Of ``looks.STYLES``."""
    asked: tuple[str, ...] = ()
    """Of ``questions.ASKED``, each as likely; none where captions are told from one another."""


@dataclass(frozen=True)
class TaskScene:
    """A scene of a task, and what is said of it or asked."""

    scene: Scene
    caption: str
    """Of a question the right answer."""
    primitives: tuple[str, ...]
    """The caption's: "small red circle"."""
    style: str = PLAIN
    question: Question | None = None

    @property
    def image(self) -> bytes:
        """The picture as JPEG."""
        return encode_jpeg(change_style(render(self.scene, SIDE), self.style))


def backbone_pairs(turn: int = 0) -> frozenset[tuple[str, str]]:
    """Return the 24 pairs that a tiny CLIP is trained on before any stream: three of every colour and shape.

    With ``turn`` the others change places with them.
    """
    return _diagonals(turn, _BACKBONE)


def list_tasks(stream: str, turn: int = 0) -> tuple[list[WorldTask], list[WorldTask]]:
    """Return the tasks of a stream, and those that are only asked about; with ``turn``, of other pairs.

    ``world``: four tasks, each of 8 pairs that neither the backbone nor another task has, one of every colour
    and shape; the last 8 pairs are only asked about.
    ``domains``: four tasks, each of two shapes in all colours, 6 pairs that the backbone knows and 10 that it
    does not, with a look and a way to say it that no other has; only asked about are plain pictures of what
    the backbone knows.
    ``questions-function``: one task for every kind of question, about the pairs of the tasks of ``world``.
    ``questions-scene``: four tasks with all kinds of questions, each about half of the colours and half of
    the shapes. A shape has two colours at least there, mostly four: of the pairs of ``world``, a task's star
    would have one colour, and no picture were needed. Both ask, at last, about the pairs of nobody.
    """
    check_choice("stream", stream, WORLD_STREAMS)
    held_out = diagonal(turn + _HELD_OUT)
    if stream == WORLD:
        tasks = [WorldTask(f"pairs-{i}", diagonal(turn + step)) for i, step in enumerate(_TASKS, 1)]
        return tasks, [WorldTask("held-out-pairs", held_out)]
    if stream == DOMAINS:
        tasks = [
            WorldTask(style, _block(COLOURS, SHAPES[2 * i : 2 * i + 2]), (_NAMING_SIZES[i],), style)
            for i, style in enumerate(_DOMAINS)
        ]
        return tasks, [WorldTask(PLAIN, backbone_pairs(turn))]
    if stream == FUNCTION:
        new = _diagonals(turn, _TASKS)
        tasks = [WorldTask(asked, new, asked=(asked,)) for asked in ASKED]
    else:
        blocks = [_block(colours, shapes) for colours in _halve(COLOURS) for shapes in _halve(SHAPES)]
        tasks = [WorldTask(f"scenes-{i}", one - held_out, asked=ASKED) for i, one in enumerate(blocks, 1)]
    return tasks, [WorldTask("held-out-pairs", held_out, asked=ASKED)]


def _halve(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return words[: len(words) // 2], words[len(words) // 2 :]


def _block(colours: tuple[str, ...], shapes: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    return frozenset(product(colours, shapes))


def _diagonals(turn: int, steps: tuple[int, ...]) -> frozenset[tuple[str, str]]:
    return frozenset().union(*(diagonal(turn + step) for step in steps))


def count_sets(pairs: Pairs) -> int:
    """Return how many sets of primitives scenes of these pairs can have: two or three things, with sizes."""
    return sum(math.comb(len(pairs), num) * len(SIZES) ** num for num in (2, 3))


def check_gallery(task: WorldTask, num: int) -> None:
    """Raise ValueError where a task has fewer sets of primitives than scenes are asked for."""
    most = count_sets(task.pairs)
    fits = task.asked or num <= most
    check(bool(fits), "little.test", num, f"at most {most:,}, the sets of things that {task.name} has")


def draw_scenes(task: WorldTask, num: int, seed: list[int], is_gallery: bool = False) -> Iterator[TaskScene]:
    """Yield scenes of a task, the first of a longer draw with the same seed first.

    In a gallery no two have the same set of primitives, which no composition of them could tell apart;
    questions have answers of their own and need none. Raises ValueError as ``check_gallery``.
    """
    is_gallery &= not task.asked
    if is_gallery:
        check_gallery(task, num)
    seen: set[frozenset[str]] = set()
    for position in range(num):
        rng = np.random.default_rng([*seed, position])
        if task.asked:
            yield _draw_question(task, rng)
            continue
        scene = _draw_scene(task, rng)
        while is_gallery and frozenset(phrases(scene)) in seen:
            scene = _draw_scene(task, rng)
        seen.add(frozenset(phrases(scene)))
        template = int(rng.choice(task.templates))
        yield TaskScene(scene, describe(scene, template), phrases(scene), task.style)


def _draw_question(task: WorldTask, rng: np.random.Generator) -> TaskScene:
    """Draw what is asked, then a scene where it can be."""
    asked = task.asked[rng.integers(len(task.asked))]
    question = None
    while question is None:
        scene = _draw_scene(task, rng)
        question = draw_question(scene, asked, task.pairs, rng)
    right = question.primitives[question.candidates.index(question.answer)]
    return TaskScene(scene, question.answer, right, task.style, question)


def _draw_scene(task: WorldTask, rng: np.random.Generator) -> Scene:
    """Draw a scene as ``scenes.draw_scene`` does, in less time where pairs are few."""
    pairs = sorted(task.pairs)
    kinds = [pairs[i] for i in rng.choice(len(pairs), int(rng.integers(2, 4)), replace=False)]
    relations: tuple[str, ...] = (RELATIONS[rng.integers(len(RELATIONS))],)
    if len(kinds) == 3:
        relations += (perpendicular(relations[0])[rng.integers(2)],)
    return show(Claim(tuple(Thing(None, *kind) for kind in kinds), relations), rng)


def to_sample(key: str, drawn: TaskScene) -> Sample:
    """Return a scene as a WebDataset sample, whose json holds all that is said of it."""
    facts: dict[str, Any] = {
        "key": key,
        "caption": drawn.caption,
        "primitives": drawn.primitives,
        "scene": scene_to_dict(drawn.scene),
        "width": SIDE,
        "height": SIDE,
    }
    if drawn.question:
        facts |= {
            "kind": drawn.question.kind,
            "candidates": drawn.question.candidates,
            "candidate_primitives": drawn.question.primitives,
        }
    return key, {"jpg": drawn.image, "txt": drawn.caption.encode(), "json": json.dumps(facts).encode()}
