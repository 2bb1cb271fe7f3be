"""Batches: what is drawn depends on seed, epoch and uid alone, and pixels are open_clip's."""

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from raycomp.config import ModelConfig, UserError
from raycomp.core.batches import EpochPlan, slice_of
from raycomp.data.files import Folder
from raycomp.models.images import ImageSpec, decode_image, prepare_image
from raycomp.schema import PAIRS_SCHEMA
from raycomp.training import pairs as training_pairs
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.training.loop import prefetch
from raycomp.training.pairs import Drawing, find_pairs, make_batch, make_index, read_batches
from raycomp.training.towers import to_batch

SPEC = ImageSpec(24, 24, (0.48, 0.46, 0.41), (0.27, 0.26, 0.28))
KINDS = (("ADD", "object"), ("REPLACE", "attribute"), ("SWAP", "object"))
NUM = 12
TOKENS = open_clip.get_tokenizer("ViT-B-32")


def make_image(seed: int, side: int = 40) -> bytes:
    buffer = io.BytesIO()
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), np.uint8)
    Image.fromarray(coarse).resize((side * 4 // 3, side)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def make_drawing(**options) -> Drawing:
    model = ModelConfig(name="ViT-B-32", weights="random:0")
    return Drawing(SPEC, model, FitConfig(**{"crop": (0.5, 1.0), **options}), 10**6, KINDS)


def make_row(number: int, negatives: list[tuple[str, int, bool]] = ()) -> dict:
    """Return a loaded pair; of a negative its text, its kind's number, and whether a picture shows it."""
    return {
        "position": number,
        "uid": f"{number * 7919:032x}",
        "captions": [f"caption {number} {i}" for i in range(1 + number % 3)],
        "num_rows": 1,
        "negatives": [
            {"text": text, "op": KINDS[kind][0], "kind": KINDS[kind][1], "image": shown}
            for text, kind, shown in negatives
        ],
        "image": make_image(number),
        "negative_images": [make_image(1000 + i) if n[2] else None for i, n in enumerate(negatives)],
    }


def make_table(rows: list[dict]) -> pa.Table:
    loaded = [("image", pa.large_binary()), ("negative_images", pa.list_(pa.large_binary()))]
    table = pa.Table.from_pylist(rows, pa.schema([*PAIRS_SCHEMA, *loaded]))
    rows_N = table["num_rows"].to_numpy()
    return table.append_column("first_row", pa.array(rows_N.cumsum() - rows_N))


NEGATIVES = [[("one", 0, False)], [], [("two", 1, True), ("three", 1, False), ("four", 2, True)]]
ROWS = [make_row(number, NEGATIVES[number % 3]) for number in range(NUM)]


def make_one(row: dict, draw: Drawing, epoch: int = 0) -> dict[str, np.ndarray]:
    """Return a pair's own batch."""
    return make_batch({0: make_table([row])}, np.array([0]), np.array([0]), epoch, draw)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_row_is_the_same_whatever_stands_next_to_it():
    for loss, slots in [("clip", 1), ("negclip", 3), ("ceclip", 4), ("triplet", 1)]:
        draw = make_drawing(loss=loss, num_negatives=slots)
        alone = [make_one(row, draw, epoch=3) for row in ROWS]
        order = np.random.default_rng(0).permutation(NUM)
        tables = {5: make_table(ROWS[:4]), 2: make_table(ROWS[4:])}
        shard_R, row_R = np.where(order < 4, 5, 2), np.where(order < 4, order, order - 4)
        batch = make_batch(tables, shard_R, row_R, 3, draw)
        assert same(batch, {name: np.concatenate([alone[i][name] for i in order]) for name in batch})
        if loss == "negclip":
            assert [one["valid"][0].tolist() for one in alone[:3]] == [[1, 0, 0], [0, 0, 0], [1, 1, 1]]
            for row, slot in zip(*np.nonzero(~batch["valid"]), strict=True):
                assert np.array_equal(batch["negative"][row, slot], batch["token"][row])
                assert batch["kind"][row, slot] == 0
    row, draw = ROWS[2], make_drawing()
    others = (row, draw, 1), (row, make_drawing(seed=1), 0), ({**row, "uid": "f" * 32}, draw, 0)
    found = [make_one(*one)["image"].tobytes() for one in ((row, draw, 0), *others)]
    assert len({*found}) == 4, "every epoch, seed and uid draws anew"


def test_a_batch_has_no_more_slots_than_a_pair_has_negatives():
    asked = make_drawing(loss="ceclip", num_negatives=3)
    more = replace(make_drawing(loss="ceclip", num_negatives=2**53 - 1), most_negatives=3)
    assert all(same(make_one(row, asked), make_one(row, more)) for row in ROWS)
    none = replace(more, most_negatives=0)
    assert make_one({**ROWS[0], "negatives": []}, none)["valid"].tolist() == [[False]]


def test_a_negative_with_the_tokens_of_its_caption_is_not_valid():
    text = "1 " * 80
    some = [(text + "dog", 1, False), ("CAPTION 0 1", 2, False), ("a dog", 1, False)]
    for caption, valid in ((text, [False, True, True]), ("caption 0 1", [True, False, True])):
        row = {**make_row(0, some), "captions": [caption]}
        batch = make_one(row, make_drawing(loss="negclip", num_negatives=3))
        places = [
            [*map(list, TOKENS([one[0] for one in some]).tolist())].index(one.tolist())
            for one in batch["negative"][0]
        ]
        assert [valid[place] for place in places] == batch["valid"][0].tolist()
        assert batch["kind"][0].tolist() == [some[place][1] * valid[place] for place in places]


def test_copies_draw_for_themselves_and_the_first_as_a_pair_alone():
    draw = make_drawing(loss="ceclip", num_negatives=1)
    rows = [{**row, "num_rows": times} for row, times in zip(ROWS[:4], (1, 3, 2, 40), strict=True)]
    order = np.random.default_rng(0).permutation(46)
    batch = make_batch({0: make_table(rows)}, np.zeros(46, int), order, 2, draw)
    slow = [(sample, copy) for sample, row in enumerate(rows) for copy in range(row["num_rows"])]
    assert len({one.tobytes() for one in batch["image"]}) == 46, "each copy has a crop of its own"
    for place, row in enumerate(order):
        sample, copy = slow[row]
        if not copy:
            alone = make_one(ROWS[sample], draw, epoch=2)
            assert same({name: value[place : place + 1] for name, value in batch.items()}, alone)
            of_caption = np.random.default_rng((0, 2, int(ROWS[sample]["uid"], 16), 0))
            texts = ROWS[sample]["captions"]
            token_1N = TOKENS([texts[of_caption.integers(len(texts))]]).numpy()
            assert np.array_equal(alone["token"], token_1N), "the bits of a run without copies"
    copies = [place for place, row in enumerate(order) if slow[row][0] == 2]
    assert len({batch["token"][place].tobytes() for place in copies}) > 1


def test_slots_take_as_many_kinds_as_there_are():
    some = [(f"text {i}", kind, False) for i, kind in enumerate([0, 0, 0, 1, 1, 2])]
    row = {**make_row(0, some), "image": make_image(0, 8)}
    known = TOKENS([text for text, *_ in some]).numpy()
    seen = Counter()
    for epoch in range(60):
        batch = make_one(row, make_drawing(loss="ceclip", num_negatives=5), epoch)
        places = [np.flatnonzero((known == token_N).all(1)).item() for token_N in batch["negative"][0]]
        assert len(set(places)) == 5 and batch["valid"].all()
        assert batch["kind"][0].tolist() == [some[place][1] for place in places]
        assert set(batch["kind"][0, :3].tolist()) == {0, 1, 2}
        assert set(batch["kind"][0, 3:].tolist()) == {0, 1}
        seen.update(places[:1])
    assert len(seen) == 6


def test_triplet_takes_negatives_that_a_picture_shows():
    draw = make_drawing(loss="triplet", crop=(1.0, 1.0))
    shown = {place: prepare_image(make_image(1000 + place), SPEC, 10**6)[0] for place in (0, 2)}
    known, seen = TOKENS(["two", "three", "four"]).numpy(), set()
    for epoch in range(20):
        batch = make_one(ROWS[2], draw, epoch)
        place = np.flatnonzero((known == batch["negative"][0, 0]).all(1)).item()
        assert batch["valid"].tolist() == [[True]] and place in shown
        assert np.array_equal(batch["negative_image"][0], shown[place])
        seen.add(place)
    assert seen == {0, 2}
    without = make_one(ROWS[0], draw)
    assert not without["valid"].any() and not without["negative_image"].any()


def test_a_batch_is_open_clips_training_transform_to_the_bit(monkeypatch):
    """Of the same crop; open_clip_train hands its transform what decoded to RGB."""
    whole = make_one(ROWS[0], make_drawing(crop=(1.0, 1.0)))["image"][0]
    assert np.array_equal(whole, prepare_image(ROWS[0]["image"], SPEC, 10**6)[0])
    left, top, width, height = 3, 5, 31, 28
    monkeypatch.setattr("raycomp.models.images.draw_crop", lambda *_: (left, top, left + width, top + height))
    monkeypatch.setattr(RandomResizedCrop, "get_params", lambda *_: (top, left, height, width))
    transform = open_clip.image_transform((24, 24), is_train=True, mean=SPEC.mean, std=SPEC.std)
    batch = make_batch({0: make_table(ROWS)}, np.zeros(NUM, int), np.arange(NUM), 0, make_drawing())
    made = to_batch(batch, "cpu", SPEC)
    expected = torch.stack([transform(decode_image(row["image"], 10**6)) for row in ROWS])
    assert torch.equal(made.image_RCHW, expected)
    assert made.token_RN.dtype == torch.int64 and made.negative_RKN is None
    with pytest.raises(UserError, match=f"the image of uid {ROWS[0]['uid']} cannot be trained on: corrupt"):
        make_one({**ROWS[0], "image": b"no image"}, make_drawing())


def test_whole_pictures_are_prepared_once_as_far_as_memory_is_given_for_them(monkeypatch):
    prepared = []
    monkeypatch.setattr(training_pairs, "_kept", {})
    monkeypatch.setattr(training_pairs, "_KEPT_BYTES", SPEC.num_values)  # one picture
    monkeypatch.setattr(
        training_pairs,
        "prepare_image",
        lambda data, *rest: prepared.append(data) or prepare_image(data, *rest),
    )
    draw = make_drawing(crop=(1.0, 1.0))
    for epoch in range(3):
        for row in ROWS[:2]:
            pixels = make_one(row, draw, epoch)["image"][0]
            assert np.array_equal(pixels, prepare_image(row["image"], SPEC, 10**6)[0])
    assert [prepared.count(row["image"]) for row in ROWS[:2]] == [1, 3]


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for shard in range(4):
        rows = [{name: make_row(shard * 8 + i)[name] for name in ("uid", "image")} for i in range(8 - shard)]
        table = pa.Table.from_pylist([{**row, "caption": f"{shard} {i}"} for i, row in enumerate(rows)])
        pq.write_table(table, folder / f"{shard}.parquet")
    return folder


def list_pairs(album: Path, work: Path, **options) -> tuple[training_pairs.Pairs, EpochPlan]:
    pairs = find_pairs(TrainConfig(input=str(album), **options))
    index = make_index(pairs, Folder(str(work)))
    return replace(pairs, listed=index.uris), EpochPlan(index.rows_S, batch_size=5, window=2, seed=0)


def test_batches_are_the_same_over_ranks_and_from_any_step(album, monkeypatch, tmp_path, local):
    pairs, plan = list_pairs(album, tmp_path)
    steps, loaded, load = 2 * plan.steps_per_epoch, [], training_pairs.load_shard
    monkeypatch.setattr(training_pairs, "load_shard", lambda *args: loaded.append(args[1]) or load(*args))
    whole = list(read_batches(pairs, plan, make_drawing(), 0, steps))
    assert len(loaded) <= 2 * 4 + 1  # once an epoch, and once more where the epochs meet at most
    parts = [
        list(read_batches(pairs, plan, make_drawing(), 0, steps, slice_of(rank, 3, 5))) for rank in range(3)
    ]
    for step in range(steps):
        joined = {name: np.concatenate([part[step][name] for part in parts]) for name in whole[step]}
        assert same(whole[step], joined)
    assert same(next(read_batches(pairs, plan, make_drawing(), steps - 1, 1)), whole[-1])


def test_an_epoch_has_every_pair_as_often_as_the_subset_names_it(album, tmp_path, local):
    """Counted in batches: one caption and no crop tell the pairs apart."""
    numbers = [0, 1, 1, 9, 9, 9, 24, 16, 16, 3]
    pq.write_table(pa.table({"uid": [make_row(n)["uid"] for n in numbers]}), tmp_path / "kept.parquet")
    pairs, plan = list_pairs(album, tmp_path, subset=str(tmp_path / "kept.parquet"))
    assert plan.steps_per_epoch == 2
    draw = make_drawing(crop=(1.0, 1.0))
    known = {make_one(make_row(number), draw)["image"].tobytes(): number for number in set(numbers)}
    for epoch in range(3):
        batches = read_batches(pairs, plan, draw, 2 * epoch, 2)
        found = [known[image.tobytes()] for batch in batches for image in batch["image"]]
        assert sorted(found) == sorted(numbers)


def draw(num: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(num):
        image = rng.integers(0, 256, (4, 8, 8, 3), np.uint8)
        image.flags.writeable = False  # as from the object store
        yield {"image": image, "token": rng.integers(0, 99, (4, 16), np.int32), "valid": np.eye(4, 2) > 0}


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_batches_that_a_thread_makes_ahead_are_the_same_in_order(kind: str):
    device = torch.device(kind)
    plain = [to_batch(one, torch.device("cpu"), SPEC) for one in draw(9)]
    for batch, expected in zip(prefetch(draw(9), device, SPEC), plain, strict=True):
        assert batch.image_RCHW.device.type == device.type and batch.token_RN.device.type == "cpu"
        torch.testing.assert_close(batch.image_RCHW.cpu(), expected.image_RCHW)
        assert batch.token_RN.equal(expected.token_RN) and batch.valid_RK.cpu().equal(expected.valid_RK)
