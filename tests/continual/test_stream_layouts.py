"""Layouts of data sets that are learned one after another: their rows, as tasks of a json file, refusals."""

import json
from collections import Counter

import pytest

from raycomp.continual.layouts import NUM_CANDIDATES, OF_FILES, OF_FOLDERS, Row, offer_answers
from raycomp.continual.streams.samples import find_samples, make_split, name_primitives, number_kinds
from raycomp.data.files import Folder
from raycomp.evaluation.choices import Picture
from tests.continual.streams import invent_texts, open_stream, refuse_parser, see, task


def read(layout, folder, content, half="train"):
    (folder / "it.json").write_text(json.dumps(content))
    return list(OF_FILES[layout](Folder(str(folder)), "it.json", half))


def make_files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def thing(*words):
    return {**dict(zip(("size", "color", "material", "shape"), words, strict=True)), "3d_coords": [0, 0, 0]}


def vaw(image, name, *attributes):
    box = [1.5, 2, 3, 4.0]
    return {"image_id": image, "object_name": name, "instance_bbox": box, "positive_attributes": attributes}


PAIRS = [[f"{i // 3}.jpg", {"POS": [f"a {i} b", "other"], "NEG": [f"a {i} c"]}] for i in range(300)]


def test_scenes_and_attributes_are_listed_and_what_belongs_together_is_kept(tmp_path):
    cube, ball = thing("large", "red", "metal", "cube"), thing("small", "blue", "rubber", "sphere")
    scene = {"image_filename": "0.png", "split": "valA", "objects": [cube, ball, cube]}
    caption = "a large red metal cube, a small blue rubber sphere, a large red metal cube"
    primitives = ("large red metal cube", "small blue rubber sphere")
    assert read("clevr", tmp_path, {"info": {}, "scenes": [scene]}) == [
        Row("valA/0.png", caption, primitives)
    ]
    rows = read("vaw", tmp_path, [vaw("7", "car", "parked", "red", "parked"), vaw(8, "apple")])
    assert rows[0] == Row("7.jpg", "a parked, red car", ("parked", "red", "car"), (1, 2, 3, 4))
    assert rows[1][1:3] == ("an apple", ("apple",))


def test_mit_states_tests_the_pairs_that_are_not_learned(tmp_path):
    split = tmp_path / "compositional-split-natural"
    split.mkdir()
    (split / "train_pairs.txt").write_text("old cat\nsliced apple\n")
    (split / "test_pairs.txt").write_text("sliced apple\nold apple\n")
    names = (
        "old cat/1.jpg",
        "sliced_apple/2.jpg",
        "old apple/3.JPG",
        "old apple/.x",
        "adj apple/4.jpg",
        "b.jpg",
    )
    make_files(tmp_path / "images", *names)

    def read_folder(folder=tmp_path, half="train"):
        return list(OF_FOLDERS["mit_states"](Folder(str(folder)), "", half))

    assert read_folder() == [
        Row("images/old cat/1.jpg", "an old cat", ("old", "cat")),
        Row("images/sliced_apple/2.jpg", "a sliced apple", ("sliced", "apple")),
    ]
    assert read_folder(half="test") == [Row("images/old apple/3.JPG", "an old apple", ("old", "apple"))]
    stream = open_stream(tmp_path, task(train=str(tmp_path), test=str(tmp_path), layout="mit_states"))
    assert [len(half.samples) for half in stream.halves] == [2, 1]
    for text, said in ((b"old cat\nold\n", "must hold ADJECTIVE NOUN in each"), (b"\xff", "is not UTF-8")):
        (split / "train_pairs.txt").write_bytes(text)
        with pytest.raises(ValueError, match=f"train_pairs.txt: {said}"):
            read_folder()
    (split / "train_pairs.txt").write_text("new car\n")
    with pytest.raises(ValueError, match=r"has no images/ADJECTIVE NOUN/\* of the train pairs"):
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


