"""How far the layers of the text tower move: states by hooks, drift of methods that train the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raycomp.continual import tables
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Stream, StreamRun, Task
from raycomp.continual.loop import TUNERS, TaskLoop, draw_rows
from raycomp.continual.scoring import METHOD, Result, measure
from raycomp.core.continual import measure_drift
from raycomp.data.files import Folder
from tests.continual.tuning import STEPS, TUNE, Few, learn, same

LAYERS = 3
TEXT = {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": LAYERS}
CONFIG = ContinualConfig(tune=replace(TUNE, steps=STEPS), order="given", checkpoint_steps=2)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"), text_cfg=TEXT)


def states(learner, task):
    return learner.list_states(task.token_TL, task.text_TD)


def walk(model, token_TL: np.ndarray) -> np.ndarray:
    """Return the states of each block at a text's highest token id, by open_clip's own parts."""
    found = []
    for token_L in torch.from_numpy(token_TL).long():
        x_1LW = model.token_embedding(token_L[None]) + model.positional_embedding
        of_text = []
        for block in model.transformer.resblocks:
            x_1LW = block(x_1LW, attn_mask=model.attn_mask)
            of_text.append(x_1LW[0, int(token_L.argmax())])
        found.append(torch.stack(of_text))
    return torch.stack(found, 1).detach().numpy()


def test_the_states_are_those_of_a_plain_pass(few):
    learner, task = few.through("finetune", 1), few.tasks[1]
    found = states(learner, task)
    assert found.shape == (LAYERS, len(task.texts), 32) and found.dtype == np.float32
    np.testing.assert_allclose(found, walk(learner.model, task.token_TL), atol=1e-5)
    last_TW = torch.from_numpy(found[-1])
    embedded = learner.model.ln_final(last_TW) @ learner.model.text_projection
    embedded = torch.nn.functional.normalize(embedded, dim=-1).detach()
    np.testing.assert_allclose(embedded, learner.find_keys(task).text_TD, atol=1e-5)
    assert not any(block._forward_hooks for block in learner.model.transformer.resblocks)


@pytest.mark.parametrize("name", sorted(TUNERS))
def test_an_untouched_model_has_no_drift_and_a_trained_one_has(few, name):
    task, learner = few.tasks[0], few.make(name)
    start = states(learner, task)
    np.testing.assert_array_equal(start, states(few.make("finetune"), task))
    learner.start_task(0, task)
    for layer in range(LAYERS):
        drift = measure_drift(start[layer], states(learner, task)[layer])
        assert drift == pytest.approx((0, 0), abs=1e-6), "a task without a step moves nothing"
    learn(learner, 0)
    learner.end()
    now = states(learner, task)
    drifts = [measure_drift(*both) for both in zip(start, now, strict=True)]
    assert min(one.subspace for one in drifts) > 1e-6 and min(one.distance for one in drifts) > 1e-7


@pytest.mark.parametrize("name", sorted(TUNERS))
def test_reading_the_states_leaves_no_trace(few, name):
    """Within a task and between tasks: the same embeddings and the same further steps."""
    read, plain = few.make(name), few.make(name)
    for number, task in enumerate(few.tasks):
        for one in (read, plain):
            one.start_task(number, task)
            learn(one, number, stop=2)
        states(read, few.tasks[0])
        assert learn(read, number, 2) == learn(plain, number, 2)
        read.end(), plain.end()
        states(read, few.tasks[1])
        assert same(read.find_keys(task), plain.find_keys(task))


def make_loop(few: Few, method: str = "finetune", seed: int = 0) -> TaskLoop:
    tasks = tuple(Task(f"task {number}", one, one) for number, one in enumerate(few.tasks))
    stream = Stream("few", tasks, (), ("thing",), few.tasks[0].text_TD[:1])
    learner = few.make(method)
    return TaskLoop(StreamRun("few", method, seed), stream, CONFIG, learner)


def read(loop: TaskLoop, table) -> Result:
    values: dict = {}
    for row in table.to_pylist():
        values.setdefault((row["of"], row["figure"]), {})[row["after"], row["number"]] = row["value"]
    facts = {"order": loop.order, "backbone": 0, "seconds": 1.0}
    return Result(StreamRun("few", "finetune", loop.seed), facts, values)


class Stopped(Exception):
    pass


def test_a_run_records_each_layer_after_each_task_also_when_resumed(few, tmp_path):
    loop = make_loop(few)
    table = loop.run(Folder(str(tmp_path / "whole")))
    result = read(loop, table)
    start, learner = states(few.make("finetune"), few.tasks[0]), few.make("finetune")
    for number, task in enumerate(few.tasks):
        learner.start_task(number, task)
        for step in range(STEPS):
            learner.step(step, draw(loop, number, step))
        learner.end()
        expected = [measure_drift(*both) for both in zip(start, states(learner, few.tasks[0]), strict=True)]
        for layer, drift in enumerate(expected, 1):
            names = (f"subspace_drift_layer_{layer}", f"cosine_distance_layer_{layer}")
            found = [result.of_method(name)[number] for name in names]
            assert found == pytest.approx(drift, rel=1e-3, abs=1e-9) and min(found) > 0
    measured = measure(result)
    assert measured["subspace_drift_layer_3"] == result.of_method("subspace_drift_layer_3")[-1]

    def stop(line: dict) -> None:
        if line["step"] == STEPS + 2:
            raise Stopped

    with pytest.raises(Stopped):
        make_loop(few).run(Folder(str(tmp_path / "cut")), stop)
    resumed = make_loop(few).run(Folder(str(tmp_path / "cut")))
    assert [str(row) for row in resumed.to_pylist()] == [str(row) for row in table.to_pylist()]


def draw(loop: TaskLoop, number: int, step: int) -> np.ndarray:
    key = (CONFIG.seed, loop.seed, number)
    return draw_rows(len(loop.trainings[number]), loop.batch_size, key, step)


def test_a_tower_that_is_not_read_at_the_end_of_text_records_nothing_and_is_named(few, tmp_path):
    other = Few(tmp_path / "pooled", text_cfg={**TEXT, "pool_type": "last"}, custom_text=True)
    assert states(other.make("finetune"), other.tasks[0]) is None
    loop = make_loop(other)
    result = read(loop, loop.run(Folder(str(tmp_path / "work"))))
    assert not any("layer" in name for of, name in result.values if of == METHOD)
    runs = tables.Runs("few", {result.one_run: result}, {result.one_run: measure(result)})
    assert list(tables.report_drift(runs).rows) == [("finetune", "not recorded", None, None, None)]


def make_result(method: str, seed: int, **figures: tuple[float, float]) -> Result:
    values = {(METHOD, name): {(0, 0): one, (1, 0): two} for name, (one, two) in figures.items()}
    return Result(StreamRun("few", method, seed), {"order": [0, 1]}, values)


def test_the_page_has_the_mean_over_seeds_by_layer_and_task():
    made = [
        make_result(
            "finetune",
            seed,
            **{
                "loss_mean": (1.0, 1.0),
                "subspace_drift_layer_1": (0.1 + seed / 10, 0.3),
                "cosine_distance_layer_1": (0.01, 0.02 + seed / 100),
                "subspace_drift_layer_12": (float("nan"), 0.5),
                "cosine_distance_layer_12": (0.1, 0.2),
            },
        )
        for seed in range(2)
    ]
    made += [make_result("compo-realign", 0, sigma_max=(1.0, 2.0))]
    results = {one.one_run: one for one in made}
    table = tables.report_drift(tables.Runs("few", results, {one: {} for one in results}))
    first, last = table.rows
    assert first[:2] == ("finetune", "1") and first[2:] == pytest.approx((0.15, 0.3, 0.025))
    assert last == ("finetune", "12", None, 0.5, pytest.approx(0.2)), "a head has no row"
    heads = {one_run: one for one_run, one in results.items() if not one_run.is_tuned}
    assert not tables.report_drift(tables.Runs("few", heads, {one: {} for one in heads})).rows
