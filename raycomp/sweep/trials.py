"""The trainings of trials: the commands that one runs, each in a folder of its own, and the journal of all.

``trials/NAME/options.json``: the trial's options and its start. ``trials/NAME/SEED.json``: the outcome of
one seed's training. It is written last, so a training with this file is never repeated, even after a kill.
Of an unfinished sweep damaged files are removed and made again. Trials of another sweep are refused.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from types import NoneType
from typing import Any, TypeVar

from raycomp.config import ClusterConfig, TooMuchBadData, UserError, override_all
from raycomp.continual.command import TABLE as CONTINUAL_TABLE
from raycomp.continual.command import continual
from raycomp.continual.config import ContinualConfig
from raycomp.continual.tables import FROZEN
from raycomp.core.intervals import contrast
from raycomp.curation.command import select
from raycomp.data.files import Folder
from raycomp.data.runs import digest, read_finished
from raycomp.evaluation.command import TABLE, evaluate
from raycomp.run.executor import use
from raycomp.run.local import Local
from raycomp.run.run import WAITING, Say, await_lease, hold_lease
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import ALL, Plan
from raycomp.table import Estimate, read_csv
from raycomp.training.command import train
from raycomp.training.config import TrainConfig

T = TypeVar("T")

TRIALS = "trials"
_OPTIONS = "options.json"
_OWN_NAME = re.compile(r"[0-9a-f]{12}")
_SEED_TRAINING = re.compile(r"(.+?)-(\d+)(?:-1of([1-9]\d*))?\.json", re.ASCII)
DEVELOPMENT, REPORT = "development", "report"
DIVISORS = (9, 3, 1)
"""The schedules of the rungs have 1/9, 1/3 and all of the steps."""
# Outcomes of a training: finished, failed (with the reason), or not started because its trial was stopped.
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"


@dataclass(frozen=True)
class SeedTraining:
    """One training of a trial, by its seed."""

    split: str
    """``development``, used for selection, or ``report``."""
    number: int
    divisor: int = 1
    """The schedule has 1 / divisor of the trial's steps."""

    @property
    def name(self) -> str:
        share = "" if self.divisor == 1 else f"-1of{self.divisor}"
        return f"{self.split}-{self.number:02d}{share}"


def list_rungs(config: SweepConfig) -> list[list[SeedTraining]]:
    """Return the development trainings of a trial, rung by rung; one rung without ``rungs=steps``."""
    divisors = DIVISORS if config.rungs == "steps" else (1,)
    return [[SeedTraining(DEVELOPMENT, n, divisor) for n in range(config.seeds)] for divisor in divisors]


def list_report(config: SweepConfig) -> list[SeedTraining]:
    """Return the trainings on report seeds; their numbers follow those of the development seeds."""
    return [SeedTraining(REPORT, config.seeds + n) for n in range(config.report_seeds)]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training."""

    status: str
    metrics: Mapping[str, Estimate]
    """Of a finished training, the figures of its evaluation by name, with their intervals over examples."""
    seconds: float = 0.0
    """Seconds of its last start, from scores to figures."""
    starts: int = 1
    """Number of starts: more than one if a sweep was killed during it."""
    why: str = ""
    """Of a failed training, the reason."""
    steps: int | None = None
    """Optimizer steps of a finished training; None if the command does not report them."""

    def value(self, metric: str) -> float:
        """Return a metric; NaN where there is none."""
        return self.metrics[metric].value if metric in self.metrics else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return values that json can hold; NaN becomes null."""
        ends = {name: (one.value, one.low, one.high) for name, one in self.metrics.items()}
        metrics = {name: [None if end != end else end for end in some] for name, some in ends.items()}
        return {**vars(self), "metrics": metrics}

    @staticmethod
    def from_dict(values: Any) -> "Outcome":
        """Return the object that ``to_dict`` wrote. Raises ValueError or TypeError for anything else."""
        one, numbers = Outcome(**values), (int, float)
        fits = one.status in (FINISHED, FAILED) and type(one.metrics) is dict and type(one.why) is str
        counts = type(one.starts) is int and type(one.steps) in (int, NoneType)
        if not (fits and counts and type(one.seconds) in numbers and len(values) == len(vars(one))):
            raise ValueError("has no outcome of a training")
        metrics = {}
        for name, (value, low, high) in values["metrics"].items():
            ends = [float("nan") if end is None else end for end in (value, low, high)]
            if not all(type(end) in numbers for end in ends):
                raise ValueError(f"metrics.{name}: must have numbers")
            metrics[name] = Estimate(*ends)
        return replace(one, metrics=metrics)


