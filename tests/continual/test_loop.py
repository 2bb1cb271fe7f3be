"""Heads on a made stream, whose pictures are turned otherwise by each task, and the loop over its tasks."""

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
from raycomp.continual.loop import TaskLoop, draw_rows, order_tasks, summarise_steps
from raycomp.continual.method import FULL, METHODS
from raycomp.continual.methods.head import Frozen, HeadLearner
from raycomp.continual.scoring import MERGED, TASK, TEXT, ZERO_SHOT, Result, measure
from raycomp.core.continual import BufferEntry, reword
from raycomp.data.files import Folder
from tests.continual.streams import DIM, NAMES, make_split, make_stream, unit

SMALL = {"head.steps": 12, "head.batch_size": 8, "head.hidden": 4, "trust.first": 3, "checkpoint_steps": 5}
HEADS = [name for name, method in METHODS.items() if method.learner == "head"]


def make_loop(method: str, stream: Stream | None = None, **options: object) -> TaskLoop:
    stream = stream or make_stream()
    own = make_config(override_all(ContinualConfig(), {**SMALL, **options}), METHODS[method])
    learner = Frozen() if method == "frozen" else HeadLearner(own, stream, 7)
    return TaskLoop(StreamRun("world", method, 7), stream, own, learner)


def run(
    method: str, folder: Path, stream: Stream | None = None, **options: object
) -> tuple[TaskLoop, pa.Table]:
    loop = make_loop(method, stream, **options)
    return loop, loop.run(Folder(str(folder)))


def read(loop: TaskLoop, table: pa.Table, method: str = FULL) -> Result:
    values: dict = {}
    for row in table.to_pylist():
        values.setdefault((row["of"], row["figure"]), {})[row["after"], row["number"]] = row["value"]
    return Result(StreamRun("world", method, 7), {"order": loop.order, "backbone": 0, "seconds": 1.0}, values)


def show(table: pa.Table) -> list[str]:
    """Every figure as text: one that is not known equals itself."""
    return [str(row) for row in table.to_pylist()]


def figures(table: pa.Table) -> list[str]:
    """Return what is asked of the method, as text; its own figures are left out."""
    return [str(row) for row in table.to_pylist() if row["of"] in (TASK, ZERO_SHOT)]


def theta(loop: TaskLoop) -> torch.Tensor:
    return loop.learner.composer.theta_DD.detach()


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
def whole(tmp_path_factory) -> Callable[[str], tuple[TaskLoop, pa.Table]]:
    """The loop and the figures of a method on the small stream, computed once."""
    return cache(lambda method: run(method, tmp_path_factory.mktemp(method)))


@pytest.mark.parametrize(("method", "most"), [*((name, 4) for name in HEADS), (FULL, 1)])
def test_a_run_that_was_killed_within_a_task_ends_with_the_same_figures(method, most, whole, tmp_path):
    with pytest.raises(Killed):
        make_loop(method).run(Deadly(str(tmp_path / "cut"), most))
    again = make_loop(method).run(Folder(str(tmp_path / "cut")))
    assert show(again) == show(whole(method)[1])
    # By the captions alone every head is the frozen model; joint training is asked at the end alone.
    asked = set(again["after"].to_pylist())
    frozen = [row for row in whole("frozen")[1].to_pylist() if row["after"] in asked]
    own, others = (
        [str(row) for row in rows if row["figure"].startswith(TEXT)] for rows in (again.to_pylist(), frozen)
    )
    assert own == others


def test_the_frozen_model_forgets_nothing_and_joint_training_is_asked_at_the_end_alone(whole):
    found = measure(read(*whole("frozen"), "frozen"))
    assert found["forgetting_best"] == found["forgetting_first"] == found["gain"] == found["fused zstd"] == 0
    assert 0 < found["last"] < 100 and found["fused crr_to_primitives"] > 0
    assert found["fused crr_to_learned"] == 1
    loop, table = whole("joint")
    result = read(loop, table, "joint")
    matrix_TT, found = result.matrix(result.main), measure(result)
    assert loop.steps == 36 and np.isnan(matrix_TT[:-1]).all() and found["last"] == matrix_TT[-1].mean()
    assert not {"transfer", "learned", "forgetting_best"} & set(found)


