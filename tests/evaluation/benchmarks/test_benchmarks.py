import json
import math
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import DEFECTS, DUPLICATE, EQUAL, UNCONFIRMED, Choice, read_json
from raycomp.evaluation.benchmarks.read import NAMES, READERS, read_benchmark
from raycomp.words import (
    ADD,
    ATTRIBUTE,
    OBJECT,
    REPLACE,
    SWAP,
)

# Counted from the published files by other means.
SUGARCREPE = dict(add_att=692, add_obj=2062, replace_att=788, replace_obj=1652, replace_rel=1406)
SUGARCREPE |= dict(swap_att=666, swap_obj=245)
VALSE = {
    "actant-swap": (949, 1042),
    "action-replacement": (648, 779),
    "coreference-hard": (104, 141),
    "coreference-standard": (708, 916),
    "counting-adversarial": (691, 756),
    "counting-hard": (868, 1000),
    "counting-small-quant": (900, 1000),
    "existence": (505, 534),
    "foil-it": (943, 1000),
    "plurals": (851, 1000),
    "relations": (535, 614),
}
VL_CHECKLIST = {
    "attribute_vg/action": 1892,
    "attribute_vg/color": 11569,
    "attribute_vg/material": 2470,
    "attribute_vg/size": 2695,
    "attribute_vg/state": 941,
    "relation_vg/action": 12733,
    "relation_vg/spatial": 30650,
}
VL_CHECKLIST_EQUAL = {
    "attribute_vg/color": 66,
    "relation_vg/action": 28,
    "attribute_vg/size": 7,
    "attribute_vg/state": 4,
    "attribute_vg/action": 3,
}


@cache
def read_shared(shared: Path, name: str) -> list[Choice]:
    return read_benchmark(name, Folder(str(shared / "data/benchmarks" / name)))


def count(choices, defect=None):
    return Counter(choice.split for choice in choices if defect is None or defect in choice.defects)


def test_sugarcrepe_is_whole_and_sound(shared):
    choices = read_shared(shared, "sugarcrepe")
    assert count(choices) == SUGARCREPE
    assert len({choice.image for choice in choices}) == 1560
    assert not any(choice.defects for choice in choices)
    first = choices[0]
    assert first.image == "000000085329.jpg" and (first.op, first.kind) == (ADD, ATTRIBUTE)
    assert first.positives == ("A drawing of a young woman with many facial piercings.",)
    assert first.negatives == ("A drawing of a tattooed young woman with many facial piercings.",)


def test_sugarcrepe_pp_has_two_positives_and_three_bad_rows(shared):
    choices = read_shared(shared, "sugarcrepe_pp")
    assert count(choices) == {split: n for split, n in SUGARCREPE.items() if not split.startswith("add")}
    assert {len(choice.positives) for choice in choices} == {2}
    assert count(choices, EQUAL) == {"swap_obj": 2}
    assert count(choices, DUPLICATE) == {"swap_att": 1}


def test_valse_knows_which_rows_the_annotators_confirmed(shared):
    choices = read_shared(shared, "valse")
    unconfirmed = count(choices, UNCONFIRMED)
    assert {split: (n - unconfirmed[split], n) for split, n in count(choices).items()} == VALSE
    assert {choice.op for choice in choices if choice.split == "actant-swap"} == {SWAP}


def test_vl_checklist_marks_negatives_that_are_the_positive(shared):
    choices = read_shared(shared, "vl_checklist")
    assert count(choices) == VL_CHECKLIST
    assert count(choices, EQUAL) == VL_CHECKLIST_EQUAL
    assert {(choice.op, choice.kind) for choice in choices if "attribute" in choice.split} == {
        (REPLACE, ATTRIBUTE)
    }


ARO_ROW = dict(image_path="7.jpg", bbox_x=3, bbox_y=4, bbox_w=50, bbox_h=60)
ARO_ROW |= dict(true_caption="the cat is on the mat", false_caption="the mat is on the cat")


def test_aro_reads_the_file_that_is_there(tmp_path):
    (tmp_path / "visual_genome_relation.json").write_text(json.dumps([ARO_ROW, ARO_ROW]))
    first, second = read_benchmark("aro", Folder(str(tmp_path)))
    assert (first.split, first.op, first.kind, first.box) == ("relation", SWAP, OBJECT, (3, 4, 50, 60))
    assert first.positives == ("the cat is on the mat",) and first.defects == ()
    assert second.defects == (DUPLICATE,)


def test_a_row_can_have_several_defects(tmp_path):
    row = dict(image_file="1.jpg", caption="one dog", foil="one dog", mturk=dict(caption=1))
    write_valse(tmp_path, {"a": row, "b": row})
    choices = read_benchmark("valse", Folder(str(tmp_path)))
    marked = [choice.defects for choice in choices if choice.split == "foil-it"]
    assert marked == [(UNCONFIRMED, EQUAL), (UNCONFIRMED, EQUAL, DUPLICATE)]
    assert {defect for defects in marked for defect in defects} == set(DEFECTS)


