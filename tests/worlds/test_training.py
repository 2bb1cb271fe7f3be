"""Negatives to train on are false of what a caption says, and stay within their pairs."""

from collections import Counter

import numpy as np
import pytest

from raycomp.words import ADD, ATTRIBUTE
from raycomp.worlds.captions import TEMPLATES, claim_of, describe, read
from raycomp.worlds.faults import TAILS
from raycomp.worlds.pairs import ALL_PAIRS, hold_out, is_within
from raycomp.worlds.scenes import Claim, draw_scene, is_true, show
from raycomp.worlds.training import TAUGHT, Lesson, draw_lessons, take_apart

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
    once_by, twice_by = Counter(), Counter()
    for i, (caption, claim) in enumerate(list_cases()):
        once, twice = draw_lessons(caption, 2, 6, np.random.default_rng(i), PAIRS)
        scenes = [show(claim, np.random.default_rng([i, k])) for k in range(4)]
        tail = take_apart(caption).tail
        for lesson in (*once, *twice):
            assert lesson.text.endswith(tail)
            said = read(lesson.text.removesuffix(tail))
            assert said is not None and not any(is_true(said, scene) for scene in scenes), (caption, lesson)
            check_scene(lesson, said, claim)
        assert len({lesson.text for lesson in once}) == len(once)
        assert all(len(lesson.edits) == 1 for lesson in once)
        assert all(len(set(lesson.edits)) == 2 for lesson in twice) and len(twice) > 3
        once_by.update(lesson.edits[0] for lesson in once)
        twice_by.update(edit for lesson in twice for edit in lesson.edits)
    assert set(once_by) == set(twice_by) == set(TAUGHT) and (ADD, ATTRIBUTE) not in TAUGHT


def check_scene(lesson: Lesson, said: Claim, claim: Claim) -> None:
    assert is_true(said, lesson.scene) and is_within(lesson.scene, PAIRS) and is_within(said, PAIRS)
    assert lesson.is_shown == (not is_true(claim, lesson.scene))
    if len(lesson.edits) == 1:
        assert lesson.is_shown == (lesson.edits[0][0] != ADD)
