"""CL-MoE adapted: what a task leaves of its experts, and which task a row is taken to be of."""

import numpy as np
import pytest
import torch

from raycomp.core.losses import expert_momentum
from tests.continual.tuning import Few, learn, rows, through


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


def experts(learner) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(layer.down.detach().clone(), layer.up.detach().clone()) for layer in learner.layers]


def test_the_first_task_leaves_its_experts_and_the_second_a_blend(few):
    learner = few.make("cl-moe")
    learner.start_task(0, few.tasks[0])
    learn(learner, few, 0)
    new = experts(learner)
    learner.end()
    first = experts(learner)
    assert all(a.equal(b) for old, now in zip(new, first, strict=True) for a, b in zip(old, now, strict=True))
    learner.start_task(1, few.tasks[1])
    learn(learner, few, 1)
    new = experts(learner)
    shares = [layer.share() for layer in learner.layers]
    learner.end()
    for number, found in enumerate(experts(learner)):
        keep = expert_momentum(torch.stack([learner.shares[0][number], shares[number]]))
        for old, now, left in zip(first[number], new[number], found, strict=True):
            for expert, share in enumerate(keep):
                torch.testing.assert_close(left[expert], share * old[expert] + (1 - share) * now[expert])
            assert not left.equal(now)


@pytest.mark.parametrize("number", [0, 1])
def test_what_lies_apart_is_taken_to_be_of_its_own_task(few, number):
    learner, task = through(few.make("cl-moe"), few), few.tasks[number]
    assert (learner.choose("image", task.image_ND)[0] == number).all()
    means = [other.text_TD.mean(0) for other in few.tasks]
    nearest = [int(np.argmin([np.square(text - mean).sum() for mean in means])) for text in task.text_TD]
    assert learner.choose("text", task.text_TD)[0].tolist() == nearest


def test_the_task_matters_to_what_is_seen(few):
    """Rows that are taken to be of another task are seen by other shares of the experts."""
    learner, task = through(few.make("cl-moe", steps=20), few), few.tasks[0]
    own = learner.find_keys(task).image_ND
    for centres in learner.centres.values():
        centres.reverse()
    assert abs(learner.find_keys(task).image_ND - own).max() > 1e-5


def test_an_evaluation_leaves_nothing_behind_in_training(few):
    found = []
    for is_asked in (False, True):
        learner = few.make("cl-moe")
        learner.start_task(0, few.tasks[0])
        learn(learner, few, 0, stop=2)
        if is_asked:
            learner.find_keys(few.tasks[1])
        found.append(learn(learner, few, 0, 2))
    assert found[0] == found[1]


def test_nothing_but_experts_and_routers_is_trained(few):
    learner = few.make("cl-moe")
    learner.start_task(0, few.tasks[0])
    routers = [layer.router.detach().clone() for layer in learner.layers]
    learner.step(0, rows(0, 0)), learner.step(1, rows(0, 1))
    old = few.clip.model.state_dict()
    for name, value in learner.model.state_dict().items():
        plain = name.replace(".linear.", ".")
        assert plain not in old or value.equal(old[plain])
    assert any(not layer.router.equal(before) for layer, before in zip(learner.layers, routers, strict=True))
