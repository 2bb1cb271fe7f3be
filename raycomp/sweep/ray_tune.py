"""Ray Tune for trials: the next trial, early stopping, the number of concurrent trials.

Trial results are stored in a journal of the sweep, not in Tune's. A sweep that resumes gives Tune all started
trials again, in their order, and finished ones report their results at once. So a search and a scheduler
recover their state, and no training is repeated. ``Tuner.restore`` would use a snapshot that is saved from
time to time, and would lose the results between the snapshot and the kill.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import Any

import optuna
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from raycomp.config import ClusterFailed, Domain, LeaseLost, UserError
from raycomp.config.options import CHOICE, FIXED, LOGUNIFORM
from raycomp.data.stores import TASK_RETRIES
from raycomp.run.progress import Progress
from raycomp.run.ray_cluster import unwrap
from raycomp.run.run import Say
from raycomp.sweep.plan import Plan, write_number
from raycomp.sweep.result import climb
from raycomp.sweep.trials import FINISHED, Job, Outcome, SeedTraining, name_trial, run_seed_training

# The share that Tune reserves for a trial, which only waits for its trainings: almost nothing, of the head
# node.
_OF_TRIAL = {"CPU": 0, "node:__internal_head__": 0.001}
_METRIC, _POINT, _SAID = "metric", "point", "said"
# No files besides the journal, no table on the terminal, no own handling of Ctrl-C.
_QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
# Number of consecutive duplicate suggestions after which a search is exhausted.
_MOST_REPEATS = 50


@dataclass
class Watch:
    """The driver's actions when trainings end."""

    check: Callable[[], None]
    say: Say
    metric: str
    at_once: int
    """Number of concurrent trials."""
    callbacks: Sequence[tune.Callback] = ()
    """The user's own."""


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise TypeError unless all of them are callbacks of Ray Tune."""
    for one in callbacks:
        if not isinstance(one, tune.Callback):
            raise TypeError(f"callbacks={one!r}: must be objects of ray.tune.Callback")


def tune_group(
    job: Job, group: Mapping[str, str], rungs: Sequence[Sequence[SeedTraining]], watch: Watch
) -> None:
    """Try the space of a group on the development seeds, rung by rung."""
    config, plan, scheduler = job.config, job.plan, None
    if config.scheduler == "asha" and config.rungs == "seeds":
        # Stops a trial that is behind half of the others after 1, 2, 4, ... trainings.
        time, most = tune.result.TRAINING_ITERATION, len(rungs[0])
        scheduler = ASHAScheduler(time_attr=time, max_t=most, grace_period=1, reduction_factor=2)
    if config.search == "optuna":
        space, started = Space(plan, group), [trial.options for trial in job.journal.read()]
        drawn = (space.to_tune(), config.num_samples, group, space.search(started), scheduler)
        _run(job, rungs[0], watch, *drawn)
    else:
        points = [point for point in plan.list_points() if group.items() <= point.items()]
        if scheduler is None:
            train_points(job, points, rungs[0], watch)
        else:
            _run(job, rungs[0], watch, _as_grid(points), len(points), scheduler=scheduler)

    def train(points: Sequence[Mapping[str, str]], trainings: Sequence[SeedTraining]) -> None:
        train_points(job, points, trainings, watch)

    climb(plan, job.journal, group, watch.metric, train, watch.say)


def train_points(
    job: Job, points: Sequence[Mapping[str, str]], trainings: Sequence[SeedTraining], watch: Watch
) -> None:
    """Train trials on all of these seeds; existing outcomes are not reported again."""
    left = []
    for point in points:
        outcomes = [job.journal.find(name_trial(point), training) for training in trainings]
        has_failed = any(one is not None and one.status != FINISHED for one in outcomes)
        if not all(outcomes) and not has_failed:
            left.append(point)
    if left:
        _run(job, trainings, watch, _as_grid(left), len(left))


def _as_grid(points: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    return {_POINT: tune.grid_search([dict(point) for point in points])}


def _run(
    job: Job,
    trainings: Sequence[SeedTraining],
    watch: Watch,
    space: Mapping[str, Any],
    num: int,
    group: Mapping[str, str] | None = None,
    search: Searcher | None = None,
    scheduler: TrialScheduler | None = None,
) -> None:
    """Run ``num`` trials in Tune until all have ended. Raises the cause if a trial ended for a reason other
    than its own failure."""
    os.environ.update(_QUIET)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    what = {"job": job, "group": dict(group or {}), "trainings": list(trainings), "metric": watch.metric}
    trial = tune.with_resources(tune.with_parameters(_try, **what), _OF_TRIAL)
    how = tune.TuneConfig(
        metric=_METRIC,
        mode=job.config.mode,
        search_alg=search,
        scheduler=scheduler,
        num_samples=num if search else 1,
        max_concurrent_trials=watch.at_once,
        reuse_actors=True,
    )
    total = num * len(trainings)
    with TemporaryDirectory() as temporary, Progress("sweep", total, unit="training") as progress:
        run_config = tune.RunConfig(
            name="sweep",
            storage_path=temporary,
            verbose=0,
            callbacks=[_Teller(watch, progress), *watch.callbacks],
            failure_config=tune.FailureConfig(max_failures=0, fail_fast="raise"),
        )
        tuner = tune.Tuner(trial, param_space=dict(space), tune_config=how, run_config=run_config)
        try:
            with warnings.catch_warnings():
                # A trial's resources are released when its process ends.
                warnings.filterwarnings("ignore", message="fail_fast='raise'")
                tuner.fit()
        except Exception as error:  # the error of a trial, or the lost lease that a callback found
            if (cause := find_cause(error)) is error:
                raise
            raise cause from error


def find_cause(error: Exception) -> Exception:
    """Return the error of a trial without the wrappers of tasks and actors.

    A programming error stays wrapped, because the wrapper has the traceback of its origin.
    """
    cause = unwrap(error)
    is_known = isinstance(cause, OSError | LeaseLost | UserError | ClusterFailed) or type(cause) is ValueError
    return cause if is_known else error


def _try(
    point: dict[str, Any], job: Job, group: Mapping[str, str], trainings: Sequence[SeedTraining], metric: str
) -> None:
    """Run as a trial of Tune: train on one seed after the other, report the mean so far after each."""
    options = point.get(_POINT) or Space(job.plan, group).to_options(point)
    journal = job.journal
    name = journal.start(options, datetime.now(UTC).isoformat())
    # A training runs outside of the resources that Tune reserves for the trial: inside, its tasks would wait
    # for a share of those. Ray Train uses the cluster in RAY_ADDRESS. A training without tasks holds its own
    # CPU, in a process that the next training reuses.
    resources: dict[str, Any] = {"num_cpus": int(job.is_local), **TASK_RETRIES}
    resources["retry_exceptions"] = [OSError, ClusterFailed]
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    train_one = ray.remote(**resources)(run_seed_training).options(
        scheduling_strategy="DEFAULT", runtime_env={"env_vars": address}
    )
    done: list[Outcome] = []
    for training in trainings:
        ended = journal.find(name, training)
        outcome = ended or ray.get(train_one.remote(job, name, dict(options), training))
        done.append(outcome)
        mean = sum(one.value(metric) for one in done) / len(done)  # NaN where one of them failed
        worst = float("-inf") if job.config.mode == "max" else float("inf")
        said = None
        if not ended:
            figure = f"{metric} {outcome.value(metric):.4f}" if outcome.status == FINISHED else outcome.why
            share = f", 1/{training.divisor} of the steps" if training.divisor > 1 else ""
            seed = f"{training.split} seed {training.number}{share}"
            tried = ", ".join(f"{option}={value}" for option, value in options.items())
            said = f"{tried}: {seed}: {figure} ({outcome.seconds:.0f} s)"
        tune.report({_METRIC: mean if mean == mean else worst, _SAID: said})
        if outcome.status != FINISHED:
            return


class _Teller(tune.Callback):
    """Reports the outcomes of trainings as Tune receives them."""

    def __init__(self, watch: Watch, progress: Progress):
        self._watch, self._progress = watch, progress

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune's experiment state is never read."""
        return {}

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict, **info: Any) -> None:
        self._watch.check()
        self._progress.finish_one()
        if result[_SAID]:
            self._watch.say(result[_SAID])


