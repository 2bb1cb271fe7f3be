"""The journal of a sweep: a folder for each trial, a file for each training that ended.

``trials/NAME/dials.json``: what the trial tries, since when. ``trials/NAME/SITE.json``: what a training came
to; written last, so whatever has one is never trained again, whoever was killed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raycomp.shards.folder import Folder
from raycomp.shards.runs import digest
from raycomp.table import Estimate

TRIALS = "trials"
_DIALS = "dials.json"
_NAME_LETTERS = 12
DEVELOPMENT, REPORT = "development", "report"
# What became of a training: it ended, it could not (with the reason), or it was not begun, its trial stopped.
FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"


@dataclass(frozen=True)
class Site:
    """Where one training of a trial is done: its seed, in the little world of that number where there are
    any."""

    split: str
    """``development``, of which is chosen, or ``report``."""
    number: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:02d}"


@dataclass(frozen=True)
class Outcome:
    """What a training came to."""

    status: str
    metrics: Mapping[str, Estimate]
    """Of a finished one the figures of its evaluation by name, with their intervals over examples."""
    seconds: float = 0.0
    """Of its last start, from scores to figures."""
    starts: int = 1
    """How often it was begun: more than once where a sweep was killed in the middle of it."""
    why: str = ""
    """Of a failed one the reason."""

    def value(self, metric: str) -> float:
        """Return a metric; NaN where there is none."""
        return self.metrics[metric].value if metric in self.metrics else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return what json can hold; NaN is null."""
        metrics = {name: _write(one) for name, one in self.metrics.items()}
        return {**vars(self), "metrics": metrics}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Outcome":
        """Return what ``to_dict`` wrote."""
        metrics = {name: Estimate(*map(_read, ends)) for name, ends in values["metrics"].items()}
        return Outcome(**{**values, "metrics": metrics})


def _write(one: Estimate) -> list[float | None]:
    return [None if end != end else end for end in (one.value, one.low, one.high)]


def _read(end: float | None) -> float:
    return float("nan") if end is None else end


@dataclass(frozen=True)
class Trial:
    """One setting of the dials and its trainings, as far as they ended."""

    name: str
    dials: Mapping[str, str]
    begun: str
    outcomes: Mapping[Site, Outcome]

    def find_values(self, metric: str, split: str) -> dict[int, float]:
        """Return a metric of the finished trainings of a split by their seeds, in rising order; NaN where a
        training has none of it."""
        found = sorted(self.outcomes.items(), key=lambda item: item[0].number)
        ended = ((site, one) for site, one in found if site.split == split and one.status == FINISHED)
        return {site.number: one.value(metric) for site, one in ended}

    def list_values(self, metric: str, split: str) -> list[float]:
        """Return a metric of the finished trainings of a split, by their seeds."""
        return list(self.find_values(metric, split).values())

    def list_metrics(self) -> list[str]:
        """Return the metrics that all finished trainings have."""
        ended = [set(one.metrics) for one in self.outcomes.values() if one.status == FINISHED]
        return sorted(set.intersection(*ended)) if ended else []


def name_trial(dials: Mapping[str, str]) -> str:
    """Return what a trial of these dials is called, whenever it is tried."""
    return digest(dict(dials))[:_NAME_LETTERS]


@dataclass(frozen=True)
class Journal:
    """The journal in a sweep's folder."""

    folder: Folder

    def begin(self, dials: Mapping[str, str], now: str) -> str:
        """Write down that a trial is tried, unless it was before; return its name."""
        name = name_trial(dials)
        self.folder.create_json({"dials": dict(dials), "begun": now}, TRIALS, name, _DIALS)
        return name

    def find(self, name: str, site: Site) -> Outcome | None:
        """Return what a training came to; none where it has not ended."""
        file = (TRIALS, name, f"{site.name}.json")
        return Outcome.from_dict(self.folder.read_json(*file)) if self.folder.exists(*file) else None

    def write(self, name: str, site: Site, outcome: Outcome) -> None:
        """Write down what a training came to."""
        self.folder.write_json(outcome.to_dict(), TRIALS, name, f"{site.name}.json")

    def read(self) -> list[Trial]:
        """Return all trials, in the order in which they were begun."""
        names = Folder(self.folder.at(TRIALS)).list_folders()
        trials = [self._read_trial(name) for name in names if self.folder.exists(TRIALS, name, _DIALS)]
        return sorted(trials, key=lambda trial: (trial.begun, trial.name))

    def _read_trial(self, name: str) -> Trial:
        told = self.folder.read_json(TRIALS, name, _DIALS)
        return Trial(name, told["dials"], told["begun"], dict(self._list_outcomes(name)))

    def _list_outcomes(self, name: str) -> Iterator[tuple[Site, Outcome]]:
        for file in self.folder.list_names(TRIALS, name):
            split, dash, number = file.removesuffix(".json").rpartition("-")
            if dash and number.isdecimal():
                yield Site(split, int(number)), Outcome.from_dict(self.folder.read_json(TRIALS, name, file))
