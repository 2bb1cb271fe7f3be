"""Negatives of captions are false of what these say."""

from collections import Counter

import numpy as np
import pytest

from lab.worlds.captions import TEMPLATES, claim_of, describe, read
from lab.worlds.faults import TAILS
from lab.worlds.scenes import ALL_PAIRS, Claim, draw_scene, hold_out, is_true, show
from lab.worlds.training import TAUGHT, draw_lessons, take_apart
from raycomp.words import ADD, ATTRIBUTE

PAIRS = ALL_PAIRS - hold_out()


def list_cases() -> list[tuple[str, Claim]]:
    cases = []
    for i in range(36):
        scene, template = draw_scene(np.random.default_rng([12, i]), PAIRS), i % len(TEMPLATES)
        tail = TAILS[i % len(TAILS)] if i % 3 == 0 else ""
        cases.append((describe(scene, template) + tail, claim_of(scene, template)))
    return cases


def test_a_caption_is_taken_apart_and_put_together() -> None:
    for caption, claim in list_cases():
        said = take_apart(caption)
        assert said.claim == claim and caption.endswith(said.tail)
        assert TEMPLATES[said.template].names_sizes == (claim.things[0].size is not None)
    with pytest.raises(ValueError, match="two dogs"):
        take_apart("two dogs on a beach")


def test_lessons_contradict_the_caption_in_any_scene_that_it_is_true_of() -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for i, (caption, claim) in enumerate(list_cases()):
        lessons = draw_lessons(caption, np.random.default_rng(i))
        scenes = [show(claim, np.random.default_rng([i, k])) for k in range(4)]
        tail = take_apart(caption).tail
        for lesson in lessons:
            assert lesson.text.endswith(tail)
            said = read(lesson.text.removesuffix(tail))
            assert said is not None and not any(is_true(said, scene) for scene in scenes), (caption, lesson)
        categories = [(lesson.operation, lesson.kind) for lesson in lessons]
        assert len(set(categories)) == len(categories) > 2
        counts.update(categories)
    assert set(counts) == set(TAUGHT) and (ADD, ATTRIBUTE) not in TAUGHT
