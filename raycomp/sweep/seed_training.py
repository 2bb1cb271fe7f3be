"""One training of a trial: the commands that it runs, each in a folder of its own, and its outcome."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from raycomp.config import ClusterConfig, TooMuchBadData, UserError, override_all
from raycomp.continual.command import TABLE as CONTINUAL_TABLE
from raycomp.continual.command import continual
from raycomp.continual.config import ContinualConfig
from raycomp.continual.tables import FROZEN
from raycomp.curation.command import select
from raycomp.data.files import Folder
from raycomp.data.runs import read_finished
from raycomp.evaluation.command import TABLE, evaluate
from raycomp.run.executor import use
from raycomp.run.lease import WAITING, await_lease, hold_lease
from raycomp.run.local import Local
from raycomp.run.run import Say
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.metric import read_metrics, read_stream_metrics
from raycomp.sweep.plan import Plan
from raycomp.sweep.trials import FAILED, FINISHED, Journal, Outcome, SeedTraining
from raycomp.table import Estimate
from raycomp.training.command import train
from raycomp.training.config import TrainConfig

_SELECTED, _TRAINED, _EVALUATED, _RAN = "selected", "trained", "evaluated", "ran"
_STARTS, _STREAMS, _MAKING = "starts.json", "streams", "making"


@dataclass(frozen=True)
class Result:
    """The results of a finished training."""

    metrics: Mapping[str, Estimate]
    """By name."""
    steps: int | None = None
    """Optimizer steps; None if the command does not report them."""


RunCommands = Callable[["Job", Mapping[str, str], SeedTraining, Folder], Result]
"""Runs the commands of a training; takes what all trials share, the trial's options, the seed, a folder."""
# A trial's initial weights are drawn by its seed.
_DRAWN = "random:"
# For a training that runs in one process; others run concurrently.
_ONE_PROCESS = ClusterConfig(executor="local", num_cpus=1)


@dataclass(frozen=True)
class Job:
    """Context that all trials share."""

    plan: Plan
    folder: str
    """The sweep's folder, which has the journal."""
    work: str
    at_seeds: tuple[SweepConfig, ...]
    """The sweep as each seed has it, by number."""
    run: RunCommands
    """Of COMMANDS."""
    is_local: bool = False
    """Whether a training runs in one process: one worker, no GPU."""

    @property
    def config(self) -> SweepConfig:
        return self.plan.config

    @property
    def journal(self) -> Journal:
        return Journal(Folder(self.folder))


def say_nothing(line: str) -> None:
    """Messages of inner runs are discarded."""


def run_seed_training(job: Job, name: str, options: Mapping[str, str], training: SeedTraining) -> Outcome:
    """Run a trial's training for one seed and evaluate the model; write the outcome into the journal.

    An interrupted training resumes from its last checkpoint, once its previous process has ended. A user
    mistake, such as a loss that is not finite, makes a failed training and does not end the sweep.
    """
    folder = Folder(Folder(job.work).at(name, training.name))
    await_lease(folder)
    with hold_lease(folder):
        if ended := job.journal.find(name, training):
            return ended
        starts, started = 1 + _count_starts(folder), time.perf_counter()
        folder.write_json(starts, _STARTS)
        try:
            found = job.run(job, options, training, folder)
            seconds = time.perf_counter() - started
            outcome = Outcome(FINISHED, found.metrics, seconds, starts, steps=found.steps)
        except (ValueError, TooMuchBadData) as error:
            cause = getattr(error, "cause", error)
            if type(error) is not ValueError and not isinstance(cause, UserError | TooMuchBadData):
                raise
            why = " ".join(str(cause).split())
            outcome = Outcome(FAILED, {}, time.perf_counter() - started, starts, why)
        job.journal.write(name, training, outcome)
        folder.remove()
        return outcome


def _count_starts(folder: Folder) -> int:
    """Return the number of earlier starts of a training; 0 if it was never written, or is damaged."""
    try:
        found = folder.read_json(_STARTS) if folder.exists(_STARTS) else 0
    except (ValueError, RecursionError):
        return 0
    return found if type(found) is int else 0


Command = tuple[str, Callable[[str], object]]
"""The name of a folder, and a command that is run into it."""


