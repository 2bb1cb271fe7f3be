"""Retrieval as an exam: ranks against brute force on real photos, files, shards, defects, what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from raycomp.data.samples import write_tar
from raycomp.evaluation.compare import check_same, warn_other_targets
from raycomp.evaluation.config import RetrievalConfig
from raycomp.evaluation.results import MEANINGS, compute_outcomes, make_lines
from raycomp.evaluation.retrieval import find_captions, open_retrieval
from tests.drawn import world_shards
from tests.evaluation.embedded import embed, invent, sit


def write_captions(folder, rows, name="captions.jsonl"):
    """Write the rows, and a file for every image named."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
    (folder / name).write_text(text)
    for row in rows:
        (folder / "images" / row["image"]).write_bytes(b"x")
    return open_retrieval(RetrievalConfig(str(folder)))


def make_rows(num=12):
    captions = ([f"text {i} {j}" for j in range(1 + i % 3)] for i in range(num))
    return [{"image": f"{i}.jpg", "captions": own} for i, own in enumerate(captions)]


def outcomes_of(table):
    return {outcome.metric: outcome for outcome in compute_outcomes(table)}


def test_ranks_are_those_of_brute_force(tmp_path):
    rows = make_rows(15)
    evaluation = write_captions(tmp_path, rows)
    pictures, texts = invent(evaluation)
    table = evaluation.grade(pictures, texts)
    images = {row["image"]: pictures.image_MD[i] for i, row in enumerate(rows)}
    captions = [(row["image"], text) for row in rows for text in row["captions"]]

    def cosine(image, text):
        return np.float32(images[image].astype(np.float64) @ texts.text_TD[texts.place[text]])

    for row in table.to_pylist():
        if row["direction"] == "text_to_image":
            own = cosine(row["image"], row["query"])
            rank = 1 + sum(cosine(name, row["query"]) >= own for name in images if name != row["image"])
        else:
            own = max(cosine(name, text) for name, text in captions if name == row["image"])
            others = [text for name, text in captions if name != row["image"]]
            rank = 1 + sum(cosine(row["image"], text) >= own for text in others)
        assert row["rank"] == rank
    found = outcomes_of(table)
    assert len(table) == 15 + 30 and set(found) <= set(MEANINGS)
    names = ("image_retrieval_recall", "text_retrieval_recall", "mean_recall")
    assert set(found) == {f"{name}@{k}" for name in names for k in (1, 5, 10)}
    lines = {line.metric: line for line in make_lines("retrieval", [*found.values()])}
    for k in (1, 5, 10):
        *sides, mean = (lines[f"{name}@{k}"].value for name in names)
        assert mean == pytest.approx(sum(sides) / 2)
    assert found["image_retrieval_recall@5"].chance == pytest.approx(5 / 15)
    assert len(found["image_retrieval_recall@5"].right_N) == 30
    assert len(set(found["image_retrieval_recall@5"].unit_N)) == 15
    few = write_captions(tmp_path / "few", make_rows(5))
    found = outcomes_of(few.grade(*invent(few)))
    assert {name for name in found if name.startswith("image")} == {"image_retrieval_recall@1"}


def test_a_perfect_model_and_its_chance(tmp_path):
    evaluation = write_captions(tmp_path, make_rows())
    pictures, texts = invent(evaluation, dim=16)
    for item in evaluation.items:
        for text in item.captions:
            texts.text_TD[texts.place[text]] = pictures.image_MD[int(item.image[:-4])]
    found = outcomes_of(evaluation.grade(pictures, texts))
    assert all(outcome.right_N.all() and not outcome.tie_N.any() for outcome in found.values())
    # Images of one, two and three captions, four of each; 24 captions in all.
    chances = [1 - np.prod([(24 - own - i) / (24 - i) for i in range(5)]) for own in (1, 2, 3)]
    assert found["text_retrieval_recall@5"].chance == pytest.approx(np.mean(chances))
    assert found["image_retrieval_recall@10"].chance == pytest.approx(10 / 12)


def test_an_image_that_cannot_be_judged_takes_its_captions_along(tmp_path):
    whole, cut = write_captions(tmp_path / "a", make_rows()), write_captions(tmp_path / "b", make_rows()[1:])
    pictures, texts = invent(whole, bad=["/0.jpg"])
    rows = whole.grade(pictures, texts).to_pylist()
    lost = [(row["status"], row["rank"], row["num_targets"]) for row in rows if row["image"] == "0.jpg"]
    assert lost == [("corrupt_image", None, None)] * 2
    # What is left is judged as if it had never been there.
    place = {one._replace(uri=one.uri.replace("/a/", "/b/")): i for one, i in pictures.place.items()}
    alone = cut.grade(replace(pictures, place=place), texts).to_pylist()
    assert [row for row in rows if row["image"] != "0.jpg"] == alone


