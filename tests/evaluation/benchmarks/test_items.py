"""Benchmarks of two images an item, and hard positives: made files, and the published ones where they are."""

import json

import pytest

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import DUPLICATE, EQUAL, report_defects
from raycomp.evaluation.benchmarks.read import read_benchmark
from raycomp.words import ADD, ATTRIBUTE, OBJECT, RELATION, REPLACE, SWAP
from tests.evaluation.benchmarks.test_benchmarks import read_shared

WINOGROUND = dict(
    id=0,
    tag="Noun",
    secondary_tag="",
    num_main_preds=1,
    collapsed_tag="Object",
    image_0="ex_0_img_0",
    image_1="ex_0_img_1",
    caption_0="an old person kisses a young person",
    caption_1="a young person kisses an old person",
)
BIVLC = dict(
    image="0_image.jpg",
    caption="A cat.",
    negative_caption="A cat and a dog.",
    negative_image="0_negative_image.jpg",
    type="add",
    subtype="obj",
)
COLA = ["http://a.b/c/1.jpg", "tall giraffe left of brown one", "http://a.b/c/2.jpg", "brown left of tall"]
RIGHT = dict(image_id="1", image_path="data/VG_100K/1.jpg", true_caption="a in b", false_caption="a out of b")


def read_lines_of(folder, name, file, *records):
    (folder / file).write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return read_benchmark(name, Folder(str(folder)))


def test_an_item_of_winoground_is_two_rows_of_one_group(tmp_path):
    second = {**WINOGROUND, "id": 7, "collapsed_tag": "Both"}
    rows = read_lines_of(tmp_path, "winoground", "examples.jsonl", WINOGROUND, second)
    one, two = rows[:2]
    assert (one.image, two.image) == ("ex_0_img_0.png", "ex_0_img_1.png")
    assert one.positives == two.negatives == (WINOGROUND["caption_0"],)
    assert two.positives == one.negatives == (WINOGROUND["caption_1"],)
    assert [(row.group, row.id) for row in rows] == [("0", "0/0"), ("0", "0/1"), ("7", "7/0"), ("7", "7/1")]
    assert [(row.op, row.kind) for row in rows] == [(SWAP, OBJECT)] * 2 + [(SWAP, "")] * 2
    assert "winoground: all: 4 rows, 800 are published" in report_defects(rows).note


def test_bivlc_takes_the_splits_of_sugarcrepe(tmp_path):
    second = {**BIVLC, "type": "Swap", "subtype": "att"}
    rows = read_lines_of(tmp_path, "bivlc", "bivlc.jsonl", BIVLC, second)
    assert [(row.split, row.op, row.kind) for row in rows[::2]] == [
        ("add_obj", ADD, OBJECT),
        ("swap_att", SWAP, ATTRIBUTE),
    ]
    assert [(row.image, row.positives, row.negatives) for row in rows[:2]] == [
        ("0_image.jpg", ("A cat.",), ("A cat and a dog.",)),
        ("0_negative_image.jpg", ("A cat and a dog.",), ("A cat.",)),
    ]


def test_a_limit_keeps_items_whole(tmp_path):
    read_lines_of(tmp_path, "bivlc", "bivlc.jsonl", BIVLC, {**BIVLC, "type": "swap"}, BIVLC, BIVLC)
    kept = read_benchmark("bivlc", Folder(str(tmp_path)), limit=2)
    assert [(row.split, row.group) for row in kept[::2]] == [
        ("add_obj", "0"),
        ("swap_obj", "1"),
        ("add_obj", "2"),
    ]
    assert len(kept) == 6


def test_cola_is_210_items_of_files_of_visual_genome(shared):
    rows = read_shared(shared, "cola")
    assert len(rows) == 420 and len({row.group for row in rows}) == 210
    assert not any(row.defects for row in rows) and "published" not in report_defects(rows).note
    assert (rows[0].image, rows[1].image) == ("2390970.jpg", "2388902.jpg")
    assert (
        rows[0].positives
        == rows[1].negatives
        == ("standing tall long giraffe to the right of brown giraffe",)
    )


