"""Sweeps without Ray: what is tried, the best of what ended, its page, and the job that trains it again."""

import json
import math
import random
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import raycomp
from raycomp.config import (
    Domain,
    TooMuchBadData,
    UserError,
    load_job,
    override_all,
    read_space,
    to_dict,
    write_space,
)
from raycomp.config.options import CHOICE, LOGUNIFORM, UNIFORM
from raycomp.continual.config import ContinualConfig
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.sweep import result as finished
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.page import (
    list_curves,
    list_grids,
    list_plots,
    list_trade_offs,
    list_warnings,
    make_tables,
)
from raycomp.sweep.plan import check_metric, draw, make_plan, write_number
from raycomp.sweep.result import (
    SweepResult,
    choose_best,
    count_rungs,
    estimate_all,
    fix,
    get_reached,
    list_whole,
    make_rows,
    name_functions,
    read_trials,
    share_of_steps,
    write_job,
)
from raycomp.sweep.trials import (
    DEVELOPMENT,
    DIVISORS,
    FAILED,
    FINISHED,
    Job,
    Journal,
    Outcome,
    SeedTraining,
    list_report,
    list_rungs,
    name_trial,
    run_seed_training,
)
from raycomp.table import Estimate
from raycomp.training.config import TrainConfig
from tests.sweep.runs import (
    METRIC,
    RATE,
    SCORED,
    Cut,
    Fake,
    Values,
    plan_of,
    plan_of_rungs,
    trial_of,
    with_metrics,
)

KEEP, HOW = "attribute.keep", "attribute.aggregate"


def test_what_cannot_be_tried_is_reported_in_a_line():
    steps = ",".join(map(str, range(1, 10_002)))
    continual = {"command": "continual", "continual": ContinualConfig(stream=("mine.json",))}
    for space, options, words in [
        ("attribute.kep=grid(1,0.5)", {}, "unknown option of select; the closest is attribute.keep"),
        ("train.workers=grid(1,2)", {}, "train.workers cannot be swept"),
        ("align.keep=grid(0.6,0.4) attribute.keep=grid(0.3,0.5)", {}, "attribute.keep=0.5: must be at most"),
        (
            "select.rule=align_only align.keep=grid(0.6,0.7)",
            {},
            "rule align_only; its share is attribute.keep",
        ),
        (
            "select.rule=grid(length,full) attribute.unit=per_target",
            {},
            "rule length or full; it does not rank",
        ),
        (f"{RATE}=uniform(0,1)", {"search": "random"}, "train.learning_rate=0.0: must be above 0"),
        (f"{RATE}=grid(0.001,1e-3)", {}, "0.001 and 1e-3 are the same value; remove one of them"),
        ("train.weight_decay=grid(0,-0.0)", {}, "0 and -0.0 are the same value"),
        ("train.loss=uniform(0,1)", {"search": "random"}, "must be choice(...), for train.loss is not a n"),
        (f"{RATE}=uniform(1e-4,1)", {}, "must be grid(...), or set search=random"),
        ("train.loss=grid(clip,negclip)", {"search": "optuna"}, "must be choice(...) with search=optuna"),
        ("train.loss=clip", {"search": "optuna"}, "must have a choice or a range"),
        ("train.loss=clip", {"per": "train.loss"}, "per='train.loss': must be an option with a grid"),
        (f"train.steps=grid({steps})", {}, "10,001 trials, must have at most"),
        ("method=grid(all,no-buffer)", continual, "must be one; the space has the trial method=all"),
        ("reference=grid(x,none) method=grid(no-trust,zscl)", continual, "trial reference=none method=zscl"),
    ]:
        with pytest.raises(ValueError) as error:
            plan_of(space, **options)
        assert words in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"attribute\.keep needs scores to choose from; set curated"):
        make_plan(SweepConfig(space="attribute.keep=grid(0.5,0.4)", input="x"), None)