def write_valse(folder: Path, rows: dict) -> None:
    folder.mkdir(exist_ok=True)
    other = {"z": dict(image_file="9.jpg", caption="some cats", foil="no cats", mturk=VOTES)}
    for split in VALSE:
        (folder / f"{split}.json").write_text(json.dumps(rows if split == "foil-it" else other))


def test_several_foils_are_several_negatives(tmp_path):
    row = dict(image_file="1.jpg", caption=" one dog ", foils=["two dogs", "no dog"], mturk=dict(caption=3))
    write_valse(tmp_path, {"a": row})
    choice = next(c for c in read_benchmark("valse", Folder(str(tmp_path))) if c.split == "foil-it")
    assert choice.positives == ("one dog",) and choice.negatives == ("two dogs", "no dog")


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("aro", {}, "visual_genome_relation.json"),
        ("aro", {"visual_genome_attribution.json": [{}]}, "row 0: has no field 'bbox_x'"),
        ("aro", {"visual_genome_relation.json": [{**ARO_ROW, "true_caption": " "}]}, "true_caption=' '"),
        ("sugarcrepe", {}, "has no file add_att.json"),
        ("sugarcrepe", {"add_att.json": []}, "must hold a JSON dict, holds a list"),
        ("sugarcrepe", {"add_att.json": {"4": {"filename": 3}}}, "row '4': filename=3"),
        ("sugarcrepe", {"add_att.json": {}}, "add_att.json: holds no row"),
        ("sugarcrepe", {"add_att.json": {"4": {"filename": "a", "caption": 7}}}, "row '4': caption=7"),
        ("sugarcrepe", {"add_att.json": {"4": {"filename": "a", "caption": math.nan}}}, "4': caption=nan"),
        (
            "sugarcrepe_pp",
            {"replace_att.json": [{"id": 1, "filename": "a"}]},
            "row 0: has no field 'caption'",
        ),
        ("valse", {"actant-swap.json": {"x": {"mturk": {}}}}, "row 'x': mturk: has no field 'caption'"),
        ("vl_checklist", {}, "has no *.json file"),
        ("vl_checklist", {"a.json": [["a.jpg", {"POS": [], "NEG": ["x"]}]]}, "POS=[]"),
        ("vl_checklist", {"a.json": [["a.jpg"]]}, "row 0: must be [image, {POS, NEG}]"),
        ("vl_checklist", {"a.json": "nonsense"}, "must hold a JSON list, holds a str"),
        ("winogrande", {}, f"must be one of {', '.join(NAMES)}"),
    ],
)
def test_what_is_missing_is_named_in_one_line(tmp_path, name, files, said):
    for file, rows in files.items():
        (tmp_path / file).write_text(json.dumps(rows))
    with pytest.raises(ValueError) as error:
        read_benchmark(name, Folder(str(tmp_path)))
    assert said in str(error.value) and "\n" not in str(error.value)
    assert name == "winogrande" or str(tmp_path) in str(error.value)


@pytest.mark.parametrize(("op", "kind"), [("swap", ""), ("", "noun"), ("SWAP", "OBJECT"), (None, "object")])
def test_an_operation_or_kind_that_there_is_not_is_refused(op, kind, tmp_path, monkeypatch):
    rows = [Choice("made", "a", str(i), "1.jpg", ("x",), ("y",)) for i in range(3)]
    rows[1] = rows[1]._replace(op="SWAP", kind="object")
    monkeypatch.setitem(READERS, "made", lambda folder: rows)
    assert len(read_benchmark("made", Folder(str(tmp_path)))) == 3
    rows[2] = rows[2]._replace(op=op, kind=kind)
    said = r"made: a: row '2': (op|kind)=('swap'|'noun'|'OBJECT'|None): must be one of (SWAP|object), .*, or"
    with pytest.raises(ValueError, match=said):
        read_benchmark("made", Folder(str(tmp_path)))


def test_a_cut_file_and_a_missing_folder(tmp_path):
    (tmp_path / "add_att.json").write_text('{"1": {"filen')
    with pytest.raises(ValueError, match=r"add_att\.json: cannot be read as JSON"):
        read_benchmark("sugarcrepe", Folder(str(tmp_path)))
    with pytest.raises(ValueError, match="is not a folder"):
        read_benchmark("sugarcrepe", Folder(str(tmp_path / "none")))