@dataclass(frozen=True)
class Trial:
    """One setting of the options with its trainings that have ended."""

    name: str
    options: Mapping[str, str]
    started: str
    outcomes: Mapping[SeedTraining, Outcome]

    def find_values(self, metric: str, split: str) -> dict[int, float]:
        """Return a metric of the finished trainings of a split by their seeds, in rising order; NaN where a
        training lacks it. Only trainings with all steps count."""
        return {
            training.number: one.value(metric)
            for training, one in sorted(self.outcomes.items(), key=lambda item: item[0].number)
            if (training.split, training.divisor, one.status) == (split, 1, FINISHED)
        }

    def list_values(self, metric: str, split: str) -> list[float]:
        """Return the values of ``find_values``."""
        return list(self.find_values(metric, split).values())

    def estimate(self, metric: str, split: str) -> Estimate:
        """Return the mean over the trainings of a split; its interval is by Student's t."""
        return Estimate.of(contrast(self.list_values(metric, split)))

    @property
    def failure(self) -> str:
        """Why the first of its trainings failed that did; empty if none did."""
        return next((one.why for one in self.outcomes.values() if one.status == FAILED), "")

    def list_metrics(self) -> list[str]:
        """Return the metrics that all finished trainings have."""
        ended = [set(one.metrics) for one in self.outcomes.values() if one.status == FINISHED]
        return sorted(set.intersection(*ended)) if ended else []


def name_trial(options: Mapping[str, str]) -> str:
    """Return the name of a trial with these normalized options; it does not depend on the time."""
    return digest(dict(options))[:12]


