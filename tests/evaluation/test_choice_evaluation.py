"""A benchmark as an exam: cosines against a slow loop, controls, rows without a picture, the table."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from raycomp.evaluation.benchmarks.choice import UNCONFIRMED, Choice
from raycomp.evaluation.choices import ChoiceEvaluation, Picture, Texts
from raycomp.evaluation.compare import compare_tables, find_partings
from raycomp.evaluation.results import Line, compute_outcomes, make_lines, report_lines
from raycomp.table import write_csv
from tests.evaluation.embedded import invent


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


def test_the_table_is_a_line_for_every_split_metric_and_control():
    evaluation = make_evaluation(make_choices(12, positives=2) + make_choices(30, "swap_obj", positives=2))
    lines = make_lines("made", compute_outcomes(evaluation.grade(*invent(evaluation))))
    rows = list(csv.DictReader(io.StringIO(write_csv([Line._fields, *lines]))))
    by_place = {(row["split"], row["metric"], row["control"]): row for row in rows}
    controls = ("", "shorter_caption", "shuffled_image", "mean_image")
    expected = {(m, c) for m in ("accuracy", "augmented_accuracy", "brittleness") for c in controls}
    assert {place[1:] for place in by_place if place[0] == "swap_att"} == expected | {("tot", "")}
    names = ("swap_att", "swap_obj", "macro", "micro")
    *parts, macro, micro = (float(by_place[name, "accuracy", ""]["value"]) for name in names)
    assert (macro, micro) == pytest.approx((np.mean(parts), (12 * parts[0] + 30 * parts[1]) / 42))
    assert by_place["micro", "accuracy", "shorter_caption"]["detectable"] == ""
    # The false caption is the longer one in every row.
    assert by_place["swap_obj", "accuracy", "shorter_caption"]["value"] == "1.0"
    assert len(report_lines(lines)) == 4


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