def test_real_files_are_tasks_of_construct_vl(shared):
    folder = Folder(str(shared / "data/benchmarks/vl_checklist"))
    name = next(name for name in folder.find_names() if name.endswith("material.json"))
    train, test = (list(OF_FILES["construct_vl"](folder, name, half)) for half in ("train", "test"))
    assert 0.77 < len(train) / 2470 < 0.83 and 0.07 < len(test) / 2470 < 0.13
    assert not {row.image for row in train} & {row.image for row in test}


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
    ("clevr", {"scene": []}, r"it.json: has no field 'scenes'"),
    ("clevr", {"scenes": [{"image_filename": "a", "split": "b", "objects": [{}]}]}, r"scene 0: has no field"),
    (
        "vaw",
        [{**vaw(1, "car"), "instance_bbox": [1, 2]}],
        r"row 0: instance_bbox=\[1, 2\]: must be left, top",
    ),
    (
        "vaw",
        [{**vaw(1, "car"), "positive_attributes": "red"}],
        r"positive_attributes='red': must be a list of",
    ),
    ("vaw", [{"image_id": 1, "object_name": "car"}], r"row 0: has no field 'positive_attributes'"),
    ("construct_vl", [["a.jpg"]], r"row 0: must be \[image, \{POS, NEG\}\]"),
    ("construct_vl", [["a.jpg", {"POS": ["a"]}]], r"row 0: has no field 'NEG'"),
    ("clove", [{"question": "q", "answer": 3, "image_id": 1}], r"row 0: answer=3: must be a str"),
    ("vqacl", [{"sent": "q", "img_id": "1", "label": {"a": "b"}}], r"row 0: label=.*each with a number"),
]
WRONG_TASKS = [
    ({"layout": "vaw", "template": "{}"}, r"tasks\[0\]: template: unknown for layout=vaw"),
    ({"layout": "vaw", "columns": {}}, r"tasks\[0\]: columns: unknown for layout=vaw"),
    ({"layout": "vaw", "part": "3/2"}, r"train='.*a.json': part='3/2': must be I/N with I from 1 to N"),
    ({"layout": "vaw", "part": "x"}, r"part='x': must be I/N"),
    ({"layout": "clove", "part": "1/2"}, r"part='1/2': only layouts that name their primitives"),
    ({"layout": "vaw", "part": "2/9999"}, r"has no train row in part=2/9999"),
    ({"layout": "vaw", "images": "gone"}, r"gone: is not a folder; it should hold the images"),
    ({"layout": "mit_states"}, r"a.json': is not a folder"),
    ({"layout": "classes"}, r"must be a folder with a folder of images for every class"),
    ({"layout": "classes", "template": "a photo"}, r"template='a photo': must have {} once"),
    ({"layout": "clevr", "train": "gone.json"}, r"has no file gone.json"),
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
    named = name_primitives(
        [find_samples(half, see(stream)) for half in stream.halves], "gold", refuse_parser
    )
    split = make_split(named[1], invent_texts(named), number_kinds(named))
    assert split.texts == ("this is african elephant", "this is cat") and split.own_N.tolist() == [0, 0, 1]
    assert split.primitives == (("african elephant",), ("cat",)) and split.candidate_NK is None


def test_parts_of_a_data_set_share_no_thing_and_leave_none_out(tmp_path):
    things = [f"thing{i}" for i in range(20)]
    for half, number in (("train", 0), ("test", 100)):
        rows = [vaw(number + i, thing, "red") for i, thing in enumerate(things)]
        (tmp_path / f"{half}.json").write_text(json.dumps(rows))
        make_files(tmp_path / "vg" / "VG_100K", *(f"{number + i}.jpg" for i in range(20)))
    (tmp_path / "vg" / "VG_100K" / "105.jpg").unlink()
    own = task(train="train.json", test="test.json", layout="vaw", images="vg")
    stream = open_stream(tmp_path, *({**own, "name": f"{i}", "part": f"{i}/3"} for i in (1, 2, 3)))
    parts = [[{one.primitives[-1] for one in half.samples} for half in part.halves] for part in stream.tasks]
    assert all(train == test for train, test in parts), "what is asked for is what was learned"
    assert sorted(thing for train, _ in parts for thing in train) == sorted(things)
    samples = [sample for one in stream.tasks for sample in one.test.samples]
    files = {sample.primitives[-1]: sample.picture for sample in samples}
    assert files["thing5"] is None
    assert files["thing0"] == Picture(str(tmp_path / "vg/VG_100K/100.jpg"), (1, 2, 3, 4))


def test_a_negative_that_is_its_own_positive_is_counted(tmp_path):
    texts = [("red car", "red car" if i < 50 else "blue car") for i in range(100)]
    rows = [[f"{i}.jpg", {"POS": [right], "NEG": [wrong]}] for i, (right, wrong) in enumerate(texts)]
    (tmp_path / "color.json").write_text(json.dumps(rows))
    make_files(tmp_path, *(f"{i}.jpg" for i in range(100)))
    stream = open_stream(tmp_path, task(train="color.json", test="color.json", layout="construct_vl"))
    samples = [find_samples(half, see(stream)) for half in stream.halves]
    same = [sample.candidates[0] == sample.candidates[1] for sample in samples[0].samples]
    assert [status == "bad_field" for status in samples[0].status_N] == same and 30 < sum(same) < 50
