"""The options of a sweep: the command, the space, the search, the metric."""

from dataclasses import dataclass, field

from raycomp.config.check import check, check_choice, check_count
from raycomp.config.options import FREE, PLACE, SELECT
from raycomp.config.shared import ClusterConfig
from raycomp.continual.config import ContinualConfig
from raycomp.curation.config import CurateConfig
from raycomp.evaluation.config import EvaluateConfig
from raycomp.training.config import TrainConfig
from raycomp.words import WORLD_STREAMS

SEARCHES = ("grid", "random", "optuna")
SCHEDULERS = ("none", "asha")
RUNGS = ("seeds", "steps")
REPORTS = ("best", "all")
# Published curves that can be drawn next to a sweep's own (sweep/curves.py).
PUBLISHED = ("retention",)
NO_WORLD = "with little worlds, which set it; set curated or train.input to use your own data"


@dataclass(frozen=True)
class SweptCommand:
    """A command that a trial runs, and its options that may be swept."""

    name: str
    config: type
    mark: str | None = None
    """Only options with this prefix; none = all except those that no result depends on."""


# By command, the parts that its trials run, in their order; sweep/seed_training.py runs them. An option
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
class WorldsConfig:
    """Sizes of a sweep's little worlds, for a sweep without data."""

    pairs: int = 4000
    """Pairs to select from, a third of them with a planted fault."""
    scorer_pairs: int = 10_000
    """Clean training pairs of a world's scorer."""
    scorer_steps: int = 500
    """Steps of the scorer's training."""
    batch_size: int = 64
    """Learning rate of the scorer's training."""
    scenes: int = 800
    """Scenes of a world's test set."""

    def __post_init__(self) -> None:
        check_count("worlds.batch_size", self.batch_size, 2)
        batch = self.batch_size
        least = {"pairs": 2 * batch, "scorer_pairs": batch, "scorer_steps": 1, "scenes": 2}
        for name, count in least.items():
            value = getattr(self, name)
            check_count(f"worlds.{name}", value, count)