@dataclass(frozen=True)
class Space:
    """What a search draws from, in the terms of Tune and as options of trials."""

    plan: Plan
    group: Mapping[str, str]
    """Options that the search does not draw: the value of ``per``."""

    @property
    def drawn(self) -> dict[str, Domain]:
        """The options that are drawn."""
        space = self.plan.space.items()
        return {option: one for option, one in space if option not in self.group and one.kind != FIXED}

    def to_tune(self) -> dict[str, Any]:
        """Return the options that a search draws, as Tune takes them."""
        found: dict[str, Any] = {}
        for option, domain in self.drawn.items():
            if domain.kind == CHOICE:
                found[option] = tune.choice(list(domain.values))
                continue
            (low, high), is_log = domain.ends, domain.kind == LOGUNIFORM
            if self.plan.get_type(option) is int:
                found[option] = (tune.lograndint if is_log else tune.randint)(int(low), int(high) + 1)
            else:
                found[option] = (tune.loguniform if is_log else tune.uniform)(low, high)
        return found

    def to_options(self, point: Mapping[str, Any]) -> dict[str, str]:
        """Return the options of a point that a search drew, in the order of the space."""
        first = {option: domain.values[0] for option, domain in self.plan.space.items()}
        found = {**first, **self.group}
        for option, domain in self.drawn.items():
            value, kind = point[option], self.plan.get_type(option)
            found[option] = write_number(value, domain, kind) if domain.is_range else value
        return found

    def to_point(self, options: Mapping[str, str]) -> dict[str, Any]:
        """Return the search's draw for a trial with these options."""
        point: dict[str, Any] = {}
        for option, domain in self.drawn.items():
            read = (int if self.plan.get_type(option) is int else float) if domain.is_range else str
            point[option] = read(options[option])
        return point

    def search(self, started: Sequence[Mapping[str, str]]) -> Searcher:
        """Return Optuna's TPE, started with the trials that were started before."""
        points = [self.to_point(options) for options in started if self.group.items() <= options.items()]
        seed, mode = self.plan.config.seed, self.plan.config.mode
        inner = OptunaSearch(points_to_evaluate=points, seed=seed, metric=_METRIC, mode=mode)
        return _Once(inner, lambda point: name_trial(self.to_options(point)))


class _Once(Searcher):
    """A search that suggests no trial twice: a duplicate is reported to the inner search as useless at
    once."""

    def __init__(self, inner: Searcher, name: Callable[[Mapping[str, Any]], str]):
        super().__init__(metric=inner.metric, mode=inner.mode)
        self._inner, self._name = inner, name
        self._seen: set[str] = set()
        self._asked: dict[str, str] = {}

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict, **spec: Any) -> bool:
        return self._inner.set_search_properties(metric, mode, config, **spec)

    def suggest(self, trial_id: str) -> Any:
        for turn in range(_MOST_REPEATS):
            asked = f"{trial_id}-{turn}"
            point = self._inner.suggest(asked)
            if not isinstance(point, dict):  # none for now, or for good
                return point
            name = self._name(point)
            if name not in self._seen:
                self._seen.add(name)
                self._asked[trial_id] = asked
                return point
            self._inner.on_trial_complete(asked, error=True)
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict) -> None:
        self._inner.on_trial_result(self._asked[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self._inner.on_trial_complete(self._asked[trial_id], result, error)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: a resumed sweep starts from the journal."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: no state was saved."""
