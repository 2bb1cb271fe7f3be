"""A finished sweep in Python: rows, the best, a dataframe, without Ray and without training."""

import json
import math
import random

import pytest

import raycomp
from raycomp.config import override_all, to_dict
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.sweep import result as finished
from raycomp.sweep.plan import list_points
from raycomp.sweep.result import SweepResult, choose_best, climb, make_rows, read_trials
from raycomp.sweep.trials import DIVISORS, list_report, list_rungs
from raycomp.training.config import TrainConfig
from tests.sweep.test_rungs import METRIC, Fake, Values, plan_of


@pytest.fixture
def result(tmp_path) -> SweepResult:
    """Four trials on rungs of steps, the last of which failed."""
    space = "attribute.keep=0.5 train.freeze=image,text train.batch_size=grid(8,16,24,32)"
    plan = plan_of(0, space=space, report_seeds=1)
    values: Values = {(n, 0, d): n / 10 - 1 / (10 * d) for n in range(4) for d in DIVISORS}
    values |= {(3, 0, 9): None, (2, 1, 1): 0.5}
    fake = Fake(plan, tmp_path, values, random.Random(0))
    fake.train(list_points(plan), list_rungs(plan.config)[0])
    climb(plan, fake.journal, {}, METRIC, fake.train, [].append)
    best = choose_best(read_trials(plan, fake.journal), {}, METRIC, "max", 1)
    fake.train([best.trial.options], list_report(plan.config))
    trials = read_trials(plan, fake.journal)
    rows = make_rows(plan, trials, [one for rung in list_rungs(plan.config) for one in rung], METRIC)
    write_table(rows, Folder(str(tmp_path)).at("trials.parquet"), rows.schema)
    config = json.loads(json.dumps(to_dict(plan.config)))
    return SweepResult(
        {"config": config, "metric": METRIC, "best": [{"trial": best.trial.name}]}, str(tmp_path)
    )


def test_a_row_per_trial_has_its_config_metric_steps_and_status(result):
    assert len(result) == 4 and [row.status for row in result] == ["stopped", "stopped", "finished", "failed"]
    assert [row.config["train.batch_size"] for row in result] == [8, 16, 24, 32]
    assert [row.rung for row in result] == [1, 2, 3, 1]
    assert [row.steps for row in result] == [10, 40, 220, None]
    assert [row.why for row in result] == ["", "", "", "loss is not finite"]
    best = result.best
    assert best is result.rows[2] and (best.metric, best.report) == (0.1, 0.5)
    assert best.rungs == tuple(0.2 - 1 / (10 * divisor) for divisor in DIVISORS)
    assert math.isnan(result.rows[0].metric) and math.isnan(result.rows[0].rungs[1])
    of_train = {option: value for option, value in best.config.items() if option.startswith("train.")}
    assert override_all(TrainConfig(), of_train).train.freeze == ("image", "text")


def test_a_dataframe_has_a_column_for_every_option(result):
    frame = result.dataframe()
    assert list(frame["train.batch_size"]) == [8, 16, 24, 32] and set(frame["train.freeze"]) == {"image,text"}
    assert list(frame["rung"]) == [1, 2, 3, 1] and math.isnan(frame["rung_3"][0])
    assert frame["trial"][2] == result.best.name and "4 trials" in repr(result)
    assert "image,text" in result._repr_html_()


def test_without_pandas_a_line_says_what_to_use(result, monkeypatch):
    monkeypatch.setattr(finished, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^dataframe: pandas is not installed; .* use table\(\)$"):
        result.dataframe()
    assert result.table().num_rows == 4


def test_another_kind_of_callback_is_refused_before_anything_starts(tmp_path):
    config = raycomp.SweepConfig(space="train.learning_rate=grid(0.1,0.2)")
    with pytest.raises(TypeError, match=r"^callbacks=3: must be objects of ray.tune.Callback"):
        raycomp.sweep(config, tmp_path / "out", callbacks=[3])
    assert not (tmp_path / "out").exists()