PLAIN_ROW = {"image_path": "a.jpg", "true_caption": "a b", "false_caption": "b a"} | {
    f"bbox_{side}": 1 for side in "xywh"
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("bbox_x", value) for value in (float("nan"), float("inf"), 10**30, True, "1", None, [1])),
        *(("image_path", value) for value in (5, None, " ", "\ud800", ["a"])),
        *(("true_caption", value) for value in (5, None, {}, [], [None], "\ud800", ["a", " "])),
    ],
    ids=repr,
)
def test_a_field_of_another_kind_is_one_line(tmp_path, name, value):
    (tmp_path / "visual_genome_relation.json").write_text(json.dumps([PLAIN_ROW, {**PLAIN_ROW, name: value}]))
    with pytest.raises(ValueError, match=f"row 1: {name}=") as error:
        read_benchmark("aro", Folder(str(tmp_path)))
    assert type(error.value) is ValueError and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "null", "5", "{}", "[" * 200_000, "[5]", "[null]", "[[]]", '"x"'])
def test_a_file_of_another_shape_is_one_line(tmp_path, text):
    (tmp_path / "visual_genome_relation.json").write_text(text)
    with pytest.raises(ValueError, match="visual_genome_relation") as error:
        read_benchmark("aro", Folder(str(tmp_path)))
    assert type(error.value) is ValueError and len(str(error.value)) < 500


def test_a_key_that_stands_twice_and_bytes_that_are_no_text(tmp_path):
    row = '{"filename": "1.jpg", "caption": "a", "negative_caption": "b"}'
    (tmp_path / "add_att.json").write_text(f'{{"7": {row}, "8": {row}, "7": {row}}}')
    with pytest.raises(ValueError, match=r"add_att\.json: cannot be read as JSON: '7' occurs twice"):
        read_benchmark("sugarcrepe", Folder(str(tmp_path)))
    (tmp_path / "add_att.json").write_bytes('{"7": "caf\u00e9"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"add_att\.json: cannot be read as JSON: 'utf-8' codec"):
        read_benchmark("sugarcrepe", Folder(str(tmp_path)))


@pytest.mark.parametrize("name", ["micro", "macro", "all"])
def test_a_split_that_is_called_as_the_means_are_is_refused(tmp_path, name):
    (tmp_path / f"{name}.json").write_text('[["1.jpg", {"POS": ["a"], "NEG": ["b"]}]]')
    with pytest.raises(ValueError, match=f"split='{name}': is a reserved name"):
        read_benchmark("vl_checklist", Folder(str(tmp_path)))


def test_an_id_that_comes_twice_is_refused(tmp_path):
    row = dict(id=5, filename="1.jpg", caption="a", caption2="b", negative_caption="c")
    (tmp_path / "replace_att.json").write_text(json.dumps([row, row]))
    with pytest.raises(ValueError, match="sugarcrepe_pp: replace_att: row '5': an earlier row has this id"):
        read_benchmark("sugarcrepe_pp", Folder(str(tmp_path)))


def test_a_limit_takes_the_first_items_of_each_split(tmp_path):
    rows = [["1.jpg", {"POS": [f"{i}"], "NEG": ["x"]}] for i in range(5)]
    for name in ("a", "b"):
        write(tmp_path / f"{name}.json", rows[: 5 if name == "a" else 2])
    every = read_benchmark("vl_checklist", Folder(str(tmp_path)))
    assert len(every) == 7
    first = read_benchmark("vl_checklist", Folder(str(tmp_path)), limit=3)
    assert [(c.split, c.id) for c in first] == [("a", "0"), ("a", "1"), ("a", "2"), ("b", "0"), ("b", "1")]
    assert read_benchmark("vl_checklist", Folder(str(tmp_path)), limit=5) == every


def test_a_byte_order_mark_is_no_fault(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(Folder(str(tmp_path)), "a.json", list) == [1]


def test_benchmarks_in_a_store_give_the_rows_of_the_disk(bucket, tmp_path):
    write_valse(tmp_path / "valse", {"a": dict(image_file="1.jpg", caption="a", foil="b", mturk=VOTES)})
    for name in ("vl_checklist/b/z.json", "vl_checklist/b-c/y.json"):
        write(tmp_path / name, [["1.jpg", {"POS": ["a"], "NEG": ["b"]}]])
    write(tmp_path / "aro/visual_genome_attribution.json", [ARO_ROW])
    for path in tmp_path.rglob("*.json"):
        Folder(bucket).write_bytes(path.read_bytes(), path.relative_to(tmp_path).as_posix())
    for name, count in (("valse", 11), ("vl_checklist", 2), ("aro", 1)):
        here, there = (read_benchmark(name, Folder(f"{root}/{name}")) for root in (tmp_path, bucket))
        assert here == there and len(there) == count
    with pytest.raises(ValueError, match=f"{bucket}/sugarcrepe: is not a folder"):
        read_benchmark("sugarcrepe", Folder(f"{bucket}/sugarcrepe"))
    with pytest.raises(ValueError, match=f"{bucket}/aro: has no file add_att.json"):
        read_benchmark("sugarcrepe", Folder(f"{bucket}/aro"))


VOTES = dict(caption=3)


def write(path: Path, rows: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows))
