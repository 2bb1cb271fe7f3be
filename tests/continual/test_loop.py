"""Methods on a made stream, whose pictures are turned otherwise by each task."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from raycomp.config import UserError, override_all
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Keys, Split, Stream, StreamRun, make_config
from raycomp.continual.loop import TaskLoop, draw_rows, order_tasks
from raycomp.continual.method import METHODS
from raycomp.continual.methods.head import Frozen, HeadLearner
from raycomp.continual.scoring import MERGED, TEXT, Result, gather_questions, measure
from raycomp.data.files import Folder
from tests.continual.streams import NAMES, make_split, make_stream

SMALL = {"head.steps": 12, "head.batch_size": 8, "head.hidden": 4, "trust.first": 3, "checkpoint_steps": 5}
HEADS = [name for name, method in METHODS.items() if method.learner == "head"]


def make_loop(method: str, stream: Stream | None = None, **options: object) -> TaskLoop:
    stream = stream or make_stream()
    config = override_all(ContinualConfig(), {**SMALL, **options})
    own = make_config(config, METHODS[method])
    learner = Frozen() if method == "frozen" else HeadLearner(own, stream, 7)
    return TaskLoop(StreamRun("world", method, 7), stream, own, learner)


def run(
    method: str, folder: Path, stream: Stream | None = None, **options: object
) -> tuple[TaskLoop, pa.Table]:
    loop = make_loop(method, stream, **options)
    return loop, loop.run(Folder(str(folder)))


def read(loop: TaskLoop, table: pa.Table, method: str = "compo-realign") -> Result:
    values: dict = {}
    for row in table.to_pylist():
        values.setdefault((row["of"], row["figure"]), {})[row["after"], row["number"]] = row["value"]
    return Result(StreamRun("world", method, 7), {"order": loop.order, "backbone": 0, "seconds": 1.0}, values)


def show(table: pa.Table) -> list[str]:
    """Every figure as text: one that is not known equals itself."""
    return [str(row) for row in table.to_pylist()]


class Killed(Exception):
    pass


@dataclass(frozen=True)
class Deadly(Folder):
    """A folder whose writer is killed as it is about to write once more than so often."""

    most: int
    written: list[str] = field(default_factory=list)

    def write_bytes(self, data: bytes, *names: str) -> None:
        if len(self.written) == self.most:
            raise Killed
        self.written.append(names[0])
        super().write_bytes(data, *names)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Callable[[str], pa.Table]:
    """The figures of a method on the small stream, computed once."""
    return cache(lambda method: run(method, tmp_path_factory.mktemp(method))[1])


@pytest.mark.parametrize(
    ("method", "most"),
    [*((name, 4) for name in HEADS), ("compo-realign", 1)],
)
def test_a_run_that_was_killed_within_a_task_ends_with_the_same_figures(method, most, whole, tmp_path):
    with pytest.raises(Killed):
        make_loop(method).run(Deadly(str(tmp_path / "cut"), most))
    again = make_loop(method).run(Folder(str(tmp_path / "cut")))
    assert show(again) == show(whole(method))


@pytest.mark.parametrize("method", HEADS)
def test_by_the_captions_alone_every_head_is_the_frozen_model(method, whole):
    frozen, table = whole("frozen"), whole(method)

    def of_text(table: pa.Table) -> list:
        return [str(row) for row in table.to_pylist() if row["figure"].startswith(TEXT)]

    asked = set(table["after"].to_pylist())  # joint training is asked at the end alone
    assert of_text(table) == of_text(frozen.filter([after in asked for after in frozen["after"].to_pylist()]))


def test_the_frozen_model_forgets_nothing(tmp_path):
    found = measure(read(*run("frozen", tmp_path), "frozen"))
    assert found["forgetting_best"] == found["forgetting_first"] == found["gain"] == 0
    assert found["fused zstd"] == 0 and 0 < found["last"] < 100


def test_joint_training_is_asked_at_the_end_alone(tmp_path):
    loop, table = run("joint", tmp_path)
    result = read(loop, table, "joint")
    matrix_TT = result.matrix(result.main)
    assert loop.steps == 36 and np.isnan(matrix_TT[:-1]).all()
    found = measure(result)
    assert found["last"] == matrix_TT[-1].mean()
    assert not {"transfer", "learned", "forgetting_best"} & set(found)


def test_a_head_learns_what_a_task_turns_and_forgets_the_ones_before(tmp_path):
    loop, table = run("sequential", tmp_path, **{"head.steps": 150, "head.learning_rate": 0.01})
    result = read(loop, table)
    name = f"composed {MERGED} both"
    matrix_TT, before_T = result.matrix(name), result.before(name)
    assert (np.diag(matrix_TT) > before_T + 10).all()
    assert matrix_TT[-1, 0] < matrix_TT[0, 0] - 10


def test_without_the_synthetic_positive_nothing_but_the_anchors_train(tmp_path):
    loop, table = run("no-synthetic", tmp_path / "a", **{"buffer.kind": "none", "trust.mode": "off"})
    new = make_loop("no-synthetic").learner
    for name, value in loop.learner.composer.state_dict().items():
        assert torch.equal(value, new.composer.state_dict()[name]), name
    found = read(loop, table).of_method("gradient_mean")
    assert (found == 0).all()
    anchored, _ = run("no-synthetic", tmp_path / "b", **{"buffer.reading": "anchored"})
    assert not torch.equal(anchored.learner.composer.theta_DD, new.composer.theta_DD)


@pytest.mark.parametrize("dim", [512, pytest.param(768, marks=pytest.mark.slow)])
def test_a_trained_head_is_orthogonal(dim, tmp_path):
    options = {"head.steps": 20, "head.learning_rate": 0.02, "head.hidden": 8}
    loop, _ = run("compo-realign", tmp_path, make_stream(1, dim=dim), **options)
    assert loop.learner.composer.theta_DD.abs().max() > 0.05
    assert loop.learner.read_out(loop.asked.split)["orthogonality_error"] <= 1e-6


def test_the_buffer_holds_so_many_of_each_task_and_no_more_than_there_are(tmp_path):
    loop, _ = run("compo-realign", tmp_path / "a", **{"buffer.size": 5})
    assert loop.learner.measure()["buffer_entries"] == 15
    loop, _ = run("compo-realign", tmp_path / "b", **{"buffer.size": 500})
    assert loop.learner.measure()["buffer_entries"] == 60
    loop, _ = run("image-buffer", tmp_path / "c", **{"buffer.size": 500})
    text_bytes = sum(len("".join(e.primitives) + e.text) for e in loop.learner.buffer.entries())
    assert loop.learner.measure()["buffer_bytes"] == text_bytes + 60 * 16 * 4


def test_a_buffer_of_nothing_is_no_buffer(tmp_path):
    _, without = run("no-buffer", tmp_path / "a")
    _, empty = run("compo-realign", tmp_path / "b", **{"buffer.size": 0})
    assert show(empty) == show(without)


def test_every_tenth_step_is_reported_in_whole_ones():
    """Adam divides a gradient's scale out again: its step is as long as without the trust region."""
    for optimizer, apply, is_shorter in [
        ("adamw", "update", True),
        ("adamw", "gradient", False),
        ("sgd", "update", True),
        ("sgd", "gradient", True),
    ]:
        options = {"trust.gamma": 0.05, "trust.apply": apply, "head.optimizer": optimizer}
        loop = make_loop("compo-realign", **options)
        loop.learner.start_task(0, loop.trainings[0])
        first, second = (loop.learner.step(step, np.arange(8)) for step in (0, 1))
        assert 0 < first["alpha"] < 0.9 and "realised" not in second
        assert first["realised"] == pytest.approx(first["alpha"] if is_shorter else 1, rel=1e-3)
        free = make_loop("no-trust", **options)
        free.learner.start_task(0, free.trainings[0])
        assert "realised" not in free.learner.step(0, np.arange(8))