def test_two_spellings_of_a_space_are_the_same_trials():
    for space, again in [
        (f"{RATE}=grid(1e-3,1E-04)", f"{RATE}=grid(.001,0.0001)"),
        ("train.autocast=grid(true,0)", "train.autocast=grid(1,False)"),
        ("train.steps=grid(none,9) train.epochs=none", "train.steps=grid(null,09) train.epochs=None"),
        ("train.freeze=grid(image,text:1;text)", "train.freeze=grid(image, text:1;text)"),
    ]:
        assert plan_of(space).list_points() == plan_of(again).list_points()
        spelled = write_space(plan_of(space).space)
        assert write_space(plan_of(spelled).space) == spelled and len(read_space(spelled)) == space.count("=")
    plan = plan_of("select.rule=align_only attribute.keep=grid(1.0,0.5) train.loss=grid(clip,siglip)")
    points = plan.list_points()
    assert len(points) == 4 and len({*map(name_trial, points)}) == 4
    selected = {"select.rule": "align_only", "attribute.keep": "1.0"}
    assert plan.split(points[0]) == {"select": selected, "train": {"train.loss": "clip"}}
    # An option that other trials use is left out where the trial's own rule does not: select would refuse it.
    plan = plan_of("select.rule=grid(cpi,full) attribute.keep=0.4")
    assert [list(plan.split(one)["select"]) for one in plan.list_points()] == [
        ["select.rule", KEEP],
        ["select.rule"],
    ]


def test_random_draws_are_the_same_for_every_point_of_a_grid_and_every_time():
    space = f"train.loss=grid(clip,negclip,ceclip) {RATE}=loguniform(1e-4,1e-3)"
    options = {"search": "random", "num_samples": 5, "negatives": "x"}
    plan = plan_of(space, per="train.loss", **options)
    points = plan.list_points()
    assert points == plan.list_points() and len(points) == 15
    groups = list(plan.list_groups())
    rates = [[point[RATE] for point in points if group.items() <= point.items()] for group in groups]
    assert len(rates) == 3 and rates[0] == rates[1] == rates[2] and len({*rates[0]}) == 5
    assert plan_of(space, seed=1, **options).list_points() != points
    few = plan_of(f"{HOW}=choice(mean,min)", search="random", num_samples=30).list_points()
    assert sorted(point[HOW] for point in few) == ["mean", "min"], "none is tried twice"


@given(
    st.sampled_from([UNIFORM, LOGUNIFORM]),
    # Numbers have 6 digits: a range has room for more of them than are drawn.
    st.lists(st.floats(1e-7, 1e7), min_size=2, max_size=2)
    .map(sorted)
    .filter(lambda ends: ends[1] > 1.01 * ends[0]),
    st.sampled_from([int, float]),
    st.integers(0, 99),
)
@settings(max_examples=30)
def test_a_draw_lies_in_its_range_and_is_read_as_it_was_written(kind, ends, number, seed):
    if number is int:
        ends = [math.ceil(ends[0]), math.ceil(ends[0]) + 1 + int(ends[1])]
    domain, rng = Domain(kind, tuple(map(repr, ends))), np.random.default_rng(seed)
    drawn = [draw(domain, number, rng) for _ in range(100)]
    place = math.log if kind == LOGUNIFORM else float
    low, middle, high = (place(one) for one in (ends[0], sorted(map(float, drawn))[50], ends[1]))
    assert number is int or 0.2 < (middle - low) / (high - low) < 0.8, "evenly, or evenly over its powers"
    for text in drawn:
        assert ends[0] <= float(text) <= ends[1] and (number is float or text.isdecimal())
        assert float(write_number(float(text), domain, number)) == float(text)
    assert {draw(Domain(CHOICE, ("a", "b")), str, rng) for _ in range(20)} == {"a", "b"}


