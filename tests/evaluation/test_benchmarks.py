"""The readers of published benchmarks: made files of each, malformed files, and the published files."""

import json
import math
import re
from collections import Counter

import pytest

from raycomp.data.files import Folder
from raycomp.evaluation.benchmarks.choice import (
    DUPLICATE,
    EQUAL,
    UNCONFIRMED,
    Choice,
    read_json,
    report_defects,
    warn_other_counts,
)
from raycomp.evaluation.benchmarks.published import NAMES, READERS, read_benchmark, shuffle
from raycomp.language.lexicon import ADJECTIVE_TAGS, NOUN_TAGS, Token
from raycomp.words import ADD, ATTRIBUTE, OBJECT, REPLACE, SWAP

CREPE = "add_att add_obj replace_att replace_obj replace_rel swap_att swap_obj".split()
PIECES = (
    "actant-swap action-replacement coreference-hard coreference-standard counting-adversarial counting-hard "
    "counting-small-quant existence foil-it plurals relations"
).split()
ARO_ROW = dict(image_path="7.jpg", bbox_x=3, bbox_y=4, bbox_w=50, bbox_h=60)
ARO_ROW |= dict(true_caption="the cat is on the mat", false_caption="the mat is on the cat")
RELATION_FILE = "visual_genome_relation.json"
CREPE_ROW = dict(filename="1.jpg", caption=" a cat ", negative_caption="two cats")
PP_ROW = dict(id=5, filename="1.jpg", caption="a", caption2="b", negative_caption="c")
VALSE_ROW = dict(image_file="1.jpg", caption=" one dog ", foils=["two dogs", "no dog"], mturk={"caption": 3})
GROUND = dict(
    id=7, collapsed_tag="Object", image_0="x_0", image_1="x_1.png", caption_0="a b", caption_1="b a"
)
BIVLC = dict(image="0.jpg", caption="A cat.", negative_caption="A dog.", negative_image="1.jpg")
BIVLC |= dict(type="Replace", subtype="obj")
COLA = ["http://a.b/c/1.jpg", "tall left of brown", "http://a.b/c/2.jpg", "brown left of tall"]
COLA_FILE = "COLA_multiobjects_matching_benchmark.json"
HARD = dict(image_path="data/VG_100K/1.jpg", true_caption="a in b", false_caption="a out of b")
HARD_FILES = {
    f"{part}/vl_checklist_{split}.json": [{**HARD, "true_caption": text}, HARD]
    for part, text in (("data", "a in b"), ("swapped_data", "a within b"))
    for split in ("attributes", "relations")
}
CHECK_ROW = ["1.jpg", {"POS": ["a red cat"], "NEG": ["a blue cat"]}]


def write(folder, files):
    """Write each file: text as it is, all else as JSON."""
    for name, rows in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(rows if isinstance(rows, str) else json.dumps(rows))
    return Folder(str(folder))


def read(name, folder, files, **options):
    return read_benchmark(name, write(folder, files), **options)


MADE = {
    "sugarcrepe": (
        {f"{split}.json": {"4": CREPE_ROW} for split in CREPE},
        7,
        Choice("sugarcrepe", "add_att", "4", "1.jpg", ("a cat",), ("two cats",), ADD, ATTRIBUTE),
    ),
    "sugarcrepe_pp": (
        {f"{split}.json": [PP_ROW] for split in CREPE[2:]},
        5,
        Choice("sugarcrepe_pp", "replace_att", "5", "1.jpg", ("a", "b"), ("c",), REPLACE, ATTRIBUTE),
    ),
    "valse": (
        {f"{split}.json": {"x": VALSE_ROW} for split in PIECES},
        11,
        Choice("valse", "actant-swap", "x", "1.jpg", ("one dog",), ("two dogs", "no dog"), SWAP, OBJECT),
    ),
    "vl_checklist": (
        {"attribute_vg/color.json": [CHECK_ROW], "b/z.json": [CHECK_ROW]},
        2,
        Choice("vl_checklist", "attribute_vg/color", "0", "1.jpg", ("a red cat",), ("a blue cat",), REPLACE,
               ATTRIBUTE),
    ),
    "aro": (
        {RELATION_FILE: [ARO_ROW]},
        1,
        Choice("aro", "relation", "0", "7.jpg", ("the cat is on the mat",), ("the mat is on the cat",), SWAP,
               OBJECT, box=(3, 4, 50, 60)),
    ),
    "winoground": (
        {"examples.jsonl": json.dumps(GROUND) + "\n\n" + json.dumps({**GROUND, "id": 8})},
        4,
        Choice("winoground", "test", "7/0", "x_0.png", ("a b",), ("b a",), SWAP, OBJECT, group="7"),
    ),
    "bivlc": (
        {"bivlc.jsonl": json.dumps(BIVLC)},
        2,
        Choice("bivlc", "replace_obj", "0/0", "0.jpg", ("A cat.",), ("A dog.",), REPLACE, OBJECT, group="0"),
    ),
    "cola": (
        {COLA_FILE: [COLA]},
        2,
        Choice("cola", "multi_objects", "0/0", "1.jpg", (COLA[1],), (COLA[3],), SWAP, ATTRIBUTE, group="0"),
    ),
    "hard_positives": (
        HARD_FILES,
        4,
        Choice("hard_positives", "attributes", "0", "VG_100K/1.jpg", ("a in b", "a within b"),
               ("a out of b",), REPLACE, ATTRIBUTE),
    ),
}  # fmt: skip


