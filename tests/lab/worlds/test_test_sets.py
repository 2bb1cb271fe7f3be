"""The exam asks what is known: captions and paraphrases are true of their scene, negatives are not."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from lab.worlds.captions import read
from lab.worlds.scenes import ALL_PAIRS, COLOURS, SHAPES, Claim, draw_scene, hold_out, is_true, is_within
from lab.worlds.test_set import CATEGORIES, draw_test_set

UNSEEN = hold_out()
SEEN = ALL_PAIRS - UNSEEN


def read_claim(text: str) -> Claim:
    claim = read(text)
    assert claim is not None, text
    return claim


@pytest.mark.parametrize("turn", range(8))
def test_held_out_pairs_leave_every_colour_and_every_shape(turn: int) -> None:
    held = hold_out(turn)
    assert len(held) == 16 and held < ALL_PAIRS
    assert set(Counter(colour for colour, _ in held).values()) == {2}
    assert set(Counter(shape for _, shape in held).values()) == {2}
    lacks = [frozenset(shape for other, shape in held if other == colour) for colour in COLOURS]
    assert len(set(lacks)) == len(COLOURS)
    assert {shape for _, shape in ALL_PAIRS - held} == set(SHAPES)


def test_a_scene_of_all_pairs_is_drawn_as_ever_and_of_some_is_within() -> None:
    for i in range(50):
        plain, whole = (draw_scene(np.random.default_rng([4, i]), pairs) for pairs in (None, ALL_PAIRS))
        assert plain == whole
        assert is_within(draw_scene(np.random.default_rng([4, i]), SEEN), SEEN)


def test_captions_are_true_and_negatives_false_and_no_text_comes_twice() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for row in draw_test_set(150, 7, SEEN):
        said, again = read_claim(row.caption), read_claim(row.paraphrase)
        assert said == again and row.caption != row.paraphrase
        assert is_true(said, row.scene) and is_within(row.scene, SEEN)
        for negative in row.negatives:
            claim = read_claim(negative.caption)
            assert not is_true(claim, row.scene) and is_true(claim, negative.scene)
            assert is_within(claim, SEEN) and is_within(negative.scene, SEEN)
        kinds = [(negative.operation, negative.kind) for negative in row.negatives]
        assert kinds == [category for category in CATEGORIES if category in kinds]
        found.update(kinds)
    assert set(found) == set(CATEGORIES) and min(found.values()) > 10


def test_a_scene_has_some_of_the_pairs_that_it_must_have() -> None:
    for row in draw_test_set(50, 7, some_of=UNSEEN):
        assert any((thing.colour, thing.shape) in UNSEEN for thing in row.scene.things)


def test_a_scene_depends_on_seed_and_position_alone() -> None:
    assert list(draw_test_set(5, 3)) == list(islice(draw_test_set(50, 3), 5))
    assert list(draw_test_set(5, 3)) != list(draw_test_set(5, 4))
    assert next(draw_test_set(1, 3)).image[:2] == b"\xff\xd8"
