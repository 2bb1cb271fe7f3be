"""COMPO-REALIGN by the paper's letter, and the parts of it that cannot act: shown by equality."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from raycomp.continual.data import Stream
from raycomp.continual.method import FULL
from raycomp.continual.scoring import TASK, ZERO_SHOT
from tests.continual.streams import DIM, NAMES, make_split, make_stream, unit
from tests.continual.test_loop import make_loop, run


def figures(table: pa.Table) -> list[str]:
    """Return what is asked of the method, as text; what it says of itself is left out."""
    return [str(row) for row in table.to_pylist() if row["of"] in (TASK, ZERO_SHOT)]


def make_disjoint_stream() -> Stream:
    """Return three tasks, each of four names of its own: no set of primitives is met twice."""
    rng = np.random.default_rng(5)
    name_VD = unit(rng.standard_normal((len(NAMES), DIM)))
    embedded = dict(zip(NAMES, name_VD, strict=True))
    stream, tasks = make_stream(), []
    for number, task in enumerate(stream.tasks):
        own = NAMES[4 * number : 4 * number + 4]
        sets = [own[:2], own[1:3], own[2:], own[:3], own[1:], own[::3], own, own[::2]]
        turn_DD = np.linalg.qr(np.eye(DIM) + 0.3 * rng.standard_normal((DIM, DIM)))[0]
        splits = [make_split(sets, embedded, turn_DD, 10 * number + half) for half in (0, 1)]
        tasks.append(replace(task, train=splits[0], test=splits[1]))
    return replace(stream, tasks=tuple(tasks), zero_shot=(), name_VD=name_VD)


def test_past_texts_are_inert_where_no_task_repeats_a_composition(tmp_path):
    """No past text says what a sample says: replay-text is sequential, and the buffer none, bit for bit."""
    stream = make_disjoint_stream()
    replayed, plain, whole, without = (
        run(method, tmp_path / method, stream)[1]
        for method in ("replay-text", "sequential", FULL, "no-buffer")
    )
    assert figures(replayed) == figures(plain) and figures(whole) == figures(without)


def test_past_texts_act_where_a_composition_comes_back(tmp_path):
    """The second task is the first one again, by other words of the same primitives."""
    stream = make_stream()
    again = replace(stream.tasks[1], train=replace(stream.tasks[0].train))
    stream = replace(stream, tasks=(stream.tasks[0], again, *stream.tasks[2:]))
    options = {"order": "given", "head.learning_rate": 0.01}
    (loop, _), (plain, _) = (
        run(method, tmp_path / method, stream, **options) for method in ("replay-text", "sequential")
    )
    assert not torch.equal(loop.learner.composer.theta_DD, plain.learner.composer.theta_DD)


def test_a_constant_scale_of_the_gradient_is_inert_under_adam(tmp_path):
    """Half of every gradient: Adam goes as far, but for its epsilon; SGD goes half as far."""
    moved = {}
    for name, optimizer in (("adamw", "adamw"), ("sgd", "sgd")):
        fixed = {"trust.mode": "fixed", "trust.alpha": 0.5}
        for method, own in ((FULL, fixed), ("no-trust", {})):
            loop, table = run(method, tmp_path / name / method, **{"head.optimizer": optimizer}, **own)
            moved[name, method] = loop.learner.composer.theta_DD.detach(), figures(table)
    (clipped, found), (whole, expected) = moved["adamw", FULL], moved["adamw", "no-trust"]
    torch.testing.assert_close(clipped, whole, rtol=1e-2, atol=2e-5)
    assert whole.abs().max() > 2e-3 and found == expected
    ratio = moved["sgd", FULL][0].norm() / moved["sgd", "no-trust"][0].norm()
    assert 0.45 < float(ratio) < 0.55


def test_a_trust_region_that_never_binds_is_inert(tmp_path):
    _, wide = run(FULL, tmp_path / "a", **{"trust.gamma": 1e9})
    _, without = run("no-trust", tmp_path / "b")
    assert figures(wide) == figures(without)


def test_sigma_by_power_steps_is_the_exact_one():
    for primitives in ["raw", "shaped"]:
        for method in [FULL, "linear-mix", "attention-pool", "no-shaper"]:
            found = {}
            for num_steps in (1, 2, None):
                options = {"trust.primitives": primitives, "trust.power_steps": num_steps}
                loop = make_loop(method, **options, **{"head.learning_rate": 0.01})
                loop.learner.start_task(0, loop.trainings[0])
                found[num_steps] = [loop.learner.step(step, np.arange(8))["sigma"] for step in range(4)]
            assert found[1] == pytest.approx(found[None], rel=1e-4) == found[2]
            assert min(found[None]) > 0 and len(set(found[None])) == 4
