"""Layouts of data sets that are learned one after another: what a row says, and what is refused."""

import json
from collections import Counter

import pytest

from raycomp.continual import layouts
from raycomp.continual.layouts import NUM_CANDIDATES, QuestionRow, Row, offer_answers
from raycomp.data.files import Folder


def read(layout, folder, content, half="train"):
    (folder / "it.json").write_text(json.dumps(content))
    return list(layout.read(Folder(str(folder)), "it.json", half))


def thing(size, color, material, shape):
    return {"size": size, "color": color, "material": material, "shape": shape, "3d_coords": [0, 0, 0]}


def test_clevr_lists_its_objects_and_keeps_what_belongs_together(tmp_path):
    cube, ball = thing("large", "red", "metal", "cube"), thing("small", "blue", "rubber", "sphere")
    scene = {"image_filename": "CLEVR_valA_000000.png", "split": "valA", "objects": [cube, ball, cube]}
    assert read(clevr, tmp_path, {"info": {}, "scenes": [scene]}) == [
        Row(
            "valA/CLEVR_valA_000000.png",
            "a large red metal cube, a small blue rubber sphere, a large red metal cube",
            ("large red metal cube", "small blue rubber sphere"),
        )
    ]


def test_mit_states_tests_the_pairs_that_are_not_learned(tmp_path):
    split = tmp_path / "compositional-split-natural"
    split.mkdir()
    (split / "train_pairs.txt").write_text("old cat\nsliced apple\n")
    (split / "test_pairs.txt").write_text("sliced apple\nold apple\n")
    files = (
        "old cat/1.jpg",
        "sliced_apple/2.jpg",
        "old apple/3.JPG",
        "old apple/.x",
        "adj apple/4.jpg",
        "b.jpg",
    )
    for name in files:
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"x")
    found = {half: list(mit_states.read(Folder(str(tmp_path)), "", half)) for half in ("train", "test")}
    assert found["train"] == [
        Row("images/old cat/1.jpg", "an old cat", ("old", "cat")),
        Row("images/sliced_apple/2.jpg", "a sliced apple", ("sliced", "apple")),
    ]
    assert found["test"] == [Row("images/old apple/3.JPG", "an old apple", ("old", "apple"))]
    (split / "train_pairs.txt").write_text("old cat\nold\n")
    with pytest.raises(ValueError, match=r"train_pairs.txt: must hold ADJECTIVE NOUN in each line"):
        list(mit_states.read(Folder(str(tmp_path)), "", "train"))
    with pytest.raises(ValueError, match=r"has no file compositional-split-natural/train_pairs.txt"):
        list(mit_states.read(Folder(str(tmp_path / "images")), "", "train"))


VAW = {
    "image_id": "713545",
    "instance_id": "2",
    "instance_bbox": [1.5, 2, 30, 40.0],
    "object_name": "car",
    "positive_attributes": ["parked", "red", "parked"],
    "negative_attributes": ["blue"],
}


def test_vaw_says_the_attributes_and_the_thing(tmp_path):
    rows = read(vaw, tmp_path, [VAW, {**VAW, "positive_attributes": []}])
    assert rows[0] == Row("713545.jpg", "a parked, red car", ("parked", "red", "car"), (1, 2, 30, 40))
    assert rows[1][1:3] == ("a car", ("car",))


PAIRS = [[f"{i // 3}.jpg", {"POS": [f"a {i} b", "other"], "NEG": [f"a {i} c"]}] for i in range(300)]


def test_construct_vl_gives_every_image_to_one_half(tmp_path):
    halves = {half: read(construct_vl, tmp_path, PAIRS, half) for half in ("train", "test")}
    images = {half: {row.image for row in rows} for half, rows in halves.items()}
    assert [len(images["train"]), len(images["test"])] == [80, 10] and not images["train"] & images["test"]
    assert [len(rows) for rows in halves.values()] == [240, 30]
    one = halves["test"][0]
    assert one.candidates == (one.caption, one.caption[:-1] + "c") and one.kind == "it"
    assert sorted(images["train"]) != [f"{i}.jpg" for i in range(80)], "drawn, not the first ones"


