"""DIKI: whose prompts are chosen, what they count, and that tasks do not touch each other."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.continual.tuning import Few, learn, same, through


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def learned(few):
    return through(few.make("diki"), few)


@pytest.mark.parametrize("number", [0, 1])
def test_what_lies_apart_takes_its_own_tasks_prompts(few, learned, number):
    task = few.tasks[number]
    for tower, features in (("image", task.image_ND), ("text", task.text_TD)):
        set_N, share_N = learned.choose(tower, features)
        assert (set_N == number).all()
        assert ((share_N > 0) & (share_N < 1)).all()


def test_what_resembles_no_task_is_nearly_the_frozen_models(few, learned):
    """Features far from both tasks: the residual counts nothing."""
    task = few.tasks[0]
    far = dataclasses.replace(task, image_ND=-30 * task.image_ND, text_TD=-30 * task.text_TD)
    assert max(learned.choose("image", far.image_ND)[1]) < 1e-3
    assert max(learned.choose("text", far.text_TD)[1]) < 1e-3
    keys, frozen = learned.find_keys(far), few.frozen(0)
    np.testing.assert_allclose(keys.image_ND, frozen.image_ND, atol=1e-3)
    np.testing.assert_allclose(keys.text_TD, frozen.text_TD, atol=1e-3)
    assert np.abs(learned.find_keys(task).image_ND - frozen.image_ND).max() > 1e-2


def test_a_later_task_leaves_what_was_seen_of_an_earlier_one(few, learned):
    assert same(through(few.make("diki"), few, 1).find_keys(few.tasks[0]), learned.find_keys(few.tasks[0]))


def test_the_share_is_the_density_of_a_dimension(few, learned):
    task = few.tasks[0]
    gaussian = learned.gaussians["image"][0]
    oracle = torch.distributions.MultivariateNormal(gaussian.mean_D, gaussian.covariance_DD)
    log_N = oracle.log_prob(torch.from_numpy(task.image_ND).double()).numpy()
    wanted_N = 1 / (1 + np.exp(1 - log_N / task.image_ND.shape[1]))
    np.testing.assert_allclose(learned.choose("image", task.image_ND)[1], wanted_N, rtol=1e-5)


def test_nothing_but_the_tasks_prompts_is_trained(few):
    learner = few.make("diki")
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0)
    learner.end()
    old = few.clip.model.state_dict()
    for name, value in learner.model.state_dict().items():
        assert value.equal(old[name.replace(".attn.attention.", ".attn.")])
    first = [{n: v.clone() for n, v in c.sets[0].state_dict().items()} for c in learner.choices.values()]
    learner.start_task(1, few.tasks[1])
    learn(learner, few, 1)
    for choice, before in zip(learner.choices.values(), first, strict=True):
        assert all(value.equal(before[name]) for name, value in choice.sets[0].state_dict().items())
        assert choice.sets[1].value.detach().any()
    numbers = {group["lr"] for group in learner.trainer.optimizer.param_groups}
    assert numbers == {10 * learner.config.learning_rate}