def test_a_metric_is_one_that_the_evaluation_gives():
    known = [METRIC, "sugarcrepe.accuracy.swap_obj", "sugarcrepe.rank.macro"]
    assert check_metric("sugarcrepe.accuracy", known) == METRIC
    assert check_metric("sugarcrepe.accuracy.swap_obj", known) == known[1]
    words = r"metric='sugarcrepe.acuracy': must be one of sugarcrepe.accuracy, .*the closest"
    with pytest.raises(ValueError, match=words):
        check_metric("sugarcrepe.acuracy", known)
    assert check_metric("retrieval.recall@1", ["retrieval.recall@1.test"]) == "retrieval.recall@1.test"


def test_the_best_is_chosen_on_development_seeds_alone():
    plan = plan_of("attribute.keep=grid(0.7,0.6,0.5)", seeds=2, report_seeds=2)
    trials = [
        trial_of({KEEP: "0.7"}, [0.5, 0.6], [0.9, 0.9]),
        trial_of({KEEP: "0.6"}, [0.6, 0.7], [0.1, 0.3]),
        trial_of({KEEP: "0.5"}, [0.9]),
    ]
    best, worst = (choose_best(trials, {}, METRIC, mode, 2) for mode in ("max", "min"))
    assert best.trial is trials[1] and best.report.value == pytest.approx(0.2)
    assert best.development.low < 0.65 < best.development.high and worst.trial is trials[0]
    tables = make_tables(plan, trials, [best], METRIC)
    assert "seeds 0 to 1; reported on held-out seeds 2 to 3." in tables[0].note
    assert "Report seeds use the same test set" in tables[0].note
    assert [row[1] for row in tables[2].rows] == ["stopped after 1 of 2 seeds"]
    apart = [row[3] for row in tables[1].rows]
    assert apart[1] == "the best" and apart[0].value == apart[0].low == apart[0].high == pytest.approx(-0.1)
    assert apart[2].value == pytest.approx(0.3) and math.isnan(apart[2].low)  # one seed in common
    assert list_warnings(plan, trials, [best], METRIC) == []
    assert "lies at an end" in list_warnings(plan, trials, [worst], METRIC)[0]
    single = plan_of(f"{RATE}=loguniform(1e-4,1e-3)", search="random", seeds=1, report_seeds=0)
    for rate, at_end in [("0.0001", True), ("0.0003", False), ("0.00099", True)]:
        one = choose_best([trial_of({RATE: rate}, [0.5])], {}, METRIC, "max", 1)
        said = [line.partition(":")[0] for line in list_warnings(single, [one.trial], [one], METRIC)]
        assert said == ["seeds", "report_seeds", *([RATE] if at_end else [])], rate
        assert "there are no report seeds" in make_tables(single, [one.trial], [one], METRIC)[0].note


def test_trials_that_failed_are_reported_and_have_rows():
    plan = plan_of("attribute.keep=grid(0.7,0.5) attribute.aggregate=mean", seeds=2, report_seeds=1)
    options = {KEEP: "0.7", HOW: "mean"}
    trials = [trial_of(options, [0.5, 0.6], [0.4]), trial_of({**options, KEEP: "0.5"}, [None])]
    with pytest.raises(ValueError, match=r"no trial of attribute.keep=0.5 finished: loss is not finite"):
        choose_best(trials, {KEEP: "0.5"}, METRIC, "max", 1)
    table = make_rows(plan, trials, list_rungs(plan.config)[0], METRIC)
    wanted = {
        "status": ["finished"] * 3 + ["failed", "stopped"],
        "split": ["development", "development", "report"] + ["development"] * 2,
        "metric": [0.5, 0.6, 0.4, None, None],
        KEEP: [0.7] * 3 + [0.5] * 2,
        HOW: ["mean"] * 5,
        "seed": [0, 1, 2, 0, 1],
    }
    assert table.select(list(wanted)).to_pydict() == wanted
    best = choose_best(trials, {}, METRIC, "max", 2)
    assert "failed: 1 of 2 trials; " in list_warnings(plan, trials, [best], METRIC)[-1]


