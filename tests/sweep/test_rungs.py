"""Rungs of shorter schedules: the trials that advance, against a plain loop, in any order of finishing; and a
finished sweep in Python."""

import json
import math
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raycomp
from raycomp.config import override_all, to_dict
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.sweep import result as finished
from raycomp.sweep.page import list_warnings, make_tables
from raycomp.sweep.result import (
    SweepResult,
    choose_best,
    count_rungs,
    fix,
    get_reached,
    list_whole,
    make_rows,
    read_trials,
    share_of_steps,
)
from raycomp.sweep.trials import DIVISORS, list_report, list_rungs, name_trial
from raycomp.training.config import TrainConfig
from tests.sweep.runs import METRIC, Cut, Fake, Values, plan_of_rungs


def halve_slowly(values: Values, num: int, seeds: int, sign: int) -> list[list[int]]:
    """Return the trials on each rung, by one plain loop."""
    alive, found = list(range(num)), []
    for divisor in (9, 3, 1):
        found.append(alive)
        own = {n: [values[n, seed, divisor] for seed in range(seeds)] for n in alive}
        sums = {n: sum(some) for n, some in own.items() if None not in some}
        chosen: list[int] = []
        while len(chosen) * 3 < len(alive) and sums:
            best = min(sums)
            for trial in sorted(sums):
                if sign * sums[trial] > sign * sums[best]:
                    best = trial
            chosen.append(best)
            del sums[best]
        alive = sorted(chosen)
    return found


def check_rungs(num: int, seeds: int, mode: str, seed: int) -> None:
    rng, sign = random.Random(seed), 1 if mode == "max" else -1
    places = [(n, number, d) for n in range(num) for number in range(seeds) for d in DIVISORS]
    values: Values = {place: rng.choice([None, *range(5)]) for place in places}
    plan, wanted = plan_of_rungs(num, seeds=seeds, mode=mode), halve_slowly(values, num, seeds, sign)
    with tempfile.TemporaryDirectory() as folder:
        fake = Fake(plan, Path(folder), values, rng)
        fake.cut = rng.randrange(30)
        try:
            trials = fake.run()
        except Cut:
            fake.cut = -1
            fake.journal.repair(plan, pytest.fail)
            trials = fake.run()
    assert len(set(fake.trained)) == len(fake.trained), "a training was repeated"
    for rung, divisor in enumerate(DIVISORS):
        found = [n for n in range(num) if any(t.divisor == divisor for t in trials[n].outcomes)]
        assert found == wanted[rung]
    assert [trial.name for trial in trials] == [name_trial(point) for point in plan.list_points()]
    last = [n for n in wanted[-1] if None not in [values[n, s, 1] for s in range(seeds)]]
    assert list_whole(plan, trials, METRIC) == [trials[n] for n in last]
    if last:
        best = max(last, key=lambda n: (sign * sum(values[n, s, 1] for s in range(seeds)), -n))
        assert choose_best(trials, {}, METRIC, mode, seeds).trial is trials[best]
    else:
        with pytest.raises(ValueError, match="no trial finished"):
            choose_best(trials, {}, METRIC, mode, seeds)


def test_the_trials_of_a_rung_are_those_of_a_plain_loop():
    for seed in range(12):
        check_rungs(1 + seed, 1 + seed % 2, ("max", "min")[seed % 3 % 2], seed)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 2), st.sampled_from(["max", "min"]), st.integers(0, 10**6))
def test_the_trials_of_drawn_rungs_are_those_of_a_plain_loop(num, seeds, mode, seed):
    check_rungs(num, seeds, mode, seed)


def test_groups_climb_on_their_own(tmp_path):
    space = "train.loss=grid(clip,siglip) train.learning_rate=grid(0.001,0.002,0.003,0.004)"
    plan = plan_of_rungs(space=space, per="train.loss")
    values: Values = {(n, 0, divisor): float(n) for n in range(8) for divisor in DIVISORS}
    trials = Fake(plan, tmp_path, values, random.Random(0)).run(list(plan.list_groups()))
    assert [get_reached(trial, plan.config) for trial in trials] == [1, 1, 2, 3] * 2
    for num, counts in [(1, [1, 1, 1]), (9, [9, 3, 1]), (20, [20, 7, 3])]:
        assert count_rungs(num) == counts
        steps = sum(n / d for n, d in zip(counts, DIVISORS, strict=True))
        assert share_of_steps(num) == pytest.approx(steps / num)
    for options, words in [
        ({"scheduler": "none"}, "rungs='steps': must be seeds with scheduler=none"),
        ({"space": "train.steps=grid(9,none)"}, "train.steps=None: must be set with rungs=steps"),
    ]:
        with pytest.raises(ValueError, match=words):
            plan_of_rungs(**options)
    config = raycomp.SweepConfig(space="train.learning_rate=grid(0.1,0.2)")
    with pytest.raises(TypeError, match=r"^callbacks=3: must be objects of ray.tune.Callback"):
        raycomp.sweep(config, tmp_path / "out", callbacks=[3])
    assert not (tmp_path / "out").exists()


