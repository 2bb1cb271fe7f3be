"""Ablations and controls of COMPO-REALIGN on a made stream."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from lab.continual.ablations import ABLATIONS, RandomTexts, draw_texts, name_ablation
from raycomp.config import override_all
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Stream, StreamRun, make_config
from raycomp.continual.loop import TaskLoop
from raycomp.continual.method import FULL, METHODS, get_method
from raycomp.continual.methods.head import HeadLearner
from raycomp.data.files import Folder
from tests.continual.streams import DIM, make_stream, unit
from tests.continual.test_loop import SMALL, Deadly, Killed, figures, show
from tests.continual.test_loop import run as run_known


class Drawn(RandomTexts):
    """Random texts with random embeddings."""

    def embed(self, texts: list[str]) -> np.ndarray:
        return unit(np.random.default_rng(3).standard_normal((len(texts), DIM)))


def make_loop(name: str, stream: Stream | None = None, **options: object) -> TaskLoop:
    stream, one_run = stream or make_stream(), StreamRun("world", name_ablation(name), 7)
    method = get_method(one_run.method)
    config = make_config(override_all(ContinualConfig(), {**SMALL, **options}), method)
    kind = {"random_texts": Drawn}.get(name, HeadLearner if method.learner == "head" else method.learner)
    return TaskLoop(one_run, stream, config, kind(config, stream, 7))


def run(
    name: str, folder: Path, stream: Stream | None = None, **options: object
) -> tuple[TaskLoop, pa.Table]:
    loop = make_loop(name, stream, **options)
    return loop, loop.run(Folder(str(folder)))


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name != "untrained"])
def test_an_ablation_that_was_killed_within_a_task_ends_with_the_same_figures(name, tmp_path):
    with pytest.raises(Killed):
        make_loop(name).run(Deadly(str(tmp_path / "cut"), 4))
    again = make_loop(name).run(Folder(str(tmp_path / "cut")))
    assert show(again) == show(run(name, tmp_path / "whole")[1])


def test_current_texts_are_anchored_from_the_second_task_on(tmp_path):
    one = make_stream(num_tasks=1)
    _, alone = run("current_texts", tmp_path / "a", one)
    _, plain = run_known("sequential", tmp_path / "b", one)
    assert show(alone) == show(plain)
    loop, _ = run("current_texts", tmp_path / "c")
    other, _ = run_known("sequential", tmp_path / "d")
    assert not torch.equal(loop.learner.composer.theta_DD, other.learner.composer.theta_DD)


def test_past_texts_change_what_is_learned_from_the_second_task_on(tmp_path):
    tables = {name: run(name, tmp_path / name)[1] for name in ("adapted_no_trust", "random_texts")}
    tables["sequential"] = run_known("sequential", tmp_path / "sequential")[1]
    first, later = ({name: rows(table, after) for name, table in tables.items()} for after in (0, 1))
    assert first["sequential"] == first["random_texts"]
    assert len({str(value) for value in later.values()}) == 3


def rows(table: pa.Table, after: int) -> list:
    found = [row for row in table.to_pylist() if row["after"] == after]
    return [str(row) for row in found if not row["figure"].startswith("buffer")]


def test_texts_drawn_at_random_are_of_two_or_three_names_and_the_same_each_time():
    names = [f"red thing{i}" for i in range(9)] + ["orange fish"]
    drawn = draw_texts(names, 0)
    assert drawn == draw_texts(names, 0) != draw_texts(names, 1)
    for text, own in drawn.items():
        assert len(own) in (2, 3) and len(set(own)) == len(own) and all(name in text for name in own)
    assert any("an orange fish" in text for text in drawn)
    assert set(draw_texts(["red thing"], 0).values()) == {("red thing",)}


def test_without_the_synthetic_positive_the_letter_trains_nothing(tmp_path):
    _, whole = run_known("no-synthetic", tmp_path / "a")
    _, untrained = run("untrained", tmp_path / "b")
    assert figures(whole) == figures(untrained)


def test_the_defaults_are_the_letter_and_the_adapted_method_says_what_differs():
    config = ContinualConfig()
    letter = make_config(config, METHODS[FULL])
    adapted = make_config(config, ABLATIONS["compo_realign_adapted"])
    assert letter == config
    differs = {
        (group, name)
        for group in ("head", "buffer", "trust")
        for name, value in vars(getattr(letter, group)).items()
        if value != getattr(getattr(adapted, group), name)
    }
    assert differs == {("buffer", "reading"), ("trust", "apply"), ("trust", "power_steps")}
