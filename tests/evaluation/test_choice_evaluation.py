"""A benchmark as an exam: cosines against a slow loop, controls, the table; images that an exam loses."""

import json
from dataclasses import replace

import numpy as np
import pytest

from raycomp.config import TooMuchBadData, override_all
from raycomp.data.samples import write_tar
from raycomp.evaluation.benchmarks.choice import UNCONFIRMED, Choice
from raycomp.evaluation.choices import ChoiceEvaluation, Picture, Texts
from raycomp.evaluation.compare import compare_tables, find_partings
from raycomp.evaluation.config import EvaluateConfig, RetrievalConfig
from raycomp.evaluation.embed import check_images
from raycomp.evaluation.results import compute_outcomes, make_lines, report_lines
from raycomp.evaluation.retrieval import open_retrieval
from tests.drawn import world_shards
from tests.evaluation.embedded import embed, invent


def score_length(texts: list[str]) -> dict[str, np.ndarray]:
    return {"shorter_caption": np.array([-len(text) for text in texts], float)}


def make_choices(num: int, split: str = "swap_att", positives: int = 1) -> list[Choice]:
    made = []
    for i in range(num):
        right = tuple(f"{split} true {i} {p}" for p in range(positives))
        made.append(Choice("made", split, str(i), f"{i // 2}.jpg", right, (f"{split} false {i} is longer",)))
    return made


def make_evaluation(choices: list[Choice], **more) -> ChoiceEvaluation:
    uris = {choice.image: f"/pictures/{choice.image}" for choice in choices}
    return ChoiceEvaluation("made", choices, more.pop("uris", uris), score_length, **more)


def test_scores_are_the_cosines_of_a_slow_loop():
    evaluation = make_evaluation(make_choices(6, positives=2))
    pictures, texts = invent(evaluation)
    rows = evaluation.grade(pictures, texts).to_pylist()
    for choice, row in zip(evaluation.choices, rows, strict=True):
        image_D = pictures.image_MD[pictures.place[Picture(f"/pictures/{choice.image}")]]
        captions = [texts.text_TD[texts.place[text]] for text in choice.positives + choice.negatives]
        expected = [float(image_D @ text_D) for text_D in captions]
        assert row["positive_scores"] + row["negative_scores"] == pytest.approx(expected, abs=1e-6)
        pairs = [captions[0] @ captions[1], captions[0] @ captions[2], captions[1] @ captions[2]]
        assert row["text_scores"] == pytest.approx(pairs, abs=1e-6)


def test_another_image_is_never_the_same_one_and_the_mean_is_of_all_images():
    evaluation = make_evaluation(make_choices(40))
    pictures, texts = invent(evaluation)
    mean_D = pictures.image_MD.mean(0) / np.linalg.norm(pictures.image_MD.mean(0))
    for row in evaluation.grade(pictures, texts).to_pylist():
        assert row["shuffled_image_positives"] != row["positive_scores"]
        text_D = texts.text_TD[texts.place[row["positives"][0]]]
        assert row["mean_image_positives"] == pytest.approx([float(mean_D @ text_D)], abs=1e-6)


def test_rows_without_a_picture_stay_and_say_why_and_with_one_image_there_is_no_other():
    choices = make_choices(6)
    evaluation = make_evaluation(choices, uris={"0.jpg": "/pictures/0.jpg", "1.jpg": "/pictures/1.jpg"})
    table = evaluation.grade(*invent(evaluation, bad=["/1.jpg"]))
    assert table["status"].to_pylist() == ["ok"] * 2 + ["corrupt_image"] * 2 + ["no_image"] * 2
    assert [bool(scores) for scores in table["positive_scores"].to_pylist()] == [True] * 2 + [False] * 4
    assert len(compute_outcomes(table)[0].key_N) == 2 and "shuffled_image_positives" not in table.column_names
    assert {outcome.control for outcome in compute_outcomes(table)} == {"", "shorter_caption"}
    table = evaluation.grade(*invent(evaluation, bad=["0.jpg", "1.jpg"]))
    assert (len(table), compute_outcomes(table), make_lines("made", [])) == (6, [], [])


