"""The theory as it runs: exact for the built encoders, whatever it is for trained ones."""

import math

import numpy as np
import pytest
import torch

from lab.theory import command as theory
from lab.theory import scm
from lab.theory.command import BUILT, MEASURES, ORDERED, TRAINED, UNORDERED, report_theory
from raycomp.table import join_text


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return theory.run_theory(seeds=range(2), steps=3)


def pick(table: list[dict], version: str, mirrored: float, num_scenes: int) -> tuple[dict, dict]:
    """Return the blind and the ordered line of a setting."""
    setting = (version, mirrored, num_scenes)
    unordered, ordered = (
        line for line in table if (line["version"], line["mirrored"], line["num_scenes"]) == setting
    )
    assert (unordered["encoder"], ordered["encoder"]) == (UNORDERED, ORDERED)
    return unordered, ordered


def test_one_loss_and_chance_against_certainty(rows):
    unordered, ordered = pick(theory.summarise(rows), BUILT, 0.0, 320)
    assert unordered["infonce"] == pytest.approx(ordered["infonce"], abs=1e-9)
    assert unordered["infonce_more_low"] <= 1e-9 and unordered["infonce_more_high"] >= -1e-9
    for op in ("swap", "replace", "add"):
        assert unordered[op] == 0.5
        assert ordered[op] == 1
    for line in (unordered, ordered):
        assert line["paraphrase_distance"] == 0
        assert line["text_invariant_r2"] > 0.9 and line["image_invariant_r2"] > 0.9
        assert abs(line["text_private_r2"]) < 0.05 and abs(line["image_private_r2"]) < 0.05


def test_infonce_distinguishes_them_where_scenes_occur_mirrored(rows):
    unordered, ordered = pick(theory.summarise(rows), BUILT, 1.0, 320)
    assert unordered["infonce"] > ordered["infonce"] + 0.1
    assert unordered["swap"] == 0.5
    assert unordered["text_invariant_r2"] < ordered["text_invariant_r2"] - 0.1


def test_infonce_is_the_softmax_of_its_batches():
    world = scm.draw_world(0, 64)
    text, image = theory.build(world, ORDERED)
    got = theory.measure(world, text, image, np.random.default_rng(5))["infonce"]
    sample = scm.draw_sample(world, 1024, np.random.default_rng(5))
    x, y = image(sample.image_NI), text(scm.observe_texts(world, sample.texts))
    losses = []
    for part in np.split(np.arange(1024), 8):
        odds = np.exp(20 * x[part] @ y[part].T)
        losses += [-np.log(np.diag(odds) / odds.sum(axis=axis)).mean() for axis in (0, 1)]
    assert got == pytest.approx(np.mean(losses), abs=1e-9)


def test_training_lowers_the_loss_and_repeats():
    world = scm.draw_world(0, 64)
    losses = []
    for encoder, steps in ((ORDERED, 0), (ORDERED, 80), (ORDERED, 80), (UNORDERED, 80)):
        state, num_threads = torch.random.get_rng_state(), torch.get_num_threads()
        text, image = theory.train(world, encoder, 3, steps)
        assert torch.equal(torch.random.get_rng_state(), state)
        assert torch.get_num_threads() == num_threads
        measured = theory.measure(world, text, image, np.random.default_rng(1))
        losses.append(measured["infonce"])
    assert losses[0] > 4.5, "log 128 is 4.85"
    assert losses[1] < losses[0] - 1
    assert losses[1] == losses[2]
    assert losses[3] != losses[2]


def test_the_unordered_tower_ignores_order_by_build():
    world = scm.draw_world(0, 64)
    texts = scm.draw_sample(world, 200, np.random.default_rng(0)).texts
    moved = scm.swap(texts, np.random.default_rng(1))
    for encoder, is_unordered in ((UNORDERED, True), (ORDERED, False)):
        text, _ = theory.train(world, encoder, 0, 2)
        a, b = (text(scm.observe_texts(world, some)) for some in (texts, moved))
        assert (np.abs(a - b).max() < 1e-5) == is_unordered


def test_the_interval_is_students():
    """Differences 1, 2 and 6: mean 3, sd sqrt 7, t = 4.302653 at 2 degrees of freedom."""
    rows = []
    for seed, more in enumerate((1.0, 2.0, 6.0)):
        for encoder in (UNORDERED, ORDERED):
            row = {"version": BUILT, "mirrored": 0.0, "num_scenes": 9, "seed": seed, "encoder": encoder}
            row |= dict.fromkeys(MEASURES, 10.0 * seed) | dict.fromkeys(theory.PREMISE_COLUMNS, 1.0 - seed)
            rows.append(row | {"infonce": 10.0 * seed + more * (encoder == UNORDERED)})
    unordered, ordered = theory.summarise(rows)
    half = 4.302653 * math.sqrt(7 / 3)
    assert unordered["infonce_more"] == 3
    assert unordered["infonce_more_low"] == pytest.approx(3 - half)
    assert unordered["infonce_more_high"] == pytest.approx(3 + half)
    assert (ordered["infonce_more"], ordered["infonce_more_low"]) == (0, 0)
    assert (unordered["swap"], unordered["swap_sd"]) == (10, 10)
    assert unordered["add_nearest"] == -1, "of a premise the worst world counts"
    assert math.isnan(theory.summarise(rows[:2])[0]["infonce_more_low"])


def test_the_headline_compares_both_encoders(rows):
    assert theory.say_theory(rows).endswith("score 0.500 and 1.000 on SWAP")


def test_one_seed_has_no_deviation(rows):
    first = [row for row in rows if row["seed"] == rows[0]["seed"]]
    text = join_text(report_theory(first))
    assert "nan" not in text and text.startswith("One seed; ")


def test_the_table_shows_every_setting_and_measure(rows):
    text = join_text(report_theory(rows))
    for head in MEASURES.values():
        assert text.count(f"\n{head} ") == len(theory.SETTINGS)
    for version, mirrored, num_scenes in theory.SETTINGS:
        assert f"{version}, {num_scenes} scenes, {'every' if mirrored else 'order'}" in text
    assert "accuracy, SWAP 0.500 (0.000) 1.000 (0.000)" in " ".join(text.split())
    assert TRAINED in text
    for head in theory.PREMISES.values():
        assert text.count(f"\n{head} ") == 3, "of the built rows"
    assert max(map(len, text.splitlines())) <= 100


def test_the_table_says_that_the_premise_of_add_fails(rows):
    """The number is that of the worlds, and of SWAP the premise holds exactly where order is redundant."""
    least = min(row["add_nearest"] for row in rows)
    assert 0.2 < least < 0.5
    reported = " ".join(join_text(report_theory(rows)).split())
    assert f"differ by at least {least:.3f}: the conclusion is shown, not from its premise" in reported
    for row in rows:
        assert row["swap_single"] == (0 if row["mirrored"] else 1)
        assert row["add_single"] == row["replace_single"] == 0


def test_no_seeds_is_an_error():
    with pytest.raises(ValueError, match="seeds: must be at least 1"):
        theory.run_theory(seeds=())
