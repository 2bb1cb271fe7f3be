"""The journal of a sweep: a folder for each trial, a file for each training that ended.

``trials/NAME/options.json``: the trial's options and its start. ``trials/NAME/SEED.json``: the outcome of
one seed's training. It is written last, so a training with this file is never repeated, even after a kill.

Of an unfinished sweep damaged files are removed and made again. Trials of another sweep are refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any

from raycomp.data.files import Folder
from raycomp.data.runs import digest
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import Plan
from raycomp.table import Estimate

TRIALS = "trials"
_OPTIONS = "options.json"
_NAME_LETTERS = 12
_SEED_TRAINING = re.compile(r"(.+?)-(\d+)(?:-1of([1-9]\d*))?\.json", re.ASCII)
DEVELOPMENT, REPORT = "development", "report"
DIVISORS = (9, 3, 1)
"""The schedules of the rungs have 1/9, 1/3 and all of the steps."""
# Outcomes of a training: finished, failed (with the reason), or not started because its trial was stopped.
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
_OUTCOME = {
    "status": (str,),
    "metrics": (dict,),
    "seconds": (int, float),
    "starts": (int,),
    "why": (str,),
    "steps": (int, NoneType),
}
_STARTED = {"options": (dict,), "started": (str,)}


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
        """Return the object that ``to_dict`` wrote. Raises ValueError for anything else."""
        _check_types(values, _OUTCOME)
        if values["status"] not in (FINISHED, FAILED):
            raise ValueError(f"status={values['status']!r}: must be {FINISHED} or {FAILED}")
        metrics = {name: _read_ends(name, ends) for name, ends in values["metrics"].items()}
        return Outcome(**{**values, "metrics": metrics})


def _read_ends(name: str, ends: Any) -> Estimate:
    if not isinstance(ends, list) or len(ends) != 3:
        raise ValueError(f"metrics.{name}: must have a value and the two ends of its interval")
    if not all(type(end) in (int, float, NoneType) for end in ends):
        raise ValueError(f"metrics.{name}: must have numbers")
    return Estimate(*(float("nan") if end is None else end for end in ends))


def _check_types(values: Any, types: Mapping[str, tuple[type, ...]]) -> None:
    """Raise ValueError unless ``values`` has exactly these fields, each of its type."""
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise ValueError(f"must have {', '.join(types)}")
    for name, wanted in types.items():
        if type(values[name]) not in wanted:
            raise ValueError(f"{name}={values[name]!r}: has the wrong type")


@dataclass(frozen=True)
class Trial:
    """One setting of the options with its trainings that have ended."""

    name: str
    options: Mapping[str, str]
    started: str
    outcomes: Mapping[SeedTraining, Outcome]

    def find_values(self, metric: str, split: str, divisor: int = 1) -> dict[int, float]:
        """Return a metric of the finished trainings of a split by their seeds, in rising order; NaN where a
        training lacks it. By default those of all steps."""
        found = sorted(self.outcomes.items(), key=lambda item: item[0].number)
        ended = (
            (training, one)
            for training, one in found
            if (training.split, training.divisor, one.status) == (split, divisor, FINISHED)
        )
        return {training.number: one.value(metric) for training, one in ended}

    def list_values(self, metric: str, split: str) -> list[float]:
        """Return a metric of the finished trainings of a split, by their seeds."""
        return list(self.find_values(metric, split).values())

    def list_metrics(self) -> list[str]:
        """Return the metrics that all finished trainings have."""
        ended = [set(one.metrics) for one in self.outcomes.values() if one.status == FINISHED]
        return sorted(set.intersection(*ended)) if ended else []


def name_trial(options: Mapping[str, str]) -> str:
    """Return the name of a trial with these normalized options; it does not depend on the time."""
    return digest(dict(options))[:_NAME_LETTERS]


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
        return Outcome.from_dict(self._read_json(*file)) if self.folder.exists(*file) else None

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
        if not self.folder.exists(TRIALS, name, _OPTIONS):
            raise ValueError(f"{_OPTIONS} is missing")
        reported = self._read_json(TRIALS, name, _OPTIONS)
        _check_types(reported, _STARTED)
        _check_types(reported["options"], dict.fromkeys(reported["options"], (str,)))
        return reported["options"], reported["started"]

    def remove(self, *file: str) -> None:
        """Delete a trial, or one of its files."""
        self.folder.remove(TRIALS, *file)

    def _read_json(self, *file: str) -> Any:
        try:
            return self.folder.read_json(*file)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not valid JSON ({' '.join(str(error).split())})") from error


_OWN_NAME = re.compile(r"[0-9a-f]{12}")


def repair_trials(plan: Plan, journal: Journal, say: Callable[[str], None]) -> None:
    """Remove the damaged files of an unfinished sweep, so that they are made again; print a line for each.

    Raises ValueError with the name of a trial that does not belong to this sweep.
    """
    for name, file, why in list(_list_damaged(plan, journal)):
        journal.remove(*filter(None, (name, file)))
        say(f"{TRIALS}/{name}{file and '/'}{file}: {why}; removed, will be trained again")


def check_trials(plan: Plan, journal: Journal) -> None:
    """Raise ValueError unless all trials of a finished sweep belong to it and none of their files is
    damaged."""
    for name, file, why in _list_damaged(plan, journal):
        raise ValueError(
            f"{journal.folder.at(TRIALS, *filter(None, (name, file)))}: {why}; the sweep was finished: "
            f"remove its folder or name another one, and run again"
        )


def _list_damaged(plan: Plan, journal: Journal) -> Iterator[tuple[str, str, str]]:
    """Yield the trial, the file (empty: all of the trial) and the problem.

    Raises ValueError for a trial, or a training of one, that does not belong to this sweep.
    """
    own = {*chain(*list_rungs(plan.config), list_report(plan.config))}
    for name in journal.list_trials():
        try:
            options, _ = journal.read_options(name)
        except ValueError as error:
            if not _OWN_NAME.fullmatch(name):
                raise _refuse(journal, name, "not a trial's name") from error
            yield name, "", f"its options cannot be read: {error}"
            continue
        _check_options(plan, journal, name, options)
        for training in journal.list_seed_trainings(name):
            if training not in own:
                raise _refuse(journal, f"{name}/{training.name}.json", "this sweep has no such training")
            try:
                journal.find(name, training)
            except ValueError as error:
                yield name, f"{training.name}.json", str(error)


def _check_options(plan: Plan, journal: Journal, name: str, options: dict[str, str]) -> None:
    if name != name_trial(options):
        raise _refuse(journal, name, "its options do not match its name")
    try:
        spelled = plan.spell(options)
    except ValueError as error:
        raise _refuse(journal, name, str(error)) from error
    for option, text in spelled.items():
        if options[option] != text:
            raise _refuse(journal, name, f"it has {option}={options[option]} in place of {text}")


def _refuse(journal: Journal, name: str, why: str) -> ValueError:
    where = journal.folder.at(TRIALS, *name.split("/"))
    return ValueError(f"{where}: belongs to another sweep: {why}; remove it")
