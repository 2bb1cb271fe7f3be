"""What cannot be swept is told in a line, with exit code 2, and leaves nothing behind."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raycomp.cli import main
from raycomp.data.folder import Folder
from raycomp.evaluation.config import EvaluateConfig
from raycomp.run.run import Run, start_run
from raycomp.sweep import capacity, command
from raycomp.sweep.capacity import cpus_of, plan_alone
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.journal import DEVELOPMENT, FINISHED, Journal, Outcome, SeedTraining
from raycomp.table import Estimate
from raycomp.training.config import FitConfig, TrainConfig
from raycomp.words import OK

CONTINUAL = ("--set", "command=continual", "--set", "continual.little.backbones=4")
GAMMA = "--space=trust.gamma=grid(1,2)"
KEEP = "--space=attribute.keep=grid(0.7,0.5)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "space: is empty"),
        (["--space", ""], "space: is empty"),
        (["--space=attribute.kep=grid(0.7,0.5)"], "attribute.kep': unknown option of select; the closest is"),
        (["--space=attribute.keep=grid(0.7,2)"], "attribute.keep=2.0: must be between 0 and 1"),
        (["--space=attribute.keep=gird(0.7,2)"], "must be one of grid, choice, uniform, loguniform"),
        (["--space=train.learning_rate=loguniform(0,1)"], "two finite numbers, above 0"),
        ([KEEP, "--set", "metric=world.acc"], "metric='world.acc': must be one of world.accuracy"),
        ([KEEP, "--set", "metric=sugarcrepe.accuracy"], "metric='sugarcrepe.accuracy': must be one of"),
        ([KEEP, "--set", "mode=best"], "mode='best': must be one of max, min"),
        ([KEEP, "--set", "scheduler=asha", "--set", "seeds=1"], "seeds=1: must be at least 2"),
        ([KEEP, "--set", "train.train.workers=4096"], "train.workers=4096: must be at most"),
        (
            [KEEP, "--set", "train.train.gpus_per_worker=0"],
            "gpus_per_worker=0.0: must be above 0 and",
        ),
        ([KEEP, "--set", "train.train.gpus_per_worker=1.5"], "gpus_per_worker=1.5: must be above 0 and at"),
        (
            [KEEP, "--set", "train.train.gpus_per_worker=0.5", "--set", "train.train.workers=2"],
            "train.gpus_per_worker=0.5: must be 1 with train.workers=2; set train.workers=1 to share a GPU",
        ),
        ([KEEP, "--set", "rungs=steps"], "rungs='steps': must be seeds with scheduler=none"),
        (
            [KEEP, "--set", "scheduler=asha", "--set", "rungs=steps"],
            "train.steps=None: must be set with rungs=steps",
        ),
        ([KEEP, "--set", "per=train.loss"], "per='train.loss': must be an option with a grid in the space"),
        ([KEEP, "--set", "curated=/no/such/folder"], "evaluate.benchmarks=''"),
        (
            [KEEP, "--set", "curated=/no/such/folder", "--set", "evaluate.benchmarks=sugarcrepe"],
            "holds no finished run",
        ),
        (
            [KEEP, "--set", "train.input=/no/such", "--set", "evaluate.benchmarks=sugarcrepe"],
            "attribute.keep needs scores to choose from",
        ),
        (
            [*CONTINUAL, "--space=trust.gama=grid(1)"],
            "trust.gama': unknown option of continual; the closest is",
        ),
        ([*CONTINUAL, "--space=trust.gamma=grid(1,0)"], "trust.gamma=0.0: must be above 0"),
        ([*CONTINUAL, "--space=seeds=grid(1,2)"], "space: seeds cannot be swept"),
        ([*CONTINUAL[:2], GAMMA], "continual.little.backbones=1: must be at least 4"),
        ([*CONTINUAL, GAMMA], "metric='world.accuracy': must be one of world.last"),
        (
            [*CONTINUAL, GAMMA, "--set", "continual.method=all"],
            "continual.method='all': must be one",
        ),
        (
            [*CONTINUAL, "--set", "metric=world.last", "--space=reference=grid(none,/no/such)"],
            "reference='/no/such'",
        ),
        (
            [*CONTINUAL, "--set", "metric=world.last", GAMMA, "--set", "continual.prepared=/dev/null"],
            "prepared='/dev/null': must be a folder",
        ),
        (
            [KEEP, "--set", "train.model.name=ViT-L-14"],
            "train.model='set': must be unset with little worlds",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_leaves_nothing(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(capacity, "is_connected", lambda: False)
    assert main(["sweep", *words, "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error, error
    assert not (tmp_path / "x").exists()


CONFIG = SweepConfig(space="attribute.keep=grid(0.7,.5)", seeds=1, report_seeds=0)
FINISHED_ONE = Outcome(FINISHED, {"world.accuracy.macro": Estimate(0.99, 0.98, 1.0)})


@contextmanager
def started(out: str) -> Iterator[Run]:
    """A sweep with one training done, as a command of its own begins it; published where the block ends."""
    with start_run(
        "sweep",
        CONFIG,
        partial(command._fingerprint, CONFIG, command._check(CONFIG)[0]),
        out,
        lambda line: None,
    ) as run:
        journal = Journal(run.folder)
        journal.write(
            journal.start({"attribute.keep": "0.7"}, "2026"), SeedTraining(DEVELOPMENT, 0), FINISHED_ONE
        )
        run.close({OK: 1}, {OK: 1}, OK)
        yield run


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_trial_of_another_sweep_is_refused_whenever_the_folder_is_read(
    is_finished, capsys, tmp_path, monkeypatch
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(command, "connect", lambda *_, **__: pytest.fail("Ray was started"))
    with nullcontext() if is_finished else pytest.raises(KeyboardInterrupt), started(str(tmp_path)):
        if not is_finished:
            raise KeyboardInterrupt
    words = ["sweep", "--space", CONFIG.space, "--set", "seeds=1", "--set", "report_seeds=0"]
    words += ["--out", str(tmp_path)]
    if is_finished:
        assert main(words) == 0
    folder = Folder(str(tmp_path / "trials" / "foreign"))
    folder.write_json({"options": {"attribute.keep": "0.5"}, "started": "2026"}, "options.json")
    folder.write_json(FINISHED_ONE.to_dict(), "development-00.json")
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{folder.uri}: belongs to another sweep" in error, error


def test_a_damaged_outcome_is_said_and_forgotten_before_ray_starts(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(KeyboardInterrupt), started(str(tmp_path)) as run:
        raise KeyboardInterrupt
    (name,) = Journal(run.folder).list_trials()
    run.folder.write_bytes(b"{", "trials", name, "development-00.json")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "connect", stop)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        command.sweep(CONFIG, str(tmp_path), said.append)
    assert [line.partition(":")[0] for line in said] == [f"trials/{name}/development-00.json"]
    assert Journal(run.folder).list_seed_trainings(name) == []


def test_little_worlds_need_a_disk(capsys):
    assert main(["sweep", KEEP, "--out", "s3://bucket/a"]) == 2
    assert "little worlds need a local folder" in capsys.readouterr().err


def of_workers(workers, **options):
    return SweepConfig(space="a=1", train=TrainConfig(train=FitConfig(workers=workers)), **options)


def test_a_machine_has_room_for_every_trial_that_is_started_there():
    cores = os.cpu_count() or 1
    with pytest.raises(ValueError, match=f"workers={cores + 1}: must be at most {cores}, the cores"):
        plan_alone(of_workers(cores + 1))
    wide = replace(of_workers(8), cluster=replace(SweepConfig().cluster, num_cpus=8))
    assert plan_alone(wide) >= cpus_of(1, 8) and plan_alone(of_workers(1, max_concurrent=1)) == 5
    assert plan_alone(of_workers(1, max_concurrent=7)) == cpus_of(7, 1) == 15


def test_data_of_yours_need_a_test_set():
    with pytest.raises(ValueError, match=r"evaluate\.benchmarks"):
        SweepConfig(space="a=1", curated="x")
    assert not SweepConfig(
        space="a=1", curated="x", evaluate=EvaluateConfig(benchmarks=("world",))
    ).has_worlds
