"""Ranks that share the batches of a task, and parts of batches: the weights of one process and whole ones."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from raycomp.continual.loop import TUNERS
from raycomp.continual.methods import tuner, zscl
from tests.continual.tuning import Few, learn, on_disk
from tests.training.fitting import on_ranks

ALL = sorted(TUNERS)


def make(few: Few, name: str, **options: Any) -> Any:
    """Return a learner whose AdamW divides by no less than 1e-4: where a gradient is as small as its eps, a
    rounding error is a whole step."""
    learner = few.make(name, **options)
    learner.fit = dataclasses.replace(learner.fit, eps=1e-4)
    return learner


def measure(rank: int, num_ranks: int, folder: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return what every method has learned of two tasks, how it sees them, and what its steps reported."""
    few = Few(Path(folder) / f"{num_ranks}-{rank}")
    found = {}
    for name in ALL:
        learner, reported = make(few, name, **options), []
        for number, task in enumerate(few.tasks):
            learner.start_task(number, task)
            reported += learn(learner, few, number)
            learner.end()
        keys = [learner.find_keys(task) for task in few.tasks]
        seen = [torch.from_numpy(rows) for one in keys for rows in (one.image_ND, one.text_TD)]
        found[name] = {"learned": learner.state()["learned"], "seen": seen, "told": reported}
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
    found = measure(0, 1, str(tmp_path_factory.mktemp("alone")), {})
    torch.set_num_threads(threads)
    return found


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ALL:
        for part in ("learned", "seen"):
            ours, wanted = (list_tensors(one[name][part]) for one in (found, expected))
            assert len(ours) == len(wanted) > 1
            for one, other in zip(ours, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-5, msg=f"{name}, {part}")
        for one, other in zip(found[name]["told"], expected[name]["told"], strict=True):
            assert one == pytest.approx(other, abs=1e-5), name


def test_ranks_have_the_weights_of_one_process(alone, tmp_path):
    """Six rows of a batch over two ranks and three, reference images and looks shared alike."""
    for ranks in on_ranks(measure, tmp_path, str(tmp_path), {}).values():
        for found in ranks:
            assert_same(found, alone)
            for name in ALL:
                both = zip(list_tensors(found[name]), list_tensors(ranks[0][name]), strict=True)
                assert all(torch.equal(one, other) for one, other in both), f"{name}: ranks differ"


@pytest.mark.slow
def test_ranks_in_parts_have_the_weights_of_one_process(alone, tmp_path):
    for ranks in on_ranks(measure, tmp_path, str(tmp_path), {"accumulate": 2}).values():
        assert_same(ranks[0], alone)


def test_parts_have_the_weights_of_the_whole_batch(alone, tmp_path):
    assert_same(measure(0, 1, str(tmp_path), {"accumulate": 3}), alone)


def resume(rank: int, num_ranks: int, folder: str) -> dict[str, Any]:
    """Return, for every method, what the steps of a second task report and leave: whole, and resumed."""
    few = Few(Path(folder) / f"{num_ranks}-{rank}")
    found = {}
    for name in ALL:
        whole = few.make(name)
        whole.start_task(0, few.tasks[0])
        learn(whole, few, 0)
        whole.end()
        whole.start_task(1, few.tasks[1])
        learn(whole, few, 1, stop=2)
        state, again = on_disk(whole.state()), few.make(name)
        again.start_task(1, few.tasks[1])
        again.restore(state)
        both = []
        for learner in (whole, again):
            reported = learn(learner, few, 1, 2)
            learner.end()
            both.append(
                (reported, learner.find_keys(few.tasks[0]).image_ND.tolist(), learner.state()["learned"])
            )
        found[name] = both
    dist.barrier()
    return found


def test_ranks_that_are_restored_within_a_task_go_on_bit_for_bit(tmp_path):
    for ranks in on_ranks(resume, tmp_path, str(tmp_path)).values():
        for found in ranks:
            for name, (whole, again) in found.items():
                assert whole[:2] == again[:2], name
                both = zip(list_tensors(whole[2]), list_tensors(again[2]), strict=True)
                assert all(torch.equal(one, other) for one, other in both), name


def test_half_precision_computes_otherwise_and_leaves_the_weights_in_fp32(tmp_path):
    few = Few(tmp_path)
    for name in ALL:
        reported = []
        for autocast in (False, True):
            learner = few.make(name, autocast=autocast)
            learner.start_task(0, few.tasks[0])
            reported.append(learn(learner, few, 0))
            learner.end()
            assert {one.dtype for one in learner.model.state_dict().values() if one.is_floating_point()} == {
                torch.float32
            }
        assert reported[0] != reported[1], name
        for one, other in zip(*reported, strict=True):
            assert one["clip"] == pytest.approx(other["clip"], rel=0.03), name


def test_fewer_samples_than_workers_are_refused(tmp_path, monkeypatch):
    few = Few(tmp_path)
    monkeypatch.setattr(tuner, "find_rank", lambda: (0, 13))
    with pytest.raises(ValueError, match=r"^tune\.workers=13: must be at most 12, the samples of task 0$"):
        few.make("finetune").start_task(0, few.tasks[0])


def test_a_batch_has_the_rows_of_its_rank(tmp_path, monkeypatch):
    few, row_B = Few(tmp_path), np.array([3, 1, 4, 0, 5])
    learner = few.make("zscl", batch_size=5)
    learner.start_task(0, few.tasks[0])
    whole = learner.batch(0, row_B)
    parts = []
    for rank in range(2):
        own = slice(0, 2) if rank == 0 else slice(2, 5)
        monkeypatch.setattr(tuner, "slice_own", lambda num, own=own: own)
        monkeypatch.setattr(zscl, "slice_own", lambda num, own=own: own)
        parts.append(learner.batch(0, row_B))
    for name in ("image_RCHW", "token_RN", "group_R", "reference_RCHW"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name)), name
    assert {part.num_rows for part in parts} == {5}