@dataclass(frozen=True)
class Journal:
    """The journal in a sweep's folder."""

    folder: Folder

    def start(self, options: Mapping[str, str], now: str) -> str:
        """Record that a trial is tried, unless it is recorded; return its name."""
        name = name_trial(options)
        if not self.folder.exists(TRIALS, name, _OPTIONS):
            self.folder.create_json({"options": dict(options), "started": now}, TRIALS, name, _OPTIONS)
        return name

    def find(self, name: str, training: SeedTraining) -> Outcome | None:
        """Return the outcome of a training; none if it has not ended.

        Raises ValueError if the file is damaged.
        """
        file = (TRIALS, name, f"{training.name}.json")
        return self._read(Outcome.from_dict, *file) if self.folder.exists(*file) else None

    def write(self, name: str, training: SeedTraining, outcome: Outcome) -> None:
        self.folder.write_json(outcome.to_dict(), TRIALS, name, f"{training.name}.json")

    def read(self) -> list[Trial]:
        """Return all trials, in the order of their start."""
        trials = []
        for name in self.list_trials():
            found = {training: self.find(name, training) for training in self.list_seed_trainings(name)}
            ended = {training: outcome for training, outcome in found.items() if outcome}
            trials.append(Trial(name, *self.read_options(name), ended))
        return sorted(trials, key=lambda trial: (trial.started, trial.name))

    def list_trials(self) -> list[str]:
        return Folder(self.folder.at(TRIALS)).list_folders()

    def list_seed_trainings(self, name: str) -> list[SeedTraining]:
        """Return the seeds' trainings that have an outcome in a trial."""
        found = [_SEED_TRAINING.fullmatch(file) for file in self.folder.list_names(TRIALS, name)]
        return [SeedTraining(one[1], int(one[2]), int(one[3] or 1)) for one in found if one]

    def read_options(self, name: str) -> tuple[dict[str, str], str]:
        """Return a trial's options and its start. Raises ValueError if they are not recorded."""

        def take(values: Any) -> tuple[dict[str, str], str]:
            options, started = values["options"], values["started"]
            if {*map(type, options.values()), type(started)} != {str} or len(values) != 2:
                raise ValueError("must have options and their start")
            return options, started

        if not self.folder.exists(TRIALS, name, _OPTIONS):
            raise ValueError(f"{_OPTIONS} is missing")
        return self._read(take, TRIALS, name, _OPTIONS)

    def _read(self, take: Callable[[Any], T], *file: str) -> T:
        try:
            return take(self.folder.read_json(*file))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not as a sweep wrote it ({' '.join(str(error).split())})") from error

    def repair(self, plan: Plan, say: Say) -> None:
        """Remove the damaged files of an unfinished sweep, so that they are made again, and print them.

        Raises ValueError with the name of a trial that does not belong to this sweep.
        """
        for file, why in list(self._list_damaged(plan)):
            self.folder.remove(*file)
            say(f"{'/'.join(file)}: {why}; removed, will be trained again")

    def check(self, plan: Plan) -> None:
        """Raise ValueError unless all trials of a finished sweep belong to it and no file is damaged."""
        for file, why in self._list_damaged(plan):
            again = "the sweep was finished: remove its folder or name another one, and run again"
            raise ValueError(f"{self.folder.at(*file)}: {why}; {again}")

    def _list_damaged(self, plan: Plan) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the damaged file, or the folder of a trial without options, and the problem."""

        def refuse(*file: str, why: object) -> ValueError:
            where = self.folder.at(TRIALS, *file)
            return ValueError(f"{where}: belongs to another sweep: {why}; remove it")

        own = {*chain(*list_rungs(plan.config), list_report(plan.config))}
        for name in self.list_trials():
            try:
                options, _ = self.read_options(name)
            except ValueError as error:
                if not _OWN_NAME.fullmatch(name):
                    raise refuse(name, why="not a trial's name") from error
                yield (TRIALS, name), f"its options cannot be read: {error}"
                continue
            try:
                spelled = plan.spell(options)
            except ValueError as error:
                raise refuse(name, why=error) from error
            if options != spelled or name != name_trial(options):
                raise refuse(
                    name, why=f"its options are {options} in place of {spelled}, or its name differs"
                )
            for training in self.list_seed_trainings(name):
                file = f"{training.name}.json"
                if training not in own:
                    raise refuse(name, file, why="this sweep has no such training")
                try:
                    self.find(name, training)
                except ValueError as error:
                    yield (TRIALS, name, file), str(error)


_STARTS, _STREAMS, _MAKING = "starts.json", "streams", "making"
Result = tuple[Mapping[str, Estimate], int | None]
"""Of a finished training: the metrics by name, and the optimizer steps, None if they are not reported."""
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
        try:
            earlier = folder.read_json(_STARTS) if folder.exists(_STARTS) else 0
        except (ValueError, RecursionError):
            earlier = 0
        starts, started = 1 + (earlier if type(earlier) is int else 0), time.perf_counter()
        folder.write_json(starts, _STARTS)
        try:
            metrics, steps = job.run(job, options, training, folder)
            seconds = time.perf_counter() - started
            outcome = Outcome(FINISHED, metrics, seconds, starts, steps=steps)
        except (ValueError, TooMuchBadData) as error:
            cause = getattr(error, "cause", error)
            if type(error) is not ValueError and not isinstance(cause, UserError | TooMuchBadData):
                raise
            why = " ".join(str(cause).split())
            outcome = Outcome(FAILED, {}, time.perf_counter() - started, starts, why)
        job.journal.write(name, training, outcome)
        folder.remove()
        return outcome


def _run_all(job: Job, folder: Folder, commands: Mapping[str, Callable[[str], object]]) -> None:
    """Run commands in their order, each into a folder of its own, once its previous process has ended."""
    with use(Local(1)) if job.is_local else nullcontext():
        for name, command in commands.items():
            await_lease(Folder(folder.at(name)))
            command(folder.at(name))


def run_train(job: Job, options: Mapping[str, str], training: SeedTraining, folder: Folder) -> Result:
    """Select pairs from the existing scores, train on them, evaluate: each in a folder of its own.

    With one worker on a CPU all of it happens in this process, while other trainings run in others.
    """
    asked, split = job.at_seeds[training.number], job.plan.split(options)
    seed = 1000 * asked.seed + training.number
    cluster = _ONE_PROCESS if job.is_local else asked.cluster
    config: TrainConfig = override_all(asked.trained, {**split["train"], "train.seed": seed})
    how, model = replace(config.train, workers=asked.workers), config.model
    if training.divisor > 1:  # rounded up, with a complete schedule
        assert how.steps, "Plan.make_trial checks this"
        how = replace(how, steps=-(-how.steps // training.divisor))
    if model.weights.startswith(_DRAWN):
        model = replace(model, weights=f"{_DRAWN}{seed}")
    config = replace(config, train=how, model=model, cluster=cluster)
    commands: dict[str, Callable[[str], object]] = {}
    if curated := asked.curated:
        settings = {"materialize": False, "seed": seed, **split["select"]}
        if job.is_local:
            settings |= {f"cluster.{name}": value for name, value in vars(cluster).items()}
        commands["selected"] = lambda out: select(curated, settings, out, say_nothing)
        config = replace(config, input=folder.at("selected"))
    # One thread for any number of concurrent trials: no result depends on that number.
    commands["trained"] = lambda out: train(config, out, say_nothing, num_threads=1)
    # One scorer in every case: its resources are counted in command.py.
    scored = replace(asked.evaluate.model, weights=folder.at("trained"))
    evaluation = replace(asked.evaluate, model=scored, cluster=replace(cluster, scorers=1))
    commands["evaluated"] = lambda out: evaluate(evaluation, out, say_nothing, how.gpus_per_worker)
    _run_all(job, folder, commands)
    return read_metrics(Folder(folder.at("evaluated")), TABLE), read_finished(folder.at("trained"))["steps"]


def read_metrics(folder: Folder, table: str) -> dict[str, Estimate]:
    """Return the model's own figures of a finished evaluation by name."""
    return {
        f"{row['benchmark']}.{row['metric']}.{row['split']}": _read_estimate(row, "value")
        for row in read_csv(folder.read_bytes(table).decode())
        if not row["control"]
    }


