"""The page of training: a long curve stays short and keeps its peaks, the funnel adds up, text is text."""

import math

import numpy as np

from raycomp.config import override_all, to_dict
from raycomp.report.page import POLICY, SCRIPT
from raycomp.training.command import list_uses, render_train, smooth, thin
from raycomp.training.config import TrainConfig
from tests.report.html_tree import Element, read_html

HOSTILE = "<script>alert(1)</script>\"'&\x00"


def make_metrics(count: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    curves = {name: 1 + generator.random(count) for name in ("loss", "learning_rate", "samples_per_s")}
    return {"step": np.arange(count), **curves}


def make_run(count: int, **more: object) -> dict:
    options = {"input": "/data/curated", "negatives": "/data/negatives", "train.loss": "negclip"}
    dropped = {"corrupt_image": 5, "not_in_subset": 650}
    return {
        "config": to_dict(override_all(TrainConfig(negatives="n"), options)),
        "funnel": {"read": 13_000, "corpus": 13_000, "kept": 12_345, "dropped": dropped},
        "commands": {"Rerun": "raycomp train --out /runs/clip", **list_uses("/runs/clip")},
        "versions": {"python": "3.11"},
        "fingerprint": {"input": "0" * 64},
        **{"warnings": [], "device": "cpu", "copies": 0, "pairs_with_negatives": 11_000},
        **{"steps": count, "epochs": count * 256 / 12_345, "batch_size": 256, "workers": 2},
        **{"pairs": 12_345, "first_loss": 2.0, "last_loss": 1.0, "train_s": 9.0, "samples_per_s": 400.0},
        "negatives_by_kind": {"SWAP object": 9_000, "REPLACE attribute": 8_000, "ADD object": 2_000},
        "resumed": [{"step": count // 3, "why": "worker lost"}, {"step": count // 2, "why": "driver killed"}],
        "evaluations": [{"step": count * i // 5, "recall@1": i / 7, "zero": i / 50} for i in range(1, 6)],
        **more,
    }


def draw(count: int, **more: object) -> Element:
    return read_html(render_train(make_run(count, **more), make_metrics(count)))


def find_section(page: Element, title: str) -> Element:
    return next(one for one in page.all("section") if one.all("h2")[0].text == title)


def test_a_thinned_curve_keeps_every_peak_of_its_stretches():
    value_N = np.random.default_rng(0).normal(size=100_003)
    value_N[[7, 60_000]] = 99, -99
    at = thin(value_N, 1000)
    assert 500 < len(at) <= 1000 and (np.diff(at) > 0).all() and {7, 60_000} <= {*at.tolist()}
    for start in range(0, 100_000, 10_000):  # wider than any stretch
        whole, some = value_N[start : start + 10_000], value_N[at[(at >= start) & (at < start + 10_000)]]
        assert (some.max(), some.min()) == (whole.max(), whole.min())
    for count in (0, 1, 2, 999, 1000):
        np.testing.assert_array_equal(thin(value_N[:count], 1000), np.arange(count))


def test_a_smoothed_value_is_the_mean_around_it():
    for width in [1, 3, 7, 101]:
        value_N, half = np.random.default_rng(1).normal(size=40), width // 2
        oracle = [value_N[max(0, i - half) : i + half + 1].mean() for i in range(40)]
        np.testing.assert_allclose(smooth(value_N, width), oracle, rtol=1e-12)
        np.testing.assert_allclose(smooth(np.full(40, 2.5), width), 2.5)


def test_the_page_reports_what_was_trained_on_what():
    page = draw(600)
    assert [one.text for one in page.all("script")] == [SCRIPT]
    assert page.all("meta")[1].attributes["content"] == POLICY
    assert page.all("h1")[0].text.endswith("in 600 steps on 12,345 pairs.")
    rows = find_section(page, "Pairs read and pairs used").rows()
    counts = [int(row[1].replace(",", "").replace("\u2212", "-")) for row in rows]
    assert counts == [13_000, -650, -5, 12_345] and sum(counts[:-1]) == counts[-1]
    again = find_section(draw(600, pairs=12_385, copies=40), "Pairs read and pairs used").rows()
    assert again[:-1] == rows and again[-1][:2] == ["copies", "40"]
    facts = dict(find_section(page, "Training").rows())
    assert facts["Steps"] == "600 of 256 pairs" and facts["Epochs"] == "12.44 of 12,345 pairs"
    negatives = find_section(page, "Hard negatives")
    assert negatives.rows()[0][:3] == ["ADD", "object", "2,000"]
    assert "11,000 of 12,345 pairs (89.1\u00a0%)" in negatives.text
    assert "raycomp publish" in find_section(page, "Commands").text
    fetch = list_uses("s3://bucket/a run")["Fetch the model"]
    assert fetch == "aws s3 cp --recursive 's3://bucket/a run/checkpoint' checkpoint"
    loss, untouched = (find_section(one, "Loss") for one in (page, draw(600, resumed=[])))
    assert len(loss.all("figure")[0].all("line", "mark")) == 2 and not untouched.all("line", "mark")
    assert "2 times: step 200 (worker lost), step 300 (driver killed)." in loss.text
    [dots] = draw(1, evaluations=[], resumed=[]).all("figure")[0].all("path", "dots")
    assert dots.attributes["d"].count("M") == 1


def test_numbers_that_there_are_not_leave_a_gap_not_an_error():
    metrics = make_metrics(50)
    metrics["samples_per_s"][:] = np.nan
    metrics["loss"][7] = np.nan
    run = make_run(50, evaluations=[{"step": 25, "a": None}, {"step": 50, "a": 0.5, "b": math.inf}])
    page = read_html(render_train(run, metrics))
    drawn = [figure.all("figcaption")[0].text for figure in page.all("figure")]
    assert drawn == ["Loss", "Learning rate", "a"]


def test_hostile_names_are_text():
    run = make_run(20, resumed=[{"step": 3, "why": HOSTILE}], evaluations=[{"step": 4, HOSTILE: 0.5}])
    config = run["config"]
    run["config"] = {**config, "input": HOSTILE, "model": {**config["model"], "name": HOSTILE}}
    run |= {"negatives_by_kind": {HOSTILE: 3}, "device": HOSTILE, "warnings": [HOSTILE]}
    run["funnel"] = {**run["funnel"], "dropped": {HOSTILE: 655}}
    run["commands"] = list_uses(f"/runs/{HOSTILE}")
    page = render_train(run, make_metrics(20))
    assert page.count("<script") == 1 and "\x00" not in page
