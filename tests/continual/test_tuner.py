"""Every method that trains the model: the same bits when resumed, on ranks and in parts; refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raycomp.config import ModelConfig
from raycomp.continual.config import ContinualConfig
from raycomp.continual.loop import TUNERS
from raycomp.continual.methods import published, tuner
from tests.continual.tuning import STEPS, Few, learn, on_disk, same
from tests.training.fitting import on_ranks

ALL = sorted(TUNERS)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return Few(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", ALL)
def test_it_learns_and_leaves_the_model_given_as_it_was(few, name):
    task = few.tasks[1]
    before, frozen = few.clip.embed_pixels(task.pixels[:]), [few.frozen(0), few.frozen(1)]
    learner, _ = few.start(name, stop=0, steps=20)
    keys = learner.find_keys(task)
    assert same(keys, frozen[1]), "a task without a step changes nothing"
    np.testing.assert_allclose(keys.image_ND, task.image_ND, atol=1e-6)
    np.testing.assert_allclose(keys.text_TD, task.text_TD, atol=1e-6)
    learner.end()
    assert same(learner.find_keys(few.tasks[0]), frozen[0])
    learner.start_task(1, task)
    reported = learn(learner, 1, stop=20)
    learner.end()
    assert reported[-1]["clip"] < reported[0]["clip"]
    assert reported[0]["loss"] == pytest.approx(sum(reported[0].values()) - reported[0]["loss"], rel=1e-5)
    whole = learner.find_keys(task)
    assert not same(whole, frozen[1]) and few.clip.embed_pixels(task.pixels[:]).equal(before)
    for found in (whole.image_ND, whole.text_TD):
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    pixels = replace(task.pixels, file_N=task.pixels.file_N[3:5], row_N=task.pixels.row_N[3:5])
    some = replace(task, image_ND=task.image_ND[3:5], own_N=task.own_N[3:5], pixels=pixels)
    assert np.array_equal(learner.find_keys(some).image_ND, whole.image_ND[3:5]), "a row is seen alone"


@pytest.mark.parametrize("name", ALL)
def test_one_that_is_restored_continues_bit_for_bit(few, name):
    """Within the second task, and between the tasks, where the second may be open before the state comes."""
    for stop, is_open in ((0, False), (0, True), (3, True), (STEPS, True)):
        whole, again = few.through(name, 1), few.make(name)
        if stop:
            whole.start_task(1, few.tasks[1])
            learn(whole, 1, stop=stop)
        state = on_disk(whole.state())
        if is_open:
            again.start_task(1, few.tasks[1])
        again.restore(state)
        assert same(again.find_keys(few.tasks[0]), whole.find_keys(few.tasks[0])), stop
        for one, is_begun in ((whole, stop > 0), (again, is_open)):
            if not is_begun:
                one.start_task(1, few.tasks[1])
        assert learn(again, 1, stop) == learn(whole, 1, stop), stop
        whole.end(), again.end()
        assert all(same(again.find_keys(task), whole.find_keys(task)) for task in few.tasks), stop
    copied = learn(few.start(name, stop=0)[0], 0), few.start(name, stop=0)[0]
    state = copied[1].state()  # a copy, on which steps do not act
    learn(copied[1], 0)
    again = few.start(name, stop=0)[0]
    again.restore(state)
    assert learn(again, 0) == copied[0]


@pytest.mark.parametrize("name", ALL)
def test_other_towers_and_half_precision(few, name, tmp_path):
    own = Few(tmp_path / "own", custom_text=True)
    learner, reported = own.start(name)
    learner.end()
    assert reported[-1]["clip"] < reported[0]["clip"]
    halved, others = few.start(name, autocast=True)
    halved.end()
    dtypes = {one.dtype for one in halved.model.state_dict().values() if one.is_floating_point()}
    plain = few.start(name)[1]
    assert dtypes == {torch.float32} and others != plain
    assert [one["clip"] for one in others] == pytest.approx([one["clip"] for one in plain], rel=0.03)
    vision = {"layers": [1, 1, 1, 1], "width": 8, "image_size": 32, "head_width": 16}
    convolved, refused = Few(tmp_path / "resnet", vision_cfg=vision), f"method={name}: the image tower of the"
    try:
        reported = convolved.start(name)[1]
    except ValueError as error:
        assert str(error).startswith(f"{refused} model is not made of")
    else:
        assert reported[-1]["clip"] < reported[0]["clip"]


def test_what_is_refused(few, monkeypatch):
    with pytest.raises(ValueError, match=r"of task 0: must be finite; tune\.learning_rate=1e\+30 may be"):
        few.start("finetune", learning_rate=1e30)
    config, clip = ContinualConfig(model=ModelConfig(precision="bf16")), Few.__new__(Few)
    clip.dtype = "bf16"
    with pytest.raises(ValueError, match=r"model\.precision='bf16': must be fp32 or tf32"):
        TUNERS["finetune"](clip, few.spec, config, 0)
    monkeypatch.setattr(tuner, "find_rank", lambda: (0, 13))
    with pytest.raises(ValueError, match=r"^tune\.workers=13: must be at most 12, the samples of task 0$"):
        few.make("finetune").start_task(0, few.tasks[0])


def measure(
    rank: int, num_ranks: int, folder: str, options: dict[str, Any], is_resumed: bool = True
) -> dict[str, Any]:
    """Return what every method has learned of two tasks, how it sees them, and what its steps reported.

    Within the second task a new learner takes the state over.

    AdamW divides by no less than 1e-4: where a gradient is as small as its eps, a rounding error is a whole
    step.
    """
    few, found = Few(Path(folder) / f"{num_ranks}-{rank}"), {}

    def make(name: str) -> Any:
        learner = few.make(name, **options)
        learner.fit = replace(learner.fit, eps=1e-4)
        return learner

    for name in ALL:
        learner, reported = make(name), []
        for number, task in enumerate(few.tasks):
            learner.start_task(number, task)
            reported += learn(learner, number, stop=2)
            if is_resumed and number == 1:
                state, learner = on_disk(learner.state()), make(name)
                learner.start_task(1, task)
                learner.restore(state)
            reported += learn(learner, number, 2)
            learner.end()
        keys = [learner.find_keys(task) for task in few.tasks]
        seen = [torch.from_numpy(some) for one in keys for some in (one.image_ND, one.text_TD)]
        found[name] = {"learned": learner.state()["learned"], "seen": seen, "reported": reported}
    return found


def list_tensors(value: Any, name: str = "") -> list[Tensor]:
    """Return the tensors of a tree, without the keys' biases: softmax cancels them, so that their gradient is
    a rounding error, by which zscl's pull back to the start lets them sway."""
    if isinstance(value, Tensor):
        parts = value.double().chunk(3) if name.endswith("in_proj_bias") else [value.double()]
        return [part for number, part in enumerate(parts) if number != 1]
    if isinstance(value, dict):
        return [one for name, entry in value.items() for one in list_tensors(entry, name)]
    return [one for entry in value for one in list_tensors(entry)] if isinstance(value, list) else []


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = measure(0, 1, str(tmp_path_factory.mktemp("alone")), {}, is_resumed=False)
    torch.set_num_threads(threads)
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ALL:
        for part in ("learned", "seen"):
            ours, wanted = (list_tensors(one[name][part]) for one in (found, expected))
            assert len(ours) == len(wanted) > 1
            for one, other in zip(ours, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-5, msg=f"{name}, {part}")
        for one, other in zip(found[name]["reported"], expected[name]["reported"], strict=True):
            assert one == pytest.approx(other, abs=1e-5), name