def describe_continual(config: SweepConfig, work: str) -> ContinualConfig:
    """Return a trial's config of ``raycomp continual``: one seed, and the streams that all trials share."""
    shared = config.continual.prepared or Folder(work).at(_STREAMS)
    one = replace(config.continual, seeds=1, tune_seeds=1, first_seed=0)
    return replace(one, seed=config.seed, prepared=shared, cluster=config.cluster)


def make_streams(config: SweepConfig, work: str, say: Say) -> None:
    """Build the missing streams of all seeds, by a run that takes no step."""
    own, seeds = describe_continual(config, work), config.seeds + config.report_seeds
    own = replace(own, head=replace(own.head, steps=0), tune=replace(own.tune, steps=0))

    def say_waits(line: str) -> None:
        if line.startswith(WAITING):
            say(line)

    continual(replace(own, seeds=seeds, tune_seeds=seeds), Folder(work).at(_MAKING), say_waits)
    say("streams: embedded")


def run_continual(job: Job, options: Mapping[str, str], training: SeedTraining, folder: Folder) -> Result:
    """Train the method, and evaluate the frozen model, on the streams that all trials share."""
    config = override_all(describe_continual(job.config, job.work), options)
    config = replace(config, method=(*config.method, FROZEN), first_seed=training.number)
    _run_all(job, folder, {"ran": lambda out: continual(config, out, say_nothing)})
    return read_stream_metrics(Folder(folder.at("ran")), CONTINUAL_TABLE), None


def read_stream_metrics(folder: Folder, table: str) -> dict[str, Estimate]:
    """Return the figures of the one method of a finished run that is not frozen."""
    rows = read_csv(folder.read_bytes(table).decode())
    method = next((row["method"] for row in rows if row["method"] != FROZEN), FROZEN)
    return {
        f"{row['track']}.{row['metric'].replace(' ', '_')}.{ALL}": _read_estimate(row, "mean")
        for row in rows
        if row["method"] == method
    }


def _read_estimate(row: Mapping[str, str], value: str) -> Estimate:
    return Estimate(*(float(row[name] or "nan") for name in (value, "low", "high")))


COMMANDS: Mapping[str, RunCommands] = {"train": run_train, "continual": run_continual}
