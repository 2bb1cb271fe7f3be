"""``raycomp.score``: the scores of a curation, without a folder; a bad pair is a row."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import raycomp
from raycomp import words
from raycomp.curation.config import AttributeConfig, CurateConfig, PrepareConfig
from raycomp.data.parquet import read_columns
from raycomp.data.samples import find_image
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


@pytest.mark.parametrize(
    "options",
    [{"targets": "content"}, {"targets": "showable", "aggregate": "min", "unit": "drop", "nonces": 3}],
)
def test_scores_are_those_of_a_curation(pairs, tiny_scorer, tmp_path, options):
    images, captions = pairs
    attribute = AttributeConfig(pool=1.0, **options)
    config = CurateConfig(input=write_world_shards(tmp_path / "in", NUM, NUM), scorer=tiny_scorer)
    raycomp.curate(dataclasses.replace(config, attribute=attribute), tmp_path / "out")
    wanted = read_columns(str(tmp_path / "out" / "scores" / "00000.parquet"))
    assert wanted[words.CAPTION].to_pylist() == captions
    scorer = {"model": tiny_scorer.model, "weights": tiny_scorer.weights}
    plain = CurateConfig(attribute=AttributeConfig(**options))
    found = raycomp.score(mix(images, tmp_path), captions, **scorer, config=plain)
    names = [name for name in found.column_names if name in wanted.column_names]
    assert {words.ALIGNMENT, words.MEAN_PAS, words.PHRASES, words.STATUS} <= {*names}
    assert ("content_words" in names) == (options["targets"] == "content")
    assert found.select(names).equals(wanted.select(names))
    for row in found.to_pylist() if "nonces" in options else ():
        seen = [
            p["drop"] for p in row[words.PHRASES] if p["drop"] is not None and p["target_class"] == "head"
        ]
        assert row["pas"] == min(seen, default=None)
        assert all(len(p["drops"]) == len(p["nonces"]) <= 3 for p in row[words.PHRASES])


def test_no_score_depends_on_the_blocks_and_no_pair_is_no_row(pairs, tiny_scorer):
    configs = [CurateConfig(scorer=dataclasses.replace(tiny_scorer, batch_size=size)) for size in (5, 64)]
    one, other = (raycomp.score(*pairs, config=config) for config in configs)
    assert one.equals(other)
    empty = raycomp.score([], [], config=configs[0])
    assert len(empty) == 0 and empty.schema == one.schema


def test_a_bad_pair_is_a_row(pairs, tiny_scorer, tmp_path):
    good, said = pairs[0][0], pairs[1][0]
    (tmp_path / "folder").mkdir()
    cut = Image.open(io.BytesIO(good[: len(good) // 2]))
    cases = [
        (good, said, words.OK),
        (tmp_path / "nowhere.jpg", said, words.NO_IMAGE),
        (tmp_path / "folder", said, words.NO_IMAGE),
        (None, said, words.NO_IMAGE),
        (b"no picture", said, words.CORRUPT_IMAGE),
        (cut, said, words.CORRUPT_IMAGE),
        (np.zeros((1000, 1001, 3), np.uint8), said, words.IMAGE_TOO_LARGE),
        (Image.new("RGB", (1000, 1001)), said, words.IMAGE_TOO_LARGE),
        (good, " \n", words.EMPTY_CAPTION),
        (good, None, words.NO_CAPTION),
        (good, "half \ud800", "bad_encoding"),
        (good, "\U0001f600", "no_phrase"),
    ]
    images, captions, wanted = map(list, zip(*cases, strict=True))
    config = CurateConfig(scorer=tiny_scorer, prepare=PrepareConfig(max_pixels=1_000_000))
    found = raycomp.score(images, captions, config=config)
    assert found[words.STATUS].to_pylist() == wanted
    assert [value is not None for value in found[words.ALIGNMENT].to_pylist()] == [
        status in (words.OK, "no_phrase") for status in wanted
    ]
    alone = raycomp.score(images[:1], captions[:1], config=config)
    assert found.slice(0, 1).combine_chunks().equals(alone)


def test_a_picture_of_any_mode_is_scored_as_its_file(tiny_scorer, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    pictures = []
    for mode in ("1", "LA", "P", "RGBA", "CMYK", "I;16", "F"):
        grey = Image.fromarray(noise[..., 0].astype(np.uint16) * 256)
        image = grey if mode == "I;16" else Image.fromarray(noise).convert(mode)
        file = tmp_path / f"{len(pictures)}.{'tif' if mode in ('CMYK', 'F') else 'png'}"
        (image.convert("RGB") if mode == "F" else image).save(file)
        pictures += [file, image]
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise).save(tmp_path / "turned.png", exif=exif)
    upright = np.rot90(noise, -1).copy()
    pictures += [tmp_path / "turned.png", Image.open(tmp_path / "turned.png"), upright, upright, noise]
    config = CurateConfig(scorer=tiny_scorer)
    found = raycomp.score(pictures, ["a red cube"] * len(pictures), config=config)
    *scores, other = found[words.ALIGNMENT].to_pylist()
    assert scores[::2] == scores[1::2] and other != scores[-1]


def test_values_that_are_no_pairs_are_refused(tiny_scorer):
    for images, captions, said in [
        (["a.jpg"], ["one", "two"], "images and captions: must have equal lengths, have 1 and 2"),
        ("a.jpg", ["one"], "images: must be a list, is str; put one value in brackets"),
        ([3], ["one"], "images[0]: must be a path, a Pillow image"),
        (["a.jpg"], [3], "captions[0]: must be a str or None, is int"),
        ([np.zeros((3, 8, 8), np.uint8)], ["one"], "images[0]: uint8 array of shape (3, 8, 8): must be"),
    ]:
        with pytest.raises(ValueError) as error:
            raycomp.score(images, captions, config=CurateConfig(scorer=tiny_scorer))
        assert said in str(error.value) and "\n" not in str(error.value)