def test_ranks_have_the_weights_of_one_process_also_when_resumed(alone, tmp_path):
    """Six rows of a batch over three ranks, reference images and passes shared alike."""
    ranks = on_ranks(measure, tmp_path, str(tmp_path), {})
    for found in ranks:
        assert_same(found, alone)
        both = zip(list_tensors(found), list_tensors(ranks[0]), strict=True)
        assert all(torch.equal(one, other) for one, other in both), "ranks differ"


def test_parts_have_the_weights_of_the_whole_batch(alone, tmp_path):
    assert_same(measure(0, 1, str(tmp_path), {"accumulate": 3}), alone)


@pytest.mark.slow
def test_ranks_in_parts_have_the_weights_of_one_process(alone, tmp_path):
    assert_same(on_ranks(measure, tmp_path, str(tmp_path), {"accumulate": 2})[0], alone)


def test_a_batch_has_the_rows_of_its_rank(few, monkeypatch):
    row_B, parts = np.array([3, 1, 4, 0, 5]), []
    learner, _ = few.start("zscl", stop=0, batch_size=5)
    whole = learner.batch(0, row_B)
    for own in (slice(0, 2), slice(2, 5)):
        for module in (tuner, published):
            monkeypatch.setattr(module, "slice_own", lambda num, own=own: own)
        parts.append(learner.batch(0, row_B))
    for name in ("image_RCHW", "token_RN", "group_R", "reference_RCHW"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name)), name
    assert {part.num_rows for part in parts} == {5}