def test_every_benchmark_gives_rows_of_one_shape(tmp_path):
    assert set(MADE) == set(READERS)
    for name, (files, count, first) in MADE.items():
        rows = read(name, tmp_path / name, files)
        assert len(rows) == count and rows[0] == first, name
        for one, two in zip(rows[::2], rows[1::2], strict=True) if first.group else ():
            assert (one.group, one.positives, one.negatives) == (two.group, two.negatives, two.positives), (
                name
            )
            assert two.image in ("x_1.png", "1.jpg", "2.jpg"), name
            assert (one.id, two.id) == (f"{one.group}/0", f"{one.group}/1"), name


def test_defects_are_marked_and_counted(tmp_path):
    row = dict(image_file="1.jpg", caption="one dog", foil="one dog", mturk=dict(caption=1))
    files = dict(MADE["valse"][0]) | {"foil-it.json": {"a": row, "b": row}}
    rows = read("valse", tmp_path, files)
    marked = [choice.defects for choice in rows if choice.split == "foil-it"]
    assert marked == [(UNCONFIRMED, EQUAL), (UNCONFIRMED, EQUAL, DUPLICATE)]
    table = report_defects(rows)
    assert [line[2:] for line in table.rows if line[1] == "foil-it"] == [[2, 0, 2, 1, 2]]
    assert "valse: foil-it: 2 rows, 1,000 are published." in table.note


def test_a_limit_takes_the_first_items_of_each_split_whole(tmp_path):
    lines = [BIVLC, {**BIVLC, "type": "swap"}, BIVLC, BIVLC]
    kept = read("bivlc", tmp_path, {"bivlc.jsonl": "\n".join(map(json.dumps, lines))}, limit=2)
    items = [(row.split, row.group) for row in kept[::2]]
    assert items == [("replace_obj", "0"), ("swap_obj", "1"), ("replace_obj", "2")] and len(kept) == 6


def fail(name, folder, files):
    """Return the one line that a reader refuses the files with."""
    with pytest.raises(ValueError) as error:
        read(name, folder, files)
    said = str(error.value)
    assert type(error.value) is ValueError and "\n" not in said and len(said) < 500
    return said


