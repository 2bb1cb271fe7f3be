"""What cannot be swept is reported in a line, with exit code 2, and leaves nothing behind."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from unittest.mock import Mock

import pytest

from raycomp.cli import main
from raycomp.config import ModelConfig, as_setting, changed_options
from raycomp.data.files import Folder
from raycomp.run.run import Run, start_run
from raycomp.sweep import command
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.trials import DEVELOPMENT, FINISHED, Journal, Outcome, SeedTraining
from raycomp.table import Estimate
from raycomp.words import OK

FINISHED_ONE = Outcome(FINISHED, {"sugarcrepe.accuracy.macro": Estimate(0.99, 0.98, 1.0)})
KEEP = "--space=attribute.keep=grid(0.7,0.5)"


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


@pytest.fixture(autouse=True)
def without_ray(monkeypatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(command, "is_connected", lambda: False)
    monkeypatch.setattr(command, "connect", lambda *_, **__: pytest.fail("Ray was started"))


def write_sets(config: SweepConfig) -> list[str]:
    changed = changed_options(config)
    return [part for path, value in changed.items() for part in ("--set", f"{path}={as_setting(value)}")]


def test_a_users_mistake_is_one_line_and_leaves_nothing(config, capsys, tmp_path):
    data, continual = write_sets(config), ["--set=command=continual", "--set=continual.stream=photos.json"]
    gamma, last = "--space=trust.gamma=grid(1,2)", "--set=metric=photos.last"
    unscored = ["--set=curated=none", f"--set=input={config.curated}", "--set=negatives=/no/{seed}"]
    for words, said in [
        ([KEEP], "curated=None: must be a curation whose scores every trial selects from; or set input"),
        ([*data, "--set=space="], "space: is empty"),
        ([*data, "--set=metric="], "metric='': must be one of sugarcrepe.accuracy"),
        ([*data, "--set=curated=/no/{seed}"], "/0: holds no finished run"),
        ([*data, "--set=evaluate.sugarcrepe.annotations=/no/{seed}"], "/0: is not a folder"),
        ([*data, "--set=model.weights=/no/{seed}.pt"], "/0.pt'"),
        ([*data, "--set=space=train.loss=grid(clip,siglip)", *unscored], "/0: holds no finished run"),
        ([*data, "--set=train.batch_size=5000", "--set=train.workers=4096"], "workers=4096: must be at most"),
        ([*continual, gamma], "metric='': must be one of photos.last"),
        ([*continual, last, "--space=reference=grid(none,/no/such)"], "stream='photos.json': no such file"),
        ([*continual, last, gamma, "--set=continual.prepared=/dev/null"], "prepared='/dev/null': must be a"),
    ]:
        assert main(["sweep", *words, "--out", str(tmp_path / "x")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and said in error, error
        assert not (tmp_path / "x").exists()


@contextmanager
def started(config: SweepConfig, out: str) -> Iterator[Run]:
    """A sweep with one training done, as a command of its own starts it; published where the block ends."""
    at_seeds = command._list_seeds(config)
    fingerprint = partial(command._fingerprint, command._check(config, at_seeds)[0], at_seeds)
    with start_run("sweep", config, fingerprint, out, lambda line: None) as run:
        journal = Journal(run.folder)
        name = journal.start({"attribute.keep": "0.7"}, "2026")
        journal.write(name, SeedTraining(DEVELOPMENT, 0), FINISHED_ONE)
        run.close({OK: 1}, {OK: 1}, OK)
        yield run


def test_a_trial_of_another_sweep_is_refused_whenever_the_folder_is_read(config, capsys, tmp_path):
    for is_finished in [True, False]:
        out = str(tmp_path / str(is_finished))
        with suppress(KeyboardInterrupt), started(config, out):
            if not is_finished:
                raise KeyboardInterrupt
        words = ["sweep", *write_sets(config), "--out", out]
        if is_finished:
            assert main(words) == 0
        folder = Folder(f"{out}/trials/foreign")
        folder.write_json({"options": {"attribute.keep": "0.5"}, "started": "2026"}, "options.json")
        folder.write_json(FINISHED_ONE.to_dict(), "development-00.json")
        capsys.readouterr()
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"{folder.uri}: belongs to another sweep" in error, error


def test_a_damaged_outcome_is_said_and_forgotten_before_ray_starts(config, tmp_path, monkeypatch):
    with suppress(KeyboardInterrupt), started(config, str(tmp_path)) as run:
        raise KeyboardInterrupt
    (name,) = Journal(run.folder).list_trials()
    run.folder.write_bytes(b"{", "trials", name, "development-00.json")
    monkeypatch.setattr(command, "connect", Mock(side_effect=KeyboardInterrupt))
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        command.sweep(config, str(tmp_path), said.append)
    assert [line.partition(":")[0] for line in said] == [f"trials/{name}/development-00.json"]
    assert Journal(run.folder).list_seed_trainings(name) == []
