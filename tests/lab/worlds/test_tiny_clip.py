"""The little world on disk, and the tiny CLIP that the training loop makes of it."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import open_clip
import pytest
import torch
from PIL import Image

from lab.worlds import tiny_clip
from lab.worlds.shards import FIT, World, make_world
from lab.worlds.tiny_clip import (
    _normalise,
    _write_architecture,
    draw_batches,
    load_pairs,
    recall_at_1,
    train_scorer,
)
from raycomp.data.inputs import expand_input
from raycomp.data.samples import read_tar
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from raycomp.training.loop import Trainer


def test_a_pass_shows_every_row_once_in_an_order_of_its_own() -> None:
    batches = draw_batches(11, 3, torch.Generator().manual_seed(0))
    passes = [torch.cat([next(batches) for _ in range(3)]).tolist() for _ in range(40)]
    assert all(len(set(rows)) == 9 for rows in passes)
    assert {row for rows in passes for row in rows} == set(range(11))
    assert len({tuple(rows) for rows in passes}) == 40
    again = draw_batches(11, 3, torch.Generator().manual_seed(0))
    assert torch.cat([next(again) for _ in range(3)]).tolist() == passes[0]


def test_a_batch_of_more_pairs_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train.batch_size=9.*7 pairs"):
        next(draw_batches(7, 9, torch.Generator()))


def test_recall_at_1_against_a_slow_loop_and_ties() -> None:
    generator = torch.Generator().manual_seed(3)
    query_SD, target_SD = torch.randn(30, 3, generator=generator), torch.randn(30, 3, generator=generator)
    hits = 0
    for i, query in enumerate(query_SD):
        scores = [float(query @ target) for target in target_SD]
        hits += all(scores[i] > score for j, score in enumerate(scores) if j != i)
    assert recall_at_1(query_SD, target_SD) == pytest.approx(hits / 30)
    assert recall_at_1(torch.ones(5, 2), torch.ones(5, 2)) == 0.0
    assert recall_at_1(torch.eye(5), torch.eye(5)) == 1.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(
        tmp_path_factory.mktemp("world"), 3, num_train=96, num_clean=20, num_faulty=20, num_held_out=24
    )


def test_world_is_made_of_parts_that_share_nothing_and_repeats_by_seed(world: World, tmp_path: Path) -> None:
    sizes = {"num_train": 96, "num_clean": 20, "num_faulty": 20, "num_held_out": 24}
    again = make_world(tmp_path / "a", 3, **sizes, processes=2)
    other = make_world(tmp_path / "b", 4, **sizes)
    scenes = []
    for part, count in (("train", 96), ("curate", 40), ("held_out", 24)):
        shards = [Path(getattr(made, part), "00000.tar") for made in (world, again, other)]
        data, repeated, differing = (shard.read_bytes() for shard in shards)
        assert data == repeated and data != differing
        facts = [json.loads(text) for text in read_json(getattr(world, part))]
        assert len(facts) == count
        assert sum(fact["fault"] != "none" for fact in facts) == (20 if part == "curate" else 0)
        scenes += [json.dumps(fact["scene"]) for fact in facts]
    assert len(set(scenes)) == 160


def read_json(part: str) -> list[str]:
    (shard,) = expand_input(part)
    with open(shard.uri, "rb") as file:
        return [text for table in read_tar(file, shard, 512) for text in table["json"].to_pylist()]


def test_training_sees_what_open_clip_prepares_for_evaluation(world: World, tmp_path: Path) -> None:
    scorer = _write_architecture(tmp_path, 0)
    pixels_SHWC, token_SN = load_pairs(world.held_out, scorer, describe_scorer(scorer))
    image_SCHW = _normalise(pixels_SHWC, describe_scorer(scorer))
    transform = open_clip.image_transform(32, is_train=False)
    tokenize = open_clip.SimpleTokenizer(context_length=32)
    (shard,) = expand_input(world.held_out)
    with open(shard.uri, "rb") as file:
        table = next(read_tar(file, shard, 512))
    for i, row in enumerate(table.to_pylist()):
        expected = transform(Image.open(io.BytesIO(row["image"])))
        assert torch.allclose(image_SCHW[i], expected, atol=1e-6)
        assert torch.equal(token_SN[i], tokenize([row["caption"]])[0])


def test_tiny_clip_learns_repeats_and_loads_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats with the towers one after the other, too."""
    config = replace(FIT, steps=10, batch_size=24, warmup=0.2, learning_rate=2e-3)
    trained = train_scorer(world, tmp_path / "a", 5, config)
    monkeypatch.setattr(tiny_clip, "_TwoThreads", Trainer)
    again = train_scorer(world, tmp_path / "b", 5, config)
    assert trained.losses == again.losses
    weights, repeated = (Path(t.scorer.weights).read_bytes() for t in (trained, again))
    assert weights == repeated
    assert trained.losses[0] == pytest.approx(math.log(24), abs=0.5)
    assert sum(trained.losses[-3:]) < sum(trained.losses[:3])
    assert (trained.num_train, trained.num_held_out) == (96, 24)
    spec = describe_scorer(trained.scorer)
    assert (spec.context_length, spec.image.height, spec.embedding_dim) == (32, 32, 128)
    pixels_SHWC, token_SN = load_pairs(world.held_out, trained.scorer, spec)
    clip = Clip(trained.scorer, device="cpu")
    image_SD = clip.embed_pixels(pixels_SHWC.numpy())
    text_SD, _ = clip.text.embed(token_SN.numpy())
    assert recall_at_1(image_SD, text_SD) == pytest.approx(trained.image_to_text, abs=0.05)
    assert recall_at_1(text_SD, image_SD) == pytest.approx(trained.text_to_image, abs=0.05)


def test_faulty_pairs_are_refused_for_training(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"curate: every pair must be ok, one is corrupt_image"):
        train_scorer(replace(world, train=world.curate), tmp_path, 0)


@pytest.mark.slow
def test_the_whole_training_learns_to_retrieve(tmp_path: Path) -> None:
    trained = train_scorer(make_world(tmp_path, 0), tmp_path / "scorer", 0)
    assert (trained.num_train, trained.num_held_out) == (10_000, 1000)
    # 0.77 to 0.85 were measured with two seeds; chance is 0.001.
    assert min(trained.image_to_text, trained.text_to_image) > 0.6
