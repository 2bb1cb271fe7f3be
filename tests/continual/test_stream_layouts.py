"""Layouts of data sets that are learned one after another: their rows, as tasks of a json file, refusals."""

import json
import re
from collections import Counter

import pytest

from raycomp.continual.layouts import NUM_CANDIDATES, OF_FILES, OF_FOLDERS, Row, offer_answers
from raycomp.data.files import Folder
from raycomp.evaluation.choices import Picture
from tests.continual.streams import open_stream, task


def read(layout, folder, content, half="train"):
    (folder / "it.json").write_text(json.dumps(content))
    return list(OF_FILES[layout](Folder(str(folder)), "it.json", half))


def make_files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def vaw(image, name, *attributes):
    box = [1.5, 2, 3, 4.0]
    return {"image_id": image, "object_name": name, "instance_bbox": box, "positive_attributes": attributes}


PAIRS = [[f"{i // 3}.jpg", {"POS": [f"a {i} b", "other"], "NEG": [f"a {i} c"]}] for i in range(300)]


def test_scenes_and_attributes_are_listed_and_what_belongs_together_is_kept(tmp_path):
    words = ("size", "color", "material", "shape")
    cube, ball = (
        dict(zip(words, some, strict=True), pixel_coords=[0, 0, 0])
        for some in (("large", "red", "metal", "cube"), ("small", "blue", "rubber", "sphere"))
    )
    scene = {"image_filename": "0.png", "split": "valA", "objects": [cube, ball, cube]}
    caption = "a large red metal cube, a small blue rubber sphere, a large red metal cube"
    primitives = ("large red metal cube", "small blue rubber sphere")
    rows = read("clevr", tmp_path, {"info": {}, "scenes": [scene]})
    assert rows == [Row("valA/0.png", caption, primitives)]
    rows = read("vaw", tmp_path, [vaw("7", "car", "parked", "red", "parked"), vaw(8, "apple")])
    assert rows[0] == Row("7.jpg", "a parked, red car", ("parked", "red", "car"), (1, 2, 3, 4))
    assert rows[1][1:3] == ("an apple", ("apple",))


def test_mit_states_tests_the_pairs_that_are_not_learned(tmp_path):
    split = tmp_path / "compositional-split-natural"
    split.mkdir()
    (split / "train_pairs.txt").write_text("old cat\nsliced apple\n")
    (split / "test_pairs.txt").write_text("sliced apple\nold apple\n")
    names = "old cat/1.jpg", "sliced_apple/2.jpg", "old apple/3.JPG", "old apple/.x", "adj apple/4.jpg"
    make_files(tmp_path / "images", *names, "b.jpg")

    def read_folder(folder=tmp_path, half="train"):
        return list(OF_FOLDERS["mit_states"](Folder(str(folder)), "", half))

    assert read_folder() == [
        Row("images/old cat/1.jpg", "an old cat", ("old", "cat")),
        Row("images/sliced_apple/2.jpg", "a sliced apple", ("sliced", "apple")),
    ]
    stream = open_stream(tmp_path, task(train=str(tmp_path), test=str(tmp_path), layout="mit_states"))
    assert [[one.caption for one in half.samples] for half in stream.halves][1] == ["an old apple"]
    for text, said in (
        (b"old cat\nold\n", "train_pairs.txt: must hold ADJECTIVE NOUN in each"),
        (b"\xff", "train_pairs.txt: is not UTF-8"),
        (b"new car\n", "has no images/ADJECTIVE NOUN/* of the train pairs"),
    ):
        (split / "train_pairs.txt").write_bytes(text)
        with pytest.raises(ValueError, match=re.escape(said)):
            read_folder()
    with pytest.raises(ValueError, match=r"has no file compositional-split-natural/train_pairs.txt"):
        read_folder(tmp_path / "images")


def test_construct_vl_gives_every_image_to_one_half(tmp_path):
    halves = {half: read("construct_vl", tmp_path, PAIRS, half) for half in ("train", "test")}
    images = {half: {row.image for row in rows} for half, rows in halves.items()}
    assert [len(images["train"]), len(images["test"])] == [80, 10] and not images["train"] & images["test"]
    assert [len(rows) for rows in halves.values()] == [240, 30]
    one = halves["test"][0]
    assert one.candidates == (one.caption, one.caption[:-1] + "c") and one.kind == "it"
    assert sorted(images["train"]) != [f"{i}.jpg" for i in range(80)], "drawn, not the first ones"


