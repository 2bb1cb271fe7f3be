"""The little world's streams: who has which pairs, and scenes that a composition can tell apart."""

import json
from collections import Counter
from itertools import combinations, islice

import pytest

from raycomp.config.continual import WORLD
from raycomp.worlds.captions import phrases, read
from raycomp.worlds.pairs import ALL_PAIRS, is_within
from raycomp.worlds.scenes import COLOURS, SHAPES, is_true, scene_from_dict
from raycomp.worlds.tasks import backbone_pairs, count_sets, draw_scenes, list_tasks, to_sample


@pytest.mark.parametrize("turn", range(8))
def test_backbone_tasks_and_held_out_pairs_share_the_world_out(turn):
    tasks, held_out = list_tasks(WORLD, turn)
    parts = [backbone_pairs(turn), *(task.pairs for task in (*tasks, *held_out))]
    assert [len(part) for part in parts] == [24, 8, 8, 8, 8, 8]
    assert frozenset().union(*parts) == ALL_PAIRS
    for part in parts:
        for place, words in enumerate((COLOURS, SHAPES)):
            assert Counter(pair[place] for pair in part) == dict.fromkeys(words, len(part) // 8)
    shapes = [{shape for other, shape in parts[0] if other == colour} for colour in COLOURS]
    assert max(len(one & other) for one, other in combinations(shapes, 2)) == 1
    assert turn == 0 or backbone_pairs(turn) != backbone_pairs()


def test_a_gallery_has_as_many_sets_as_there_are_and_no_more():
    pairs = frozenset(sorted(list_tasks(WORLD)[0][0].pairs)[:3])
    task = list_tasks(WORLD)[0][0].__class__("few", pairs)
    assert count_sets(pairs) == 3 * 4 + 8
    drawn = list(draw_scenes(task, 20, [3], is_gallery=True))
    assert len({frozenset(one.primitives) for one in drawn}) == 20
    with pytest.raises(
        ValueError, match=r"little.test=21: must be at most 20, the sets of things that few has"
    ):
        next(draw_scenes(task, 21, [3], is_gallery=True))


def test_a_caption_says_all_that_its_scene_is_made_of():
    task = list_tasks(WORLD)[0][1]
    drawn = list(draw_scenes(task, 60, [3]))
    assert len({frozenset(one.primitives) for one in drawn}) < 60, "what is learned of may come again"
    for one in drawn:
        claim = read(one.caption)
        assert claim is not None and is_true(claim, one.scene) and is_within(one.scene, task.pairs)
        assert phrases(claim) == one.primitives and all(len(name.split()) == 3 for name in one.primitives)
    assert {len(one.primitives) for one in drawn} == {2, 3}


def test_scenes_depend_on_their_seed_and_tasks_on_theirs():
    task = list_tasks(WORLD)[0][0]
    for is_gallery in (False, True):
        few, many = (list(draw_scenes(task, num, [3, 1], is_gallery)) for num in (5, 30))
        assert few == many[:5] != list(islice(draw_scenes(task, 5, [3, 2], is_gallery), 5))


def test_a_sample_holds_what_is_said_of_it():
    drawn = next(draw_scenes(list_tasks(WORLD)[0][0], 1, [3]))
    key, members = to_sample("000007", drawn)
    facts = json.loads(members["json"])
    assert key == facts["key"] == "000007" and members["jpg"][:2] == b"\xff\xd8"
    assert members["txt"].decode() == facts["caption"] == drawn.caption
    assert tuple(facts["primitives"]) == drawn.primitives
    assert scene_from_dict(facts["scene"]) == drawn.scene