def test_shared_captions_and_duplicate_images_are_reported_and_lose(tmp_path):
    rows = make_rows(6)
    rows[1]["captions"] = rows[2]["captions"] = ["the same"]
    evaluation = write_captions(tmp_path, rows)
    pictures, texts = invent(evaluation)
    pictures.image_MD[4] = pictures.image_MD[5]
    found = {(row["direction"], row["id"]): row for row in evaluation.grade(pictures, texts).to_pylist()}
    assert found["text_to_image", "1.jpg#0"]["defects"] == ["shared_caption"]
    counterpart = found["text_to_image", "4.jpg#0"]
    assert counterpart["defects"] == ["twin_image"] and counterpart["ties"] >= 1 and counterpart["rank"] > 1
    # The first and second image have one caption between them: whoever likes it best ties.
    for image in ("1.jpg", "2.jpg"):
        row = found["image_to_text", image]
        assert row["ties"] >= 1 and row["rank"] > 1 and row["num_own"] == 1


def test_a_line_for_every_caption_is_one_image_and_may_hold_what_unicode_calls_a_line_break(tmp_path):
    rows = [{"image": row["image"], "caption": text} for row in make_rows() for text in row["captions"]]
    lists = [{"image": row["image"], "caption": row["captions"]} for row in make_rows()]
    by_line = write_captions(tmp_path / "a", rows)
    in_lists = write_captions(tmp_path / "b", lists, "captions.json")
    assert by_line.items == in_lists.items == write_captions(tmp_path / "c", make_rows()).items
    rows = [{"image": row["image"], "captions": ["one\u2028two\x85three"]} for row in make_rows(3)]
    files = write_captions(tmp_path / "plain", rows)
    text = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "plain/again.jsonl").write_text(text)
    assert open_retrieval(RetrievalConfig(str(tmp_path / "plain/again.jsonl"))).items == files.items


def test_a_split_of_karpathys_json_is_evaluated(tmp_path):
    wanted = write_captions(tmp_path, make_rows()[::3]).items
    images = [
        {
            "filename": row["image"],
            "split": ("test", "val", "train")[i % 3],
            "sentences": [{"raw": text} for text in row["captions"]],
        }
        for i, row in enumerate(make_rows())
    ]
    path = tmp_path / "dataset_coco.json"
    path.write_text(json.dumps({"images": images}))
    assert open_retrieval(RetrievalConfig(str(path), split="test")).items == wanted
    for spec, said in (
        (path, "has no such split; it has test, train, val"),
        (tmp_path / "a.csv", "is for a json"),
    ):
        with pytest.raises(ValueError, match=f"^retrieval.split='dev': .*{said}"):
            open_retrieval(RetrievalConfig(str(spec), split="dev"))


def test_evaluations_among_other_captions_are_not_compared_and_among_fewer_are_reported(tmp_path):
    rows = make_rows(6)
    changed = [{**row, "captions": [*row["captions"][:-1], "x"]} for row in rows]
    evaluation, other = write_captions(tmp_path / "a", rows), write_captions(tmp_path / "b", changed)
    first = evaluation.grade(*invent(evaluation))
    with pytest.raises(ValueError, match=r"^retrieval: the two evaluations have different examples"):
        check_same("retrieval", first, other.grade(*invent(other)))
    fewer = evaluation.grade(*invent(evaluation, bad=["0.jpg"]))
    check_same("retrieval", first, fewer)
    assert warn_other_targets("retrieval", first, first) == []
    targets, rows = warn_other_targets("retrieval", first, fewer)
    assert "first chose among 6 and 12 targets, second among 5 and 11" in targets
    assert "2 rows are scored in first alone, 0 in second alone; the difference is over the 16 rows" in rows


def test_captions_of_a_sample():
    assert find_captions("a dog\n a cat \n", None) == ("a dog", "a cat")
    assert find_captions("a dog", '{"captions": ["x", " y ", "", 3]}') == ("x", "y")
    assert find_captions("a dog", '{"caption": "x"}') == ("a dog",)
    assert find_captions(None, '{"captions": null}') == ()