def test_a_head_learns_what_a_task_turns_and_forgets_the_ones_before_and_stays_orthogonal(tmp_path):
    loop, table = run("sequential", tmp_path, **{"head.steps": 150, "head.learning_rate": 0.01})
    result, name = read(loop, table), f"composed {MERGED} both"
    matrix_TT, before_T = result.matrix(name), result.before(name)
    assert (np.diag(matrix_TT) > before_T + 10).all() and matrix_TT[-1, 0] < matrix_TT[0, 0] - 10
    assert theta(loop).abs().max() > 0.05
    assert loop.learner.read_out(loop.asked.split)["orthogonality_error"] <= 1e-6


def test_without_the_synthetic_positive_nothing_but_the_anchors_train(tmp_path):
    loop, table = run("no-synthetic", tmp_path / "a", **{"buffer.kind": "none", "trust.mode": "off"})
    new = make_loop("no-synthetic").learner.composer
    trained = loop.learner.composer.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in new.state_dict().items())
    assert (read(loop, table).of_method("gradient_mean") == 0).all()
    anchored, _ = run("no-synthetic", tmp_path / "b", **{"buffer.reading": "anchored"})
    assert not torch.equal(theta(anchored), new.theta_DD)


def test_the_buffer_holds_so_many_of_each_task_and_no_more_than_there_are(tmp_path, whole):
    for method, size, num in ((FULL, 5, 15), (FULL, 500, 60), ("image-buffer", 500, 60), (FULL, 0, 0)):
        loop, table = run(method, tmp_path / f"{method}-{size}", **{"buffer.size": size})
        found = loop.learner.read_out(loop.asked.split)
        text_bytes = sum(len("".join(e.primitives) + e.text) for e in loop.learner.buffer.entries())
        assert found["buffer_entries"] == num, (method, size)
        assert found["buffer_bytes"] == text_bytes + (num * 16 * 4 if method != FULL else 0)
    assert show(table) == show(whole("no-buffer")[1]), "a buffer of nothing is no buffer"


def test_every_tenth_step_is_reported_in_whole_ones():
    """Adam divides a gradient's scale out again: its step is as long as without the trust region."""
    for optimizer, apply, is_shorter in (
        ("adamw", "update", True),
        ("adamw", "gradient", False),
        ("sgd", "update", True),
        ("sgd", "gradient", True),
    ):
        options = {"trust.gamma": 0.05, "trust.apply": apply, "head.optimizer": optimizer}
        learner = make_loop(FULL, **options).learner
        learner.start_task(0, make_stream().tasks[0].train)
        first, second = (learner.step(step, np.arange(8)) for step in (0, 1))
        assert 0 < first["alpha"] < 0.9 and "realised" not in second
        assert first["realised"] == pytest.approx(first["alpha"] if is_shorter else 1, rel=1e-3)


def test_the_trust_region_shortens_steps_above_the_quantile_and_is_inert_where_it_never_binds(
    tmp_path, whole
):
    found = read(*whole(FULL))
    assert found.of_method("alpha_realised")[-1] < 1 and found.of_method("sigma_max").min() > 0
    without = whole("no-trust")[1]
    loop, wide = run(FULL, tmp_path / "wide", **{"trust.gamma": 1e9})
    assert figures(wide) == figures(without) and read(loop, wide).of_method("alpha_realised")[-1] == 1
    _, fixed = run(FULL, tmp_path / "fixed", **{"trust.apply": "update", "trust.mode": "fixed"})
    plain = [row for row in fixed.to_pylist() if not row["figure"].startswith("realised")]
    assert [str(row) for row in plain] == show(without), "a fixed alpha of one is no trust region"
    assert [row["value"] for row in fixed.to_pylist() if row["figure"] == "realised_mean"] == [1.0] * 3


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


