"""The options of a sweep: the command, the space, the search, the metric."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from raycomp.config.commands import flatten, from_dict, to_dict
from raycomp.config.options import (
    FREE,
    PLACE,
    SELECT,
    ClusterConfig,
    OptionGroup,
    check,
    count_from,
    one_of,
    within,
)
from raycomp.continual.config import ContinualConfig
from raycomp.curation.config import CurateConfig
from raycomp.evaluation.config import EvaluateConfig
from raycomp.training.config import TrainConfig

SEARCHES = ("grid", "random", "optuna")
SCHEDULERS = ("none", "asha")
RUNGS = ("seeds", "steps")
REPORTS = ("best", "all")
SEED = "{seed}"
"""Stands for the number of a seed in options that name data."""


@dataclass(frozen=True)
class SweptCommand:
    """A command that a trial runs, and its options that may be swept."""

    name: str
    config: type
    mark: str | None = None
    """Only options with this prefix; none = all except those that no result depends on."""


# By command, the parts that its trials run, in their order; sweep/trials.py runs them. An option
# belongs to the first part that has it.
SWEPT = {
    "train": (SweptCommand("select", CurateConfig, *SELECT), SweptCommand("train", TrainConfig)),
    "continual": (SweptCommand("continual", ContinualConfig),),
}
# Options that a trial sets from its seed and its folder.
OWN_OPTIONS = (
    *("seed", "train.seed", "input", "subset", "materialize"),
    *("seeds", "first_seed", "tune_seeds", "stream"),
)


@dataclass(frozen=True)
class SearchConfig(OptionGroup):
    """The space, the search, the seeds, the metric."""

    command: str = field(default="train", metadata=one_of(tuple(SWEPT)))
    """What a trial runs. train: select from one table of scores, train, evaluate; continual: train a method
    on streams that are embedded once."""
    space: str = ""
    """The search space, an entry for each option by its own command's name: attribute.keep=grid(0.5,0.7),
    train.learning_rate=loguniform(1e-4,1e-3), choice(...), uniform(a,b), or a value that all trials have;
    entries are separated by spaces. Several ``--space`` add up; they replace that of a preset or file."""
    metric: str = ""
    """The selection metric, which must be set: BENCHMARK.METRIC of the evaluation, its macro mean where it
    has splits, or BENCHMARK.METRIC.SPLIT; for continual STREAM.METRIC, as photos.last of photos.json."""
    mode: str = field(default="max", metadata=one_of(("max", "min")))
    """max or min: whether higher or lower is better."""
    search: str = field(default="grid", metadata=one_of(SEARCHES))
    """grid: every point of the grids; random: with draws from choices and ranges; optuna: its TPE, which uses
    the results of earlier trials."""
    num_samples: int = field(default=8, metadata=count_from(1, 10_000))
    """random: draws for every point of the grids; optuna: number of trials."""
    scheduler: str = field(default="none", metadata=one_of(SCHEDULERS))
    """none, or asha: trials that are behind are stopped at the rungs that ``rungs`` sets. A rung consists of
    complete trainings, because metrics during a training depend on a learning rate that is still high."""
    rungs: str = field(default="seeds", metadata=one_of(RUNGS))
    """With scheduler=asha. seeds: trials that are behind half of the others after 1, 2, 4, ... seeds are
    stopped there. steps: all trials are trained for 1/9 of their steps, the best third of them for 1/3, the
    best third of those for all steps, each time from step 0 with a schedule of that length, on all
    development seeds; the best trial is selected among those trained for all steps."""
    per: str | None = None
    """An option of the space with a grid. For each of its values (methods, for example) the other options are
    tuned alike, with as many trials over the same space, and the best trial of each value is reported."""
    seeds: int = field(default=2, metadata=count_from(1, 100))
    """Development seeds: trainings of a trial, numbered from 0. The number stands in for {seed} in
    ``curated``, ``input``, ``negatives``, ``model.weights``, ``evaluate.*`` and every other option that names
    data: each seed then has data of its own."""
    report_seeds: int = field(default=2, metadata=count_from(0, 100))
    """Report seeds: further trainings that select nothing and measure the best trial; 0 = none. Their numbers
    follow those of the development seeds."""
    report: str = field(default="best", metadata=one_of(REPORTS))
    """Trials trained on the report seeds. best: the best trial (of each value of ``per``); all: every trial
    that finished."""
    seed: int = field(default=0, metadata=within("from 0 to 9999"))
    """Draws the seeds of all trainings and the random parts of the search."""
    curated: str | None = field(default=None, metadata=PLACE)
    """A curation whose scores every trial selects from; none = the pairs of ``input`` as they are."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """The evaluation of a trained model; the trial sets its model."""
    report_on: EvaluateConfig | None = None
    """The evaluation on report seeds; none = the same evaluation, and the page reports this."""
    continual: ContinualConfig = field(default_factory=ContinualConfig)
    """With command=continual, the options of ``raycomp continual`` that the space does not set; one
    method."""
    max_concurrent: int | None = field(default=None, metadata=FREE | count_from(1))
    """Number of concurrent trials, each with ``train.workers`` processes; none = as many as fit. No result
    depends on it."""


@dataclass(frozen=True)
class SweepConfig(TrainConfig, SearchConfig):
    """Options tried on development seeds; the best is selected and reported on held-out seeds.

    The options of ``raycomp train`` keep their names; the space sets them for single trials.
    """

    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)
    """Of the sweep and of every command that trials run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = "at most 100 together with seeds"
        check(self.seeds + self.report_seeds <= 100, "report_seeds", self.report_seeds, most)
        if self.rungs == "steps":
            check(self.scheduler == "asha", "rungs", self.rungs, f"seeds with scheduler={self.scheduler}")
            check(self.command == "train", "rungs", self.rungs, f"seeds with command={self.command}")
        elif self.scheduler == "asha":
            check(self.seeds > 1, "seeds", self.seeds, "at least 2 with scheduler=asha and rungs=seeds")
        if self.command == "continual":
            methods, workers = self.continual.method, self.continual.tune.workers
            check(len(methods) == 1 and methods != ("all",), "continual.method", ",".join(methods), "one")
            check((workers or 1) == 1, "continual.tune.workers", workers, "none: a trial is one process")

    @property
    def workers(self) -> int:
        """Number of processes that train concurrently in one trial."""
        return (self.train.workers or 1) if self.command == "train" else 1

    @property
    def share_of_gpu(self) -> float:
        """Share of a GPU that each of these processes reserves, and a trial's evaluation, too."""
        return self.train.gpus_per_worker if self.command == "train" else 1.0

    @property
    def trained(self) -> TrainConfig:
        """The options of training alone."""
        return TrainConfig(**{one.name: getattr(self, one.name) for one in fields(TrainConfig)})

    def at_seed(self, number: int) -> "SweepConfig":
        """Return the sweep as one seed has it: its number in place of {seed}, and its own evaluation."""

        def put(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(put, value))
            return value.replace(SEED, str(number)) if isinstance(value, str) else value

        asked = (self.report_on if number >= self.seeds else None) or self.evaluate
        config = replace(self, evaluate=asked, report_on=None)
        return from_dict(config, {path: put(value) for path, value in flatten(to_dict(config))})