@dataclass(frozen=True)
class SweepConfig:
    """Options tried on development seeds; the best is selected and reported on held-out seeds."""

    command: str = "train"
    """What a trial runs. train: select from one table of scores, train, evaluate; continual: train a method
    on streams that are embedded once."""
    space: str = ""
    """The search space, an entry for each option by its own command's name: attribute.keep=grid(0.5,0.7),
    train.learning_rate=loguniform(1e-4,1e-3), choice(...), uniform(a,b), or a value that all trials have;
    entries are separated by spaces. ``--space`` adds one."""
    metric: str = "world.accuracy"
    """The selection metric: BENCHMARK.METRIC of the evaluation, its macro mean where it has splits, or
    BENCHMARK.METRIC.SPLIT; for continual STREAM.METRIC, as world.last."""
    mode: str = "max"
    """max or min: whether higher or lower is better."""
    search: str = "grid"
    """grid: every point of the grids; random: with draws from choices and ranges; optuna: its TPE, which uses
    the results of earlier trials."""
    num_samples: int = 8
    """random: draws for every point of the grids; optuna: number of trials."""
    scheduler: str = "none"
    """none, or asha: trials that are behind are stopped at the rungs that ``rungs`` sets. A rung consists of
    complete trainings, because metrics during a training depend on a learning rate that is still high."""
    rungs: str = "seeds"
    """With scheduler=asha. seeds: trials that are behind half of the others after 1, 2, 4, ... seeds are
    stopped there. steps: all trials are trained for 1/9 of their steps, the best third of them for 1/3, the
    best third of those for all steps, each time from step 0 with a schedule of that length, on all
    development seeds; the best trial is selected among those trained for all steps."""
    per: str | None = None
    """An option of the space with a grid. For each of its values (methods, for example) the other options are
    tuned alike, with as many trials over the same space, and the best trial of each value is reported."""
    seeds: int = 2
    """Development seeds: trainings of a trial, each with its own seed and little world."""
    report_seeds: int = 2
    """Report seeds: further trainings that select nothing and measure the best trial; 0 = none."""
    report: str = "best"
    """Trials trained on the report seeds. best: the best trial (of each value of ``per``); all: every trial
    that finished."""
    seed: int = 0
    """Draws seeds, little worlds and the random parts of the search."""
    published: str | None = field(default=None, metadata=FREE)
    """retention: draw the curve of Go et al. (arXiv 2605.22651), Table 1, with the response."""
    curated: str | None = field(default=None, metadata=PLACE)
    """A curation whose scores every trial selects from; none = train.input, or little worlds if that is none,
    too."""
    worlds: WorldsConfig = field(default_factory=WorldsConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    """Options of ``raycomp train`` that the space does not set; train.train.workers is per trial."""
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    """The evaluation of a trained model; the trial sets its model."""
    report_on: EvaluateConfig | None = None
    """The evaluation on report seeds; none = the same evaluation, and the page reports this."""
    continual: ContinualConfig = field(default_factory=ContinualConfig)
    """Options of ``raycomp continual`` that the space does not set; one method."""
    max_concurrent: int | None = field(default=None, metadata=FREE)
    """Number of concurrent trials; none = as many as fit. No result depends on it."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=FREE)
    """Of the sweep and of every command that trials run."""

    def __post_init__(self) -> None:
        check_choice("command", self.command, tuple(SWEPT))
        check_choice("mode", self.mode, ("max", "min"))
        check_choice("search", self.search, SEARCHES)
        check_choice("scheduler", self.scheduler, SCHEDULERS)
        check_choice("rungs", self.rungs, RUNGS)
        check_choice("report", self.report, REPORTS)
        if self.published is not None:
            check_choice("published", self.published, PUBLISHED)
        for name, least, limit in (("num_samples", 1, 10_000), ("seeds", 1, 100), ("report_seeds", 0, 100)):
            check_count(name, getattr(self, name), least, limit)
        check(
            self.seeds + self.report_seeds <= 100,
            "report_seeds",
            self.report_seeds,
            "at most 100 together with seeds",
        )
        check(0 <= self.seed < 10_000, "seed", self.seed, "from 0 to 9999")
        self._check_rungs()
        if self.max_concurrent is not None:
            check_count("max_concurrent", self.max_concurrent, 1)
        self._check_places()

    def _check_rungs(self) -> None:
        if self.rungs == "steps":
            check(self.scheduler == "asha", "rungs", self.rungs, f"seeds with scheduler={self.scheduler}")
            check(self.command == "train", "rungs", self.rungs, f"seeds with command={self.command}")
        elif self.scheduler == "asha":
            check(self.seeds > 1, "seeds", self.seeds, "at least 2 with scheduler=asha and rungs=seeds")

    def _check_places(self) -> None:
        if self.command == "continual":
            methods = self.continual.method
            check(len(methods) == 1 and methods != ("all",), "continual.method", ",".join(methods), "one")
            check(self.published is None, "published", self.published, "none with command=continual")
            shared = self.continual.tune.workers
            check((shared or 1) == 1, "continual.tune.workers", shared, "none: a trial is one process")
            little, num = self.continual.little.backbones, self.seeds + self.report_seeds
            is_apart = little >= num or not set(WORLD_STREAMS) & set(self.continual.stream)
            wanted = f"at least {num}, one for each of seeds and report_seeds"
            check(is_apart, "continual.little.backbones", little, wanted)
        elif self.has_worlds:
            own = (("train.model", self.train.model, TrainConfig().model), ("evaluate", self.evaluate, None))
            for name, value, default in own:
                check(value == (default or EvaluateConfig()), name, "set", f"unset {NO_WORLD}")
            check(self.report_on is None, "report_on", "set", f"none {NO_WORLD}")
        else:
            check(
                bool(self.evaluate.benchmarks), "evaluate.benchmarks", "", "set: trials are evaluated on them"
            )

    @property
    def has_worlds(self) -> bool:
        """Whether trials are trained in little worlds."""
        return self.command == "train" and not self.curated and not self.train.input

    @property
    def workers(self) -> int:
        """Number of processes that train concurrently in one trial."""
        return (self.train.train.workers or 1) if self.command == "train" else 1

    @property
    def gpus_per_worker(self) -> float:
        """Share of a GPU that each of these processes reserves, and a trial's evaluation, too."""
        return self.train.train.gpus_per_worker if self.command == "train" else 1.0