@pytest.fixture
def run(tmp_path) -> tuple[Fake, SweepResult]:
    """Four trials on rungs of steps, the last of which failed; the best on one report seed."""
    space = "attribute.keep=0.5 train.freeze=image,text train.batch_size=grid(8,16,24,32)"
    plan = plan_of_rungs(space=space, report_seeds=1)
    values: Values = {(n, 0, d): n / 10 - 1 / (10 * d) for n in range(4) for d in DIVISORS}
    fake = Fake(plan, tmp_path, values | {(3, 0, 9): None, (2, 1, 1): 0.5}, random.Random(0))
    best = choose_best(fake.run(), {}, METRIC, "max", 1)
    fake.train([best.trial.options], list_report(plan.config))
    trainings = [one for rung in list_rungs(plan.config) for one in rung]
    rows = make_rows(plan, read_trials(plan, fake.journal), trainings, METRIC)
    write_table(rows, Folder(str(tmp_path)).at("trials.parquet"), rows.schema)
    config = json.loads(json.dumps(to_dict(plan.config)))
    record = {"config": config, "metric": METRIC, "best": [{"trial": best.trial.name}]}
    return fake, SweepResult(record, str(tmp_path))


def test_the_results_have_every_rung_of_every_trial(run):
    fake, result = run
    plan, trials = fake.plan, read_trials(fake.plan, fake.journal)
    winner = choose_best(trials, {}, METRIC, "max", 1)
    rows = result.table().to_pylist()
    assert [row["trial"] for row in rows] == [trial.name for trial in trials] and winner.report.value == 0.5
    table = make_rows(plan, trials, [one for rung in list_rungs(plan.config) for one in rung], METRIC)
    trained = [row for row in table.to_pylist() if row["status"] == "finished"]
    assert [(row["train.batch_size"], row["rung"], row["steps"]) for row in trained] == [
        *((8, 1, 10), (16, 1, 10), (16, 2, 30)),
        *((24, 1, 10), (24, 2, 30), (24, 3, 90), (24, None, 90)),
    ]
    tables = {one.title: one.rows for one in make_tables(plan, trials, [winner], METRIC)}
    assert [row[1] for row in tables["Rungs"]] == ["1 of 3", "2 of 3", "3 of 3", "1 of 3"]
    assert [row[-1] for row in tables["Rungs"]] == [10, 40, 220, 0]
    assert [one.value for one in tables["Rungs"][2][2:5]] == [0.2 - 1 / (10 * d) for d in DIVISORS]
    reasons = ["stopped at rung 1 of 3", "stopped at rung 2 of 3", "loss is not finite"]
    assert [row[1] for row in tables["Unfinished trials"]] == reasons
    assert any(line.startswith("rungs: one trial") for line in list_warnings(plan, trials, [winner], METRIC))
    assert (fix(plan, winner).scheduler, fix(plan, winner).rungs) == ("none", "seeds")


def test_a_row_per_trial_has_its_config_metric_steps_and_status(run, monkeypatch):
    _, result = run
    found = [(row.status, row.config["train.batch_size"], row.rung, row.steps, row.why) for row in result]
    assert found == [
        ("stopped", 8, 1, 10, ""),
        ("stopped", 16, 2, 40, ""),
        ("finished", 24, 3, 220, ""),
        ("failed", 32, 1, None, "loss is not finite"),
    ]
    best = result.best
    assert len(result) == 4 and best is result.rows[2] and (best.metric, best.report) == (0.1, 0.5)
    assert best.rungs == tuple(0.2 - 1 / (10 * divisor) for divisor in DIVISORS)
    assert math.isnan(result.rows[0].metric) and math.isnan(result.rows[0].rungs[1])
    of_train = {option: value for option, value in best.config.items() if option.startswith("train.")}
    assert override_all(TrainConfig(), of_train).train.freeze == ("image", "text")
    frame = result.dataframe()
    assert list(frame["train.batch_size"]) == [8, 16, 24, 32] and set(frame["train.freeze"]) == {"image,text"}
    assert list(frame["rung"]) == [1, 2, 3, 1] and math.isnan(frame["rung_3"][0])
    assert "4 trials" in repr(result) and "image,text" in result._repr_html_()
    monkeypatch.setattr(finished, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^dataframe: pandas is not installed; .* use table\(\)$"):
        result.dataframe()
