"""From sources to arrays: samples and their statuses, what halves share, pixels, edits, own streams."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raycomp.config import ModelConfig, UserError
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Split, join_splits
from raycomp.continual.embed import MadeVariant
from raycomp.continual.method import find_maker, find_variant
from raycomp.continual.streams import build, samples
from raycomp.continual.streams.sources import Source, StreamSample
from raycomp.continual.streams.sources import read_stream as open_json
from raycomp.core.selection import KEY, warn_leak
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from raycomp.evaluation.choices import Texts
from raycomp.models.architecture import describe_scorer, load_tokens
from raycomp.models.images import prepare_image
from raycomp.models.parser import load_parser
from raycomp.run.progress import check_bad_rows
from tests.continual.streams import DIM, invent_texts, make_stream, open_stream, see, task, write_half
from tests.evaluation.embedded import draw
from tests.training.pairs import make_image

DOG = {"primitives": ["dog"]}


def arrange(*given: StreamSample) -> samples.StreamSamples:
    """Return good samples with their primitives; a text without named ones has itself."""
    filled = []
    for one in given:
        behind = one.candidate_primitives or tuple((text,) for text in one.candidates)
        filled.append(one._replace(primitives=one.primitives or (one.caption,), candidate_primitives=behind))
    image_ND, statuses = draw(np.random.default_rng(0), len(filled), DIM), ("ok",) * len(filled)
    return samples.StreamSamples("it", tuple(filled), statuses, image_ND, np.zeros(len(filled), KEY))


def split_of(some: samples.StreamSamples) -> Split:
    return samples.make_split(some, invent_texts([some]), samples.number_kinds([some]))


def test_paths_of_a_json_file_start_at_its_folder(tmp_path, monkeypatch):
    for name in "ab":
        write_half(tmp_path / "in" / name, [("x", "a dog")])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    open_stream(tmp_path, task("one", "in/a/*.tar", f"x=in/a/0.tar::y={tmp_path}/in/b/0.tar"))
    stream = open_json("../mine.json")
    assert stream.name == "mine" and [one.name for one in stream.tasks] == ["one"]
    assert [shard.name for shard in stream.shards] == ["0.tar", "x=0.tar", "y=0.tar"]


TASKS = r"tasks\[0\]: "
WRONG: list[tuple[Any, str]] = [
    ("[" * 100_000, r"cannot be read as JSON"),
    ("[]", r"must be a JSON object, is a list"),
    ("{}", r"tasks is empty; list at least one"),
    (task(""), TASKS + r"name='': must be a str that is not empty"),
    (task(tset="x"), TASKS + r"field='tset': must be one of name, train.*closest is test"),
    (task(layout="pair"), TASKS + r"layout='pair': must be one of pairs.*; the closest is pairs"),
    (task(images="x"), TASKS + r"images: unknown for layout=pairs"),
    (task(columns={"caption": 3}), TASKS + r"columns: caption=3: must be a str"),
    (task(test="gone"), TASKS + r"test='.*gone': no such file or folder"),
    (json.dumps({"tasks": [task(), task()]}), "two tasks have the name 'a'"),
]


def test_what_is_wrong_with_a_json_file_is_reported_in_a_line(tmp_path):
    for name in ("train", "test"):
        write_half(tmp_path / name, [("x", "a dog")])
    for content, message in WRONG:
        text = content if isinstance(content, str) else json.dumps({"tasks": [content]})
        (tmp_path / "mine.json").write_text(text)
        with pytest.raises(ValueError, match=message) as caught:
            open_json(str(tmp_path / "mine.json"))
        assert "\n" not in str(caught.value) and str(caught.value).startswith("stream="), message
    with pytest.raises(ValueError, match=r"stream='.*gone.json': no such file"):
        open_json(str(tmp_path / "gone.json"))


def test_every_row_of_a_shard_is_a_sample_with_a_status(tmp_path):
    offered = {"candidates": ["a dog"], "candidate_primitives": []}
    rows = [
        ("x", "a dog", {"primitives": ["dog", "dog", " red cat "]}),
        (None, "a dog"),
        ("x", None),
        ("x", " "),
        ("x", "a dog", {"primitives": "dog"}),
        ("x", "a dog", {"candidates": ["a cat", "a fox"]}),
        ("x", "a dog", offered),
        ("x", "yes"),
        ("x", "a fox", {"primitives": []}),
        ("x", "a dog"),
    ]
    write_half(tmp_path / "train", rows)
    (tmp_path / "test.tar").write_bytes(b"no tar at all" * 100)
    write_tar(str(tmp_path / "empty.tar"), [])
    stream = open_stream(tmp_path, task(test="test.tar"), zero_shot=[{"name": "z", "test": "empty.tar"}])
    pictures, loaded = see(stream), []
    found = [samples.find_samples(half, pictures) for half in stream.halves]
    assert [one.status_N for one in found[1:]] == [("unreadable_shard",), ("empty_shard",)]

    def load():
        loaded.append(load_parser())
        return loaded[-1]

    (some,) = samples.name_primitives(found[:1], "gold", load)
    faults = ["no_image", "no_caption", "empty_caption", *["bad_field"] * 3, "no_primitive"]
    assert some.status_N == ("ok", *faults, "ok", "ok") and len(loaded) == 1
    split = split_of(some)
    assert split.texts == ("a dog", "a fox") and split.own_N.tolist() == [0, 1, 0]
    assert split.primitives == (("dog", "red cat"), ("fox",)), "the second dog has the first one's"
    assert (split.image_ND == some.image_ND[[0, 8, 9]]).all()
    (parsed,) = samples.name_primitives(found[:1], "parsed", load)
    assert [one.primitives for one in parsed.good] == [("dog",), ("fox",), ("dog",)]
    with pytest.raises(UserError, match=r"none of 9 .*\(2 no_image, 7 contaminated\)"):
        check_bad_rows("it", {"contaminated": 7, "no_image": 2}, 1.0, "samples")
    check_bad_rows("it", {"ok": 1, "contaminated": 99}, 0.0, "samples")


def test_a_text_without_an_embedding_is_reported_and_a_picture_without_one_is_a_bad_sample(tmp_path):
    write_half(tmp_path / "train", [("x", f"a {name}") for name in ("cat", "dog", "fox")])
    stream = open_stream(tmp_path, task(test="train"))
    pictures = see(stream)
    [(uri, table)] = pictures.shards.items()
    lost = table.set_column(table.schema.get_field_index("status"), "status", [["ok", "bad_embedding", "ok"]])
    some = samples.find_samples(stream.halves[0], replace(pictures, shards={uri: lost}))
    assert some.status_N == ("ok", "bad_embedding", "ok")
    gone = Source("it", samples=(StreamSample(None, "a dog"),))
    assert samples.find_samples(gone, pictures).status_N == ("no_image",)
    texts = Texts({"a cat": 0, "a dog": 1}, np.zeros((2, DIM), np.float32))
    build.check_texts(texts, ModelConfig(weights="x.pt"))
    with pytest.raises(UserError, match=r"^model\.weights='x\.pt': gives .* \(1 of 2 texts, the first 'a"):
        build.check_texts(replace(texts, bad=frozenset({"a dog"})), ModelConfig(weights="x.pt"))


def test_primitives_that_texts_share_are_reported_and_a_half_may_be_empty():
    twice = [StreamSample(None, f"{i}", ("a", "b")[:: 1 - 2 * (i % 2)]) for i in range(3)]
    some = arrange(*twice, StreamSample(None, "d", ("a",)))
    assert samples.warn_texts(split_of(some), "it") == [
        "it: 4 texts have 2 sets of primitives, so compositions can retrieve at most 50% of them"
    ]
    empty = samples.StreamSamples("it", (), (), np.zeros((0, DIM), np.float32), np.zeros(0, KEY))
    split = samples.make_split(empty, invent_texts([some]), {})
    assert len(split) == 0 and split.texts == () and split.text_TD.shape == split.image_ND.shape == (0, DIM)


def test_candidates_are_places_of_texts_and_kinds_are_numbers_of_the_stream():
    two = arrange(
        StreamSample(None, "b", candidates=("a", "b"), kind="x"),
        StreamSample(None, "c", candidates=("c", "b", "a"), kind="k"),
    )
    kinds = samples.number_kinds([two, arrange(StreamSample(None, "a", candidates=("a",), kind="m"))])
    split = samples.make_split(two, invent_texts([two]), kinds)
    chosen = [[split.texts[i] if i >= 0 else "" for i in row] for row in split.candidate_NK]
    assert chosen == [["a", "b", ""], ["c", "b", "a"]] and samples.warn_texts(split, "it") == []
    assert [split.texts[i] for i in split.own_N] == ["b", "c"]
    assert kinds == {"k": 0, "m": 1, "x": 2} and split.kind_N.tolist() == [2, 0]
    mixed = arrange(StreamSample(None, "b", candidates=("a", "b")), StreamSample(None, "c"))
    with pytest.raises(UserError, match="it: 1 of 2 samples have candidates; give candidates to all or to"):
        samples.make_split(mixed, invent_texts([mixed]), {"": 0})


def find(folder: Path, *tasks: dict, zero_shot=(), overlap: str = "warn", **more: Any) -> build.FoundStream:
    source = open_stream(folder, *tasks, zero_shot=zero_shot)
    return build.find_all_samples(source, see(source), ContinualConfig(overlap=overlap, **more))


def write(found: build.FoundStream, folder: Path, overlap: str = "warn") -> dict[str, Any]:
    texts = found.list_texts()
    row_TD = [draw(np.random.default_rng(list(text.encode())), 1, DIM)[0] for text in texts]
    embedded = Texts({text: i for i, text in enumerate(texts)}, np.stack(row_TD))
    config = ContinualConfig(overlap=overlap)
    return build.Maker(found, embedded, config, None, Folder(str(folder)), False).make_arrays()


def draw_pairs(start: str, num: int = 8) -> list[tuple[Any, ...]]:
    return [(f"{start} {i}", f"a dog {start} {i}", DOG) for i in range(num)]


def warn(found: build.FoundStream) -> list[str]:
    return [line for leak in found.leaks for line in warn_leak(leak, "warn")]


def test_images_that_halves_share_are_reported_and_cannot_all_be_dropped(tmp_path):
    for name, num in (("a", 8), ("b", 8), ("c", 6)):
        write_half(tmp_path / name, draw_pairs(name, num))
    (line,) = warn(find(tmp_path, task("x", "a", "a"), task("y", "b", "c")))
    tail = "8 of 8 test images are among the training images of x (100.0 %); overlap=drop leaves them out"
    assert line == f"mine, x: {tail}"
    with pytest.raises(UserError, match=r"overlap=drop: mine, x: 8 of 8 .* which empties the test set"):
        find(tmp_path, task("x", "a", "a"), task("y", "b", "c"), overlap="drop")
    alone = [(f"other {i}", f"A dog a {i}.", DOG) for i in range(6)]
    write_half(tmp_path / "texts", [*alone, ("new", "a dog of its own", DOG)])
    (leak,) = find(tmp_path, task("x", "a", "texts"), overlap="drop").leaks
    assert leak.shared == (7, 0, 7, 6) and warn_leak(leak, "warn") == [], "a text alone leaks nothing"


def test_what_is_dropped_is_what_a_slow_loop_finds_and_is_no_bad_data(tmp_path):
    rng, halves = np.random.default_rng(0), {}
    for name in "abcdef":
        images = [f"image {rng.integers(30)}" for _ in range(12)] + [f"only in {name}"]
        halves[name] = [(image, f"a dog {rng.integers(9)}", DOG) for image in images]
        write_half(tmp_path / name, halves[name])
    zero_shot, more = [{"name": "z", "test": "f"}], {"overlap": "drop", "max_bad_fraction": 0.0}
    found = find(tmp_path, task("x", "a", "b"), task("y", "c", "d"), zero_shot=zero_shot, **more)
    learned = {image for name in "ac" for image, *_ in halves[name]}
    for half, leak, name in zip(found.of("test").values(), found.leaks, "bdf", strict=True):
        expected = ["contaminated" if image in learned else "ok" for image, *_ in halves[name]]
        assert list(half.status_N) == expected and half.is_good_N.tolist() == [s == "ok" for s in expected]
        assert leak.shared.images == expected.count("contaminated") and leak.shared.num_images == 13
    assert {status for some in found.of("train").values() for status in some.status_N} == {"ok"}


def test_what_was_found_stands_next_to_the_arrays_which_stay_as_they_are(tmp_path):
    both, written = draw_pairs("b"), {}
    for name, some in (("a", draw_pairs("a")), ("b", both), ("c", [*both[:2], *draw_pairs("a", 3)])):
        write_half(tmp_path / name, some)
    for overlap, kept in (("warn", {"ok": 5}), ("drop", {"contaminated": 3, "ok": 2})):
        found = find(tmp_path, task("x", "a", "b"), task("y", "a", "c"), overlap=overlap)
        facts = write(found, tmp_path / overlap, overlap)
        assert [one["images"] for one in facts["overlap"]] == [0, 3]
        assert facts["overlap"][1]["train"] == "the training images of x (3), y (3)"
        repeats = [(one["half"], one["num_samples"], one["samples"]) for one in facts["repeats"]]
        assert repeats == [("train", 8, 8), ("test", 5, 2)]
        assert facts["warnings"][1:3] == [
            "mine, y: 8 of 8 train samples are train samples of x, too (100.0 %)",
            "mine, y: 2 of 5 test samples are test samples of x, too (40.0 %)",
        ]
        assert facts["samples"]["mine, y, test"] == kept
        names = [name for name in Folder(str(tmp_path / overlap)).list_names() if "tasks-1-test" not in name]
        written[overlap] = {name: (tmp_path / overlap / name).read_bytes() for name in names}
    assert written["warn"] == written["drop"] and len(written["warn"]) > 6


def test_a_test_with_one_text_is_reported_and_a_stream_with_one_is_refused(tmp_path):
    same, asked = [(f"s {i}", "a dog", DOG) for i in range(4)], {**DOG, "candidates": ["a dog", "a cat"]}
    halves = {"a": draw_pairs("a"), "b": draw_pairs("b"), "same": same, "asked": [("q", "a dog", asked)]}
    for name, some in halves.items():
        write_half(tmp_path / name, some)
    warnings = write(find(tmp_path, task("first", "a", "same"), task("second", "a", "b")), tmp_path / "out")
    assert [line for line in warnings["warnings"] if "has one text" in line] == [
        "mine, first, test: has one text, 'a dog', so every method is right in 100 % of this test's own "
        "gallery; add samples with other texts"
    ]
    for test, said in (("same", "all tests together have one text, 'a dog'"), ("asked", "some samples have")):
        with pytest.raises(UserError, match=said):
            find(tmp_path, task("first", "a", "same"), task("second", "b", test))


def test_different_primitives_of_one_text_are_reported(tmp_path):
    cube, ball = ["red", "cube"], ["red", "ball"]
    it, that, more = "a red cube", "a red ball", "a blue ball"
    train = [(it, cube), (it, ball), (that, ball), (that, ball[::-1])]
    for name, named in (("train", train), ("test", [(it, cube[::-1]), (that, cube), (more, ball)])):
        rows = [(f"{name} {i}", text, {"primitives": some}) for i, (text, some) in enumerate(named)]
        write_half(tmp_path / name, rows)
    warnings = write(find(tmp_path, task("first")), tmp_path / "out")["warnings"]
    assert [line for line in warnings if "primitives for" in line] == [
        "mine, first, train: samples name different primitives for 1 texts, such as 'a red cube'; each "
        "text keeps the primitives of its first sample",
        "mine, first, test: names other primitives for 1 texts than earlier halves, such as 'a red ball' of "
        "mine, first, train; joined halves keep those of the earlier half",
    ]


def test_edits_of_test_rows_become_arrays_and_bad_ones_drop_the_row(tmp_path):
    edit = {"text": "a blue cube", "primitives": ["blue cube"], "category": "REPLACE attribute"}
    edits = [[edit], [], [edit, {**edit, "text": "a red ball", "primitives": ["red ball"]}]]
    edits += [[{**edit, "text": "a cube 3"}], [{**edit, "primitives": []}], [{"text": "a blue cube"}]]
    for half in ("train", "test"):
        fields = [{"primitives": ["cube"], "edits": some} for some in edits]
        write_half(tmp_path / half, [(f"{half} {i}", f"a cube {i}", one) for i, one in enumerate(fields)])
    write(find(tmp_path, task(), max_bad_fraction=0.6), tmp_path / "out")
    (made,) = build.read_stream(Folder(str(tmp_path / "out")), with_pixels=False).tasks
    assert len(made.test) == 3 and made.edits is not None
    assert made.edits.split.texts == ("a blue cube", "a red ball")
    assert made.edits.split.primitives == (("blue cube",), ("red ball",))
    assert made.edits.row_M.tolist() == [0, 2, 2] and made.edits.text_M.tolist() == [0, 0, 1]


def test_a_stream_comes_back_as_it_was_written(tmp_path):
    for questions in (False, True):
        stream, folder = make_stream(questions=questions), Folder(str(tmp_path / f"{questions}"))
        build.write_stream(stream, folder)
        again = build.read_stream(folder, with_pixels=True)
        assert (again.name, again.names) == (stream.name, stream.names)
        assert (again.name_VD == stream.name_VD).all()
        both = ([half for task in (*one.tasks, *one.zero_shot) for half in (task.train, task.test)]
                for one in (stream, again))  # fmt: skip
        for first, second in zip(*both, strict=True):
            np.testing.assert_equal(vars(first), vars(second))


def test_pixels_and_tokens_are_those_that_were_embedded_each_picture_once(tmp_path, tiny_scorer):
    """A shard of 70 pictures, one of them without a caption, and ten files with two captions each."""
    images, files = [make_image(i) for i in range(70)], [make_image(1000 + i) for i in range(10)]
    rows = [(f"{i:02d}", {"jpg": data, "txt": f"text {i // 2}".encode()}) for i, data in enumerate(images)]
    del rows[3][1]["txt"]
    write_tar(str(tmp_path / "a.tar"), rows)
    for i, data in enumerate(files):
        (tmp_path / f"{i}.jpg").write_bytes(data)
    lines = [{"image": f"{i}.jpg", "captions": [f"text {i}", f"other {i}"]} for i in range(10)]
    (tmp_path / "files.json").write_text(json.dumps(lines))
    stream = open_stream(tmp_path, task(train="files.json", test="a.tar"))
    found = [samples.find_samples(half, see(stream)) for half in stream.halves]
    model = ModelConfig(tiny_scorer.model, tiny_scorer.weights)
    spec, folder = describe_scorer(model), tmp_path / "out"
    twice, once = (
        build.load_pixels(some, half, spec, 10**6, str(folder / f"{i}.npy"))
        for i, (some, half) in enumerate(zip(found, stream.halves, strict=True))
    )
    kept = [images[i] for i in range(70) if i != 3]
    shown = [
        np.stack([prepare_image(data, spec.image, 10**6)[0] for data in some])
        for some in ([files[i // 2] for i in range(20)], kept)
    ]
    assert (len(twice), len(once), len(twice.files[0])) == (20, 69, 10)
    assert isinstance(once.files[0], np.memmap) and (once[:] == shown[1]).all()
    assert (twice[:] == shown[0]).all() and (twice[np.array([19, 0, 3, 3])] == shown[0][[19, 0, 3, 3]]).all()
    splits = [
        Split(np.zeros((len(one), DIM)), np.zeros(len(one), int), ("it",), np.zeros((1, DIM)), (("a",),))
        for one in (once, twice)
    ]
    first, second = (replace(one, pixels=p) for one, p in zip(splits, (once, twice), strict=True))
    joined, whole = join_splits([first, second, first]).pixels, np.concatenate([shown[1], *shown])
    rows_B = np.array([0, 71, 68, 89, 88])
    assert len(joined) == 158 and (joined[rows_B] == whole[rows_B]).all()
    assert (joined[60:90] == whole[60:90]).all() and joined[:0].shape == (0, 32, 32, 3)
    (tmp_path / "7.jpg").unlink()
    with pytest.raises(UserError, match=r"tasks\[0\]: train=.*7.jpg has changed while it was in use"):
        build.load_pixels(found[0], stream.halves[0], spec, 10**6, str(folder / "gone.npy"))
    assert sorted(path.name for path in folder.iterdir()) == ["0.npy", "1.npy"]
    texts = ["a small red star above a large blue fish", "a dog"]
    token_TL = build.make_tokens(texts, model)
    assert token_TL.dtype == np.int32 and (token_TL == load_tokens(model)(texts)).all()


MAKERS = """
from pathlib import Path

