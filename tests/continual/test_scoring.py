"""What is right of a task against loops and by hand; baselines, margins, and options that are selected."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raycomp.config import override_all
from raycomp.continual import scoring
from raycomp.continual.command import fingerprint_methods
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Choice, Edits, Keys, Split, StreamRun, join_splits, list_runs, make_config
from raycomp.continual.loop import TUNERS
from raycomp.continual.method import FULL, METHODS, TUNE, Method, get_method
from raycomp.data.files import Folder
from tests.continual import drawn_streams
from tests.continual.streams import make_stream, unit
from tests.continual.test_loop import make_loop, read
from tests.continual.test_results import make_result


def make_keys(num: int, num_texts: int, experts: int = 1, seed: int = 0) -> Keys:
    rng = np.random.default_rng(seed)
    composed_ETD = unit(rng.standard_normal((experts, num_texts, 8)))
    expert_N = rng.integers(experts, size=num) if experts > 1 else None
    images, texts = unit(rng.standard_normal((num, 8))), unit(rng.standard_normal((num_texts, 8)))
    return Keys(images, texts, composed_ETD, expert_N)


def make_asked(own: Sequence[int], texts: int | tuple[str, ...], candidates=None, kinds=None) -> Split:
    names = tuple(f"text {i}" for i in range(texts)) if isinstance(texts, int) else texts
    zero_TD, primitives = np.zeros((len(names), 8), np.float32), (("red square",),) * len(names)
    more = (None if one is None else np.array(one) for one in (candidates, kinds))
    return Split(np.zeros((len(own), 8), np.float32), np.array(own), names, zero_TD, primitives, *more)


def test_the_score_is_that_of_a_loop_over_pairs():
    for experts, weight in ((1, 0.0), (1, 0.5), (3, 0.3), (3, 1.0)):
        keys = make_keys(7, 5, experts)
        found = scoring.score_pairs(keys, weight, np.arange(7), np.arange(5))
        for n, t in np.ndindex(7, 5):
            composed_TD = keys.composed_ETD[keys.expert_N[n] if keys.expert_N is not None else 0]
            by_text, composed = keys.image_ND[n] @ keys.text_TD[t], keys.image_ND[n] @ composed_TD[t]
            assert found[n, t] == pytest.approx((1 - weight) * by_text + weight * composed, abs=1e-6)


def test_a_search_is_that_of_a_loop_of_a_part_too_and_a_tie_is_wrong(monkeypatch):
    monkeypatch.setattr(scoring, "_IMAGES_AT_ONCE", 4)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        own, keys = rng.integers(6, size=11), make_keys(11, 6, seed=seed)
        split, score_NT = make_asked(own, 6), scoring.score_pairs(keys, 0.5, np.arange(11), np.arange(6))
        for sample_N, text_T in (
            (np.arange(11), np.arange(6)),
            (rng.permutation(11)[:7], rng.permutation(6)[:4]),
        ):
            found = scoring.search(split, keys, 0.5, sample_N, text_T)
            for row, n in enumerate(sample_N):
                others = [score_NT[n, t] for t in text_T if t != own[n]]
                assert found.right_N[row] == (own[n] in text_T and score_NT[n, own[n]] > max(others))
                assert found.first_N[row] == text_T[score_NT[n, text_T].argmax()]
            for row, t in enumerate(text_T):
                mine = [score_NT[n, t] for n in sample_N if own[n] == t]
                others = [score_NT[n, t] for n in sample_N if own[n] != t]
                assert found.right_T[row] == (bool(mine) and max(mine) > max(others))
    keys = Keys(np.ones((2, 1), np.float32), np.ones((2, 1), np.float32))
    found = scoring.search(make_asked([0, 1], 2), keys, 0.0, np.arange(2), np.arange(2))
    assert not found.right_N.any() and not found.right_T.any()


def test_an_answer_is_right_above_all_other_candidates_and_padding_is_none():
    split, keys = make_asked([0, 3, 4], 5, [[0, 1, -1], [2, 3, 1], [4, 0, -1]]), make_keys(3, 5)
    score_NT = scoring.score_pairs(keys, 0.5, np.arange(3), np.arange(5))
    first, third = score_NT[0, 0] > score_NT[0, 1], score_NT[2, 4] > score_NT[2, 0]
    second = score_NT[1, 3] > max(score_NT[1, 2], score_NT[1, 1])
    assert scoring.answer(split, keys, 0.5).tolist() == [first, second, third]


def test_binding_by_hand():
    sets = (("red circle",), ("blue circle",), ("red star",), ("blue star",))
    split = Split(np.eye(4, dtype=np.float32), np.arange(4), tuple("abcd"), np.eye(4, dtype=np.float32), sets)
    # a finds itself; b a, whose object is the same; c a, whose attribute is; d c, whose object is.
    text_TD = np.eye(4, dtype=np.float32)[[0, 0, 0, 2]].T.copy()
    judged = scoring.judge_tasks(scoring.gather_questions([split]), Keys(split.image_ND, text_TD), 0.5)
    found = {one.name: one.value for one in judged if one.task == 0}
    assert [found[f"text a_{name}"] for name in ("pair", "attribute", "object")] == [0.25, 0.5, 0.75]
    assert found["text crr"] == pytest.approx(0.25 / (0.5 * 0.75))
    swapped = replace(split, primitives=(("large red circle", "small blue star"),) * 3 + (("circle",),))
    judged = scoring.judge_tasks(scoring.gather_questions([swapped]), Keys(split.image_ND, text_TD), 0.5)
    assert {one.name: one.value for one in judged}["text a_object"] == 0.75, "the last word of each"


def test_splits_are_joined_with_every_text_once_and_galleries_are_of_each_task_and_of_all():
    def name(split: Split, row: int) -> tuple:
        offered = [] if split.candidate_NK is None else split.candidate_NK[row]
        own = split.own_N[row]
        said = split.texts[own], split.primitives[own], split.text_TD[own].tolist()
        return *said, [split.texts[i] for i in offered if i >= 0]

    for questions in (False, True):
        tests = [task.test for task in make_stream(questions=questions).tasks]
        asked, joined = scoring.gather_questions(tests), join_splits([tests[0], tests[1], tests[0]])
        assert len(joined) == 60 and len(joined.texts) == len(set(joined.texts)) <= 40
        for row, split in [(3, tests[0]), (25, tests[1]), (43, tests[0])]:
            assert name(joined, row) == name(split, row % 20)
        for sample_N, text_T, test in zip(asked.sample_IN, asked.text_IT, tests, strict=True):
            assert [asked.split.texts[place] for place in text_T] == list(test.texts)
            own = [asked.split.texts[place] for place in asked.split.own_N[sample_N]]
            assert own == [test.texts[place] for place in test.own_N]
    with pytest.raises(ValueError, match="tasks: must all have candidates or none of them"):
        join_splits([tests[0], make_stream().tasks[0].test])


COLOURS = ("red", "blue", "green", "circle")


def judge_prior(asked: Split, seen: Split) -> list[float]:
    """Return the text-only baseline's probability of the right answer, question by question."""
    questions = replace(scoring.gather_questions([asked]), sample_IN=tuple(np.arange(len(asked))[:, None]))
    keys = Keys(unit(asked.image_ND + 1), unit(asked.text_TD + 1))
    found = scoring.judge_text_only(questions, keys, 0.5, [seen])
    return [one.value for one in found if one.name == "prior answers"]