def test_what_is_missing_or_malformed_is_named_in_one_line(tmp_path):
    crepe = "add_att.json"
    short, other = HARD_FILES | {"swapped_data/vl_checklist_attributes.json": [HARD]}, dict(HARD_FILES)
    other["swapped_data/vl_checklist_attributes.json"] = [HARD, {**HARD, "false_caption": "c"}]
    twice = f'{{"7": {json.dumps(CREPE_ROW)}, "7": {json.dumps(CREPE_ROW)}}}'
    bad_op, nameless = {**BIVLC, "type": "shuffle"}, {**GROUND, "collapsed_tag": "Verb"}
    for number, (name, files, said) in enumerate(
        [
            ("aro", {"x": ""}, "has neither visual_genome_relation.json nor visual_genome_attribution.json"),
            ("aro", {"visual_genome_attribution.json": [{}]}, "row 0: has no field 'bbox_x'"),
            ("sugarcrepe", {"x": ""}, "has no file add_att.json"),
            ("sugarcrepe", {crepe: []}, "must hold a JSON dict, holds a list"),
            ("sugarcrepe", {crepe: {}}, "add_att.json: holds no row"),
            ("sugarcrepe", {crepe: twice}, "add_att.json: cannot be read as JSON: '7' occurs twice"),
            ("sugarcrepe_pp", {"replace_att.json": [PP_ROW, PP_ROW]}, "row '5': an earlier row has this id"),
            ("vl_checklist", {"x": ""}, "has no *.json file"),
            ("vl_checklist", {"a.json": [["a.jpg"]]}, "row 0: must be [image, {POS, NEG}]"),
            ("vl_checklist", {"micro.json": [CHECK_ROW]}, "split='micro': is a reserved name"),
            ("winoground", {"examples.jsonl": f"\n{json.dumps(nameless)}"}, "line 2: collapsed_tag='Verb'"),
            ("winoground", {"examples.jsonl": '{"id"'}, "line 1: cannot be read as JSON"),
            ("bivlc", {"bivlc.jsonl": json.dumps(bad_op)}, "give 'shuffle_obj': must be one of add_att"),
            ("cola", {COLA_FILE: [COLA, COLA[:3]]}, "row 1: must be [image 1"),
            ("hard_positives", short, "the rows do not match: 2 in data/vl_checklist_attributes.json and 1"),
            ("hard_positives", other, "row 1: false_caption='c': differs from data/"),
            ("winogrande", {"x": ""}, f"must be one of {', '.join(NAMES)}"),
        ]
    ):
        found = fail(name, tmp_path / str(number), files)
        assert said in found and (name == "winogrande" or str(tmp_path) in found or "row" in found), found
    with pytest.raises(ValueError, match="is not a folder"):
        read_benchmark("sugarcrepe", Folder(str(tmp_path / "none")))


def test_a_field_or_file_of_another_kind_is_one_line(tmp_path):
    values = {
        "bbox_x": (math.nan, 10**30, True, "1", None),
        "image_path": (5, " ", "\ud800"),
        "true_caption": (None, {}, [None], ["a", " "]),
    }
    for name, value in ((name, value) for name, some in values.items() for value in some):
        found = fail("aro", tmp_path, {RELATION_FILE: [ARO_ROW, {**ARO_ROW, name: value}]})
        assert f"row 1: {name}=" in found, (name, value)
    for text in ("", "5", "[" * 200_000, "[5]"):
        assert "visual_genome_relation" in fail("aro", tmp_path, {RELATION_FILE: text}), text[:9]
    (tmp_path / "add_att.json").write_bytes('{"7": "caf\u00e9"}'.encode("latin-1"))
    assert "add_att.json: cannot be read as JSON: 'utf-8' codec" in fail("sugarcrepe", tmp_path, {})
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(Folder(str(tmp_path)), "a.json", list) == [1]


def test_an_unknown_operation_or_kind_is_refused(tmp_path, monkeypatch):
    rows = [Choice("made", "a", str(i), "1.jpg", ("x",), ("y",)) for i in range(3)]
    monkeypatch.setitem(READERS, "made", lambda folder: rows)
    monkeypatch.setattr("raycomp.evaluation.benchmarks.published.NAMES", (*NAMES, "made"))
    rows[1] = rows[1]._replace(op="SWAP", kind="object")
    assert len(read("made", tmp_path, {})) == 3
    for name, value in (("op", "swap"), ("kind", "noun"), ("op", None)):
        rows[2] = rows[1]._replace(id="2", **{name: value})
        assert f"made: a: row '2': {name}={value!r}: must be one of" in fail("made", tmp_path, {})


TAGS = {"dog": "NN", "cats": "NNS", "mat": "NN", "park": "NN", "red": "JJ", "old": "JJ", "large": "JJR"}
CAPTION = "the old dog and two red cats sat on a large mat in the park ."


def tag(captions):
    return [[Token(w, 0, 0, TAGS.get(w, "DT"), "", 0) for w in caption.split()] for caption in captions]


def read_orders(folder, *captions, tag=tag, **options):
    rows = [{"image": "val2014/1.jpg", "caption": list(captions)}]
    return read("aro_order", folder, {"coco_karpathy_test.json": rows}, tag=tag, **options)