def test_a_fixed_alpha_of_one_is_no_trust_region(tmp_path):
    _, without = run("no-trust", tmp_path / "a")
    loop = make_loop("compo-realign", **{"trust.apply": "update", "trust.mode": "fixed"})
    table = loop.run(Folder(str(tmp_path / "b")))
    is_reported = [row["figure"] in ("realised_mean", "realised_last") for row in table.to_pylist()]
    assert show(table.filter([not reported for reported in is_reported])) == show(without)
    means = [row["value"] for row in table.to_pylist() if row["figure"] == "realised_mean"]
    assert means == [1.0] * 3


def test_the_trust_region_shortens_steps_above_the_quantile(tmp_path):
    loop, table = run("compo-realign", tmp_path)
    found = read(loop, table)
    assert found.of_method("alpha_realised")[-1] < 1 and found.of_method("sigma_max").min() > 0
    loop, table = run("compo-realign", tmp_path / "wide", **{"trust.gamma": 1e9})
    assert read(loop, table).of_method("alpha_realised")[-1] == 1


def test_a_task_with_less_than_a_batch_and_one_sample_are_learned(tmp_path):
    stream = make_stream()
    task = stream.tasks[0]
    first = make_split([NAMES[:1]], dict(zip(NAMES, stream.name_VD, strict=True)), np.eye(16), 3)
    small = replace(stream, tasks=(replace(task, train=first), *stream.tasks[1:]))
    _, table = run("compo-realign", tmp_path, small)
    assert np.isfinite([row["value"] for row in table.to_pylist() if row["figure"] == "loss_mean"]).all()