from raycomp.config import ModelConfig
from raycomp.continual.method import MadeStream, StreamMaker


def draw(folder, variant, seed):
    Path(folder, "tasks.json").write_text(f"{variant} {seed}")
    return MadeStream(f"{folder}/tasks.json", ModelConfig(weights=f"random:{variant}"), f"{folder}/../shared")


def fail(folder, variant, seed):
    return 1 / variant


drawn = StreamMaker(draw, variants=3)
failing = StreamMaker(fail)
other = StreamMaker(lambda folder, variant, seed: folder)
"""


def test_a_variant_is_made_in_an_empty_folder_and_found_where_it_is_moved(tmp_path):
    makers = f"{tmp_path}/makers.py"
    Path(makers).write_text(MAKERS)
    first = MadeVariant(f"{makers}:drawn", 2, f"{tmp_path}/streams", "made-drawn-02")
    left = tmp_path / "streams/made-drawn-02/half"
    left.parent.mkdir(parents=True)
    left.write_text("left by a run that was killed")
    assert not first.is_made
    first.make(seed=7)
    assert first.is_made and not left.exists()
    shutil.move(tmp_path / "streams", tmp_path / "moved")
    moved, root = replace(first, folder=f"{tmp_path}/moved").read(), tmp_path / "moved/made-drawn-02"
    assert moved == (f"{root}/tasks.json", ModelConfig(weights="random:2"), f"{root}/../shared")
    assert (root / "tasks.json").read_text() == "2 7"
    assert [find_variant(f"{makers}:drawn", seed) for seed in range(5)] == [0, 1, 2, 0, 1]
    for name, said in (
        ("failing", r"stream=.*failing: ZeroDivisionError: .*makers.py, line 14"),
        ("other", r"stream=.*other: must return MadeStream, returned '"),
    ):
        with pytest.raises(UserError, match=said):
            MadeVariant(f"{makers}:{name}", 0, str(tmp_path), "made").make(0)
    with pytest.raises(ValueError, match="must name a StreamMaker"):
        find_maker(f"{makers}:draw")
