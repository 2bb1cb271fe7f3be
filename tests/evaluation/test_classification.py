"""Zero-shot classification and the linear probe as exams: slow loops, layouts, what is refused."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raycomp.core.logistic import fit_logistic
from raycomp.data.samples import write_tar
from raycomp.evaluation.choices import Picture
from raycomp.evaluation.classification import PENALTY, find_label, open_linear_probe, open_zeroshot
from raycomp.evaluation.compare import check_same, compare_tables
from raycomp.evaluation.config import LinearProbeConfig, ZeroshotConfig
from raycomp.evaluation.results import MEANINGS, compute_outcomes, make_lines
from tests.evaluation.embedded import draw, embed, invent, sit

NAMES = ["alarm_clock", "bee", "cat", "dog", "emu", "fox", "goat"]


def make_folder(folder, counts):
    """Write a file for every image of a class: counts by class."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, num in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(num):
            (folder / name / f"{i}.jpg").write_bytes(b"x")
    return str(folder)


def flat_png(value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (32, 32), (value, 255 - value, value // 2)).save(out, "PNG")
    return out.getvalue()


def values_of(table):
    return {line.metric: line for line in make_lines("x", compute_outcomes(table))}


def test_zeroshot_is_a_slow_loop_over_classes_and_templates(tmp_path):
    counts = dict(zip(NAMES, [5, 1, 9, 3, 4, 6, 2], strict=True))
    (tmp_path / "templates.txt").write_text("lambda c: f'a photo of a {c}.',\n\n a drawing of {c}, a {}\n")
    folder = make_folder(tmp_path / "images", counts)
    evaluation = open_zeroshot(ZeroshotConfig(folder, templates=str(tmp_path / "templates.txt")))
    pictures, texts = invent(evaluation)
    assert "a drawing of alarm clock, a alarm clock" in texts.place and len(texts.place) == 14
    table, ranks = evaluation.grade(pictures, texts), {name: [] for name in counts}
    for row in table.to_pylist():
        label, file = row["id"].split("/")
        image_D = pictures.image_MD[pictures.place[Picture(f"{folder}/{label}/{file}")]]
        scores = {}
        for name in counts:
            said = name.replace("_", " ")
            weight_D = sum(texts.take([f"a photo of a {said}.", f"a drawing of {said}, a {said}"]))
            scores[name] = float(image_D @ weight_D / np.linalg.norm(weight_D))
        order = sorted(scores, key=lambda name: -scores[name])
        others = max(score for name, score in scores.items() if name != label)
        assert (row["label"], row["predicted"]) == (label.replace("_", " "), order[0].replace("_", " "))
        assert row["rank"] == 1 + order.index(label) and row["ties"] == 0 and row["num_classes"] == 7
        assert row["margin"] == pytest.approx(scores[label] - others, abs=1e-6)
        ranks[label].append(row["rank"])
    every, found = np.concatenate([*ranks.values()]), values_of(table)
    by_class = np.mean([np.mean(np.array(own) == 1) for own in ranks.values()])
    expected = {"acc1": (every == 1).mean(), "acc5": (every <= 5).mean(), "mean_per_class_recall": by_class}
    assert {name: line.value for name, line in found.items()} == pytest.approx(expected)
    assert (found["acc1"].chance, found["acc5"].chance) == (1 / 7, 5 / 7) and set(found) <= set(MEANINGS)
    assert 0 < by_class != pytest.approx(expected["acc1"])


def test_rows_whose_id_repeats_are_all_compared_and_class_by_class(tmp_path):
    evaluation = open_zeroshot(ZeroshotConfig(make_folder(tmp_path, {"a": 5, "b": 3, "c": 4})))
    tables = []
    for seed in (1, 2):
        table = evaluation.grade(*invent(evaluation, seed=seed))
        place = table.column_names.index("id")
        tables.append(table.set_column(place, "id", pa.array([*"abcd"] * 3)))
    lines = {line.metric: line for line in compare_tables("x", *tables)}
    line = lines["acc1"]
    assert (line.n, line.num_all) == (12, 12) and line.only_reference + line.only_run > 0
    for metric, line in lines.items():
        means = [values_of(table)[metric].value for table in tables]
        assert (line.reference_value, line.run_value) == pytest.approx(means)
        assert line.difference == pytest.approx(means[1] - means[0])
    # A row that one model has no scores of takes no other row of its id along.
    place = tables[0].column_names.index("status")
    some = tables[0].set_column(place, "status", pa.array(["bad_embedding"] + ["ok"] * 11))
    assert compare_tables("x", some, tables[1])[0].n == 11


def test_evaluations_among_other_classes_are_not_compared_but_under_other_names(tmp_path):
    def grade(counts, **names):
        folder = make_folder(tmp_path / str(len(counts)), counts)
        evaluation = replace(open_zeroshot(ZeroshotConfig(folder)), **names)
        return evaluation.grade(*invent(evaluation))

    three, two = grade({"a": 3, "b": 3, "c": 1}), grade({"a": 3, "b": 3})
    check_same("x", three, grade({"a": 3, "b": 3, "c": 1}, classes=("cat", "dog", "fox")))
    place = three.column_names.index("label")
    moved = three.set_column(place, "label", pa.array(["a", "b", "b", "a", "b", "b", "c"]))
    for one, other, said in ((three, moved, "3 and 3"), (three.slice(0, 6), two, "3 and 2")):
        with pytest.raises(ValueError, match=rf"^x: .* different classes \({said}\)"):
            check_same("x", one, other)


def test_classes_of_one_text_tie_and_are_wrong_and_a_bad_image_is_not_judged(tmp_path):
    (tmp_path / "names.json").write_text(json.dumps(["crane", "crane", "dog"]))
    folder = make_folder(tmp_path / "images", {"a": 4, "b": 4, "c": 5})
    evaluation = open_zeroshot(ZeroshotConfig(folder, classes=str(tmp_path / "names.json")))
    pictures, texts = invent(evaluation, bad=["/c/4.jpg"])
    for i, text in enumerate(["a photo of a crane."] * 8 + ["a photo of a dog."] * 4):
        pictures.image_MD[i] = texts.text_TD[texts.place[text]]
    table = evaluation.grade(pictures, texts)
    *rows, lost = table.to_pylist()
    assert [row["rank"] for row in rows] == [2] * 8 + [1] * 4
    assert {row["label"] for row in rows} == {"crane #0", "crane #1", "dog"}
    assert (lost["id"], lost["status"]) == ("c/4.jpg", "corrupt_image")
    assert lost["rank"] is lost["predicted"] is lost["label"] is None
    found = {outcome.metric: outcome for outcome in compute_outcomes(table)}
    assert found["acc1"].tie_N.sum() == 8 and found["acc1"].right_N.mean() == 1 / 3
    assert values_of(table)["mean_per_class_recall"].value == pytest.approx(1 / 3)


def write_shards(folder, kind, labels):
    """Write pictures of seven classes as CLIP_benchmark has them, or as Parquet, with their templates."""
    (folder / "test").mkdir(parents=True)
    (folder / "classnames.txt").write_text("\n".join(NAMES))
    (folder / "zeroshot_classification_templates.txt").write_text("a bad photo of {c}\na {c}")
    images = [flat_png(30 * i) for i in range(len(labels))]
    if kind == "parquet":
        rows = {"image": pa.array(images, pa.binary()), "label": labels}
        pq.write_table(pa.table(rows), folder / "test/0.parquet")
    else:
        texts = [str(label) if kind == "cls" else json.dumps({"label": label}) for label in labels]
        both = enumerate(zip(images, texts, strict=True))
        samples = [(f"s{i:07d}", {"png": image, kind: text.encode()}) for i, (image, text) in both]
        write_tar(str(folder / "test/0.tar"), samples)
    return str(folder / "test")


def test_shards_are_judged_as_a_folder_is(tmp_path, tiny_scorer):
    labels = [6, 0, 3, 3, 1, 5, 2, 4]
    for i, label in enumerate(labels):
        place = tmp_path / "folder" / NAMES[label]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.png").write_bytes(flat_png(30 * i))

    def grade(*places: str) -> list[dict]:
        evaluation = open_zeroshot(ZeroshotConfig(*places))
        assert evaluation.classes == NAMES and evaluation.templates == ["a bad photo of {c}", "a {c}"]
        rows = sit(evaluation, tiny_scorer).to_pylist()
        return sorted(rows, key=lambda row: (row["label"], row["margin"]))

    places = [write_shards(tmp_path / kind, kind, labels) for kind in ("cls", "json", "parquet")]
    files = (tmp_path / "cls/classnames.txt", tmp_path / "cls/zeroshot_classification_templates.txt")
    expected = grade(str(tmp_path / "folder"), *map(str, files))
    for place in places:
        for one, other in zip(grade(place), expected, strict=True):
            for name in ("status", "label", "predicted", "rank", "ties", "margin"):
                assert one[name] == other[name], (place, name)


def test_a_sample_without_a_class_is_counted_and_an_unknown_class_is_named(tmp_path, tiny_scorer):
    evaluation = open_zeroshot(ZeroshotConfig(write_shards(tmp_path / "a", "json", [1, None, 2, True])))
    assert sit(evaluation, tiny_scorer)["status"].to_pylist() == ["ok", "no_label", "ok", "no_label"]
    evaluation = open_zeroshot(ZeroshotConfig(write_shards(tmp_path / "n", "json", ["alarm_clock", 1])))
    assert sit(evaluation, tiny_scorer)["label"].to_pylist() == ["alarm_clock", "bee"]
    (tmp_path / "names.json").write_text(json.dumps([*"1234567"]))
    named = ZeroshotConfig(write_shards(tmp_path / "d", "cls", [1, 7, 3]), str(tmp_path / "names.json"))
    assert sit(open_zeroshot(named), tiny_scorer)["label"].to_pylist() == [*"173"]
    evaluation = open_zeroshot(ZeroshotConfig(write_shards(tmp_path / "b", "json", [1, 7])))
    said = r"zeroshot\.input=.*s0000001 has class '7'; must be .* 0 to 6"
    with pytest.raises(ValueError, match=said):
        sit(evaluation, tiny_scorer)


def test_the_class_of_a_sample():
    said = {"{}": None, '{"cls": 3}': "3", '{"label": "cat"}': "cat", '{"cls": "07"}': "7", "[": None}
    said |= {'{"label": 2.0}': "2", '{"label": 2.5}': None, '{"cls": null, "label": 0}': "0"}
    said |= {'{"cls": true}': None, '{"cls": " "}': None, '{"cls": [1]}': None}
    assert {json: find_label(json) for json in said} == said and find_label(None) is None


def test_what_is_missing_is_named_in_one_line(tmp_path):
    two = {"a": 2, "b": 1}
    for number, (option, counts, file, text, said) in enumerate(
        (
            ("input", {}, "", "", "has no folders of images, one for each class, and no shards"),
            ("input", {"a": 2}, "", "", "has one class, 'a'"),
            ("input", {"a": 2, "b": 0}, "", "", "class 'b' has no image"),
            ("input", {"train/a": 2, "val/a": 2}, "", "", "its folders train, val are splits, not classes"),
            ("classes", two, "classes.txt", "x", "has 1 names, and zeroshot.input="),
            ("classes", two, "classes.json", '{"a": 1}', "must hold a JSON list of texts"),
            ("classes", two, "classes.json", "[", "cannot be read as JSON"),
            ("classes", two, "classes.txt", "x\n\ny\n\n", "one of its 3 entries is empty"),
            ("templates", two, "templates.txt", "a {c}\na photo", "'a photo' must have {} or {c}"),
            ("templates", two, "templates.txt", "lambda c: 'a {}'.format(c),", "must have {} or {c}"),
            (
                "classes",
                {"0": 1, "2": 1},
                "classes.txt",
                "a\nb",
                "must be numbered 0 to 1, or 1 to 2, or have",
            ),
            (
                "classes",
                {"b": 1, "c": 1},
                "classes.txt",
                "c\na",
                "1 of 2 folders have no line of their name, and that",
            ),
        )
    ):
        folder, own = tmp_path / str(number), {}
        folder.mkdir()
        if file:
            own[option] = str(folder / file)
            (folder / file).write_text(text)
        with pytest.raises(ValueError) as error:
            open_zeroshot(ZeroshotConfig(make_folder(folder / "in", counts), **own))
        assert said in str(error.value) and "\n" not in str(error.value)
        assert str(error.value).startswith(f"zeroshot.{option}="), said
    shards = write_shards(tmp_path / "shards", "cls", [0, 1])
    (tmp_path / "shards/classnames.txt").unlink()
    with pytest.raises(ValueError, match=r"zeroshot\.classes=None: must be set: the shards come without"):
        open_zeroshot(ZeroshotConfig(shards))


TWELVE = [f"name{number}" for number in range(12)]


IDS = ["n01440764", "n01443537"]


@pytest.mark.parametrize(
    "folders, lines, joined, warned",
    [
        ([str(number) for number in range(12)], TWELVE, TWELVE, ""),
        ([f"class_{number}" for number in range(1, 13)], TWELVE, TWELVE, ""),
        (
            ["007", "001", "000", *"65432"],
            TWELVE[:8],
            [TWELVE[int(one)] for one in ("7", "1", "0", *"65432")],
            "",
        ),
        (
            ["Alarm_clock", "bee", "cat"],
            ["\ufeffcat", "alarm-clock", "BEE", "", ""],
            ["alarm-clock", "BEE", "cat"],
            "",
        ),
        (IDS, ["n01443537 goldfish", "n01440764\ttench, Tinca"], ["tench, Tinca", "goldfish"], ""),
        (
            IDS,
            ["'great white',", '"tench",'],
            ["great white", "tench"],
            "2 of 2 .*'n01440764' is 'great white'",
        ),
        (["bee", "car"], ["bee", "automobile"], ["bee", "automobile"], "1 of 2 folders have no line"),
        (IDS, None, IDS, "2 of 2 classes are named by a number, as in 'a photo of a n01440764.'"),
    ],
)
def test_names_of_a_file_join_the_folders_that_they_are_for(tmp_path, folders, lines, joined, warned):
    folder, file = make_folder(tmp_path / "images", dict.fromkeys(folders, 2)), tmp_path / "names.txt"
    file.write_bytes("\r\n".join(lines or ()).encode())
    evaluation = open_zeroshot(ZeroshotConfig(folder, classes=str(file) if lines else None))
    assert all(map(re.search, [warned], evaluation.warnings)) and len(evaluation.warnings) == bool(warned)
    pictures, texts = invent(evaluation)
    for picture, place in pictures.place.items():  # a model that knows every folder's class
        name = joined[folders.index(picture.uri.split("/")[-2])]
        pictures.image_MD[place] = texts.text_TD[texts.place[f"a photo of a {name}."]]
    rows = evaluation.grade(pictures, texts).to_pylist()
    assert [row["label"] for row in rows] == [joined[folders.index(row["id"].split("/")[0])] for row in rows]
    assert {row["rank"] for row in rows} == {1}


def see_classes(evaluation, seed=0, noise=0.5, bad=()):
    """Return invented pictures whose embeddings lie about a middle of their class."""
    rng = np.random.default_rng(seed)
    pictures, texts = invent(evaluation, bad=bad)
    middles = dict(zip(NAMES, draw(np.random.default_rng(7), len(NAMES), 8), strict=True))
    for picture, place in pictures.place.items():
        image_D = middles[picture.uri.split("/")[-2]] + noise * rng.normal(size=8)
        if pictures.status_M[place] == "ok":
            pictures.image_MD[place] = image_D / np.linalg.norm(image_D)
    return pictures, texts


def open_probe(folder, train, test):
    return open_linear_probe(
        LinearProbeConfig(make_folder(folder / "train", train), make_folder(folder / "test", test))
    )


def test_the_probe_is_a_fit_to_all_of_train_with_the_chosen_penalty(tmp_path):
    names = NAMES[:4]
    evaluation = open_probe(tmp_path, {name: 30 for name in names}, {"bee": 9, "cat": 5, "dog": 7})
    pictures, texts = see_classes(evaluation, bad=["train/cat/3.jpg", "test/dog/0.jpg"])
    table, seen = evaluation.grade(pictures, texts), {"train": [], "test": []}
    for picture, i in pictures.place.items():
        *_, side, name, _ = picture.uri.split("/")
        if pictures.status_M[i] == "ok":
            seen[side].append((names.index(name), i))
    label_M, image_M = np.array(seen["train"]).T
    label_G, image_G = np.array(seen["test"]).T
    penalty = float(table.schema.metadata[PENALTY])
    fitted = fit_logistic(pictures.image_MD[image_M], label_M, 4, penalty)
    score_GC = fitted.score(pictures.image_MD[image_G])
    judged = [row for row in table.to_pylist() if row["status"] == "ok"]
    for row, label, score_C in zip(judged, label_G, score_GC, strict=True):
        assert (row["label"], row["predicted"]) == (names[label], names[score_C.argmax()])
        assert row["rank"] == 1 + (score_C > score_C[label]).sum()
    found = values_of(table)
    assert found["acc1"].value == np.mean([row["rank"] == 1 for row in judged]) > 0.7
    assert found["acc1"].chance == 1 / 4 and "acc5" not in found
    lost = {(row["split"], row["id"]) for row in table.to_pylist() if row["status"] != "ok"}
    assert lost == {("train", "cat/3.jpg"), ("test", "dog/0.jpg")}


def test_what_cannot_be_probed_is_named(tmp_path):
    one = {"bee": 1, "cat": 1}
    other = r"linear_probe\.test=.*1 of its classes are not in .*such as 'dog'"
    alone = r"linear_probe\.train=.*must have a class with at least two different"
    for train, test, said in (({"bee": 2, "cat": 2}, {"cat": 1, "dog": 1}, other), (one, one, alone)):
        evaluation = open_probe(tmp_path / str(len(said)), train, test)
        with pytest.raises(ValueError, match=said):
            evaluation.grade(*invent(evaluation))
    with pytest.raises(ValueError, match=r"linear_probe\.test=''"):
        open_linear_probe(LinearProbeConfig(make_folder(tmp_path / "a", one)))


def test_train_and_test_may_be_shards_of_one_name(tmp_path, tiny_scorer):
    train = write_shards(tmp_path / "a", "cls", [i % 2 for i in range(8)])
    test = write_shards(tmp_path / "b", "cls", [1, 0, 1])
    table = sit(open_linear_probe(LinearProbeConfig(train, test)), tiny_scorer)
    assert table["id"].to_pylist() == [f"0.tar/s{i:07d}" for i in range(3)]
    assert set(table["label"].to_pylist()) == {"0", "1"}
    pictures, _ = embed(open_zeroshot(ZeroshotConfig(train)), tiny_scorer)
    (rows,) = pictures.shards.values()
    assert rows["status"].to_pylist() == ["ok"] * 8  # no caption is no fault of a picture


def test_a_class_whose_text_has_no_embedding_is_reported(tmp_path):
    evaluation = open_zeroshot(ZeroshotConfig(make_folder(tmp_path, {"bee": 2, "alarm_clock": 1})))
    pictures, texts = invent(evaluation)
    of_others = replace(texts, bad=frozenset({"a text of another benchmark"}))
    assert evaluation.grade(pictures, of_others).equals(evaluation.grade(pictures, texts))
    lost = replace(texts, bad=frozenset({"a photo of a alarm clock."}))
    with pytest.raises(ValueError, match=r"^zeroshot\.classes: 'a photo of a alarm clock\.' has an"):
        evaluation.grade(pictures, lost)