def make_apart(stream: Stream) -> Stream:
    """Return the stream with names and a phrase of its own for each task: no composition comes back."""
    embedded, tasks = dict(zip(NAMES, stream.name_VD, strict=True)), []
    for number, task in enumerate(stream.tasks):
        own = NAMES[4 * number : 4 * number + 4]
        sets = [own[:2], own[1:3], own[2:], own[:3], own[1:], own[::3], own, own[::2]]
        splits = [make_split(sets, embedded, np.eye(DIM), 10 * number + half) for half in (0, 1)]
        texts = tuple(text.replace("a picture of", PHRASES[number]) for text in splits[0].texts)
        tasks.append(replace(task, train=replace(splits[0], texts=texts), test=splits[1]))
    return replace(stream, tasks=tuple(tasks), zero_shot=())


PHRASES = ("here is a", "we see an", "two of")


def embed_by_text(_: HeadLearner, texts: list[str]) -> np.ndarray:
    return unit(np.stack([np.random.default_rng([*text.encode()]).standard_normal(DIM) for text in texts]))


def test_a_paraphrase_is_a_positive_of_its_sample_though_no_composition_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(HeadLearner, "embed_texts", embed_by_text)
    apart, reading = make_apart(make_stream()), {"buffer.reading": "paraphrase", "order": "given"}
    learner = make_loop("no-trust", apart, **reading, **{"buffer.size": 8}).learner
    learner.start_task(0, apart.tasks[0].train)
    learner.end()
    learner.start_task(1, apart.tasks[1].train)
    row_B = np.array([5, 2, 0, 7, 1])
    own, image_BD = learner.train.own_N[row_B], learner.train.image_ND[row_B].astype(np.float64)
    # A caption of the first task with as many names; there is one template for each number of them.
    said = [f"{PHRASES[0]} {' and '.join(learner.train.primitives[i])}" for i in own]
    composed_BD, paraphrase_BD = learner.compose(learner.train)[own], embed_by_text(learner, said)
    views, sum_of_terms = [*zip(learner.train.text_TD[own], composed_BD, paraphrase_BD, strict=True)], 0.0
    for i, image in enumerate(image_BD):
        exp = [[np.exp(image @ view / 0.07) for view in some] for some in views]
        sum_of_terms += np.log(np.sum(exp) / sum(exp[i]))
        for view in views[i]:
            asked = [np.exp(other @ view / 0.07) for other in image_BD]
            sum_of_terms += np.log(sum(asked) / asked[i]) / 3
    assert learner.step(0, row_B)["loss"] == pytest.approx(sum_of_terms / len(row_B) / 2, rel=1e-5)

    loop, whole = run("no-trust", tmp_path / "whole", apart, **reading)
    assert read(loop, whole).of_method("paraphrases")[1:].tolist() == [8, 8], "each of a task's compositions"
    _, sequential = run("sequential", tmp_path / "sequential", apart, order="given")
    assert figures(whole) != figures(sequential), "literal: equal, see past_texts_act_only below"
    with pytest.raises(Killed):
        make_loop("no-trust", apart, **reading).run(Deadly(str(tmp_path / "cut"), 4))
    again = make_loop("no-trust", apart, **reading).run(Folder(str(tmp_path / "cut")))
    assert show(again) == show(whole)


def test_a_template_is_a_stored_caption_that_names_all_its_primitives():
    stored = ("A red cube above an owl, a red cube", "owl,red cube"), ("two dogs", "dog"), ("a pear", "pear")
    own = {"an apple near a small box": ("small box", "apple"), "a fig": ("fig",)}
    entries = [BufferEntry(text, tuple(names.split(","))) for text, names in stored]
    found = reword(entries, own, np.random.default_rng(0))
    assert found == {("apple", "small box"): "An apple above a small box, an apple"}, "a fig is no paraphrase"


