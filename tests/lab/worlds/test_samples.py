"""Planted faults are what their names say; samples follow from the seed."""

import io
import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from test_scenes import CAPTION, read

from lab.worlds.faults import FAULTS, NO_FAULT, TAILS
from lab.worlds.samples import SIDE, draw_faults, draw_sample, world_shards
from lab.worlds.scenes import is_true
from tests.corpus import scene_from_dict


def decodes(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            return image.size == (SIDE, SIDE)
    except OSError:
        return False


@pytest.mark.parametrize("fault", (NO_FAULT, *FAULTS))
def test_a_sample_has_its_fault_and_no_other(fault: str) -> None:
    for i in range(60):
        key, members = draw_sample(f"{i:09d}", fault, np.random.default_rng([8, i]))
        facts = json.loads(members["json"])
        scene, caption = scene_from_dict(facts["scene"]), members["txt"].decode()
        assert (facts["key"], facts["fault"], facts["caption"]) == (key, fault, caption)
        assert is_true(read(facts["true_caption"]), scene)
        assert decodes(members["jpg"]) == (fault != "corrupt_image")
        tail = next((tail for tail in TAILS if caption.endswith(tail)), "")
        assert bool(tail) == (fault == "boilerplate_tail")
        said = read(caption.removesuffix(tail))
        false_caption = fault not in (NO_FAULT, "boilerplate_tail", "corrupt_image")
        assert is_true(said, scene) != false_caption
        if fault.startswith("wrong_"):
            assert count_changes(caption, facts["true_caption"]) == {fault.removeprefix("wrong_"): 1}


def count_changes(caption: str, other: str) -> dict[str, int]:
    groups = CAPTION.search(caption).groups(), CAPTION.search(other).groups()
    kinds = ("attribute", "attribute", "object", "relation") * 3
    changed = [kind for kind, a, b in zip(kinds, *groups, strict=False) if a != b]
    return dict(Counter(changed))


def test_counts_are_exact_and_shuffled() -> None:
    mix = {"wrong_object": 2, "corrupt_image": 1}
    faults = draw_faults(50, 30, seed=1, mix=mix)
    assert Counter(faults) == {NO_FAULT: 50, "wrong_object": 20, "corrupt_image": 10}
    assert faults != draw_faults(50, 30, seed=2, mix=mix)
    assert faults[:50] != [NO_FAULT] * 50


def test_shards_follow_from_the_seed_and_are_cut_in_order() -> None:
    first, again = (list(world_shards(25, 10, seed=3, per_shard=10)) for _ in range(2))
    assert first == again
    assert first != list(world_shards(25, 10, seed=4, per_shard=10))
    assert [name for name, _ in first] == ["00000.tar", "00001.tar", "00002.tar", "00003.tar"]
    assert [len(samples) for _, samples in first] == [10, 10, 10, 5]
    keys = [key for _, samples in first for key, _ in samples]
    assert keys == [f"{i:06d}" for i in range(35)]
    faults = [json.loads(members["json"])["fault"] for _, samples in first for _, members in samples]
    assert faults == draw_faults(25, 10, seed=3)


@pytest.mark.parametrize(
    "mix", ({}, {"sunspots": 1}, {"wrong_object": 0}, {"wrong_object": -1, "corrupt_image": 2})
)
def test_a_wrong_mix_is_named(mix: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="mix="):
        draw_faults(1, 1, seed=0, mix=mix)