def test_the_best_as_a_job_is_a_sweep_of_that_one_trial(tmp_path):
    space = f"train.loss=grid(clip,negclip) {RATE}=loguniform(1e-4,1e-3)"
    plan = plan_of(space, search="random", per="train.loss", num_samples=2, seed=3, negatives="x")
    winners = [
        choose_best([trial_of(point, [0.6, 0.7], [0.5, 0.5])], group, METRIC, "max", 2)
        for group, point in zip(plan.list_groups(), plan.list_points(), strict=False)
    ]
    file = tmp_path / "be'st \".py"
    file.write_text(write_job(plan, winners, str(file)))
    config = load_job(str(file))
    assert config == fix(plan, winners[0]) and config.seed == 3
    assert make_plan(config, SCORED).list_points() == [dict(winners[0].trial.options)]
    assert "train.loss=negclip" in load_job(f"{file}:of_negclip").space
    assert load_job(f"{file}:train").train.learning_rate == float(winners[0].trial.options[RATE])


def test_functions_of_groups_have_names_of_their_own():
    for values, names in [
        (["1e-05", "1e+05"], ["of_1e_minus_05", "of_1e_plus_05"]),
        (["a-b", "a b", "a b 2", "A.B"], ["of_a_b_3", "of_a_b_2", "of_a_b_2_2", "of_a_b"]),
        (["\u00e9", "\u00e8", "clip"], ["of__2", "of_", "of_clip"]),
    ]:
        for some in (values, values[::-1]):
            assert name_functions(some) == dict(zip(values, names, strict=True))


def test_curves_are_means_over_the_seeds_that_all_trials_of_a_value_have():
    plan = plan_of(f"attribute.keep=grid(0.7,0.5,0.6) {RATE}=grid(1e-3,1e-4)", seeds=2)
    trials = [
        trial_of({KEEP: keep, RATE: rate}, [i + j / 10, i + j / 10 + 0.2])
        for i, keep in enumerate(("0.7", "0.5", "0.6"))
        for j, rate in enumerate(("0.001", "0.0001"))
    ]
    (curve,) = list_grids(plan, trials[:-1], METRIC)
    assert (curve.option, curve.name) == (KEEP, f"{KEEP}-by-{RATE}")
    found = {name: [(x, round(one.value, 6)) for x, one in points] for name, points in curve.series}
    assert found == {
        f"{RATE} 0.0001": [(0.7, 0.2), (0.5, 1.2)],
        f"{RATE} 0.001": [(0.7, 0.1), (0.5, 1.1), (0.6, 2.1)],
    }
    ((name, points),) = next(one for one in list_curves(plan, trials, METRIC) if one.option == KEEP).series
    assert name == "development seeds"
    assert [(x, round(one.value, 6)) for x, one in points] == [(0.7, 0.15), (0.5, 1.15), (0.6, 2.15)]
    # As trials share their seeds, two of them do not make four trainings: what one alone has, they have.
    half = 0.1 * 12.7062  # Student's t of one degree of freedom
    assert [round(one.high - one.value, 4) for _, one in points] == [round(half, 4)] * 3
    assert list_grids(plan_of("attribute.keep=grid(0.7,0.5)", seeds=2), [], METRIC) == []
    assert list_trade_offs(plan, trials, METRIC) == []
    named = plan_of("attribute.keep=0.7 attribute.aggregate=grid(mean,min)", seeds=2)
    mean = trial_of({KEEP: "0.7", HOW: "mean"}, [0.1, 0.3])
    of_names = [mean, trial_of({KEEP: "0.7", HOW: "min"}, [0.5, 0.7])]
    plot = list_plots(named, of_names, METRIC)[HOW]
    assert [(name, round(one.value, 6)) for name, one in plot.rows] == [("mean", 0.2), ("min", 0.6)]
    both = estimate_all([mean, trial_of({"a": "2"}, [0.5, None])], METRIC, DEVELOPMENT)
    assert both.value == pytest.approx(0.3) and math.isnan(both.low)
    learned, lost = "photos.learned.all", "photos.forgetting_best.all"
    plan = plan_of(f"train.loss=grid(clip,siglip) {RATE}=grid(1e-3,1e-4)", per="train.loss", seeds=2)
    trials = [
        trial_of(point, [0.5, 0.6], **{learned: [10.0 + i, 11.0 + i], lost: [i, i + 0.5]})
        for i, point in enumerate(plan.list_points())
    ]
    (curve,) = list_trade_offs(plan, trials, METRIC)
    found = {name: [(x, one.value) for x, one in points] for name, points in curve.series}
    assert found == {"clip": [(0.2, 10.5), (1.2, 11.5)], "siglip": [(2.2, 12.5), (3.2, 13.5)]}


