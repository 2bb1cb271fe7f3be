"""What cannot be swept is told in a line, with exit code 2, and leaves nothing behind."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from raycomp.cli import main
from raycomp.config import ModelConfig, as_setting, changed_options
from raycomp.data.files import Folder
from raycomp.run.run import Run, start_run
from raycomp.sweep import command
from raycomp.sweep.command import cpus_of, plan_alone
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.trials import DEVELOPMENT, FINISHED, Journal, Outcome, SeedTraining
from raycomp.table import Estimate
from raycomp.training.config import FitConfig
from raycomp.words import OK

# {data} is a curation, {test_set} the folder of SugarCrepe's annotations.
DATA = ("--set", "curated={data}", "--set", "evaluate.benchmarks=sugarcrepe")
DATA += ("--set", "evaluate.sugarcrepe.annotations={test_set}", "--set", "metric=sugarcrepe.accuracy")
DATA += ("--set", "model.name={model}", "--set", "model.weights=random:0")
CONTINUAL = ("--set", "command=continual", "--set", "continual.stream=photos.json")
# Pairs as they are.
UNSCORED = ("--set", "curated=none", "--set", "input={data}")
GAMMA = "--space=trust.gamma=grid(1,2)"
KEEP = "--space=attribute.keep=grid(0.7,0.5)"


def test_a_users_mistake_is_one_line_and_leaves_nothing(config, capsys, tmp_path, monkeypatch):
    for words, said in [
        ([KEEP], "curated=None: must be a curation whose scores every trial selects from; or set input"),
        ([*DATA, "--space", ""], "space: is empty"),
        (["--space=attribute.keep=gird(0.7,2)"], "must be one of grid, choice, uniform, loguniform"),
        ([*DATA, KEEP, "--set", "metric="], "metric='': must be one of sugarcrepe.accuracy"),
        ([*DATA, KEEP, "--set", "curated={data}/{seed}"], "/0: holds no finished run"),
        ([*DATA, KEEP, "--set", "evaluate.sugarcrepe.annotations={test_set}/{seed}"], "/0: is not a folder"),
        ([*DATA, KEEP, "--set", "model.weights={data}/{seed}.pt"], "/0.pt'"),
        (
            [*DATA, "--space=train.loss=grid(clip,siglip)", "--set", "negatives={data}/{seed}", *UNSCORED],
            "/0: holds no finished run",
        ),
        ([KEEP, "--set", "scheduler=asha", "--set", "seeds=1"], "seeds=1: must be at least 2"),
        (
            [*DATA, KEEP, "--set", "train.batch_size=5000", "--set", "train.workers=4096"],
            "train.workers=4096: must be at most",
        ),
        ([KEEP, "--set", "curated=/no/such/folder"], "evaluate.benchmarks=''"),
        (
            [KEEP, "--set", "curated=/no/such/folder", "--set", "evaluate.benchmarks=sugarcrepe"],
            "holds no finished run",
        ),
        (
            [*CONTINUAL, "--space=trust.gama=grid(1)"],
            "trust.gama': unknown option of continual; the closest is",
        ),
        ([*CONTINUAL, GAMMA], "metric='': must be one of photos.last"),
        (
            [*CONTINUAL, GAMMA, "--set", "continual.method=all"],
            "continual.method='all': must be one",
        ),
        (
            [*CONTINUAL, "--set", "metric=photos.last", "--space=reference=grid(none,/no/such)"],
            "stream='photos.json': cannot be read",
        ),
        (
            [*CONTINUAL, "--set", "metric=photos.last", GAMMA, "--set", "continual.prepared=/dev/null"],
            "prepared='/dev/null': must be a folder",
        ),
    ]:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(command, "is_connected", lambda: False)
        places = {"data": config.curated, "test_set": config.evaluate.sugarcrepe.annotations}
        places["model"] = config.model.name
        for name, place in places.items():
            words = [word.replace(f"{{{name}}}", str(place)) for word in words]
        assert main(["sweep", *words, "--out", str(tmp_path / "x")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and said in error, error
        assert not (tmp_path / "x").exists()


FINISHED_ONE = Outcome(FINISHED, {"sugarcrepe.accuracy.macro": Estimate(0.99, 0.98, 1.0)})


@pytest.fixture(scope="module")
def config(curated, evaluation, tiny_scorer) -> SweepConfig:
    """Two shares of the pairs of a curation."""
    return SweepConfig(
        space="attribute.keep=grid(0.7,0.5)",
        metric="sugarcrepe.accuracy",
        seeds=1,
        report_seeds=0,
        curated=str(curated[1]),
        evaluate=evaluation,
        model=ModelConfig(tiny_scorer.model, "random:0"),
    )


@contextmanager
def started(config: SweepConfig, out: str) -> Iterator[Run]:
    """A sweep with one training done, as a command of its own begins it; published where the block ends."""
    at_seeds = command._list_seeds(config)
    fingerprint = partial(command._fingerprint, command._check(config, at_seeds)[0], at_seeds)
    with start_run("sweep", config, fingerprint, out, lambda line: None) as run:
        journal = Journal(run.folder)
        journal.write(
            journal.start({"attribute.keep": "0.7"}, "2026"), SeedTraining(DEVELOPMENT, 0), FINISHED_ONE
        )
        run.close({OK: 1}, {OK: 1}, OK)
        yield run


def test_a_trial_of_another_sweep_is_refused_whenever_the_folder_is_read(
    config, capsys, tmp_path, monkeypatch
):
    for is_finished in [True, False]:
        out = str(tmp_path / str(is_finished))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(command, "connect", lambda *_, **__: pytest.fail("Ray was started"))
        with (
            nullcontext() if is_finished else pytest.raises(KeyboardInterrupt),
            started(config, out),
        ):
            if not is_finished:
                raise KeyboardInterrupt
        changed = changed_options(config)
        words = [part for path, value in changed.items() for part in ("--set", f"{path}={as_setting(value)}")]
        words = ["sweep", *words, "--out", out]
        if is_finished:
            assert main(words) == 0
        folder = Folder(f"{out}/trials/foreign")
        folder.write_json({"options": {"attribute.keep": "0.5"}, "started": "2026"}, "options.json")
        folder.write_json(FINISHED_ONE.to_dict(), "development-00.json")
        capsys.readouterr()
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"{folder.uri}: belongs to another sweep" in error, error


def test_a_damaged_outcome_is_said_and_forgotten_before_ray_starts(config, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(KeyboardInterrupt), started(config, str(tmp_path)) as run:
        raise KeyboardInterrupt
    (name,) = Journal(run.folder).list_trials()
    run.folder.write_bytes(b"{", "trials", name, "development-00.json")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "connect", stop)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        command.sweep(config, str(tmp_path), said.append)
    assert [line.partition(":")[0] for line in said] == [f"trials/{name}/development-00.json"]
    assert Journal(run.folder).list_seed_trainings(name) == []


def of_workers(workers, **options):
    return SweepConfig(space="a=1", train=FitConfig(workers=workers), **options)


def test_a_machine_has_room_for_every_trial_that_is_started_there():
    cores = os.cpu_count() or 1
    with pytest.raises(ValueError, match=f"workers={cores + 1}: must be at most {cores}, the cores"):
        plan_alone(of_workers(cores + 1))
    wide = replace(of_workers(8), cluster=replace(SweepConfig().cluster, num_cpus=8))
    assert plan_alone(wide) >= cpus_of(1, 8) and plan_alone(of_workers(1, max_concurrent=1)) == 3
    assert plan_alone(of_workers(1, max_concurrent=7)) == cpus_of(7, 1) == 15