def test_the_prior_answers_what_was_right_most_often_to_such_questions_and_guesses_among_equals():
    seen = make_asked([0, 0, 1, 3, 2, 1], COLOURS, [[0, 1, 2, 3]] * 6, [0, 0, 0, 1, 1, 1])
    # Of kind 0: red twice, blue once. Of kind 1: circle, green and blue once each.
    candidates = [[0, 1, 2], [0, 1, 2], [2, 3, -1], [3, 2, -1], [0, 3, -1]]
    asked = make_asked([0, 1, 2, 3, 0], COLOURS, candidates, [0, 0, 0, 1, 1])
    assert judge_prior(asked, seen) == [1, 0, 0.5, 0.5, 0]
    assert judge_prior(make_asked([3], COLOURS, [[3, 0, 1]], [7]), seen) == [1 / 3]
    turned = replace(seen, texts=COLOURS[::-1], own_N=3 - seen.own_N, candidate_NK=3 - seen.candidate_NK)
    assert judge_prior(asked, turned) == judge_prior(asked, seen), "answers are known by their text"


def test_an_answer_is_the_same_behind_another_question():
    texts = ("what is it? a dog", "what is it? a cat", "what is that? a dog", "what is that? a cat", "dog")
    places: dict[str, int] = {}
    asked = make_asked([1, 2], texts, [[1, 0, -1], [3, 2, 4]], [0, 0])
    assert scoring.number_answers(asked, places).tolist() == [[0, 1, -1], [2, 3, 4]]
    assert list(places) == ["a cat", "a dog", "what is that? a cat", "what is that? a dog", "dog"]
    seen = make_asked([0, 0, 1], texts, [[0, 1, -1]] * 3, [5, 5, 5])
    assert judge_prior(make_asked([2, 3], texts, [[3, 2, -1]] * 2, [5, 5]), seen) == [1, 0]