def _run_all(job: Job, folder: Folder, commands: Sequence[Command]) -> None:
    """Run commands in their order, each in a folder of its own, once its previous process has ended."""
    with use(Local(1)) if job.is_local else nullcontext():
        for name, command in commands:
            await_lease(Folder(folder.at(name)))
            command(folder.at(name))


def run_train(job: Job, options: Mapping[str, str], training: SeedTraining, folder: Folder) -> Result:
    """Select pairs from the existing scores, train on them, evaluate: each in a folder of its own.

    With one worker on a CPU all of it happens in this process, while other trainings run in others.
    """
    asked, split = job.at_seeds[training.number], job.plan.split(options)
    seed = 1000 * asked.seed + training.number
    config: TrainConfig = override_all(asked.trained, {**split["train"], "train.seed": seed})
    config = replace(config, train=replace(config.train, workers=asked.workers))
    if config.model.weights.startswith(_DRAWN):
        config = replace(config, model=replace(config.model, weights=f"{_DRAWN}{seed}"))
    cluster = _ONE_PROCESS if job.is_local else config.cluster
    config = replace(shorten(config, training.divisor), cluster=cluster)
    chosen, trained, evaluated = (folder.at(name) for name in (_SELECTED, _TRAINED, _EVALUATED))
    commands: list[Command] = []
    if asked.curated:
        settings = {"materialize": False, "seed": seed, **split["select"]}
        if job.is_local:
            settings |= {f"cluster.{name}": value for name, value in vars(cluster).items()}
        curated = asked.curated
        commands.append((_SELECTED, lambda out: select(curated, settings, out, say_nothing)))
        config = replace(config, input=chosen)
    # One thread for any number of concurrent trials: no result depends on that number.
    commands.append((_TRAINED, lambda out: train(config, out, say_nothing, num_threads=1)))
    # One scorer in every case: its resources are counted in command.py.
    model, one_scorer = replace(asked.evaluate.model, weights=trained), replace(cluster, scorers=1)
    evaluation, share = replace(asked.evaluate, model=model, cluster=one_scorer), config.train.gpus_per_worker
    commands.append((_EVALUATED, lambda out: evaluate(evaluation, out, say_nothing, share)))
    _run_all(job, folder, commands)
    return Result(read_metrics(Folder(evaluated), TABLE), read_finished(trained)["steps"])


def shorten(config: TrainConfig, divisor: int) -> TrainConfig:
    """Return a training with 1 / divisor of the steps, rounded up; its schedule is complete."""
    if divisor == 1:
        return config
    assert config.train.steps, "Plan.make_trial checks this"
    return replace(config, train=replace(config.train, steps=-(-config.train.steps // divisor)))


def describe_continual(config: SweepConfig, work: str) -> ContinualConfig:
    """Return a trial's config of ``raycomp continual``: one seed, and the streams that all trials share."""
    shared = config.continual.prepared or Folder(work).at(_STREAMS)
    one = replace(config.continual, seeds=1, tune_seeds=1, first_seed=0)
    return replace(one, seed=config.seed, prepared=shared, cluster=config.cluster)


def make_streams(config: SweepConfig, work: str, say: Say) -> None:
    """Build the missing streams of all seeds, by a run that takes no step."""
    own = describe_continual(config, work)
    own = replace(own, head=replace(own.head, steps=0), tune=replace(own.tune, steps=0))
    seeds = config.seeds + config.report_seeds

    def say_waits(line: str) -> None:
        if line.startswith(WAITING):
            say(line)

    continual(replace(own, seeds=seeds, tune_seeds=seeds), Folder(work).at(_MAKING), say_waits)
    say("streams: embedded")


def run_continual(job: Job, options: Mapping[str, str], training: SeedTraining, folder: Folder) -> Result:
    """Train the method, and evaluate the frozen model, on the streams that all trials share."""
    config = override_all(describe_continual(job.config, job.work), options)
    config = replace(config, method=(*config.method, FROZEN), first_seed=training.number)
    _run_all(job, folder, [(_RAN, lambda out: continual(config, out, say_nothing))])
    return Result(read_stream_metrics(Folder(folder.at(_RAN)), CONTINUAL_TABLE))


COMMANDS: Mapping[str, RunCommands] = {"train": run_train, "continual": run_continual}