def test_hard_positives_are_whole(shared):
    rows = read_shared(shared, "hard_positives")
    table = report_defects(rows)
    lines = {line[1]: dict(zip(table.columns[2:], line[2:], strict=True)) for line in table.rows}
    assert {split: line["rows"] for split, line in lines.items()} == {"attributes": 10575, "relations": 16868}
    # Counted from the files by other means.
    assert {split: (line[EQUAL], line[DUPLICATE]) for split, line in lines.items()} == {
        "attributes": (1, 186),
        "relations": (15, 1403),
    }
    first = rows[0]
    assert first.positives == ("walking elephant", "strolling elephant")
    assert first.negatives == ("jumping elephant",) and first.image == "VG_100K_2/2401814.jpg"
    assert {(row.split, row.op, row.kind) for row in rows} == {
        ("attributes", REPLACE, ATTRIBUTE),
        ("relations", REPLACE, RELATION),
    }


def write_hard_positives(folder, swapped):
    for part, rows in (("data", [RIGHT, RIGHT]), ("swapped_data", swapped)):
        (folder / part).mkdir()
        for split in ("attributes", "relations"):
            (folder / part / f"vl_checklist_{split}.json").write_text(json.dumps(rows))


@pytest.mark.parametrize(
    ("swapped", "said"),
    [
        ([RIGHT], "the rows do not match: 2 in data/.*attributes.json and 1 in swapped_data/"),
        ([RIGHT, {**RIGHT, "false_caption": "c"}], "row 1: false_caption='c': differs from data/"),
        (
            [{**RIGHT, "image_path": "data/2.jpg"}, RIGHT],
            "row 0: image_path='data/2.jpg': differs from data/",
        ),
        ([{"image_path": "x"}, RIGHT], "row 0: image_path='x'"),
        ([RIGHT, {}], "swapped_data/.* row 1: has no field 'image_path'"),
    ],
)
def test_folders_of_hard_positives_that_disagree(tmp_path, swapped, said):
    write_hard_positives(tmp_path, swapped)
    with pytest.raises(ValueError, match=said):
        read_benchmark("hard_positives", Folder(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "file", "text", "said"),
    [
        ("winoground", "examples.jsonl", "", "holds no row"),
        ("winoground", "examples.jsonl", "\n{}", "line 2: has no field 'collapsed_tag'"),
        (
            "winoground",
            "examples.jsonl",
            json.dumps({**WINOGROUND, "collapsed_tag": "Verb"}),
            "must be one of Object",
        ),
        ("winoground", "examples.jsonl", json.dumps({**WINOGROUND, "caption_1": 3}), "line 1: caption_1=3"),
        ("winoground", "examples.jsonl", json.dumps(WINOGROUND)[:50], "line 1: cannot be read as JSON"),
        ("winoground", "data.jsonl", "{}", "has no file examples.jsonl"),
        (
            "bivlc",
            "bivlc.jsonl",
            json.dumps({**BIVLC, "type": "shuffle"}),
            "give 'shuffle_obj': must be one of add_att",
        ),
        ("bivlc", "bivlc.jsonl", json.dumps({**BIVLC, "negative_image": {}}), "line 1: negative_image={}"),
        ("cola", "COLA_multiobjects_matching_benchmark.json", json.dumps([COLA, COLA[:3]]), "row 1: must be"),
        ("cola", "COLA_multiobjects_matching_benchmark.json", json.dumps([[*COLA[:3], 4]]), "row 0: must be"),
        ("cola", "COLA_multiobjects_matching_benchmark.json", "[]", "holds no row"),
    ],
)
def test_files_of_another_version_are_one_line(tmp_path, name, file, text, said):
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError) as error:
        read_benchmark(name, Folder(str(tmp_path)))
    assert said in str(error.value) and str(tmp_path) in str(error.value) and "\n" not in str(error.value)
