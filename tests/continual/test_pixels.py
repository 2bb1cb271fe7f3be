"""Pixels and tokens of a split are those that the frozen model saw, each at its sample's row."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from raycomp.config import ModelConfig, UserError
from raycomp.continual.data import join_pixels
from raycomp.continual.streams.build import load_pixels, make_tokens
from raycomp.continual.streams.samples import find_samples, make_split, name_primitives, number_kinds
from raycomp.continual.streams.sources import read_stream
from raycomp.data.samples import write_tar
from raycomp.models.architecture import describe_scorer, load_tokens
from raycomp.models.images import prepare_image
from tests.continual.streaming import invent_texts, see


def draw_jpeg(seed):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def made(tmp_path, tiny_scorer):
    """A shard of 150 pictures, a bad one and a sample without caption among them, and ten files."""
    images = [draw_jpeg(i) for i in range(150)]
    rows = [(f"{i}", {"jpg": data, "txt": f"text {i // 2}".encode()}) for i, data in enumerate(images)]
    del rows[3][1]["txt"]
    rows[5][1]["jpg"] = b"x"
    write_tar(str(tmp_path / "a.tar"), rows)
    lines = [{"image": f"{i}.jpg", "captions": [f"text {i}", f"other {i}"]} for i in range(10)]
    for i in range(10):
        (tmp_path / f"{i}.jpg").write_bytes(draw_jpeg(1000 + i))
    (tmp_path / "files.json").write_text(json.dumps(lines))
    listed = {"tasks": [{"name": "a", "train": "files.json", "test": "a.tar"}]}
    (tmp_path / "mine.json").write_text(json.dumps(listed))
    stream = read_stream(str(tmp_path / "mine.json"))
    pictures = see(stream)
    table = pictures.shards[str(tmp_path / "a.tar")]
    bad = ["corrupt_image" if i == 5 else one for i, one in enumerate(table["status"].to_pylist())]
    place = table.schema.get_field_index("status")
    pictures.shards[str(tmp_path / "a.tar")] = table.set_column(place, "status", [bad])
    samples = [find_samples(half, pictures) for half in stream.halves]
    parsed = {text: (text,) for text in [f"{a} {i}" for a in ("text", "other") for i in range(75)]}
    named = [name_primitives(some, "gold", parsed) for some in samples]
    return stream, named, images, describe_scorer(ModelConfig(tiny_scorer.model, tiny_scorer.weights))


def test_pixels_are_those_that_were_embedded(made, tmp_path):
    stream, named, images, spec = made
    kept = [i for i in range(150) if i not in (3, 5)]
    pixels = load_pixels(named[1], stream.halves[1], spec, 10**6, str(tmp_path / "out" / "p.npy"))
    split = make_split(named[1], invent_texts(named), number_kinds(named))
    assert len(pixels) == len(split) == 148 and isinstance(pixels.files[0], np.memmap)
    pixel_NHWC = pixels[:]
    assert pixel_NHWC.shape == (148, 32, 32, 3)
    for row, i in enumerate(kept):
        assert (pixel_NHWC[row] == prepare_image(images[i], spec.image, 10**6)[0]).all()
        assert split.texts[split.own_N[row]] == f"text {i // 2}"


def test_a_picture_with_two_captions_lies_there_once(made, tmp_path):
    stream, named, _, spec = made
    pixels = load_pixels(named[0], stream.halves[0], spec, 10**6, str(tmp_path / "p.npy"))
    expected = np.stack([prepare_image(draw_jpeg(1000 + i // 2), spec.image, 10**6)[0] for i in range(20)])
    assert len(pixels.files[0]) == 10 and (pixels[:] == expected).all()
    turned = np.array([19, 0, 3, 3])
    assert (pixels[turned] == expected[turned]).all()
    other = load_pixels(named[1], stream.halves[1], spec, 10**6, str(tmp_path / "q.npy"))
    both = join_pixels([other, pixels, other])
    assert len(both) == 148 + 20 + 148
    rows = np.array([0, 150, 147, 168, 167])
    whole = np.concatenate([other[:], expected, other[:]])
    assert (both[rows] == whole[rows]).all() and (both[140:170] == whole[140:170]).all()
    assert both[:0].shape == (0, 32, 32, 3) and len(join_pixels([both, pixels]).files) == 4


def test_a_picture_that_is_gone_since_leaves_no_file(made, tmp_path):
    stream, named, _, spec = made
    (tmp_path / "7.jpg").unlink()
    with pytest.raises(UserError, match=r"tasks\[0\]: train=.*7.jpg has changed while it was in use"):
        load_pixels(named[0], stream.halves[0], spec, 10**6, str(tmp_path / "out" / "p.npy"))
    assert list((tmp_path / "out").iterdir()) == []


def test_tokens_are_the_models(tiny_scorer):
    model = ModelConfig(tiny_scorer.model, tiny_scorer.weights)
    texts = ["a small red star above a large blue fish", "a dog"]
    token_TL = make_tokens(texts, model)
    assert token_TL.dtype == np.int32 and (token_TL == load_tokens(model)(texts)).all()