def test_shards_are_judged_as_files_are(tmp_path, tiny_scorer):
    samples = [sample for _, shard in world_shards(8, 0, 0, per_shard=8) for sample in shard]
    lines = [f"{members['txt'].decode()}\nthe picture of {key}" for key, members in samples]
    write_tar(str(tmp_path / "s/0.tar"), [
        (key, {"jpg": members["jpg"], "txt": text.encode()})
        for (key, members), text in zip(samples, lines, strict=True)
    ])  # fmt: skip
    rows = []
    for (key, members), text in zip(samples, lines, strict=True):
        (tmp_path / f"{key}.jpg").write_bytes(members["jpg"])
        rows.append({"image": f"{key}.jpg", "captions": text.split("\n")})
    (tmp_path / "captions.json").write_text(json.dumps(rows))
    shards, files = (open_retrieval(RetrievalConfig(str(tmp_path / name))) for name in ("s", "captions.json"))
    first, second = sit(shards, tiny_scorer).to_pylist(), sit(files, tiny_scorer).to_pylist()
    assert len(first) == 24 and first[0]["id"].startswith("0.tar/")
    for one, other in zip(first, second, strict=True):
        for name in ("direction", "status", "defects", "rank", "ties", "num_own", "num_targets"):
            assert one[name] == other[name]


def test_what_is_missing_is_named_in_one_line(tmp_path, tiny_scorer):
    for number, (name, text, said) in enumerate(
        (
            ("x.txt", "", "captions.jsonl or captions.json is missing"),
            ("captions.jsonl", "", "has no image with captions"),
            ("captions.jsonl", "{", "cannot be read as JSON"),
            ("captions.json", "3", "must hold a JSON list, or an object of captions by image"),
            ("captions.jsonl", '{"image": "a.jpg", "captions": []}', "captions=[]"),
            ("captions.jsonl", '{"image": "a.jpg", "caption": "x"}', "none of 1 named images was found"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(ValueError) as error:
            open_retrieval(RetrievalConfig(str(folder)))
        assert said in str(error.value) and "\n" not in str(error.value)
        assert str(error.value).startswith(f"retrieval.input={str(folder)!r}"), said
    evaluation = write_captions(tmp_path / "two", make_rows(2))
    with pytest.raises(ValueError, match=r"retrieval\.input=.* 1 of its 2 images can be scored"):
        invent(evaluation, bad=["/0.jpg"])
    write_tar(str(tmp_path / "shards/0.tar"), [])
    with pytest.raises(ValueError, match=r"retrieval\.input=.*0\.tar is an empty_shard"):
        embed(open_retrieval(RetrievalConfig(str(tmp_path / "shards"))), tiny_scorer)


def test_an_empty_option_and_rows_of_a_list_are_one_image(tmp_path, tiny_scorer):
    with pytest.raises(ValueError, match=r"retrieval\.input='': must name images with captions"):
        open_retrieval(RetrievalConfig())
    (_, samples), *_ = world_shards(2, 0, 0, per_shard=2)
    for key, members in samples:
        (tmp_path / f"{key}.jpg").write_bytes(members["jpg"])
    (tmp_path / "torn.jpg").write_bytes(b"x")
    names = [f"{key}.jpg" for key, _ in samples]
    lines = [f"{names[0]},one", f"{names[1]},a", f"{names[0]},two", "torn.jpg,lost", f"{names[0]},three"]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,caption", *lines]))
    evaluation = open_retrieval(RetrievalConfig(str(tmp_path / "pairs.csv")))
    rows = [row for row in sit(evaluation, tiny_scorer).to_pylist() if row["direction"] == "text_to_image"]
    assert [row["query"] for row in rows if row["status"] == "ok"] == ["one", "two", "three", "a"]


def test_an_image_with_a_caption_that_has_no_embedding_is_not_judged(tmp_path):
    evaluation = write_captions(tmp_path, make_rows())
    pictures, texts = invent(evaluation)
    table = evaluation.grade(pictures, replace(texts, bad=frozenset({"text 4 1"})))
    rows = table.to_pylist()
    assert {row["image"] for row in rows if row["status"] == "bad_embedding"} == {"4.jpg"}
    statuses = list(pictures.status_M)
    statuses[[one.uri.rpartition("/")[2] for one in pictures.place].index("4.jpg")] = "bad_embedding"
    assert rows == evaluation.grade(replace(pictures, status_M=statuses), texts).to_pylist()
