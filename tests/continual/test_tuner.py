"""Every method that trains the model: where it begins, that it goes on bit for bit, what it refuses."""

import dataclasses

import numpy as np
import pytest

from raycomp.config import ModelConfig
from raycomp.continual.loop import TUNERS, make_tuner
from raycomp.continual.method import METHODS, TUNE
from tests.continual.tuning import CONFIG, STEPS, Few, learn, on_disk, same, through, to_pixels

ALL = sorted(TUNERS)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


def test_every_method_that_trains_the_model_has_its_learner():
    assert {method.learner for method in METHODS.values() if method.trains == TUNE} == set(TUNERS)


@pytest.mark.parametrize("name", ALL)
def test_before_the_first_step_the_model_is_the_one_given(few, name):
    learner = few.make(name)
    learner.start_task(0, few.tasks[0])
    keys = learner.find_keys(few.tasks[1])
    assert same(keys, few.frozen(1))
    np.testing.assert_allclose(keys.image_ND, few.tasks[1].image_ND, atol=1e-6)
    np.testing.assert_allclose(keys.text_TD, few.tasks[1].text_TD, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_it_learns_and_leaves_the_model_given_as_it_was(few, name):
    before = few.clip.embed_pixels(few.tasks[0].pixels[:])
    learner = few.make(name, steps=20)
    learner.start_task(0, few.tasks[0])
    reported = learn(learner, few, 0, stop=20)
    learner.end()
    assert reported[-1]["clip"] < reported[0]["clip"]
    assert reported[0]["loss"] == pytest.approx(sum(reported[0].values()) - reported[0]["loss"], rel=1e-5)
    assert not same(learner.find_keys(few.tasks[0]), few.frozen(0))
    assert few.clip.embed_pixels(few.tasks[0].pixels[:]).equal(before)
    keys = learner.find_keys(few.tasks[1])
    for found in (keys.image_ND, keys.text_TD):
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("stop", [0, 1, 3, STEPS])
@pytest.mark.parametrize("name", ALL)
def test_one_that_is_restored_in_a_task_goes_on_bit_for_bit(few, name, stop):
    whole = few.make(name)
    through(whole, few, 1)
    whole.start_task(1, few.tasks[1])
    learn(whole, few, 1, stop=stop)
    state = on_disk(whole.state())
    again = few.make(name)
    again.start_task(1, few.tasks[1])
    again.restore(state)
    assert same(again.find_keys(few.tasks[0]), whole.find_keys(few.tasks[0]))
    assert learn(again, few, 1, stop) == learn(whole, few, 1, stop)
    whole.end(), again.end()
    for task in few.tasks:
        assert same(again.find_keys(task), whole.find_keys(task))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_one_that_is_restored_between_tasks_goes_on_bit_for_bit(few, name, is_open):
    whole = through(few.make(name), few, 1)
    state, again = on_disk(whole.state()), few.make(name)
    if is_open:
        again.start_task(1, few.tasks[1])
        again.restore(state)
    else:
        again.restore(state)
        assert same(again.find_keys(few.tasks[0]), whole.find_keys(few.tasks[0]))
        again.start_task(1, few.tasks[1])
    whole.start_task(1, few.tasks[1])
    assert learn(again, few, 1) == learn(whole, few, 1)
    whole.end(), again.end()
    assert same(again.find_keys(few.tasks[0]), whole.find_keys(few.tasks[0]))


@pytest.mark.parametrize("name", ALL)
def test_a_state_is_a_copy(few, name):
    learner = few.make(name)
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0, stop=1)
    state = learner.state()
    first = on_disk(state)
    learn(learner, few, 0, 1)
    fresh = few.make(name)
    fresh.start_task(0, few.tasks[0])
    fresh.restore(state)
    found = learn(fresh, few, 0, 1)
    fresh = few.make(name)
    fresh.start_task(0, few.tasks[0])
    fresh.restore(first)
    assert found == learn(fresh, few, 0, 1)


@pytest.mark.parametrize("name", ALL)
def test_what_is_seen_of_a_row_depends_on_that_row_alone(few, name):
    learner, task = through(few.make(name), few, 1), few.tasks[0]
    some = dataclasses.replace(
        task, image_ND=task.image_ND[3:5], own_N=task.own_N[3:5], pixels=to_pixels(task.pixels[3:5])
    )
    assert np.array_equal(learner.find_keys(some).image_ND, learner.find_keys(task).image_ND[3:5])


@pytest.mark.parametrize("name", ALL)
def test_a_loss_that_is_not_finite_is_the_users(few, name):
    learner = few.make(name, learning_rate=1e30)
    learner.start_task(0, few.tasks[0])
    with pytest.raises(ValueError, match=r"of task 0: must be finite; tune\.learning_rate=1e\+30 may be"):
        learn(learner, few, 0)


@pytest.mark.parametrize("name", ALL)
def test_a_text_tower_of_its_own_will_do(tmp_path, name):
    few = Few(tmp_path, custom_text=True)
    learner = few.make(name)
    learner.start_task(0, few.tasks[0])
    assert same(learner.find_keys(few.tasks[0]), few.frozen(0))
    reported = learn(learner, few, 0)
    learner.end()
    assert reported[-1]["clip"] < reported[0]["clip"]
    assert not same(learner.find_keys(few.tasks[0]), few.frozen(0))


@pytest.mark.parametrize("name", sorted({*ALL} - {"finetune", "zscl"}))
def test_a_tower_without_plain_blocks_is_refused(tmp_path, name):
    vision = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "head_width": 16}
    few = Few(tmp_path, vision_cfg=vision)
    with pytest.raises(ValueError, match=f"^method={name}: the image tower of the model is not made of"):
        few.make(name)


def test_a_task_of_no_steps_leaves_the_model_as_it_was(few):
    for name in ALL:
        learner = few.make(name)
        for number, task in enumerate(few.tasks):
            learner.start_task(number, task)
            learner.end()
        assert same(learner.find_keys(few.tasks[0]), few.frozen(0)), name


def test_a_model_of_half_precision_is_refused(few):
    config = dataclasses.replace(CONFIG, model=ModelConfig(precision="bf16"))
    clip = Few.__new__(Few)
    clip.dtype = "bf16"
    with pytest.raises(ValueError, match=r"model\.precision='bf16': must be fp32 or tf32"):
        make_tuner("finetune", clip, few.spec, config, 0)