def test_shuffled_pictures_answer_by_chance():
    num = 400
    text_TD, row_N = unit(np.random.default_rng(0).standard_normal((2 * num, 16))), np.arange(num)
    asked = make_asked(row_N, 2 * num, np.stack([row_N, row_N + num], 1), [0] * num)
    split = replace(asked, image_ND=text_TD[:num], text_TD=text_TD)
    judged = scoring.judge_text_only(
        scoring.gather_questions([split]), Keys(text_TD[:num], text_TD), 0.5, [split]
    )
    found = {one.name: one.value for one in judged}
    assert found["shuffled answers"] == pytest.approx(0.5, abs=0.08) and found["chance answers"] == 0.5


def test_margins_are_those_of_a_loop_and_equal_compositions_have_none():
    rng = np.random.default_rng(1)
    image, text, composed = (unit(rng.standard_normal((3, 8))) for _ in range(3))
    wrong_text = unit(rng.standard_normal((2, 8)))
    wrong_composed = np.stack([composed[0], unit(rng.standard_normal(8))])
    test = Split(image, np.array([2, 0, 1]), tuple("abc"), text, (("a",),) * 3)
    edited = Split(image[:0], np.zeros(0, np.int64), tuple("de"), wrong_text, (("a",),) * 2)
    edits = Edits(edited, np.array([1, 2]), np.array([0, 1]), np.array(["REPLACE relation", "SWAP object"]))
    keys = Keys(image, text, composed[None]), Keys(image[:0], wrong_text, wrong_composed[None])
    found = {one.name: one.value for one in scoring.judge_margins([test], [edits], [keys], 0.5)}
    assert [found[f"composed margin REPLACE relation{end}"] for end in ("", " zero", " p")] == [0, 1, 1]
    by_text = image[2] @ text[1] - image[2] @ wrong_text[1]
    assert found["text margin SWAP object"] == pytest.approx(by_text, abs=1e-6)
    half = image[2] @ (text[1] + composed[1] - wrong_text[1] - wrong_composed[1]) / 2
    assert found["fused margin SWAP object"] == pytest.approx(half, abs=1e-6)
    assert found["fused margin SWAP object above"] == (half > 0)


OWN = Path(drawn_streams.__file__)
DEVELOP = {"develop.seeds": 2, "develop.rates": (0.5, 1.0), "develop.weights": (0.25, 0.75)}


def try_out(method: str, seed: int, rate: float, last: float, **weighed: float) -> scoring.Result:
    """Return a development run that ends at ``last`` by the config's weight, at others by each other one."""
    made = make_result(method, seed, [[0.5, 0.25], [0.7, 0.3], [last, last]])
    values = dict(made.values)
    for weight, value in weighed.items():
        matrix = {(after, task): value for after in (-1, 0, 1) for task in (0, 1)}
        values[scoring.TASK, f"w={float(weight[1:]) / 100:g} {scoring.MERGED} both"] = matrix
    return scoring.Result(StreamRun("world", method, seed, rate), made.facts, values)


def test_rate_and_weight_with_the_highest_mean_are_chosen():
    config = override_all(ContinualConfig(method=("all",)), DEVELOP)
    made = [
        try_out(FULL, 1, 0.5, 0.9, w25=0.4, w75=0.6),
        try_out(FULL, 2, 0.5, 0.9, w25=0.4, w75=0.2),
        try_out(FULL, 1, 1.0, 0.9, w25=0.5, w75=0.4),
        try_out(FULL, 2, 1.0, 0.9, w25=0.6, w75=0.1),
        *(try_out("zscl", 1, rate, 0.7) for rate in (0.5, 1.0)),  # of equals the nearest to the default
        *(try_out("finetune", 1, rate, last) for rate, last in ((0.5, 0.8), (1.0, 0.7))),
    ]
    results = {one.one_run: one for one in made}
    chosen = scoring.choose(results, config)
    assert chosen == {FULL: Choice(1.0, 0.25), "zscl": Choice(1.0), "finetune": Choice(0.5)}
    table = scoring.report_trials(results, chosen, config)
    marked = [row[:4] for row in table.rows if row[-1]]
    assert marked[0] == (FULL, "world", "1", 0.25) and len(marked) == 3 and len(table.rows) == 8