def test_of_continual_learning_the_main_figures_of_every_trial_are_reported():
    config = SweepConfig(command="continual", space="buffer.size=grid(0,16)", seeds=1, report_seeds=0)
    plan = make_plan(replace(config, continual=ContinualConfig(stream=("photos.json",))), None)
    metric, lost = "photos.last_minus_frozen.all", "photos.forgetting_best.all"
    figures = {metric: 0.0, "photos.last.all": 1.0, lost: 2.0, "photos.seconds.all": 3.0}
    metrics = {name: Estimate(value, value, value) for name, value in figures.items()}
    without = {name: one for name, one in metrics.items() if name != lost}
    trials = [
        with_metrics(trial_of({"buffer.size": size}, [1]), some)
        for size, some in (("0", metrics), ("16", without))
    ]
    *_, more = make_tables(plan, trials, [choose_best(trials, {}, metric, "max", 1)], metric)
    assert [column.name for column in more.columns[1:]] == ["photos.last", "photos.forgetting_best"]
    assert [row[1].value for row in more.rows] == [1, 1]
    assert more.rows[0][2].value == 2 and math.isnan(more.rows[1][2].value)
    assert choose_best(trials, {}, lost, "min", 1).trial is trials[0], "the other has none of it"
    with pytest.raises(ValueError, match=f"no trial finished: {lost} was not reported"):
        choose_best(trials[1:], {}, lost, "min", 1)


def test_a_training_that_is_refused_fails_alone(tmp_path):
    plan = plan_of(f"{RATE}=grid(0.1,0.4,0.3)")
    for number, error in enumerate([UserError("loss: must be finite"), TooMuchBadData("input: 95.0%")]):
        job = Job(plan, str(tmp_path), str(tmp_path / "work"), (), MagicMock(side_effect=error))
        outcome = run_seed_training(job, "000", {}, SeedTraining(DEVELOPMENT, number))
        assert (outcome.status, outcome.why) == (FAILED, str(error))


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


