"""Which trial is the best, and the results of a sweep: ``trials.parquet``, a row for every training with a
column for each option of its trial; a finished sweep in Python; the best trial as a config file.

The best is selected on development seeds and reported on held-out seeds. ``rungs=steps`` is synchronous
successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) with reduction factor 3. A rung is a
complete training with a shorter schedule, not a halfway metric of a longer one, so trials are compared after
their learning rates have fallen. The outcomes of a rung alone decide which trials advance, not the order in
which they arrive: a resumed sweep advances the same trials.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import chain, count, pairwise
from statistics import fmean
from typing import Any

import pyarrow as pa

from raycomp.config import Domain, changed_options, from_dict, read_value, write_space
from raycomp.config.commands import list_hints
from raycomp.config.options import FIXED
from raycomp.core.intervals import contrast
from raycomp.data.files import Folder
from raycomp.data.parquet import let_pandas_in, read_columns
from raycomp.run.run import Say
from raycomp.sweep.config import SWEPT, SweepConfig
from raycomp.sweep.plan import Options, Plan, make_base
from raycomp.sweep.trials import (
    DEVELOPMENT,
    DIVISORS,
    FAILED,
    FINISHED,
    REPORT,
    STOPPED,
    Journal,
    Outcome,
    SeedTraining,
    Trial,
    list_rungs,
    name_trial,
)
from raycomp.table import Estimate, is_numeral, plain, write_cell


@dataclass(frozen=True)
class Winner:
    """The best trial of a group."""

    group: Mapping[str, str]
    """The group's value of ``per``; nothing if there is one group."""
    trial: Trial
    development: Estimate
    report: Estimate
    """NaN if there is no report seed."""

    @property
    def name(self) -> str:
        """A short name of the group."""
        return next(iter(self.group.values()), "best")


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean over trainings with its 95 % interval by Student's t; no interval for fewer than
    two."""
    return Estimate.of(contrast(values))


def estimate_all(trials: Sequence[Trial], metric: str, split: str) -> Estimate:
    """Return the mean over trials, by Student's t over the seeds that all of them have, each counted once."""
    found = [trial.find_values(metric, split) for trial in trials]
    shared = sorted(set.intersection(*map(set, found))) if found else []
    return estimate([fmean(values[seed] for values in found) for seed in shared])


def estimate_apart(trial: Trial, other: Trial, metric: str) -> Estimate:
    """Return the difference of a trial from another on development seeds, paired by seed."""
    own, others = (one.find_values(metric, DEVELOPMENT) for one in (trial, other))
    return estimate([own[seed] - others[seed] for seed in own if seed in others])


def is_whole(trial: Trial, metric: str, num_seeds: int) -> bool:
    """Whether all development trainings of a trial finished: only such trials are compared."""
    values = trial.list_values(metric, DEVELOPMENT)
    return len(values) == num_seeds and all(value == value for value in values)


def list_whole(plan: Plan, trials: Sequence[Trial], metric: str) -> list[Trial]:
    return [trial for trial in trials if is_whole(trial, metric, plan.config.seeds)]


def of_group(trials: Sequence[Trial], group: Mapping[str, str]) -> list[Trial]:
    return [trial for trial in trials if group.items() <= trial.options.items()]


def choose_best(
    trials: Sequence[Trial], group: Mapping[str, str], metric: str, mode: str, num_seeds: int
) -> Winner:
    """Return the best trial of a group by its mean over development seeds; ties go to the first one.

    Raises ValueError if no trial of the group finished.
    """
    own = of_group(trials, group)
    whole = [trial for trial in own if is_whole(trial, metric, num_seeds)]
    if not whole:
        failed = next(
            filter(None, (trial.failure for trial in own)), f"{metric} was not reported" * bool(own)
        )
        said = ", ".join(f"{option}={value}" for option, value in group.items())
        raise ValueError(f"space: no trial{said and ' of '}{said} finished{failed and ': '}{failed}")
    sign = 1 if mode == "max" else -1
    best = max(whole, key=lambda trial: sign * trial.estimate(metric, DEVELOPMENT).value)
    return Winner(group, best, best.estimate(metric, DEVELOPMENT), best.estimate(metric, REPORT))


Train = Callable[[Sequence[Options], Sequence[SeedTraining]], None]
"""Trains these trials on these seeds; outcomes go to the journal, those that are there are kept."""