def test_real_files_are_tasks_of_construct_vl(shared):
    folder = Folder(str(shared / "data/benchmarks/vl_checklist"))
    name = next(name for name in folder.find_names() if name.endswith("material.json"))
    train, test = (list(construct_vl.read(folder, name, half)) for half in ("train", "test"))
    assert 0.77 < len(train) / 2470 < 0.83 and 0.07 < len(test) / 2470 < 0.13
    assert not {row.image for row in train} & {row.image for row in test}


def test_clove_offers_the_commonest_answers_of_a_kind(tmp_path):
    def ask(question, answer):
        return {"question_id": "1", "image_id": 7, "question": question, "answer": answer, "stage": "a"}

    reds = [ask("What color is it?", f"c{i}") for i in range(9) for _ in range(9 - i)]
    rows = read(clove, tmp_path, [*reds, ask("What color is that?", "rare"), ask("Is it red?", "yes")])
    assert (
        rows[0].image == "7.jpg"
        and rows[0].caption == "What color is it? c0"
        and rows[0].kind == "what color"
    )
    assert rows[0].candidates == tuple(f"What color is it? c{i}" for i in range(NUM_CANDIDATES))
    assert "What color is that? rare" in rows[-2].candidates and len(rows[-2].candidates) == NUM_CANDIDATES
    assert rows[-1].candidates == ("Is it red? yes",)


def test_answers_have_no_place_of_their_own():
    asked = [QuestionRow("0.jpg", "what is it", answer) for answer in "cadbfehg" for _ in range(5)]
    places = Counter(row.candidates.index(row.caption) for row in offer_answers(asked))
    assert places == dict.fromkeys(range(8), 5)


def test_vqacl_takes_the_answer_that_is_most_right(tmp_path):
    record = {"question_id": 1, "img_id": "COCO_val2014_000000000042", "sent": "what is it"}
    rows = read(vqacl, tmp_path, [{**record, "label": {"a dog": 0.3, "dog": 1}}, {**record, "label": {}}])
    assert rows[0].image == "COCO_val2014_000000000042.jpg" and rows[0].caption == "what is it dog"
    assert rows[1].caption == "", "a sample without a caption is counted, not dropped"


WRONG = [
    (clevr, {"scene": []}, r"it.json: has no field 'scenes'"),
    (
        clevr,
        {"scenes": [{"image_filename": "a", "split": "b", "objects": [{}]}]},
        r"scene 0: has no field 'size'",
    ),
    (vaw, [{**VAW, "instance_bbox": [1, 2]}], r"row 0: instance_bbox=\[1, 2\]: must be left, top"),
    (vaw, [{**VAW, "instance_bbox": [1, 2, 3, "x"]}], r"row 0: instance_bbox='x': must be a int or float"),
    (
        vaw,
        [{**VAW, "positive_attributes": "red"}],
        r"row 0: positive_attributes='red': must be a list of words",
    ),
    (construct_vl, [["a.jpg"]], r"row 0: must be \[image, \{POS, NEG\}\]"),
    (construct_vl, [["a.jpg", {"POS": ["a"]}]], r"row 0: has no field 'NEG'"),
    (clove, [{"question": "q", "answer": 3, "image_id": 1}], r"row 0: answer=3: must be a str"),
    (vqacl, [{"sent": "q", "img_id": "1", "label": {"a": "b"}}], r"row 0: label=.*each with a number"),
]


@pytest.mark.parametrize(("layout", "content", "message"), WRONG, ids=[message[:30] for *_, message in WRONG])
def test_what_is_wrong_with_a_file_is_reported(tmp_path, layout, content, message):
    with pytest.raises(ValueError, match=message):
        read(layout, tmp_path, content)