STEPS = "train.steps"
SEED_TRAINING = SeedTraining(DEVELOPMENT, 0)
OUTCOME = Outcome(FINISHED, {METRIC: Estimate(0.5, 0.4, float("nan"))}, 1.0)
PLAN = plan_of(f"{RATE}=grid(1e-3,1e-4)")
NAME, OTHER = (name_trial({RATE: rate}) for rate in ("0.001", "0.0001"))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Two trials, one of them trained with one seed."""
    journal = Journal(Folder(str(tmp_path)))
    for options in PLAN.list_points():
        journal.start(options, "2026-01-02" if options[RATE] == "0.001" else "2026-01-01")
    journal.write(NAME, SEED_TRAINING, OUTCOME)
    return journal


def test_damaged_outcomes_and_trials_are_trained_again(journal):
    place = f"trials/{NAME}"
    broken = [b"", b'{"status": "fin', b"\xff", b"null", b"[]", b"{}", b"[" * 100_000]
    wrong = [{"metrics": one} for one in (None, {"a": 1}, {"a": [1, 2]}, {"a": [1, "2", 3]})]
    wrong += [{"status": "stopped"}, {"seconds": "1"}, {"starts": 1.5}, {"why": None}, {"more": 1}]
    broken += [json.dumps({**OUTCOME.to_dict(), **one}).encode() for one in wrong]
    options = [None, b"", b"{", b"[1]", b'{"options": [], "started": ""}', b'{"options": {"a": 1}}']
    of_options = [("options.json", content, f"{place}: its options cannot be read: ") for content in options]
    name = "development-00.json"
    for file, content, said in [*((name, one, f"{place}/{name}: ") for one in broken), *of_options]:
        assert journal.start({RATE: "0.001"}, "2026-01-02") == NAME
        journal.write(NAME, SEED_TRAINING, OUTCOME)
        journal.folder.remove("trials", NAME, file)
        if content is not None:
            journal.folder.write_bytes(content, "trials", NAME, file)
        with pytest.raises(ValueError, match=f"{said}.*the sweep was finished"):
            journal.check(PLAN)
        heard: list[str] = []
        journal.repair(PLAN, heard.append)
        assert len(heard) == 1 and heard[0].startswith(f"{place}") and "\n" not in heard[0], content
        assert journal.list_trials() == ([OTHER] if file == "options.json" else sorted([NAME, OTHER]))
        assert file == "options.json" or journal.find(NAME, SEED_TRAINING) is None
        journal.repair(PLAN, pytest.fail)


def test_a_trial_of_another_sweep_is_refused_and_never_removed(journal):
    for training in (SeedTraining("report", 0), SeedTraining(DEVELOPMENT, 0, 9)):
        journal.write(NAME, training, OUTCOME)
        said = f"{training.name}.json: belongs to another sweep: this sweep has no such training"
        with pytest.raises(ValueError, match=said):
            journal.check(PLAN)
        journal.folder.remove("trials", NAME, f"{training.name}.json")
    drawn = plan_of(f"{RATE}=loguniform(1e-4,1e-3)", search="random")
    whole = plan_of(f"{STEPS}=uniform(5,9)", search="random")
    for plan, name, options, words in [
        (PLAN, "foreign", {RATE: "0.001"}, "or its name differs"),
        (PLAN, NAME, {RATE: "0.0001"}, "or its name differs"),
        (PLAN, "", {RATE: "1e-3"}, "its options are {'train.learning_rate': '1e-3'} in place of"),
        (PLAN, "", {RATE: "0.01"}, "train.learning_rate=0.01 is not in grid(0.001,0.0001)"),
        (PLAN, "", {RATE: "much"}, "train.learning_rate='much': must be of type float"),
        (PLAN, "", {RATE: "0.001", STEPS: "9"}, "the space has train.learning_rate"),
        (PLAN, "notes", None, "not a trial's name"),
        *((drawn, "", {RATE: value}, "") for value in ("0.00101", "nan")),
        *((whole, "", {STEPS: value}, "") for value in ("7.5", "10", "none")),
    ]:
        if plan is not PLAN:
            journal = Journal(Folder(f"{journal.folder.uri}/more"))
        name = name or name_trial(options)
        journal.folder.write_json({"options": options, "started": "2026"}, "trials", name, "options.json")
        files = journal.folder.find_names()
        place = re.escape(journal.folder.at("trials", name))
        line = f"^{place}: belongs to another sweep: .*{re.escape(words)}.*; remove it$"
        with pytest.raises(ValueError, match=line):
            journal.repair(plan, pytest.fail)
        assert journal.folder.find_names() == files, "nothing of others is removed"
        journal.folder.remove("trials", name)
    for plan, option, value in [(drawn, RATE, "0.0001"), (whole, STEPS, "9")]:
        journal.start({option: value}, "2026")
        journal.repair(plan, pytest.fail)
        journal.folder.remove("trials", name_trial({option: value}))
