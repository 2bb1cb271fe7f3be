"""Sweeps without Ray: what is tried, what is best of what ended, and the job that trains it again."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycomp.config import Domain, load_job, override_all
from raycomp.config.shared import CHOICE, LOGUNIFORM, UNIFORM
from raycomp.continual.config import ContinualConfig
from raycomp.data.files import Folder
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.page import (
    list_curves,
    list_grids,
    list_plots,
    list_trade_offs,
    list_warnings,
    make_tables,
)
from raycomp.sweep.plan import check_metric, draw, list_groups, list_points, make_plan, write_number
from raycomp.sweep.result import choose_best, estimate_all, fix, make_rows, write_job
from raycomp.sweep.trials import (
    DEVELOPMENT,
    FAILED,
    FINISHED,
    REPORT,
    Journal,
    Outcome,
    SeedTraining,
    Trial,
    list_rungs,
    name_trial,
)
from raycomp.table import Estimate
from tests.sweep.runs import SCORED

METRIC = "sugarcrepe.accuracy.macro"


def plan_of(space, **options):
    return make_plan(SweepConfig(space=space, **options), SCORED)


def trial_of(options, development, report=(), started="2026-01-01"):
    trainings = {SeedTraining(DEVELOPMENT, i): value for i, value in enumerate(development)}
    trainings |= {SeedTraining(REPORT, len(development) + i): value for i, value in enumerate(report)}
    outcomes = {
        training: Outcome(FAILED, {}, why="loss is not finite")
        if value is None
        else Outcome(FINISHED, {METRIC: Estimate(value, value - 0.1, value + 0.1)}, 2.0)
        for training, value in trainings.items()
    }
    return Trial(name_trial(options), options, started, outcomes)


def test_what_cannot_be_tried_is_reported_in_a_line():
    for space, options, words in [
        ("attribute.kep=grid(1,0.5)", {}, "unknown option of select; the closest is attribute.keep"),
        ("train.workers=grid(1,2)", {}, "train.workers cannot be swept"),
        ("attribute.keep=grid(0.5,1.5)", {}, "attribute.keep=1.5: must be between 0 and 1"),
        ("align.keep=grid(0.6,0.4) attribute.keep=grid(0.3,0.5)", {}, "attribute.keep=0.5: must be at most"),
        (
            "train.learning_rate=uniform(0,1)",
            {"search": "random"},
            "train.learning_rate=0.0: must be above 0",
        ),
        ("train.batch_size=uniform(8.5,9)", {"search": "random"}, "must be of type int"),
        (
            "train.learning_rate=grid(0.001,1e-3)",
            {},
            "train.learning_rate=grid(0.001,1e-3): 0.001 and 1e-3 are the same value; remove one of them",
        ),
        ("train.weight_decay=grid(0,-0.0)", {}, "0 and -0.0 are the same value"),
        ("train.freeze=grid(image,text;image, text)", {}, "image,text and image, text are the same value"),
        (
            "train.loss=uniform(0,1)",
            {"search": "random"},
            "must be choice(...), for train.loss is not a number",
        ),
        ("train.learning_rate=uniform(1e-4,1)", {}, "must be grid(...), or set search=random"),
        ("train.loss=grid(clip,negclip)", {"search": "optuna"}, "must be choice(...) with search=optuna"),
        ("train.loss=clip", {"search": "optuna"}, "must have a choice or a range"),
        (
            "train.loss=clip",
            {"per": "train.loss"},
            "per='train.loss': must be an option with a grid",
        ),
        (
            f"train.steps=grid({','.join(map(str, range(1, 10_002)))})",
            {},
            "10,001 trials, must have at most",
        ),
    ]:
        with pytest.raises(ValueError) as error:
            plan_of(space, **options)
        assert words in str(error.value) and "\n" not in str(error.value)


def test_what_a_trial_of_continual_learning_would_refuse_is_refused_before():
    for space, options, words in [
        ("method=grid(all,no-buffer)", {}, "method='all': must be one; the space has the trial method=all"),
        (
            "method=grid(zscl,finetune)",
            {},
            "reference=None: must be set for zscl",
        ),
    ]:
        asked = {"command": "continual", "continual.stream": "mine.json", "space": space, **options}
        with pytest.raises(ValueError) as error:
            make_plan(override_all(SweepConfig(), asked), None)
        assert words in str(error.value) and "\n" not in str(error.value)


def test_every_point_of_a_grid_is_checked_however_many_there_are():
    steps = ",".join(map(str, range(1, 601)))  # the first trial that is wrong is the 1,801st
    space = f"reference=grid(x,none) method=grid(no-trust,zscl) head.steps=grid({steps})"
    asked = {"command": "continual", "continual.stream": "mine.json", "space": space}
    with pytest.raises(ValueError, match=r"the trial reference=none method=zscl head\.steps=1$"):
        make_plan(override_all(SweepConfig(), asked), None)


def test_scores_are_chosen_from_only_where_there_are_some():
    config = SweepConfig(
        space="attribute.keep=grid(0.5,0.4)",
        input="x",
    )
    with pytest.raises(ValueError, match=r"attribute\.keep needs scores to choose from; set curated"):
        make_plan(config, None)


def test_a_grid_is_tried_whole_and_options_go_to_their_commands():
    plan = plan_of("select.rule=align_only attribute.keep=grid(1.0,0.5) train.loss=grid(clip,siglip)")
    points = list_points(plan)
    assert len(points) == 4 and len({*map(name_trial, points)}) == 4
    assert plan.split(points[0]) == {
        "select": {"select.rule": "align_only", "attribute.keep": "1.0"},
        "train": {"train.loss": "clip"},
    }


def test_random_draws_are_the_same_for_every_point_of_a_grid_and_every_time():
    space = "train.loss=grid(clip,negclip,ceclip) train.learning_rate=loguniform(1e-4,1e-3)"
    options = {"search": "random", "num_samples": 5, "negatives": "x"}
    plan = plan_of(space, per="train.loss", **options)
    points = list_points(plan)
    assert points == list_points(plan) and len(points) == 15
    rates = [
        [p["train.learning_rate"] for p in points if group.items() <= p.items()]
        for group in list_groups(plan)
    ]
    assert len(rates) == 3 and rates[0] == rates[1] == rates[2] and len({*rates[0]}) == 5
    assert list_points(plan_of(space, seed=1, **options)) != points


def test_no_point_of_few_choices_is_tried_twice():
    points = list_points(plan_of("attribute.aggregate=choice(mean,min)", search="random", num_samples=30))
    assert sorted(p["attribute.aggregate"] for p in points) == ["mean", "min"]


@given(
    st.sampled_from([UNIFORM, LOGUNIFORM]),
    st.lists(st.floats(1e-7, 1e7), min_size=2, max_size=2, unique=True).map(sorted),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_draw_lies_in_its_range_and_is_read_as_it_was_written(kind, ends, is_whole, seed):
    if is_whole:
        ends = [math.ceil(ends[0]), math.ceil(ends[0]) + 1 + int(ends[1])]
    domain = Domain(kind, tuple(map(repr, ends)))
    text = draw(domain, is_whole, np.random.default_rng(seed))
    assert ends[0] <= float(text) <= ends[1] and (not is_whole or text.isdecimal())
    assert float(write_number(float(text), domain, is_whole)) == float(text)


def test_a_log_range_is_drawn_evenly_over_its_powers():
    rng = np.random.default_rng(0)
    domain = Domain(LOGUNIFORM, ("1e-6", "1"))
    drawn = np.log10([float(draw(domain, False, rng)) for _ in range(3000)])
    assert np.allclose(np.quantile(drawn, [0.25, 0.5, 0.75]), [-4.5, -3, -1.5], atol=0.2)
    choice = Domain(CHOICE, ("a", "b"))
    assert {draw(choice, False, rng) for _ in range(20)} == {"a", "b"}


def test_a_metric_is_one_that_the_evaluation_gives():
    known = [METRIC, "sugarcrepe.accuracy.swap_obj", "sugarcrepe.rank.macro"]
    assert check_metric("sugarcrepe.accuracy", known) == METRIC
    assert check_metric("sugarcrepe.accuracy.swap_obj", known) in known
    words = r"metric='sugarcrepe.acuracy': must be one of sugarcrepe.accuracy, .*the closest"
    with pytest.raises(ValueError, match=words):
        check_metric("sugarcrepe.acuracy", known)
    with pytest.raises(ValueError, match=r"metric='': must be one of sugarcrepe.accuracy"):
        check_metric("", known)
    assert check_metric("retrieval.recall@1", ["retrieval.recall@1.test"]) == "retrieval.recall@1.test"


def test_the_best_is_chosen_on_development_seeds_alone():
    plan = plan_of("attribute.keep=grid(0.7,0.6,0.5)", seeds=2, report_seeds=2)
    trials = [
        trial_of({"attribute.keep": "0.7"}, [0.5, 0.6], [0.9, 0.9]),
        trial_of({"attribute.keep": "0.6"}, [0.6, 0.7], [0.1, 0.3]),
        trial_of({"attribute.keep": "0.5"}, [0.9]),
    ]
    best = choose_best(trials, {}, METRIC, "max", 2)
    assert best.trial is trials[1] and best.report.value == pytest.approx(0.2)
    assert best.development.low < 0.65 < best.development.high
    assert choose_best(trials, {}, METRIC, "min", 2).trial is trials[0]
    tables = make_tables(plan, trials, [best], METRIC)
    assert "seeds 0 to 1; reported on held-out seeds 2 to 3." in tables[0].note
    assert "Report seeds use the same test set" in tables[0].note
    assert [row[1] for row in tables[2].rows] == ["stopped after 1 of 2 seeds"]
    apart = [row[3] for row in tables[1].rows]
    assert apart[1] == "the best" and apart[0].value == apart[0].low == apart[0].high == pytest.approx(-0.1)
    assert apart[2].value == pytest.approx(0.3) and math.isnan(apart[2].low)  # one seed in common
    assert list_warnings(plan, trials, [best], METRIC) == []
    assert (
        "lies at an end"
        in list_warnings(plan, trials, [choose_best(trials, {}, METRIC, "min", 2)], METRIC)[0]
    )


def test_of_trials_that_all_failed_the_first_reason_is_reported():
    trials = [trial_of({"train.loss": "clip"}, [0.5]), trial_of({"train.loss": "negclip"}, [None])]
    with pytest.raises(ValueError, match=r"no trial of train.loss=negclip finished: loss is not"):
        choose_best(trials, {"train.loss": "negclip"}, METRIC, "max", 1)


def test_rows_have_the_options_and_what_was_not_trained():
    plan = plan_of("attribute.keep=grid(0.7,0.5) attribute.aggregate=mean", seeds=2, report_seeds=1)
    options = {"attribute.keep": "0.7", "attribute.aggregate": "mean"}
    trials = [trial_of(options, [0.5, 0.6], [0.4]), trial_of({**options, "attribute.keep": "0.5"}, [None])]
    table = make_rows(plan, trials, list_rungs(plan.config)[0], METRIC)
    assert table["status"].to_pylist() == ["finished"] * 3 + ["failed", "stopped"]
    assert table["split"].to_pylist() == ["development", "development", "report"] + ["development"] * 2
    assert table["metric"].to_pylist() == [0.5, 0.6, 0.4, None, None]
    assert table["attribute.keep"].to_pylist() == [0.7] * 3 + [0.5] * 2
    assert {*table["attribute.aggregate"].to_pylist()} == {"mean"}
    assert table["seed"].to_pylist() == [0, 1, 2, 0, 1]


def test_a_journal_gives_back_what_was_written(tmp_path):
    journal, options = Journal(Folder(str(tmp_path))), {"train.loss": "clip"}
    name = journal.start(options, "2026-01-02")
    assert journal.start(options, "2026-01-03") == name  # begun once
    later = journal.start({"train.loss": "siglip"}, "2026-01-01")
    outcome = Outcome(FINISHED, {METRIC: Estimate(0.5, float("nan"), 1.0)}, 1.5, 2)
    assert journal.find(name, SeedTraining(DEVELOPMENT, 0)) is None
    journal.write(name, SeedTraining(DEVELOPMENT, 0), outcome)
    found = journal.find(name, SeedTraining(DEVELOPMENT, 0))
    assert found and found.starts == 2 and math.isnan(found.metrics[METRIC].low)
    assert [trial.name for trial in journal.read()] == [later, name]
    assert {*journal.read()[1].outcomes} == {SeedTraining(DEVELOPMENT, 0)}


def test_the_best_as_a_job_is_a_sweep_of_that_one_trial(tmp_path):
    space = "train.loss=grid(clip,negclip) train.learning_rate=loguniform(1e-4,1e-3)"
    plan = plan_of(space, search="random", per="train.loss", num_samples=2, seed=3, negatives="x")
    winners = [
        choose_best([trial_of(point, [0.6, 0.7], [0.5, 0.5])], group, METRIC, "max", 2)
        for group, point in zip(list_groups(plan), list_points(plan), strict=False)
    ]
    file = tmp_path / "be'st \".py"
    file.write_text(write_job(plan, winners, str(file)))
    config = load_job(str(file))
    assert config == fix(plan, winners[0]) and config.seed == 3
    again = make_plan(config, SCORED)
    assert list_points(again) == [dict(winners[0].trial.options)]
    other = load_job(f"{file}:of_negclip")
    assert "train.loss=negclip" in other.space
    assert load_job(f"{file}:train").train.learning_rate == float(
        winners[0].trial.options["train.learning_rate"]
    )


def test_a_curve_has_a_point_for_every_value():
    plan = plan_of("attribute.keep=grid(0.7,0.5) attribute.aggregate=grid(mean,min)", seeds=2)
    trials = [
        trial_of({"attribute.keep": keep, "attribute.aggregate": how}, [value, value + 0.1])
        for keep, how, value in (("0.7", "mean", 0.2), ("0.7", "min", 0.4), ("0.5", "mean", 0.6))
    ]
    (curve,) = list_curves(plan, trials, METRIC)
    ((name, points),) = curve.series
    assert curve.option == "attribute.keep" and name == "development seeds"
    assert [(x, round(one.value, 6)) for x, one in points] == [(0.7, 0.35), (0.5, 0.65)]
    # As trials share their seeds, two of them do not make four trainings: what one alone has, they have.
    half = 0.05 * 12.7062  # Student's t of one degree of freedom
    assert [round(one.high - one.value, 4) for _, one in points] == [round(half, 4)] * 2
    (plot,) = list_plots(plan, trials, METRIC)
    assert [(name, round(one.value, 6)) for name, one in plot.rows] == [("mean", 0.45), ("min", 0.45)]


def test_a_grid_of_two_options_has_a_series_for_each_value_of_the_shorter():
    plan = plan_of("attribute.keep=grid(0.7,0.5,0.6) train.learning_rate=grid(1e-3,1e-4)", seeds=2)
    keeps, rates = ("0.7", "0.5", "0.6"), ("0.001", "0.0001")
    trials = [
        trial_of({"attribute.keep": keep, "train.learning_rate": rate}, [i + j / 10, i + j / 10 + 0.2])
        for i, keep in enumerate(keeps)
        for j, rate in enumerate(rates)
    ]
    (curve,) = list_grids(plan, trials[:-1], METRIC)
    assert (curve.option, curve.name) == ("attribute.keep", "attribute.keep-by-train.learning_rate")
    assert [name for name, _ in curve.series] == [
        f"train.learning_rate {rate}" for rate in ("0.0001", "0.001")
    ]
    found = [[(x, round(one.value, 6)) for x, one in points] for _, points in curve.series]
    assert found == [[(0.7, 0.2), (0.5, 1.2)], [(0.7, 0.1), (0.5, 1.1), (0.6, 2.1)]]
    assert list_grids(plan_of("attribute.keep=grid(0.7,0.5)", seeds=2), [], METRIC) == []
    assert list_trade_offs(plan, trials, METRIC) == []


def test_what_is_learned_stands_over_what_is_forgotten():
    learned, lost = "photos.learned.all", "photos.forgetting_best.all"
    plan = plan_of(
        "train.loss=grid(clip,siglip) train.learning_rate=grid(1e-3,1e-4)", per="train.loss", seeds=2
    )
    trials = []
    for i, (loss, rate) in enumerate((a, b) for a in ("clip", "siglip") for b in ("1e-3", "1e-4")):
        trial = trial_of({"train.loss": loss, "train.learning_rate": rate}, [0.5, 0.6])
        outcomes = {
            training: replace(
                outcome,
                metrics={
                    **outcome.metrics,
                    learned: Estimate(10.0 + i + training.number, 0, 0),
                    lost: Estimate(i + training.number / 2, 0, 0),
                },
            )
            for training, outcome in trial.outcomes.items()
        }
        trials.append(replace(trial, outcomes=outcomes))
    (curve,) = list_trade_offs(plan, trials, METRIC)
    assert curve.name == "photos-forgotten"
    found = {name: [(x, one.value) for x, one in points] for name, points in curve.series}
    assert found == {"clip": [(0.2, 10.5), (1.2, 11.5)], "siglip": [(2.2, 12.5), (3.2, 13.5)]}


def test_of_continual_learning_the_main_figures_of_every_trial_are_reported():
    continual = ContinualConfig(stream=("photos.json",))
    config = SweepConfig(
        command="continual", space="buffer.size=grid(0,16)", seeds=1, report_seeds=0, continual=continual
    )
    plan, metric = make_plan(config, None), "photos.last_minus_frozen.all"
    names = (metric, "photos.last.all", "photos.forgetting_best.all", "photos.seconds.all")
    outcome = Outcome(FINISHED, {name: Estimate(value, value, value) for value, name in enumerate(names)})
    trials = [
        Trial(size, {"buffer.size": size}, "2026-01-01", {SeedTraining(DEVELOPMENT, 0): outcome})
        for size in ("0", "16")
    ]
    lacking = {name: one for name, one in outcome.metrics.items() if "forgetting" not in name}
    trials[1] = replace(trials[1], outcomes={SeedTraining(DEVELOPMENT, 0): replace(outcome, metrics=lacking)})
    *_, more = make_tables(plan, trials, [choose_best(trials, {}, metric, "max", 1)], metric)
    assert [column.name for column in more.columns[1:]] == ["photos.last", "photos.forgetting_best"]
    assert [row[1].value for row in more.rows] == [1, 1]
    assert more.rows[0][2].value == 2 and math.isnan(more.rows[1][2].value)
    lost = "photos.forgetting_best.all"
    assert choose_best(trials, {}, lost, "min", 1).trial is trials[0], "the other has none of it"
    with pytest.raises(ValueError, match=f"no trial finished: {lost} was not reported"):
        choose_best(trials[1:], {}, lost, "min", 1)


def test_trials_are_averaged_over_the_seeds_that_all_of_them_have():
    trials = [trial_of({"a": "1"}, [0.1, 0.3]), trial_of({"a": "2"}, [0.5, None])]
    found = estimate_all(trials, METRIC, DEVELOPMENT)
    assert found.value == pytest.approx(0.3) and math.isnan(found.low)