def test_questions_are_offered_the_commonest_answers_of_their_kind(tmp_path):
    def ask(question, answer):
        return {"question_id": "1", "image_id": 7, "question": question, "answer": answer, "stage": "a"}

    asked = [ask("What color is it?", f"c{i}") for i in range(9) for _ in range(9 - i)]
    rows = read("clove", tmp_path, [*asked, ask("What color is that?", "rare"), ask("Is it red?", "yes")])
    assert rows[0][:2] == ("7.jpg", "What color is it? c0") and rows[0].kind == "what color"
    assert rows[0].candidates == tuple(f"What color is it? c{i}" for i in range(NUM_CANDIDATES))
    assert "What color is that? rare" in rows[-2].candidates and len(rows[-2].candidates) == NUM_CANDIDATES
    assert rows[-1].candidates == ("Is it red? yes",)
    questions = [("0.jpg", "what is it", answer) for answer in "cadbfehg" for _ in range(5)]
    places = Counter(row.candidates.index(row.caption) for row in offer_answers(questions))
    assert places == dict.fromkeys(range(8), 5), "answers have no place of their own"
    record = {"question_id": 1, "img_id": "COCO_42", "sent": "what is it"}
    rows = read("vqacl", tmp_path, [{**record, "label": {"a dog": 0.3, "dog": 1}}, {**record, "label": {}}])
    assert rows[0][:2] == ("COCO_42.jpg", "what is it dog")
    assert rows[1].caption == "", "a sample without a caption is counted, not dropped"


WRONG_FILES = [
    ("clevr", {"scenes": [{"image_filename": "a", "split": "b", "objects": [{}]}]}, r"scene 0: has no field"),
    ("vaw", [{**vaw(1, "car"), "instance_bbox": [1, 2]}], r"row 0: instance_bbox=\[1, 2\]: must be left"),
    ("vaw", [{**vaw(1, "car"), "positive_attributes": "red"}], r"positive_attributes='red': must be a list"),
    ("construct_vl", [["a.jpg"]], r"row 0: must be \[image, \{POS, NEG\}\]"),
    ("vqacl", [{"sent": "q", "img_id": "1", "label": {"a": "b"}}], r"row 0: label=.*each with a number"),
]
WRONG_TASKS = [
    ({"layout": "vaw", "template": "{}"}, r"tasks\[0\]: template: unknown for layout=vaw"),
    ({"layout": "vaw", "columns": {}}, r"tasks\[0\]: columns: unknown for layout=vaw"),
    ({"layout": "vaw", "part": "3/2"}, r"train='.*a.json': part='3/2': must be I/N with I from 1 to N"),
    ({"layout": "clove", "part": "1/2"}, r"part='1/2': only layouts that name their primitives"),
    ({"layout": "vaw", "part": "2/9999"}, r"has no train row in part=2/9999"),
    ({"layout": "mit_states"}, r"a.json': is not a folder"),
    ({"layout": "classes"}, r"must be a folder with a folder of images for every class"),
    ({"layout": "classes", "template": "a photo"}, r"template='a photo': must have {} once"),
]


def test_what_is_wrong_with_a_file_or_a_task_is_reported_in_a_line(tmp_path):
    for layout, content, message in WRONG_FILES:
        with pytest.raises(ValueError, match=message):
            read(layout, tmp_path, content)
    clove = {"question": "is it", "answer": "yes"}
    (tmp_path / "a.json").write_text(json.dumps([{**vaw(1, "car", "red"), **clove}]))
    make_files(tmp_path, "1.jpg")
    for more, message in WRONG_TASKS:
        with pytest.raises(ValueError, match=message) as caught:
            open_stream(tmp_path, {**task(train="a.json", test="a.json"), **more})
        assert "\n" not in str(caught.value) and str(caught.value).startswith("stream="), message


def test_folders_of_classes_are_a_gallery_of_their_names(tmp_path):
    names = ("african_elephant/1.jpg", "african_elephant/2.jpg", "cat/3.png", "empty/x.txt")
    make_files(tmp_path, *(f"{half}/{name}" for half in ("train", "test") for name in names))
    stream = open_stream(tmp_path, task(layout="classes", template="this is {}"))
    elephant, cat = ("this is african elephant", ("african elephant",)), ("this is cat", ("cat",))
    for half in stream.halves:
        assert [one[1:3] for one in half.samples] == [elephant, elephant, cat]


def test_parts_of_a_data_set_share_no_thing_and_leave_none_out(tmp_path):
    things = [f"thing{i}" for i in range(20)]
    (tmp_path / "it.json").write_text(json.dumps([vaw(i, thing, "red") for i, thing in enumerate(things)]))
    make_files(tmp_path / "vg" / "VG_100K", *(f"{i}.jpg" for i in range(20) if i != 5))
    own = task(train="it.json", test="it.json", layout="vaw", images="vg")
    stream = open_stream(tmp_path, *({**own, "name": f"{i}", "part": f"{i}/3"} for i in (1, 2, 3)))
    parts = [[{one.primitives[-1] for one in half.samples} for half in part.halves] for part in stream.tasks]
    assert all(train == test for train, test in parts), "what is asked for is what was learned"
    assert sorted(thing for train, _ in parts for thing in train) == sorted(things)
    files = {one.primitives[-1]: one.picture for part in stream.tasks for one in part.test.samples}
    assert files["thing5"] is None
    assert files["thing0"] == Picture(str(tmp_path / "vg/VG_100K/0.jpg"), (1, 2, 3, 4))