def count_rungs(num_trials: int) -> list[int]:
    """Return the number of trials on each rung, if enough of them finish: a third advances, rounded up."""
    counts = [num_trials]
    while len(counts) < len(DIVISORS):
        counts.append(-(-counts[-1] // 3))
    return counts


def share_of_steps(num_trials: int) -> float:
    """Return the steps of all rungs, as a share of those that train every trial for all steps."""
    counts = zip(count_rungs(num_trials), DIVISORS, strict=True)
    return sum(num / divisor for num, divisor in counts) / num_trials


def read_trials(plan: Plan, journal: Journal) -> list[Trial]:
    """Return the trials by number: their order in the plan; with search=optuna that of their start."""
    trials = journal.read()
    if plan.config.search == "optuna":
        return trials
    numbers = {name_trial(point): number for number, point in enumerate(plan.list_points())}
    return sorted(trials, key=lambda trial: numbers.get(trial.name, len(numbers)))


def climb(
    plan: Plan, journal: Journal, group: Mapping[str, str], metric: str, train: Train, say: Say
) -> None:
    """Train the best trials of each rung on the next one, once the first rung has ended."""
    rungs = list_rungs(plan.config)
    for number, (ended, following) in enumerate(pairwise(rungs), 1):
        trials = of_group(read_trials(plan, journal), group)
        best = list_advancing(trials, ended, metric, plan.config.mode)
        say(f"rung {number} of {len(rungs)}: {len(best)} trials advance")
        train([trial.options for trial in best], following)


def list_advancing(
    trials: Sequence[Trial], rung: Sequence[SeedTraining], metric: str, mode: str
) -> list[Trial]:
    """Return the trials that advance from a rung, in their order: its best third, rounded up.

    Compared by the mean over seeds; ties go to the smaller number. A trial with a seed that failed or lacks
    the metric never advances, but counts among those of which a third advances.
    """
    tried = [trial for trial in trials if any(training in trial.outcomes for training in rung)]
    means = {n: mean_of_rung(trial, rung, metric) for n, trial in enumerate(tried)}
    sign = -1 if mode == "max" else 1
    ranked = sorted((n for n in means if means[n] == means[n]), key=lambda n: (sign * means[n], n))
    return [tried[n] for n in sorted(ranked[: count_rungs(len(tried))[1]])]


def mean_of_rung(trial: Trial, rung: Sequence[SeedTraining], metric: str) -> float:
    """Return the mean of a metric over the seeds of a rung; NaN unless all of them have it."""
    outcomes = [trial.outcomes.get(training) for training in rung]
    return fmean(one.value(metric) if one else float("nan") for one in outcomes)


def get_reached(trial: Trial, config: SweepConfig) -> int:
    """Return the last rung, from 1, that a trial was trained on; 0 for none."""
    rungs = enumerate(list_rungs(config), 1)
    return max((n for n, rung in rungs if any(one in trial.outcomes for one in rung)), default=0)


TABLE = "trials.parquet"
_OWN = [
    ("trial", pa.string()),
    ("split", pa.string()),
    ("seed", pa.int32()),
    ("status", pa.string()),
    ("metric", pa.float64()),
    ("low", pa.float64()),
    ("high", pa.float64()),
    ("rung", pa.int32()),
    ("steps", pa.int64()),
    ("seconds", pa.float64()),
    ("starts", pa.int32()),
    ("why", pa.string()),
]


def make_rows(
    plan: Plan, trials: Sequence[Trial], development: Sequence[SeedTraining], metric: str
) -> pa.Table:
    """Return the rows of trials in the order of their start.

    Development seeds on which a stopped trial was not trained have a row, too. ``metric`` has the interval
    over examples of one training. ``rung``, from 1, is null on report seeds and without rungs=steps;
    ``steps`` is null if the training did not finish or does not report them.
    """
    numbers = {option for option in plan.space if is_number(plan, option)}
    rows = []
    for trial in trials:
        outcomes = {training: Outcome(STOPPED, {}, starts=0) for training in development}
        outcomes |= trial.outcomes
        for training in sorted(outcomes, key=lambda one: (-one.divisor, one.number)):
            outcome = outcomes[training]
            one = outcome.metrics.get(metric, Estimate(float("nan")))
            is_rung = plan.config.rungs == "steps" and training.split == DEVELOPMENT
            row = {
                "trial": trial.name,
                "split": training.split,
                "seed": training.number,
                "metric": one.value,
                "low": one.low,
                "high": one.high,
                "rung": DIVISORS.index(training.divisor) + 1 if is_rung else None,
                **vars(outcome),
                "why": outcome.why or None,
                **{name: float(value) if name in numbers else value for name, value in trial.options.items()},
            }
            rows.append({name: None if value != value else value for name, value in row.items()})
    fields = [*_OWN, *((option, pa.float64() if option in numbers else pa.string()) for option in plan.space)]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def is_number(plan: Plan, option: str) -> bool:
    return all(is_numeral(value) for value in plan.space[option].values)


@dataclass(frozen=True)
class TrialResult:
    """One trial of a finished sweep."""

    name: str
    """Its folder below ``trials``."""
    config: Mapping[str, Any]
    """The options of the space by path, as ``raycomp.override_all`` takes them."""
    status: str
    """finished: trained on all development seeds; stopped: behind on an earlier rung; failed, see ``why``."""
    metric: float
    """Mean over the development seeds, with all steps; NaN unless finished. The best was selected by it."""
    report: float
    """Mean over the report seeds; NaN if it was not trained on them."""
    rung: int
    """The last rung that it was trained on, from 1; without rungs=steps the number of development seeds."""
    rungs: tuple[float, ...]
    """With rungs=steps the mean over development seeds on each rung, NaN where it was not trained."""
    steps: int | None
    """Optimizer steps of all of its finished trainings; None if the command does not report them."""
    seconds: float
    """Of all of its trainings and evaluations."""
    why: str
    """Of a failed trial, the reason."""


class SweepResult:
    """A finished sweep as a table: iterating yields a ``TrialResult`` for each trial, in order."""

    def __init__(self, record: Mapping[str, Any], uri: str):
        self.record = record
        """The content of run.json."""
        self.uri = uri
        """The folder."""

    @cached_property
    def rows(self) -> list[TrialResult]:
        """The trials by number; with search=optuna in the order of their start."""
        config = from_dict(SweepConfig(), self.record["config"])
        folder = Folder(self.uri)
        trials = {trial.name: trial for trial in Journal(folder).read()}
        names = dict.fromkeys(read_columns(folder.at(TABLE), ["trial"])["trial"].to_pylist())
        return [_describe(config, trials[name], self.record["metric"]) for name in names]

    @property
    def best(self) -> TrialResult:
        """The trial that was selected on development seeds; with ``per`` the best of all groups."""
        name = self.record["best"][0]["trial"]
        return next(row for row in self.rows if row.name == name)

    def table(self) -> pa.Table:
        """Return a row per trial: its name, options, and results; rung_1, rung_2, ... with rungs=steps."""
        rows = []
        for row in self.rows:
            own = dict(vars(row))
            name, config, rungs = own.pop("name"), own.pop("config"), own.pop("rungs")
            # A column cannot hold a tuple.
            config = {
                option: ",".join(map(str, value)) if isinstance(value, tuple | list) else value
                for option, value in config.items()
            }
            rungs = {f"rung_{n}": value for n, value in enumerate(rungs, 1)}
            rows.append({"trial": name, **config, **own, **rungs})
        return pa.Table.from_pylist(rows)

    def dataframe(self) -> Any:
        """Return ``table`` as a pandas DataFrame. Raises ValueError where pandas is not installed."""
        if find_spec("pandas") is None:
            raise ValueError("dataframe: pandas is not installed; install pandas, or use table()")
        let_pandas_in()
        return self.table().to_pandas()

    def __iter__(self) -> Iterator[TrialResult]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<raycomp sweep: {len(self)} trials in {self.uri}>"

    def _repr_html_(self) -> str:
        """Return the dataframe as HTML, in a notebook."""
        return self.dataframe().to_html()


def _describe(config: SweepConfig, trial: Trial, metric: str) -> TrialResult:
    is_finished = is_whole(trial, metric, config.seeds)
    rungs = list_rungs(config) if config.rungs == "steps" else []
    steps = [one.steps for one in trial.outcomes.values() if one.steps is not None]
    config_of = {}
    for option, text in trial.options.items():  # an option belongs to the first part of a trial that has it
        parts = (part.config for part in SWEPT[config.command])
        owner = next(part for part in parts if option in list_hints(part))
        config_of[option] = read_value(owner, option, text)
    return TrialResult(
        name=trial.name,
        config=config_of,
        status=FINISHED if is_finished else FAILED if trial.failure else STOPPED,
        metric=trial.estimate(metric, DEVELOPMENT).value if is_finished else float("nan"),
        report=trial.estimate(metric, REPORT).value,
        rung=get_reached(trial, config) if rungs else len(trial.list_values(metric, DEVELOPMENT)),
        rungs=tuple(mean_of_rung(trial, rung, metric) for rung in rungs),
        steps=sum(steps) if steps else None,
        seconds=sum(one.seconds for one in trial.outcomes.values()),
        why=trial.failure,
    )


BEST = "best.py"
_HEAD = '''"""The best of a sweep of {space}

by {metric} on development seeds, next to its result on report seeds, which selected nothing:
{reported}

    raycomp sweep {file} --out AGAIN      # repeats its trainings with the same results
{lines}

Cost: that of {num} of the sweep's trainings.
"""

from raycomp.config import {kinds}, override_all
'''
_FUNCTION = '''

def {name}() -> {kind}:
    """{text}"""
    return override_all({kind}(), {{{options}}})
'''


def write_job(plan: Plan, winners: Sequence[Winner], file: str) -> str:
    """Return the text of the file: ``config`` is the best of all, further functions are the best of each
    group."""
    best, command = winners[0], plan.config.command
    reported = "\n".join(
        f"- {one.name}: {plain(write_cell(one.development))}, report {plain(write_cell(one.report))}"
        for one in winners
    )
    # The commands that repeat the best trial with the user's own pairs.
    split = plan.split(best.trial.options)
    lines = f"    raycomp continual {file}:continual --out OUT"
    if command == "train":
        place = "INPUT" if plan.scored is None else "CHOSEN"
        lines = f"    raycomp train {file}:train --set input={place} --out MODEL"
    if command == "train" and plan.scored is not None:
        sets = "".join(f" --set {option}={value}" for option, value in split["select"].items())
        lines = f"    raycomp select CURATED{sets} --out CHOSEN\n{lines}"
    # The command alone; for a training the command line names the input.
    base = make_base(plan.config)
    alone = {path: value for path, value in changed_options(base).items() if not path.startswith("cluster.")}
    text = "The command's options, without a trial's seed."
    text = "The training's options, without a trial's seed and pairs." if command == "train" else text
    kind = type(base).__name__
    head = _HEAD.format(
        space=_escape(write_space(plan.space)),
        metric=plan.config.metric,
        reported=_escape(reported),
        file=_escape(file),
        lines=_escape(lines),
        num=plan.config.seeds + plan.config.report_seeds,
        kinds=", ".join(sorted(["SweepConfig", kind])),
    )
    names = name_functions([one.name for one in winners])
    functions = [("config", best), *((names[one.name], one) for one in winners if len(winners) > 1)]
    for name, one in functions:
        said = f"{one.name}: one trial, on all of the sweep's seeds."
        head += _write(name, "SweepConfig", said, changed_options(fix(plan, one)))
    return head + _write(command, kind, text, {**alone, **split[command]})


def name_functions(values: Sequence[str]) -> dict[str, str]:
    """Return unique names of the file's functions, by the values of groups.

    Signs of numbers become words. Where replacing invalid characters makes two names equal, later ones of the
    sorted values are numbered.
    """
    found: dict[str, str] = {}
    for value in sorted(values):
        text = value.replace("-", " minus ").replace("+", " plus ") if is_numeral(value) else value
        base = f"of_{re.sub(r'[^0-9a-zA-Z]+', '_', text).strip('_').lower()}"
        numbered = (f"{base}_{n}" for n in count(2))
        found[value] = next(name for name in chain([base], numbered) if name not in found.values())
    return found


def fix(plan: Plan, winner: Winner) -> SweepConfig:
    """Return the sweep with only a winner's options."""
    space = {option: Domain(FIXED, (value,)) for option, value in winner.trial.options.items()}
    alone: dict[str, Any] = {"search": "grid", "scheduler": "none", "rungs": "seeds"}
    return replace(plan.config, space=write_space(space), per=None, report="best", **alone)


def _write(name: str, kind: str, text: str, options: Mapping[str, object]) -> str:
    """Return a function that returns the config with these options, in ASCII."""
    lines = "".join(f"        {path!a}: {value!a},\n" for path, value in options.items())
    inside = f"\n{lines}    " if lines else ""
    return _FUNCTION.format(name=name, kind=kind, text=_escape(text), options=inside)


def _escape(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode().replace("\\", "\\\\").replace('"', "'")
