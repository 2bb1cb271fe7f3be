"""The little world's streams: the content of each of their tasks, and scenes of a task drawn from a seed.

A pair is a colour and a shape. A tiny CLIP is trained on 24 of the 64 pairs before every stream.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from lab.words import DOMAINS, FUNCTION, STREAMS, WORLD
from lab.worlds.captions import TEMPLATES, describe, phrases
from lab.worlds.questions import ASKED, Question, draw_question
from lab.worlds.render import encode_jpeg, render
from lab.worlds.samples import SIDE, Sample
from lab.worlds.scenes import (
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
from lab.worlds.styles import DUSK, HAZE, PLAIN, SEPIA, STRIPES, change_style
from raycomp.config.options import check, check_choice

# Diagonals of the square of colours and shapes. Two colours share at most one shape of the backbone's.
_BACKBONE, _TASKS, _HELD_OUT = (0, 1, 3), (2, 4, 5, 6), 7
_NAMING_SIZES = tuple(i for i, one in enumerate(TEMPLATES) if one.names_sizes)
_DOMAINS = (DUSK, HAZE, STRIPES, SEPIA)


@dataclass(frozen=True)
class WorldTask:
    """The allowed content of a task's scenes."""

    name: str
    pairs: frozenset[tuple[str, str]]
    templates: tuple[int, ...] = _NAMING_SIZES
    """Templates whose captions name sizes, so that a caption names all properties of its scene."""
    style: str = PLAIN
    """One of ``styles.STYLES``."""
    asked: tuple[str, ...] = ()
    """Kinds of ``questions.ASKED``, each equally likely; none if captions are matched with pictures."""


@dataclass(frozen=True)
class TaskScene:
    """A scene of a task, and its caption or question."""

    scene: Scene
    caption: str
    """For a question the right answer."""
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

    With ``turn`` they swap roles with the others.
    """
    return _diagonals(turn, _BACKBONE)


def list_tasks(stream: str, turn: int = 0) -> tuple[list[WorldTask], list[WorldTask]]:
    """Return the tasks of a stream, and those that are only tested; with ``turn``, of other pairs.

    ``world``: four tasks, each of 8 pairs that neither the backbone nor another task has, one of every colour
    and shape; the last 8 pairs are only tested.
    ``domains``: four tasks, each of two shapes in all colours, 6 pairs that the backbone was trained on and
    10 that it was not, with a style and a wording of its own; only tested are plain pictures of the
    backbone's pairs. ``questions_function``: one task for every kind of question, about the pairs of the
    tasks of ``world``. ``questions_scene``: four tasks with all kinds of questions, each about half of the
    colours and half of the shapes. A shape has at least two colours there, mostly four: with the pairs of
    ``world``, a task's star would have one colour, and no picture would be needed. Both are tested at last on
    the held-out pairs.
    """
    check_choice("stream", stream, STREAMS)
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
    """Return the number of sets of primitives in scenes of these pairs: two or three things, with sizes."""
    return sum(math.comb(len(pairs), num) * len(SIZES) ** num for num in (2, 3))


def check_gallery(task: WorldTask, num: int) -> None:
    """Raise ValueError if a task has fewer sets of primitives than scenes are requested."""
    most = count_sets(task.pairs)
    fits = task.asked or num <= most
    check(bool(fits), "test", num, f"at most {most:,}, the sets of things that {task.name} has")


def draw_scenes(task: WorldTask, num: int, seed: list[int], is_gallery: bool = False) -> Iterator[TaskScene]:
    """Yield scenes of a task; a longer draw with the same seed starts with the same scenes.

    In a gallery no two have the same set of primitives, because their compositions could not be separated;
    questions have their own answers and need no distinct sets. Raises ValueError as ``check_gallery``.
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
    """Draw a question kind, then a scene that allows it."""
    asked = task.asked[rng.integers(len(task.asked))]
    question = None
    while question is None:
        scene = _draw_scene(task, rng)
        question = draw_question(scene, asked, task.pairs, rng)
    right = question.primitives[question.candidates.index(question.answer)]
    return TaskScene(scene, question.answer, right, task.style, question)


def _draw_scene(task: WorldTask, rng: np.random.Generator) -> Scene:
    """Draw a scene as ``scenes.draw_scene`` does, faster if there are few pairs."""
    pairs = sorted(task.pairs)
    kinds = [pairs[i] for i in rng.choice(len(pairs), int(rng.integers(2, 4)), replace=False)]
    relations: tuple[str, ...] = (RELATIONS[rng.integers(len(RELATIONS))],)
    if len(kinds) == 3:
        relations += (perpendicular(relations[0])[rng.integers(2)],)
    return show(Claim(tuple(Thing(None, *kind) for kind in kinds), relations), rng)


def to_sample(key: str, drawn: TaskScene) -> Sample:
    """Return a scene as a WebDataset sample, whose json holds its caption and content."""
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