def test_past_texts_act_only_where_a_composition_comes_back(tmp_path):
    """Of three tasks with names of their own replay-text is sequential, and a buffer none, bit for bit."""
    stream = make_stream()
    apart = make_apart(stream)
    for method, other in (("replay-text", "sequential"), (FULL, "no-buffer")):
        one, two = (run(name, tmp_path / name, apart)[1] for name in (method, other))
        assert figures(one) == figures(two), method
    again = replace(stream.tasks[1], train=stream.tasks[0].train)
    repeated = replace(stream, tasks=(stream.tasks[0], again, *stream.tasks[2:]))
    options = {"order": "given", "head.learning_rate": 0.01}
    thetas = [theta(run(name, tmp_path / f"again-{name}", repeated, **options)[0]) for name in HEADS[:2]]
    assert HEADS[:2] == ["sequential", "replay-text"] and not torch.equal(*thetas)


def test_a_task_of_one_text_a_text_of_many_primitives_and_questions_are_learned(tmp_path):
    stream = make_stream()
    embedded = dict(zip(NAMES, stream.name_VD, strict=True))
    first = replace(stream.tasks[0], train=make_split([NAMES[:1]], embedded, np.eye(DIM), 3))
    _, table = run(FULL, tmp_path / "small", replace(stream, tasks=(first, *stream.tasks[1:])))
    assert np.isfinite([row["value"] for row in table.to_pylist() if row["figure"] == "loss_mean"]).all()
    split = make_split([NAMES, NAMES[:3], NAMES[5:6]], embedded, np.eye(DIM), 0)
    wide = replace(stream, tasks=(replace(first, train=split, test=split),), zero_shot=())
    assert measure(read(*run(FULL, tmp_path / "wide", wide)))["last"] == 100
    result = read(*run(FULL, tmp_path / "questions", make_stream(questions=True)))
    assert result.main == "fused answers" and 0 < measure(result)["last"] <= 100


def test_a_loss_that_is_not_finite_and_a_damaged_state_end_the_run_in_a_line(tmp_path):
    with pytest.raises(UserError, match=r"head\.learning_rate=1e\+30 may be too high"):
        run("no-trust", tmp_path, **{"head.learning_rate": 1e30})
    Folder(str(tmp_path)).write_bytes(b"nothing", "state.pt")
    with pytest.raises(UserError, match=r"state\.pt: does not belong to this run"):
        run(FULL, tmp_path)


def test_what_training_left_without_a_direction_is_not_judged():
    for method, said in (("no-trust", "head.learning_rate=0.001"), ("zscl", "tune.learning_rate=0.0001")):
        loop, one_run = make_loop("no-trust"), StreamRun("world", method, 7)
        loop.said_rate = TaskLoop(one_run, make_stream(), ContinualConfig(), Frozen()).said_rate
        find_keys = loop.learner.find_keys

        def find_all_but_one(split: Split, find_keys: Callable = find_keys) -> Keys:
            keys = find_keys(split)
            keys.composed_ETD[0, 3] = 0
            return keys

        loop.learner.find_keys = find_all_but_one
        line = rf"^{re.escape(said)}: gives embeddings .* \(1 of \d+ rows\); lower it$"
        with pytest.raises(UserError, match=line):
            loop.run(Folder("memory"))


def test_rows_are_drawn_once_in_each_pass_and_orders_by_the_seed():
    drawn = [draw_rows(10, 3, (1, 2), step) for step in range(6)]
    for turn in (drawn[:3], drawn[3:]):
        assert len(np.unique(np.concatenate(turn))) == 9
    assert (np.concatenate(drawn[:3]) != np.concatenate(drawn[3:])).any()
    assert sorted(draw_rows(2, 5, (1, 2), 9)) == [0, 1]
    orders = {tuple(order_tasks(4, ContinualConfig(), seed)) for seed in range(20)}
    assert len(orders) > 5 and all(sorted(order) == [0, 1, 2, 3] for order in orders)
    found = summarise_steps([{"loss": float(i), "sigma": 1.0 + i % 3} for i in range(20)])
    assert (found["loss_mean"], found["loss_last"], found["sigma_max"]) == (9.5, 18.5, 3)