def test_a_text_of_a_thousand_primitives_is_composed(tmp_path):
    rng = np.random.default_rng(1)
    names = tuple(f"a{i} thing{i}" for i in range(1000))
    embedded = dict(zip(names, rng.standard_normal((1000, 16)).astype(np.float32) / 4, strict=True))
    split = make_split([names, names[:3], names[5:6]], embedded, np.eye(16), 0)
    stream = make_stream()
    task = replace(stream.tasks[0], train=split, test=split)
    wide = replace(stream, tasks=(task,), names=names, name_VD=np.stack(list(embedded.values())))
    wide = replace(wide, zero_shot=())
    loop, table = run("compo-realign", tmp_path, wide)
    assert measure(read(loop, table))["last"] == 100


def test_a_loss_that_is_not_finite_ends_the_run_in_a_line(tmp_path):
    with pytest.raises(UserError, match=r"head\.learning_rate=1e\+30 may be too high"):
        run("no-trust", tmp_path, **{"head.learning_rate": 1e30})


@pytest.mark.parametrize(
    ("method", "said"), [("no-trust", "head.learning_rate=0.001"), ("zscl", "tune.learning_rate=0.0001")]
)
@pytest.mark.parametrize("value", [0.0, np.nan])
def test_what_training_left_without_a_direction_is_not_judged(method, said, value):
    loop = make_loop("no-trust")
    loop.said_rate = TaskLoop(
        StreamRun("world", method, 7), make_stream(), ContinualConfig(), Frozen()
    ).said_rate
    find_keys = loop.learner.find_keys

    def find_all_but_one(split: Split) -> Keys:
        keys = find_keys(split)
        assert keys.composed_ETD is not None
        keys.composed_ETD[0, 3] = value
        return keys

    loop.learner.find_keys = find_all_but_one
    with pytest.raises(
        UserError, match=rf"^{re.escape(said)}: gives embeddings .* \(1 of \d+ rows\); lower it$"
    ):
        loop.run(Folder("memory"))


def test_a_damaged_state_is_reported(tmp_path):
    Folder(str(tmp_path)).write_bytes(b"nothing", "state.pt")
    with pytest.raises(UserError, match=r"state\.pt: does not belong to this run"):
        run("compo-realign", tmp_path)


def test_questions_are_answered_and_learned(tmp_path):
    loop, table = run("compo-realign", tmp_path, make_stream(questions=True))
    result = read(loop, table)
    assert result.main == "fused answers" and 0 < measure(result)["last"] <= 100


def test_rows_are_drawn_once_in_each_pass_and_the_same_whatever_was_drawn_before():
    drawn = [draw_rows(10, 3, (1, 2), step) for step in range(6)]
    for turn in (drawn[:3], drawn[3:]):
        assert len(np.unique(np.concatenate(turn))) == 9
    assert (np.concatenate(drawn[:3]) != np.concatenate(drawn[3:])).any()
    assert (draw_rows(10, 3, (1, 2), 4) == drawn[4]).all()
    assert sorted(draw_rows(2, 5, (1, 2), 9)) == [0, 1]


def test_an_order_is_given_or_drawn_by_the_seed():
    config = ContinualConfig()
    orders = {tuple(order_tasks(4, config, seed)) for seed in range(20)}
    assert len(orders) > 5 and all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert order_tasks(4, override_all(config, {"order": "given"}), 3) == [0, 1, 2, 3]


def test_the_galleries_are_of_each_task_and_of_all():
    stream = make_stream()
    asked = gather_questions([task.test for task in stream.tasks])
    assert [len(sample_N) for sample_N in asked.sample_IN] == [20, 20, 20]
    for sample_N, text_T, task in zip(asked.sample_IN, asked.text_IT, stream.tasks, strict=True):
        assert [asked.split.texts[place] for place in text_T] == list(task.test.texts)
        own = [asked.split.texts[place] for place in asked.split.own_N[sample_N]]
        assert own == [task.test.texts[place] for place in task.test.own_N]
