"""The little world's streams: who has which pairs, and scenes that a composition can tell apart."""

import io
import json
from collections import Counter
from itertools import combinations, islice

import numpy as np
import pytest
from PIL import Image

from lab.words import DOMAINS, FUNCTION, SCENE, STREAMS, WORLD
from lab.worlds.captions import phrases, read
from lab.worlds.render import RGB
from lab.worlds.scenes import ALL_PAIRS, COLOURS, SHAPES, is_true, is_within
from lab.worlds.styles import PLAIN, STYLES, change_style
from lab.worlds.tasks import WorldTask, backbone_pairs, count_sets, draw_scenes, list_tasks, to_sample
from tests.corpus import scene_from_dict


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
    pairs = frozenset({("red", "star"), ("blue", "star"), ("red", "moon")})
    task = WorldTask("few", pairs)
    assert count_sets(pairs) == 3 * 4 + 8
    drawn = list(draw_scenes(task, 20, [3], is_gallery=True))
    assert len({frozenset(one.primitives) for one in drawn}) == 20
    with pytest.raises(ValueError, match=r"^test=21: must be at most 20, the sets of things that few has"):
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


@pytest.mark.parametrize("turn", range(8))
def test_every_domain_has_shapes_a_style_and_a_way_to_say_it_of_its_own(turn):
    tasks, asked_about = list_tasks(DOMAINS, turn)
    shapes = [frozenset(shape for _, shape in task.pairs) for task in tasks]
    assert [len(some) for some in shapes] == [2] * 4 and frozenset().union(*shapes) == set(SHAPES)
    assert len({task.style for task in tasks} - {PLAIN}) == len({task.templates for task in tasks}) == 4
    assert [len(task.pairs & backbone_pairs(turn)) for task in tasks] == [6] * 4, "seen and unseen pairs"
    assert [(task.pairs, task.style) for task in asked_about] == [(backbone_pairs(turn), PLAIN)]


@pytest.mark.parametrize("turn", range(8))
def test_questions_by_scene_leave_several_colours_to_a_shape(turn):
    tasks, asked_about = list_tasks(SCENE, turn)
    parts = [task.pairs for task in (*tasks, *asked_about)]
    assert sum(map(len, parts)) == 64 and frozenset().union(*parts) == ALL_PAIRS
    for part in parts[:4]:
        for place in (0, 1):
            assert min(Counter(pair[place] for pair in part).values()) >= 2
    by_function, _ = list_tasks(FUNCTION, turn)
    assert len({task.asked for task in by_function}) == len(by_function) == 5
    assert not any(task.pairs & (backbone_pairs(turn) | asked_about[0].pairs) for task in by_function)


@pytest.mark.parametrize("style", STYLES)
def test_a_style_keeps_colours_apart(style):
    seen = change_style(np.array([[list(RGB.values())] * 16]).reshape(16, 8, 3).astype(np.uint8), style)
    assert seen.dtype == np.uint8 and (style == PLAIN) == all(
        (row == list(RGB.values())).all() for row in seen
    )
    apart = [np.abs(a.astype(int) - b).max() for a, b in combinations(seen[0], 2)]
    assert min(apart) > 15


def test_the_picture_of_a_scene_is_in_its_tasks_style():
    dusk, plain = list_tasks(DOMAINS)[0][0], list_tasks(WORLD)[0][0]
    drawn = [next(draw_scenes(task, 1, [3])) for task in (dusk, plain)]
    light = [np.asarray(Image.open(io.BytesIO(one.image))).mean() for one in drawn]
    assert light[0] < 190 < light[1]


@pytest.mark.parametrize("stream", STREAMS)
def test_galleries_have_one_row_for_a_set_and_questions_their_own_candidates(stream):
    for task in [task for tasks in list_tasks(stream) for task in tasks]:
        drawn = list(draw_scenes(task, 12, [3], is_gallery=True))
        facts = [json.loads(to_sample("0", one)[1]["json"]) for one in drawn]
        assert all(is_within(one.scene, task.pairs) for one in drawn)
        if task.asked:
            assert all(fact["caption"] in fact["candidates"] and fact["kind"] for fact in facts)
            assert {tuple(one.primitives) for one in drawn} >= {
                tuple(fact["candidate_primitives"][fact["candidates"].index(fact["caption"])])
                for fact in facts
            }
        else:
            assert len({frozenset(fact["primitives"]) for fact in facts}) == 12 and "kind" not in facts[0]
