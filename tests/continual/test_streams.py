"""From sources to arrays: streams of one's own, real photos, and what is refused."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from raycomp.config import ModelConfig, TooMuchBadData, UserError
from raycomp.continual.streams.build import check_texts
from raycomp.continual.streams.samples import (
    StreamSamples,
    find_samples,
    list_unparsed,
    make_split,
    name_primitives,
    number_kinds,
    parse_all,
    warn_repeats,
)
from raycomp.continual.streams.sources import Source, StreamSample, read_stream
from raycomp.core.selection import KEY
from raycomp.data.samples import write_tar
from raycomp.evaluation.choices import Picture, Texts
from raycomp.models.parser import load_parser
from raycomp.run.run import check_bad_rows
from tests.continual.photos import write_photos
from tests.continual.streaming import DIM, invent_texts, see
from tests.evaluation.embedded import draw

SHARED_PARSER = cache(load_parser)


def arrange(*samples: StreamSample, how: str = "gold", parsed=None) -> StreamSamples:
    """Return good samples with their primitives."""
    image_ND = draw(np.random.default_rng(0), len(samples), DIM)
    made = StreamSamples("it", samples, ("ok",) * len(samples), image_ND, np.zeros(len(samples), KEY))
    return name_primitives(made, how, parsed or {})


def split_of(samples: StreamSamples):
    return make_split(samples, invent_texts([samples]), number_kinds([samples]))


def refuse_parser():
    raise AssertionError("nothing has to be parsed")


def task(name, train="train", test="test", **more):
    return {"name": name, "train": train, "test": test, **more}


def write_shard(file, captions, **fields):
    rows = [(f"{i}", {"jpg": b"x", "txt": text.encode()}) for i, text in enumerate(captions)]
    for _, members in rows:
        members |= {"json": json.dumps(fields).encode()} if fields else {}
    write_tar(str(file), rows)


@pytest.mark.parametrize("where", ["own", "absolute"])
def test_paths_of_a_json_file_start_at_its_folder(tmp_path, monkeypatch, where):
    write_shard(tmp_path / "in" / "a.tar", ["a dog"])
    write_shard(tmp_path / "in" / "b.tar", ["a cat"])
    root = "in" if where == "own" else str(tmp_path / "in")
    both = f"x={root}/a.tar::y={root}/b.tar"
    (tmp_path / "mine.json").write_text(json.dumps({"tasks": [task("one", f"{root}/*.tar", both)]}))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    stream = read_stream("../mine.json")
    assert stream.name == "mine" and [one.name for one in stream.tasks] == ["one"]
    assert [shard.name for shard in stream.shards] == ["a.tar", "b.tar", "x=a.tar", "y=b.tar"]


WRONG = [
    ("{", r"cannot be read as JSON: Expecting property name"),
    ("[" * 100_000, r"cannot be read as JSON"),
    (
        '{"tasks": [{"name": "a", "train": "train", "test": "test", "test": "train"}]}',
        r"cannot be read as JSON: 'test' occurs twice in one object",
    ),
    ("[]", r"must be a JSON object, is a list"),
    ("{}", r"tasks is empty; list at least one"),
    ('{"tasks": []}', r"tasks is empty; list at least one"),
    ('{"task": []}', r"field='task': must be one of tasks, zero_shot; the closest is tasks"),
    ('{"tasks": 3}', r"tasks=3: must be a list that is not empty"),
    ('{"tasks": ["a"]}', r"tasks\[0\]: must be a JSON object, is a str"),
    (task(""), r"tasks\[0\]: name='': must be a str that is not empty"),
    (task("a", train=3), r"tasks\[0\]: train=3: must be a str"),
    ({"name": "a", "train": "train"}, r"tasks\[0\]: has no field 'test'"),
    (
        task("a", tset="x"),
        r"tasks\[0\]: field='tset': must be one of name, train, test, columns, layout.*closest is test",
    ),
    (task("a", layout="pair"), r"tasks\[0\]: layout='pair': must be one of pairs.*; the closest is pairs"),
    (task("a", test="gone"), r"tasks\[0\]: test='.*gone': no such file or folder"),
    (task("a", train="empty"), r"tasks\[0\]: train=.*names no file that ends in one of .tar, .parquet"),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_what_is_wrong_with_a_json_file_is_reported_in_a_line(tmp_path, content, message):
    write_shard(tmp_path / "train" / "a.tar", ["a dog"])
    write_shard(tmp_path / "test" / "a.tar", ["a cat"])
    (tmp_path / "empty").mkdir()
    text = content if isinstance(content, str) else json.dumps({"tasks": [content]})
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_stream(str(tmp_path / "mine.json"))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("stream=")


def test_a_stream_needs_names_apart_and_a_file(tmp_path):
    write_shard(tmp_path / "train" / "a.tar", ["a dog"])
    write_shard(tmp_path / "test" / "a.tar", ["a cat"])
    asked = {"tasks": [task("a")], "zero_shot": [{"name": "a", "test": "test"}]}
    (tmp_path / "mine.json").write_text(json.dumps(asked))
    with pytest.raises(ValueError, match="two tasks have the name 'a'"):
        read_stream(str(tmp_path / "mine.json"))
    asked["zero_shot"] = [task("b")]
    (tmp_path / "mine.json").write_text(json.dumps(asked))
    with pytest.raises(ValueError, match=r"zero_shot\[0\]: field='train': must be one of name, test, "):
        read_stream(str(tmp_path / "mine.json"))
    with pytest.raises(ValueError, match=r"stream='.*gone.json': cannot be read"):
        read_stream(str(tmp_path / "gone.json"))


def test_every_row_of_a_shard_is_a_sample_with_a_status(tmp_path):
    rows = [
        ("0", {"jpg": b"x", "txt": b"a dog", "json": b'{"primitives": ["dog", "dog", " red cat "]}'}),
        ("1", {"txt": b"a dog"}),
        ("2", {"jpg": b"x"}),
        ("3", {"jpg": b"x", "txt": b" "}),
        ("4", {"jpg": b"x", "txt": b"a dog", "json": b'{"primitives": "dog"}'}),
        ("5", {"jpg": b"x", "txt": b"a dog", "json": b'{"candidates": ["a cat", "a fox"]}'}),
        (
            "6",
            {"jpg": b"x", "txt": b"a dog", "json": b'{"candidates": ["a dog"], "candidate_primitives": []}'},
        ),
        ("7", {"jpg": b"x", "txt": b"yes"}),
        ("8", {"jpg": b"x", "txt": b"a fox", "json": b'{"primitives": []}'}),
        ("9", {"jpg": b"x", "txt": b"a dog"}),
    ]
    write_tar(str(tmp_path / "a.tar"), rows)
    write_shard(tmp_path / "b.tar", ["a cat"])
    (tmp_path / "mine.json").write_text(json.dumps({"tasks": [task("a", "a.tar", "b.tar")]}))
    stream = read_stream(str(tmp_path / "mine.json"))
    some = find_samples(stream.halves[0], see(stream))
    assert list_unparsed(some, "gold") == ["yes", "a fox"] and list_unparsed(some, "parsed")[0] == "a dog"
    some = name_primitives(some, "gold", {"yes": (), "a fox": ("fox",)})
    faults = ["no_image", "no_caption", "empty_caption", *["bad_field"] * 3, "no_primitive"]
    assert some.status_N == ("ok", *faults, "ok", "ok")
    split = split_of(some)
    assert split.texts == ("a dog", "a fox") and split.own_N.tolist() == [0, 1, 0]
    assert split.primitives == (("dog", "red cat"), ("fox",)), "the second dog has the first one's"
    assert (split.image_ND == some.image_ND[[0, 8, 9]]).all()
    with pytest.raises(TooMuchBadData, match=r"60.0% of 10 samples cannot be used \(3 bad_field, 1 empty"):
        check_bad_rows(some.said, Counter(some.status_N), 0.59, "samples")
    check_bad_rows(some.said, Counter(some.status_N), 0.6, "samples")
    with pytest.raises(UserError, match=r"none of 1 samples can be used \(1 no_image\)"):
        check_bad_rows("it", {"no_image": 1}, 1.0, "samples")


def test_a_text_without_an_embedding_is_reported_and_a_picture_without_one_is_a_bad_sample(tmp_path):
    write_shard(tmp_path / "a.tar", ["a cat", "a dog", "a fox"])
    (tmp_path / "mine.json").write_text(json.dumps({"tasks": [task("a", "a.tar", "a.tar")]}))
    stream = read_stream(str(tmp_path / "mine.json"))
    pictures = see(stream)
    [(uri, table)] = pictures.shards.items()
    lost = table.set_column(table.schema.get_field_index("status"), "status", [["ok", "bad_embedding", "ok"]])
    some = find_samples(stream.halves[0], replace(pictures, shards={uri: lost}))
    assert some.status_N == ("ok", "bad_embedding", "ok")
    with pytest.raises(TooMuchBadData, match=r"33\.3% of 3 samples cannot be used \(1 bad_embedding\)"):
        check_bad_rows(some.said, Counter(some.status_N), 0.3, "samples")
    texts = Texts({"a cat": 0, "a dog": 1}, np.zeros((2, DIM), np.float32))
    check_texts(texts, ModelConfig(weights="x.pt"))
    with pytest.raises(
        UserError, match=r"^model\.weights='x\.pt': gives .* \(1 of 2 texts, the first 'a dog'\)"
    ):
        check_texts(replace(texts, bad=frozenset({"a dog"})), ModelConfig(weights="x.pt"))


def test_broken_and_empty_shards_are_reported(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    write_tar(str(tmp_path / "b.tar"), [])
    (tmp_path / "mine.json").write_text(json.dumps({"tasks": [task("a", "a.tar", "b.tar")]}))
    stream = read_stream(str(tmp_path / "mine.json"))
    some = [find_samples(half, see(stream)) for half in stream.halves]
    assert [one.status_N for one in some] == [("unreadable_shard",), ("empty_shard",)]


def test_one_primitive_and_a_thousand_and_captions_that_come_again():
    many = tuple(f"thing {i}" for i in range(1000))
    split = split_of(
        arrange(
            StreamSample(None, "all", many),
            StreamSample(None, "one", ("thing 7",)),
            StreamSample(None, "all"),
        )
    )
    assert split.own_N.tolist() == [0, 1, 0] and list(map(len, split.primitives)) == [1000, 1]
    assert warn_repeats(split, "it") == []


def test_a_half_without_samples_is_a_split_of_none():
    empty = StreamSamples("it", (), (), np.zeros((0, DIM), np.float32), np.zeros(0, KEY))
    split = make_split(empty, invent_texts([arrange(StreamSample(None, "a", ("a",)))]), {})
    assert len(split) == 0 and split.texts == () and split.text_TD.shape == split.image_ND.shape == (0, DIM)


def test_one_set_of_primitives_twice_is_reported_whatever_its_order():
    samples = arrange(
        *(StreamSample(None, f"{i}", ("a", "b")[:: 1 - 2 * (i % 2)]) for i in range(3)),
        StreamSample(None, "d", ("a",)),
    )
    assert warn_repeats(split_of(samples), "it") == [
        "it: 4 texts have 2 sets of primitives, so compositions can retrieve at most 50% of them"
    ]


def test_parsed_primitives_stand_instead_of_named_ones():
    named = StreamSample(None, "a red dog", ("cat",))
    assert arrange(named).samples[0].primitives == ("cat",)
    assert arrange(named, how="parsed", parsed={"a red dog": ("red dog",)}).samples[0].primitives == (
        "red dog",
    )


def test_candidates_are_places_of_texts_and_kinds_are_numbers_of_the_stream():
    parsed = {name: (name,) for name in "abc"}
    two = arrange(
        StreamSample(None, "b", candidates=("a", "b"), kind="x"),
        StreamSample(None, "c", candidates=("c", "b", "a"), kind="k"),
        parsed=parsed,
    )
    other = arrange(StreamSample(None, "a", candidates=("a",), kind="m"), parsed=parsed)
    kinds = number_kinds([two, other])
    split = make_split(two, invent_texts([two, other]), kinds)
    assert split.candidate_NK is not None and split.kind_N is not None
    chosen = [[split.texts[i] if i >= 0 else "" for i in row] for row in split.candidate_NK]
    assert chosen == [["a", "b", ""], ["c", "b", "a"]]
    assert [split.texts[i] for i in split.own_N] == ["b", "c"]
    assert kinds == {"k": 0, "m": 1, "x": 2} and split.kind_N.tolist() == [2, 0]
    mixed = arrange(StreamSample(None, "b", candidates=("a", "b")), StreamSample(None, "c"), parsed=parsed)
    with pytest.raises(
        UserError, match=r"it: 1 of 2 samples have candidates; give candidates to all or to none"
    ):
        make_split(mixed, Texts({}, np.zeros((0, DIM))), {"": 0})


def test_real_photos_make_a_stream(shared, tmp_path):
    rows = write_photos(shared / "data", tmp_path)
    stream = read_stream(str(tmp_path / "photos.json"))
    gone = rows["coco_val_40"][1]["image"]
    pictures = see(stream, bad=(gone,))
    some = [find_samples(half, pictures) for half in stream.halves]
    sizes = [len(one.samples) for one in some]
    train = [sum(len(row["captions"]) for row in some[::2]) for some in rows.values()]
    assert sizes == [train[0], 400, train[1], 200, train[2], 20], "all captions to learn of, one to find"
    named = parse_all(some[4:], "gold", SHARED_PARSER)
    counts = Counter(status for one in named for status in one.status_N)
    assert counts["corrupt_image"] == 1 and counts["ok"] > 0.9 * counts.total()
    split = make_split(named[1], invent_texts(named), number_kinds(named))
    assert split.texts[split.own_N[0]] == rows["coco_val_40"][3]["captions"][0]
    assert all(split.primitives) and (np.linalg.norm(split.image_ND, axis=1) > 0.99).all()


def test_a_file_that_is_not_there_is_a_sample_without_image():
    source = Source("it", samples=(StreamSample(None, "a dog"), StreamSample(Picture("/gone"), "a cat")))
    pictures = see(type("Stream", (), {"pictures": source.pictures, "shards": []}))
    assert find_samples(source, pictures).status_N == ("no_image", "no_image")