def test_a_row_with_a_text_that_has_no_embedding_is_left_out_and_moves_no_other():
    choices = make_choices(6, positives=2)
    evaluation = make_evaluation(choices)
    pictures, texts = invent(evaluation)
    lost = replace(texts, bad=frozenset({choices[1].negatives[0], choices[4].positives[1]}))
    whole, table = evaluation.grade(pictures, texts), evaluation.grade(pictures, lost)
    assert table["status"].to_pylist() == ["ok", "bad_embedding", "ok", "ok", "bad_embedding", "ok"]
    assert [bool(scores) for scores in table["text_scores"].to_pylist()] == [1, 0, 1, 1, 0, 1]
    for row in (0, 2, 3, 5):
        for name in ("positive_scores", "negative_scores", "text_scores", "shorter_caption_negatives"):
            assert table[name][row] == whole[name][row]
    assert {len(outcome.key_N) for outcome in compute_outcomes(table)} == {4}


def test_a_constant_model_scores_nothing_with_a_tie_in_every_row():
    evaluation = make_evaluation(make_choices(10) + make_choices(10, "swap_obj"))
    pictures, texts = invent(evaluation)
    same = Texts(texts.place, np.repeat(texts.text_TD[:1], len(texts.place), axis=0))
    lines = make_lines("made", compute_outcomes(evaluation.grade(pictures, same)))
    own = [line for line in lines if not line.control]
    assert {line.split for line in own} == {"swap_att", "swap_obj", "micro", "macro"}
    assert all((line.value, line.ties) == (0, line.n) for line in own)


