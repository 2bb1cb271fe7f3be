"""Streams of the drawn world, from their scenes to the arrays that methods learn from."""

import json
from functools import cache
from pathlib import Path

import pytest

from lab.continual.streams import Sizes, draw_stream, make_backbone_world, write_tasks
from lab.words import DOMAINS, FUNCTION, SCENE, WORLD
from lab.worlds.tasks import backbone_pairs
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import join_splits
from raycomp.continual.streams.build import find_all_samples
from raycomp.continual.streams.samples import (
    find_samples,
    make_split,
    name_primitives,
    number_kinds,
    warn_texts,
)
from raycomp.continual.streams.sources import StreamSource, read_stream
from raycomp.models.parser import load_parser
from tests.continual.streams import invent_texts, refuse_parser, see

LITTLE = Sizes(train=6, test=10)
SHARED_PARSER = cache(load_parser)


def write_stream(name: str, sizes: Sizes, folder: Path, seed: int) -> StreamSource:
    """Return a stream of the seed's variant, without a backbone."""
    return read_stream(write_tasks(name, sizes, str(folder), seed % 100, seed))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_stream(WORLD, LITTLE, tmp_path_factory.mktemp("stream"), 2)


def test_the_little_world_becomes_arrays_that_say_what_it_shows(world):
    pictures = see(world)
    named = name_primitives([find_samples(half, pictures) for half in world.halves], "gold", refuse_parser)
    texts, kinds = invent_texts(named), number_kinds(named)
    splits = [make_split(some, texts, kinds) for some in named]
    assert [len(split) for split in splits] == [6, 10] * 4 + [10]
    for some, split in zip(named, splits, strict=True):
        for row, sample in enumerate(some.samples):
            own = split.own_N[row]
            assert split.texts[own] == sample.caption and split.primitives[own] == sample.primitives
            assert (split.image_ND[row] == some.image_ND[row]).all()
            assert (split.text_TD[own] == texts.take([str(sample.caption)])[0]).all()
        assert split.candidate_NK is None and split.kind_N is None
    tests = [split for split in splits if len(split) == 10]
    assert [line for split in (*tests, join_splits(tests)) for line in warn_texts(split, "it")] == []


@pytest.mark.parametrize("stream", [DOMAINS, SCENE, FUNCTION])
def test_every_stream_of_the_little_world_is_read(stream, tmp_path):
    source = write_stream(stream, Sizes(train=20, test=12), tmp_path, 1)
    pictures = see(source)
    named = name_primitives([find_samples(half, pictures) for half in source.halves], "gold", refuse_parser)
    kinds = number_kinds(named)
    splits = [make_split(some, invent_texts(named), kinds) for some in named]
    assert len(source.tasks) == (5 if stream == FUNCTION else 4)
    assert [len(split) for split in splits] == [20, 12] * len(source.tasks) + [12]
    whole = join_splits(splits)
    for split in (whole, *splits):
        if stream == DOMAINS:
            assert split.candidate_NK is None
            continue
        assert split.candidate_NK is not None and split.kind_N is not None
        assert (split.candidate_NK == split.own_N[:, None]).sum(axis=1).tolist() == [1] * len(split)
        asked = {kind.split()[0] for kind, number in kinds.items() if number in split.kind_N}
        counts = (split.candidate_NK >= 0).sum(axis=1)
        assert set(counts) <= {2, 4, 8} and (stream == SCENE or split is whole or len(asked) in (1, 5))


def test_the_little_world_is_made_once_and_by_its_seed(world, tmp_path):
    again = write_stream(WORLD, LITTLE, tmp_path, 2)
    other = write_stream(WORLD, LITTLE, tmp_path / "other", 102)
    read = [[Path(one.uri).read_bytes() for one in stream.shards] for stream in (world, again, other)]
    assert read[0] == read[1] and not set(read[0]) & set(read[2]) and len(set(read[0])) == len(read[0]) == 9
    with pytest.raises(ValueError, match=r"test=561: must be at most 560"):
        draw_stream(WORLD, Sizes(test=561))


def test_a_backbone_is_trained_on_its_own_pairs_alone(tmp_path):
    world = make_backbone_world(64, tmp_path, 3, 3)
    tasks = [{"name": "a", "train": world.train, "test": world.held_out}]
    (tmp_path / "stream.json").write_text(json.dumps({"tasks": tasks}))
    stream = read_stream(str(tmp_path / "stream.json"))
    table = see(stream).shards[stream.shards[0].uri]
    scenes = [json.loads(text)["scene"]["things"] for text in table["json"].to_pylist()]
    assert {(one["colour"], one["shape"]) for things in scenes for one in things} <= backbone_pairs(3)
    assert len(scenes) == 64


def test_the_parser_reads_the_primitives_that_the_little_world_names(world):
    pictures = see(world)
    some = [find_samples(half, pictures) for half in world.halves]
    named, parsed = (name_primitives(some, how, SHARED_PARSER) for how in ("gold", "parsed"))
    assert [one.samples for one in parsed] == [one.samples for one in named]
    assert {status for one in parsed for status in one.status_N} == {"ok"}


@pytest.mark.parametrize("stream", [WORLD, DOMAINS, SCENE, FUNCTION])
def test_the_little_world_shares_texts_and_no_image(stream, tmp_path):
    config = ContinualConfig(overlap="drop")
    source = write_stream(stream, Sizes(train=60, test=40), tmp_path, 0)
    found = find_all_samples(source, see(source), config)
    assert not any(leak.shared.images for leak in found.leaks) and not found.repeats
    assert {status for half in found.halves for status in half.samples.status_N} == {"ok"}
    assert len(found.leaks) == len(source.tasks) + 1
    assert (stream in (SCENE, FUNCTION)) == any(leak.shared.texts > 5 for leak in found.leaks)


def test_every_caption_is_edited_in_each_way_and_questions_are_not(tmp_path):
    source = write_stream(WORLD, Sizes(train=6, test=8), tmp_path / "world", 0)
    found = find_all_samples(source, see(source), ContinualConfig())
    for one in found.halves[1].samples.good:
        assert {"REPLACE relation", "SWAP attribute"} <= {edit.category for edit in one.edits}
        for edit in one.edits:
            assert edit.text != one.caption
            is_same = set(edit.primitives) == set(one.primitives)
            assert is_same == (edit.category == "REPLACE relation")
    assert not any(one.edits for one in found.halves[0].samples.good)
    source = write_stream(SCENE, Sizes(train=6, test=8), tmp_path / "questions", 0)
    asked = find_all_samples(source, see(source), ContinualConfig())
    assert not any(one.edits for one in asked.halves[1].samples.good)