def test_each_shuffle_moves_what_it_should_and_no_more():
    (tokens,) = tag([CAPTION])
    words = [token.text for token in tokens]
    moved: Counter[int] = Counter()
    for seed in range(40):
        found = shuffle(tokens, str(seed))
        assert found[0] == words and all(Counter(one) == Counter(words) for one in found)
        _, described, others, within, threes = found
        for i, token in enumerate(tokens):
            is_other = token.tag not in (*NOUN_TAGS, *ADJECTIVE_TAGS)
            assert (others[i] if not is_other else described[i]) == words[i]
            assert TAGS.get(described[i], "DT")[:2] == token.tag[:2]
        groups = [sorted(within[i : i + 3]) for i in range(0, len(words), 3)]
        assert groups == [sorted(words[i : i + 3]) for i in range(0, len(words), 3)]
        joined, lefts = " ".join(threes), [words[i : i + 3] for i in range(0, len(words), 3)]
        assert all(" ".join(left) in joined for left in lefts)
        moved.update(place for place, one in enumerate(found) if one != words)
    # A shuffle that is the identity is rare among 4 nouns, 9 other words, 5 threes.
    assert set(moved) == {1, 2, 3, 4} and min(moved.values()) > 30


def test_orders_depend_on_seed_and_caption_alone_and_are_cleaned_as_the_published_code_does(tmp_path):
    def pre_caption(caption, max_words=30):
        caption = re.sub(r"([.!\"()*#:;~])", " ", caption.lower())
        return " ".join(re.sub(r"\s{2,}", " ", caption).strip().split(" ")[:max_words])

    long = " ".join(["A", "(big)", "dog;", "-", "it's", "5:30", "!", *map(str, range(40))])
    captions = CAPTION, "cats", long
    first, other = read_orders(tmp_path, *captions), read_orders(tmp_path, *captions, seed=1)
    assert read_orders(tmp_path, *captions, limit=1) == first[:1]
    assert [row.positives for row in other] == [row.positives for row in first] and other != first
    assert first[0][1:4] == ("coco", "0/0", "val2014/1.jpg") and first[1].id == "0/1"
    assert first[1].negatives == ("cats",) * 4 and first[1].defects == (EQUAL,) and first[0].defects == ()
    assert first[2].positives == (pre_caption(long),) and len(first[2].positives[0].split()) == 30


def test_captions_that_cannot_be_shuffled_are_refused(tmp_path):
    for captions, said in ((["..."], "caption 0/0: '...': has no word"), ([], "row 0: caption=")):
        with pytest.raises(ValueError, match=said):
            read_orders(tmp_path, *captions)
    with pytest.raises(ValueError, match="benchmark='aro_order': needs a parser"):
        read_orders(tmp_path, CAPTION, tag=None)


@pytest.mark.stores
def test_a_benchmark_in_a_store_gives_the_rows_of_the_disk(bucket, tmp_path):
    expected = read("vl_checklist", tmp_path, MADE["vl_checklist"][0])
    for path in tmp_path.rglob("*.json"):
        Folder(bucket).write_bytes(path.read_bytes(), path.relative_to(tmp_path).as_posix())
    assert read_benchmark("vl_checklist", Folder(bucket)) == expected
    with pytest.raises(ValueError, match=f"{bucket}/sugarcrepe: is not a folder"):
        read_benchmark("sugarcrepe", Folder(f"{bucket}/sugarcrepe"))


@pytest.mark.data
def test_published_files_have_the_published_rows_and_defects(shared):
    """Counted from the published files by other means."""
    for name, count, defects in (
        ("sugarcrepe", 7511, {}),
        ("sugarcrepe_pp", 4757, {EQUAL: 2, DUPLICATE: 1}),
        ("valse", 8782, {UNCONFIRMED: 8782 - 7702}),
        ("vl_checklist", 62950, {EQUAL: 108}),
        ("cola", 420, {}),
        ("hard_positives", 27443, {EQUAL: 16, DUPLICATE: 1589}),
    ):
        rows = read_benchmark(name, Folder(str(shared / "data/benchmarks" / name)))
        found = Counter(defect for row in rows for defect in row.defects)
        assert len(rows) == count and warn_other_counts(rows) == [], name
        assert {defect: found[defect] for defect in defects} == defects, name
        assert bool(defects) == any(row.defects for row in rows), name
        if name == "sugarcrepe":
            assert len({row.image for row in rows}) == 1560 and rows[0].image == "000000085329.jpg"
            lacks = warn_other_counts(rows[1:])
            assert lacks == ["sugarcrepe: add_att: 691 rows, 692 are published"]