def test_items_of_two_images_are_judged_together():
    rows = []
    for item in "ab":
        captions = [f"{item} one", f"{item} two"]
        for i in (0, 1):
            own, other = (captions[i],), (captions[1 - i],)
            rows.append(Choice("made", "all", f"{item}{i}", f"{item}{i}.jpg", own, other, group=item))
    evaluation = make_evaluation(rows)
    pictures, texts = invent(evaluation)
    outcomes = {o.metric: o for o in compute_outcomes(evaluation.grade(pictures, texts)) if not o.control}
    assert set(outcomes) == {"text", "image", "group"}
    assert outcomes["group"].key_N.tolist() == ["a", "b"]
    cosine_MT = pictures.image_MD @ texts.text_TD.T
    for i in (0, 2):
        own, other = cosine_MT[[i, i + 1], [i, i + 1]], cosine_MT[[i, i + 1], [i + 1, i]]
        assert outcomes["text"].right_N[i // 2] == (own > other).all()
        assert outcomes["image"].right_N[i // 2] == (own > other[::-1]).all()


def test_what_is_not_confirmed_and_an_item_whose_other_image_is_missing_take_no_part():
    choices = make_choices(4)
    choices[0] = choices[0]._replace(defects=(UNCONFIRMED,))
    items = [one._replace(group=f"{i // 2}", image=f"{i}.jpg") for i, one in enumerate(make_choices(8))]
    some = make_evaluation(items, uris={f"{i}.jpg": f"/{i}.jpg" for i in range(7)})
    for evaluation, counts in ((make_evaluation(choices), (3, 3)), (some, (3, 4))):
        found = compute_outcomes(evaluation.grade(*invent(evaluation)))
        assert {(len(outcome.key_N), outcome.num_all) for outcome in found} == {counts}


def test_two_models_are_compared_on_the_rows_of_both():
    evaluation = make_evaluation(make_choices(40) + make_choices(20, "swap_obj"))
    pictures, texts = invent(evaluation)
    first = evaluation.grade(pictures, texts)
    again = evaluation.grade(replace(pictures, status_M=["corrupt_image", *pictures.status_M[1:]]), texts)
    lines = {(line.split, line.metric): line for line in compare_tables("made", first, again)}
    assert lines["swap_att", "accuracy"].n == 38
    assert lines["micro", "accuracy"].difference == 0
    other = evaluation.grade(*invent(evaluation, seed=5))
    line = {one.split: one for one in compare_tables("made", first, other)}["micro"]
    assert line.run_value - line.reference_value == pytest.approx(line.difference)
    assert line.only_run - line.only_reference == pytest.approx(60 * line.difference)
    partings = find_partings("made", first, other, 3)
    assert len(partings) == 6
    assert all((p.first > 0) != (p.second > 0) for p in partings)


def test_tables_of_other_examples_are_not_compared():
    first, second = (make_evaluation(make_choices(num)) for num in (4, 6))
    with pytest.raises(ValueError, match=r"^made: the two evaluations have different examples \(4 and 6"):
        compare_tables("made", first.grade(*invent(first)), second.grade(*invent(second)))


def check(evaluation, pictures, **limits) -> list[str]:
    """Return what is said of one exam."""
    said: list[str] = []
    config = override_all(EvaluateConfig(), limits)
    try:
        assert check_images([evaluation], pictures, config, said.append) == said
    except TooMuchBadData as error:
        said.append(str(error))
    return said


def test_retrieval_over_the_few_images_that_are_left_is_refused(tmp_path):
    """200 images of which 120 are missing and 60 undecodable: 20 are left, which are easier to tell apart."""
    rows = [{"image": f"{i:03d}.jpg", "captions": [f"text {i}"]} for i in range(200)]
    for i in range(120, 200):
        (tmp_path / f"{i:03d}.jpg").write_bytes(b"x")
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    evaluation = open_retrieval(RetrievalConfig(str(tmp_path)))
    pictures, texts = invent(evaluation, bad=[f"{i:03d}.jpg" for i in range(120, 180)])
    *said, error = check(evaluation, pictures)
    some, others = (", ".join(f"{first + i:03d}.jpg" for i in range(10)) for first in (120, 0))
    corrupt = f"corrupt_image (the image bytes do not decode), such as {some}; left out"
    missing = f"no_image (there is no image, or a list of several), such as {others}; left out"
    assert said == [
        f"retrieval: 60 of 200 images are {corrupt}",
        f"retrieval: 120 of 200 images are {missing}",
    ]
    assert error.startswith("retrieval: 75.0% of 80 present images cannot be used (60 corrupt_image)")
    error = check(evaluation, pictures, max_bad_fraction=0.8, max_missing_fraction=0.5)[-1]
    assert "60.0% of 200 images" in error and "max_missing_fraction=0.5" in error
    assert check(evaluation, pictures, max_bad_fraction=0.8) == said
    found = make_lines("retrieval", compute_outcomes(evaluation.grade(pictures, texts)))
    one, mean = (20, 200), (40, 400)
    assert [(line.n, line.num_all) for line in found] == [one] * 6 + [mean] * 3
    counts = [tuple(row[2:4]) for table in report_lines(found) for row in table.rows]
    assert counts == [one] * 6 + [mean] * 3


def test_samples_of_shards_are_counted_by_what_they_lack(tmp_path, tiny_scorer):
    (samples,) = [shard for _, shard in world_shards(8, 0, 0, per_shard=8)]
    changes = [{"jpg": b"x"}, {"txt": b" "}, {"txt": b"\xff"}, {}]
    broken = [(key, {**own, **change}) for (key, own), change in zip(samples, changes, strict=False)]
    del broken[3][1]["jpg"]
    write_tar(str(tmp_path / "0.tar"), [*broken, *samples[4:]])
    evaluation = open_retrieval(RetrievalConfig(str(tmp_path)))
    pictures, _ = embed(evaluation, tiny_scorer)
    *said, error = check(evaluation, pictures)
    statuses = [line.split(" is ")[1].split()[0] for line in said]
    assert statuses == ["bad_encoding", "corrupt_image", "no_caption", "no_image"]
    assert "42.9% of 7 present images" in error


def test_an_image_of_several_rows_is_counted_once():
    evaluation = make_evaluation(
        make_choices(8), ambiguous=("3.jpg",), uris={f"{i}.jpg": f"/{i}.jpg" for i in (0, 1)}
    )
    pictures, texts = invent(evaluation, bad=["/1.jpg"])
    assert [line.partition(" (")[0] for line in check(evaluation, pictures, max_bad_fraction=0.5)] == [
        "made: 1 of 4 images is ambiguous_image",
        "made: 1 of 4 images is corrupt_image",
        "made: 1 of 4 images is no_image",
    ]
    statuses = evaluation.grade(pictures, texts)["status"].to_pylist()
    assert statuses == [s for s in ("ok", "corrupt_image", "no_image", "ambiguous_image") for _ in (0, 1)]


def test_a_split_that_is_lost_stays_in_the_table_and_in_the_means():
    rows = make_choices(6) + [one._replace(image=f"x{one.image}") for one in make_choices(4, "swap_obj")]
    whole = make_evaluation(rows)
    some = make_evaluation(rows, uris={f"{i}.jpg": f"/pictures/{i}.jpg" for i in (0, 1)})
    table = some.grade(*invent(some))
    lines = {line.split: line for line in make_lines("made", compute_outcomes(table)) if not line.control}
    counts = {split: (line.n, line.num_all) for split, line in lines.items()}
    assert counts == {"swap_att": (4, 6), "swap_obj": (0, 4), "micro": (4, 10), "macro": (4, 10)}
    assert np.isnan(lines["swap_obj"].value) and lines["macro"].value == lines["swap_att"].value
    both = compare_tables("made", whole.grade(*invent(whole)), table)
    assert {line.split: (line.n, line.num_all) for line in both} == counts