def test_development_seeds_come_after_the_reported_ones_and_are_none_of_them():
    own = f"{OWN}:untrained"
    config = ContinualConfig(stream=("a.json", "b.json"), method=("all", own), seeds=3, tune_seeds=5)
    config = override_all(config, {**DEVELOP, "reference": "pairs"})
    trials, runs = scoring.list_trials(config), list_runs(config)
    assert {one_run.seed for one_run in trials} == {5, 6}
    assert {one_run.seed for one_run in runs} == {*range(5)}
    streams = {one_run.method: one_run.stream for one_run in trials}
    assert set(streams.values()) == {"a.json"} and not {"frozen", "cl-moe"} & set(streams)
    rates = {name: {one_run.rate for one_run in trials if one_run.method == name} for name in streams}
    assert rates.pop(own) == {1.0} and all(found == {0.5, 1.0} for found in rates.values())
    near = scoring.list_trials(override_all(config, {"develop.rates": (1.0, 1.0000001)}))
    assert len({one_run.name for one_run in near}) == len(near)
    assert scoring.list_trials(override_all(config, {"develop.seeds": 0})) == []


def test_a_selected_rate_at_an_end_of_the_grid_is_reported():
    config = override_all(ContinualConfig(), {"develop.rates": (3.0, 0.3, 1.0)})
    chosen = {FULL: Choice(3.0), "finetune": Choice(0.3), "no-trust": Choice(1.0)}
    said = "selected {}, an end of the grid; extend develop.rates, for example by {}"
    ends = [(FULL, 3, 9), ("finetune", 0.3, 0.09)]
    lines = scoring.list_ends(chosen, config)
    assert lines == [f"develop.rates: {name} {said.format(*two)}" for name, *two in ends]


def test_development_judges_by_the_fused_score_at_every_weight(tmp_path):
    """At the config's own weight it is the main figure."""
    loop = make_loop("sequential", make_stream(questions=True))
    loop.weights = (0.5, 1.0)
    found = scoring.measure(read(loop, loop.run(Folder(str(tmp_path))), "sequential"))
    for name in ("last", "learned", "forgetting_best"):
        assert found[f"w=0.5 answers {name}"] == found[name]
        assert found[f"w=1.0 answers {name}"] == found[f"composed answers {name}"]


def test_a_choice_multiplies_the_learning_rate_that_the_method_has(monkeypatch):
    config = ContinualConfig()
    own = make_config(config, get_method(f"{OWN}:sgd"), Choice(3.0, 0.25))
    assert own.head.learning_rate == pytest.approx(0.9) and own.weight == 0.25
    assert make_config(config, METHODS["zscl"], Choice(3.0)).tune.learning_rate == pytest.approx(3e-4)
    assert make_config(config, METHODS[FULL]) == config
    # Adapters, prompts and experts have ten times the rate of whole models, wherever that is set.
    times = {
        name: method.times * TUNERS[method.learner].times
        for name, method in METHODS.items()
        if method.trains == TUNE
    }
    assert {name for name, value in times.items() if value == 10} >= {"c-clip", "diki", "cl-moe"}
    assert {*times.values()} == {1, 10}
    before = fingerprint_methods(["no-trust", "frozen"])
    assert before != fingerprint_methods(["frozen"])
    monkeypatch.setitem(METHODS, "no-trust", Method("head", {"trust.mode": "fixed"}))
    assert fingerprint_methods(["no-trust", "frozen"]) != before


def test_an_own_method_may_be_a_learner_with_settings():
    own = get_method(f"{OWN}:merged")
    assert (own.learner, own.trains) == ("c-clip", TUNE)
    assert make_config(ContinualConfig(), own).tune.merge == 1
    with pytest.raises(ValueError, match=r"drawn_streams.py:unknown: learner='heads': must be one of frozen"):
        get_method(f"{OWN}:unknown")
    with pytest.raises(ValueError, match=r"method=.*drawn_streams.py:misnamed: .*head.stesp"):
        list_runs(ContinualConfig(stream=("a.json",), method=(f"{OWN}:misnamed",)))
    with pytest.raises(ValueError, match=r"develop\.seeds=1000: must be so few"):
        override_all(ContinualConfig(), {"develop.seeds": 1000})
