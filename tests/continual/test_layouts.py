"""Data sets as tasks of a json file: classes, parts, boxes, images elsewhere, and what is refused."""

import json

import numpy as np
import pytest

from raycomp.continual.streams.samples import (
    find_samples,
    make_split,
    name_primitives,
    number_kinds,
    warn_repeats,
)
from raycomp.continual.streams.sources import read_stream
from raycomp.evaluation.choices import Picture
from tests.continual.streaming import invent_texts, see


def open_tasks(folder, *tasks):
    (folder / "mine.json").write_text(json.dumps({"tasks": list(tasks)}))
    return read_stream(str(folder / "mine.json"))


def make_files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def test_folders_of_classes_are_a_gallery_of_their_names(tmp_path):
    names = ("african_elephant/1.jpg", "african_elephant/2.jpg", "cat/3.png", "empty/x.txt")
    make_files(tmp_path, *(f"{half}/{name}" for half in ("train", "test") for name in names))
    task = {"name": "a", "train": "train", "test": "test", "layout": "classes", "template": "this is {}"}
    stream = open_tasks(tmp_path, task)
    named = [name_primitives(find_samples(half, see(stream)), "gold", {}) for half in stream.halves]
    split = make_split(named[1], invent_texts(named), number_kinds(named))
    assert split.texts == ("this is african elephant", "this is cat") and split.own_N.tolist() == [0, 0, 1]
    assert split.primitives == (("african elephant",), ("cat",)) and split.candidate_NK is None


def vaw(image, thing, *attributes):
    box = [1, 2, 3, 4]
    return {"image_id": image, "object_name": thing, "instance_bbox": box, "positive_attributes": attributes}


def test_parts_of_a_data_set_share_no_thing_and_leave_none_out(tmp_path):
    things = [f"thing{i}" for i in range(20)]
    for half, number in (("train", 0), ("test", 100)):
        rows = [vaw(number + i, thing, "red") for i, thing in enumerate(things)]
        (tmp_path / f"{half}.json").write_text(json.dumps(rows))
        make_files(tmp_path / "vg" / "VG_100K", *(f"{number + i}.jpg" for i in range(20)))
    (tmp_path / "vg" / "VG_100K" / "105.jpg").unlink()
    task = {"train": "train.json", "test": "test.json", "layout": "vaw", "images": "vg"}
    stream = open_tasks(tmp_path, *({**task, "name": f"{i}", "part": f"{i}/3"} for i in (1, 2, 3)))
    parts = [
        [{sample.primitives[-1] for sample in half.samples} for half in one.halves] for one in stream.tasks
    ]
    assert all(train == test for train, test in parts), "what is asked for is what was learned"
    assert sorted(thing for train, _ in parts for thing in train) == sorted(things)
    samples = [sample for one in stream.tasks for sample in one.test.samples]
    files = {sample.primitives[-1]: sample.picture for sample in samples}
    assert files["thing5"] is None
    assert files["thing0"] == Picture(str(tmp_path / "vg/VG_100K/100.jpg"), (1, 2, 3, 4))


def test_a_negative_that_is_its_own_positive_is_counted(tmp_path):
    rows = [
        [f"{i}.jpg", {"POS": ["red car"], "NEG": ["red car" if i < 50 else "blue car"]}] for i in range(100)
    ]
    (tmp_path / "color.json").write_text(json.dumps(rows))
    make_files(tmp_path, *(f"{i}.jpg" for i in range(100)))
    task = {"name": "a", "train": "color.json", "test": "color.json", "layout": "construct_vl"}
    stream = open_tasks(tmp_path, task)
    parsed = {text: (text,) for text in ("red car", "blue car")}
    some = name_primitives(find_samples(stream.halves[0], see(stream)), "gold", parsed)
    same = [sample.candidates[0] == sample.candidates[1] for sample in some.samples]
    assert [status == "bad_field" for status in some.status_N] == same and 30 < sum(same) < 50
    split = make_split(some, invent_texts([some]), number_kinds([some]))
    assert split.candidate_NK is not None and (split.candidate_NK[:, 0] == split.own_N).all()
    assert warn_repeats(split, "it") == [] and np.unique(split.candidate_NK).tolist() == [0, 1]


WRONG = [
    ({"layout": "vaw", "template": "{}"}, r"tasks\[0\]: template: unknown for layout=vaw"),
    ({"images": "x"}, r"tasks\[0\]: images: unknown for layout=pairs"),
    ({"layout": "vaw", "part": "3/2"}, r"train='.*a.json': part='3/2': must be I/N with I from 1 to N"),
    ({"layout": "vaw", "part": "x"}, r"part='x': must be I/N"),
    ({"layout": "clove", "part": "1/2"}, r"part='1/2': only layouts that name their primitives"),
    ({"layout": "vaw", "part": "2/9999"}, r"has no train row in part=2/9999"),
    ({"layout": "vaw", "images": "gone"}, r"gone: is not a folder; it should hold the images"),
    ({"layout": "mit_states"}, r"a.json': is not a folder"),
    ({"layout": "classes"}, r"must be a folder with a folder of images for every class"),
    ({"layout": "classes", "template": "a photo"}, r"template='a photo': must have {} once"),
    ({"layout": "clevr"}, r"a.json: must hold a JSON dict, holds a list"),
    ({"layout": "clevr", "train": "gone.json"}, r"has no file gone.json"),
]


@pytest.mark.parametrize(("more", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_what_is_wrong_with_a_task_is_reported_in_a_line(tmp_path, more, message):
    clove = {"question": "is it", "answer": "yes"}
    (tmp_path / "a.json").write_text(json.dumps([{**vaw(1, "car", "red"), **clove}]))
    make_files(tmp_path, "1.jpg")
    with pytest.raises(ValueError, match=message) as caught:
        open_tasks(tmp_path, {"name": "a", "train": "a.json", "test": "a.json", **more})
    assert "\n" not in str(caught.value) and str(caught.value).startswith("stream=")
