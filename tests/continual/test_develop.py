"""What is chosen on development seeds, and what is asked of all methods alike."""

from pathlib import Path

import pytest

from raycomp.config import override_all
from raycomp.continual.command import fingerprint_methods
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Choice, StreamRun, list_runs, make_config
from raycomp.continual.loop import PLAIN
from raycomp.continual.method import FULL, METHODS, TUNE, Method, get_method
from raycomp.continual.scoring import MERGED, TASK, Result, choose, list_trials, measure, report_trials
from raycomp.data.files import Folder
from tests.continual.test_loop import make_loop
from tests.continual.test_loop import read as read_loop
from tests.continual.test_results import make_result

OWN = Path(__file__).with_name("own_methods.py")
DEVELOP = {"develop.seeds": 2, "develop.rates": (0.5, 1.0), "develop.weights": (0.25, 0.75)}


def try_out(method: str, seed: int, rate: float, last: float, **weighed: float) -> Result:
    """Return a development run that ends at ``last`` by the config's weight, at others by each other one."""
    made = make_result(method, seed, [[0.5, 0.25], [0.7, 0.3], [last, last]])
    values = dict(made.values)
    for weight, value in weighed.items():
        matrix = {(after, task): value for after in (-1, 0, 1) for task in (0, 1)}
        values[TASK, f"w={float(weight[1:]) / 100:g} {MERGED} both"] = matrix
    return Result(StreamRun("world", method, seed, rate), made.facts, values)


def test_rate_and_weight_with_the_highest_mean_are_chosen():
    config = override_all(ContinualConfig(method=("all",)), DEVELOP)
    made = [
        try_out(FULL, 1, 0.5, 0.9, w25=0.4, w75=0.6),
        try_out(FULL, 2, 0.5, 0.9, w25=0.4, w75=0.2),
        try_out(FULL, 1, 1.0, 0.9, w25=0.5, w75=0.4),
        try_out(FULL, 2, 1.0, 0.9, w25=0.6, w75=0.1),
        try_out("zscl", 1, 0.5, 0.7),
        try_out("zscl", 1, 1.0, 0.7),
        try_out("finetune", 1, 0.5, 0.8),
        try_out("finetune", 1, 1.0, 0.7),
    ]
    results = {one.one_run: one for one in made}
    chosen = choose(results, config)
    assert chosen[FULL] == Choice(1.0, 0.25)
    assert chosen["zscl"] == Choice(1.0), "of equals the nearest to the default"
    assert chosen["finetune"] == Choice(0.5)
    table = report_trials(results, chosen, config)
    marked = [row[:4] for row in table.rows if row[-1]]
    assert marked[0] == (FULL, "world", "1", 0.25) and len(marked) == 3 and len(table.rows) == 8


def test_development_seeds_come_after_the_reported_ones_and_are_none_of_them():
    config = override_all(
        ContinualConfig(
            stream=("a.json", "b.json"), method=("all", f"{OWN}:untrained"), seeds=3, tune_seeds=5
        ),
        {**DEVELOP, "reference": "pairs"},
    )
    trials = list_trials(config)
    assert {one_run.seed for one_run in trials} == {5, 6}
    assert not {one_run.seed for one_run in trials} & {one_run.seed for one_run in list_runs(config)}
    streams = {one_run.method: one_run.stream for one_run in trials}
    assert set(streams.values()) == {"a.json"} and not {"frozen", "cl-moe"} & set(streams)
    rates = {
        method: sorted({one_run.rate for one_run in trials if one_run.method == method}) for method in streams
    }
    assert rates.pop(f"{OWN}:untrained") == [1.0] and {tuple(one) for one in rates.values()} == {(0.5, 1.0)}
    assert list_trials(override_all(config, {"develop.seeds": 0})) == []
    assert len({one_run.name for one_run in [*trials, *list_runs(config)]}) == len(trials) + len(
        list_runs(config)
    )
    near = list_trials(override_all(config, {"develop.rates": (1.0, 1.0000001)}))
    assert len({one_run.name for one_run in near}) == len(near)


def test_a_choice_multiplies_the_learning_rate_that_the_method_has():
    config = ContinualConfig()
    assert make_config(
        config, get_method(f"{OWN}:sgd"), Choice(3.0, 0.25)
    ).head.learning_rate == pytest.approx(0.9)
    assert make_config(config, METHODS["zscl"], Choice(3.0)).tune.learning_rate == pytest.approx(3e-4)
    assert make_config(config, METHODS[FULL], Choice(1.0, 0.25)).weight == 0.25
    assert make_config(config, METHODS[FULL]) == config


def test_methods_whose_weights_are_new_learn_equally_fast():
    """Adapters, prompts and experts take ten times the rate of whole models, wherever that is set."""
    times = {
        name: method.times * PLAIN[method.learner].times
        for name, method in METHODS.items()
        if method.trains == TUNE and method.learner in PLAIN
    }
    new = {times.pop(name) for name in ("c-clip", "diki", "cl-moe")}
    assert new == {10.0} and set(times.values()) == {1.0}


def test_development_judges_by_the_fused_score_at_every_weight(tmp_path):
    """At the config's own weight it is the main figure."""
    loop = make_loop("sequential", **{"develop.weights": (0.5, 1.0)})
    loop.weights = loop.config.develop.weights
    found = measure(read_loop(loop, loop.run(Folder(str(tmp_path))), "sequential"))
    for name in ("last", "learned", "forgetting_best"):
        assert found[f"w=0.5 {MERGED} both {name}"] == found[name]
        assert found[f"w=1.0 {MERGED} both {name}"] == found[f"composed {MERGED} both {name}"]


def test_the_meaning_of_a_method_is_in_the_fingerprint(monkeypatch):
    before = fingerprint_methods(["no-trust", "frozen"])
    assert before == fingerprint_methods(["frozen", "no-trust"]) != fingerprint_methods(["frozen"])
    monkeypatch.setitem(METHODS, "no-trust", Method("head", {"trust.mode": "fixed"}))
    assert fingerprint_methods(["no-trust", "frozen"]) != before


def test_what_cannot_be_tried_is_refused_in_a_line():
    for settings, said in [
        ({"develop.rates": "0"}, r"develop\.rates=0\.0: must be above 0"),
        ({"develop.weights": "2"}, r"develop\.weights=2\.0: must be above 0, and at most 1"),
        ({"develop.seeds": 1000}, r"develop\.seeds=1000: must be so few"),
        ({"trust.power_steps": 0}, r"trust\.power_steps=0: must be between 1 and"),
    ]:
        with pytest.raises(ValueError, match=said):
            override_all(ContinualConfig(), settings)


def test_an_own_method_may_be_a_learner_with_settings():
    own = get_method(f"{OWN}:merged")
    assert (own.learner, own.trains) == ("c-clip", TUNE)
    assert make_config(ContinualConfig(), own).tune.merge == 1
    with pytest.raises(ValueError, match=r"own_methods.py:unknown: learner='heads': must be one of frozen"):
        get_method(f"{OWN}:unknown")
    with pytest.raises(ValueError, match=r"method=.*own_methods.py:misnamed: .*head.stesp"):
        list_runs(ContinualConfig(stream=("a.json",), method=(f"{OWN}:misnamed",)))
