"""``raycomp.score``: the scores of a curation, without a folder; a bad pair is a row."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import raycomp
from raycomp.core.attribution import aggregate_drops
from raycomp.curation.config import AttributeConfig, CurateConfig, PrepareConfig
from raycomp.data.parquet import read_columns
from raycomp.data.samples import find_image
from raycomp.words import (
    ALIGNMENT,
    CAPTION,
    CORRUPT_IMAGE,
    EMPTY_CAPTION,
    HEAD,
    IMAGE_TOO_LARGE,
    MEAN_PAS,
    NO_CAPTION,
    NO_IMAGE,
    OK,
    PHRASES,
    STATUS,
)
from tests.corpus import scenes, write_world_shards

NUM = 24


@pytest.fixture(scope="module")
def pairs() -> tuple[list[bytes], list[str]]:
    """Files of images and captions, as ``write_world_shards`` writes them with the same seed."""
    found = scenes(NUM, seed=0)
    return [one[find_image(one)] for one in found], [one["txt"].decode() for one in found]


def mix(images: list[bytes], folder: Path) -> list[object]:
    """Return images as paths, Pillow images, arrays and bytes in turn."""
    mixed: list[object] = []
    for i, data in enumerate(images):
        (folder / f"{i}.img").write_bytes(data)
        opened = Image.open(io.BytesIO(data))
        ways = [folder / f"{i}.img", opened, np.asarray(opened.convert("RGB")), data]
        mixed.append(ways[i % len(ways)])
    return mixed


@pytest.mark.parametrize("targets", ["content", "nouns"])
def test_scores_are_those_of_a_curation(pairs, tiny_scorer, tmp_path, targets):
    images, captions = pairs
    shards = write_world_shards(tmp_path / "in", NUM, NUM)
    config = CurateConfig(
        input=shards, scorer=tiny_scorer, attribute=AttributeConfig(pool=1.0, targets=targets)
    )
    raycomp.curate(config, tmp_path / "out")
    wanted = read_columns(str(tmp_path / "out" / "scores" / "00000.parquet"))
    assert wanted[CAPTION].to_pylist() == captions

    scorer = {"model": tiny_scorer.model, "weights": tiny_scorer.weights}
    plain = CurateConfig(attribute=AttributeConfig(targets=targets))
    found = raycomp.score(mix(images, tmp_path), captions, **scorer, config=plain)
    names = [name for name in found.column_names if name in wanted.column_names]
    assert {ALIGNMENT, MEAN_PAS, PHRASES} <= {*names}
    assert ("content_words" in names) == (targets == "content")
    assert found.select(names).equals(wanted.select(names))
    assert set(found[STATUS].to_pylist()) == {OK}


def test_pas_is_what_the_options_aggregate(pairs, tiny_scorer):
    images, captions = pairs
    attribute = AttributeConfig(targets="nouns", unit="drop", aggregate="min", nonces=3)
    config = CurateConfig(scorer=tiny_scorer, attribute=attribute)
    for row in raycomp.score(images, captions, config=config).to_pylist():
        found = [(one["target_class"], one["drop"]) for one in row[PHRASES] if one["drop"] is not None]
        assert row["pas"] == min(drop for _, drop in found)
        assert all(len(phrase["drops"]) == len(phrase["nonces"]) <= 3 for phrase in row[PHRASES])
        seen = np.array([drop for kind, drop in found if kind == HEAD], np.float32)
        assert row[MEAN_PAS] == aggregate_drops(seen, np.array([0, len(seen)]), "mean")[0]


def test_no_score_depends_on_the_blocks(pairs, tiny_scorer):
    tables = [
        raycomp.score(*pairs, config=CurateConfig(scorer=dataclasses.replace(tiny_scorer, batch_size=size)))
        for size in (5, 64)
    ]
    assert tables[0].equals(tables[1])


def test_a_bad_pair_is_a_row(pairs, tiny_scorer, tmp_path):
    good, said = pairs[0][0], pairs[1][0]
    (tmp_path / "folder").mkdir()
    cut = Image.open(io.BytesIO(good[: len(good) // 2]))
    cases = [
        (good, said, OK),
        (tmp_path / "nowhere.jpg", said, NO_IMAGE),
        (tmp_path / "folder", said, NO_IMAGE),
        (None, said, NO_IMAGE),
        (b"no picture", said, CORRUPT_IMAGE),
        (cut, said, CORRUPT_IMAGE),
        (np.zeros((1000, 1001, 3), np.uint8), said, IMAGE_TOO_LARGE),
        (Image.new("RGB", (1000, 1001)), said, IMAGE_TOO_LARGE),
        (good, " \n", EMPTY_CAPTION),
        (good, None, NO_CAPTION),
        (good, "half \ud800", "bad_encoding"),
        (good, "\U0001f600", "no_phrase"),
    ]
    images, captions, wanted = map(list, zip(*cases, strict=True))
    config = CurateConfig(scorer=tiny_scorer, prepare=PrepareConfig(max_pixels=1_000_000))
    found = raycomp.score(images, captions, config=config)
    assert found[STATUS].to_pylist() == wanted
    assert [value is not None for value in found[ALIGNMENT].to_pylist()] == [
        status in (OK, "no_phrase") for status in wanted
    ]
    alone = raycomp.score(images[:1], captions[:1], config=config)
    assert found.slice(0, 1).combine_chunks().equals(alone)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16", "F"])
def test_a_picture_of_any_mode_is_scored_as_its_file(mode, tiny_scorer, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    grey = Image.fromarray(noise[..., 0].astype(np.uint16) * 256)
    image = grey if mode == "I;16" else Image.fromarray(noise).convert(mode)
    file = tmp_path / ("a.png" if mode in ("1", "L", "LA", "P", "RGBA", "I;16") else "a.tif")
    image.convert("RGB").save(file) if mode in ("YCbCr", "F") else image.save(file)
    found = raycomp.score([file, image], ["a red cube"] * 2, config=CurateConfig(scorer=tiny_scorer))
    assert len(set(found[ALIGNMENT].to_pylist())) == 1
    assert found[STATUS].to_pylist() == [OK, OK]


def test_a_turned_picture_is_scored_upright(tiny_scorer, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise).save(tmp_path / "a.png", exif=exif)
    images = [tmp_path / "a.png", Image.open(tmp_path / "a.png"), np.rot90(noise, -1).copy(), noise]
    found = raycomp.score(images, ["a red cube"] * 4, config=CurateConfig(scorer=tiny_scorer))
    first, second, turned, other = found[ALIGNMENT].to_pylist()
    assert first == second == turned != other


def test_values_that_are_no_pairs_are_refused(tiny_scorer):
    for images, captions, said in [
        (["a.jpg"], ["one", "two"], "images and captions: must have equal lengths, have 1 and 2"),
        ("a.jpg", ["one"], "images: must be a list, is str; put one value in brackets"),
        (["a.jpg"], "one", "captions: must be a list, is str; put one value in brackets"),
        ([3], ["one"], "images[0]: must be a path, a Pillow image"),
        (["a.jpg"], [3], "captions[0]: must be a str or None, is int"),
        ([np.zeros((2, 2), np.float32)], ["one"], "images[0]: float32 array of shape (2, 2): must be uint8"),
        ([np.zeros((3, 8, 8), np.uint8)], ["one"], "images[0]: uint8 array of shape (3, 8, 8): must be"),
    ]:
        with pytest.raises(ValueError) as error:
            raycomp.score(images, captions, config=CurateConfig(scorer=tiny_scorer))
        assert said in str(error.value) and "\n" not in str(error.value)


def test_no_pair_is_no_row(tiny_scorer):
    config = CurateConfig(scorer=tiny_scorer)
    empty = raycomp.score([], [], config=config)
    assert len(empty) == 0 and empty.schema == raycomp.score([None], [None], config=config).schema


def test_a_model_is_loaded_again_only_for_another_one(pairs, tiny_scorer, monkeypatch):
    from raycomp.models import clip

    loaded: list[str] = []

    class Clip(clip.Clip):
        def __init__(self, config, **options):
            loaded.append(config.weights)
            super().__init__(config, **options)

    monkeypatch.setattr(clip, "Clip", Clip)
    one, other = (dataclasses.replace(tiny_scorer, weights=f"random:{seed}") for seed in (11, 12))
    tables = [
        raycomp.score(pairs[0][:2], pairs[1][:2], config=CurateConfig(scorer=config))
        for config in (one, one, other)
    ]
    assert loaded == ["random:11", "random:12"]
    assert tables[0].equals(tables[1]) and not tables[0].equals(tables[2])
    assert isinstance(tables[0], pa.Table)
