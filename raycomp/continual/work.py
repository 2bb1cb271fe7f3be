"""One run from its stream's arrays to its table: the work of one cluster task."""

import time
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from raycomp.config.options import check_choice
from raycomp.continual.config import ContinualConfig
from raycomp.continual.data import Stream
from raycomp.continual.loop import IsWarned, Report, TaskLoop
from raycomp.continual.matrices import RUNS
from raycomp.continual.method import TUNE, Method, get_method
from raycomp.continual.methods.c_clip import CClip
from raycomp.continual.methods.cl_moe import ClMoe
from raycomp.continual.methods.diki import Diki
from raycomp.continual.methods.head import Frozen, HeadLearner, Learner
from raycomp.continual.methods.tuner import Finetune, Tuner
from raycomp.continual.methods.zscl import Reference, Zscl
from raycomp.continual.schedule import make_config
from raycomp.continual.streams.place import RunJob
from raycomp.continual.streams.store import read_stream
from raycomp.data.parquet import write_table
from raycomp.data.runs import fetch_model
from raycomp.models.clip import Clip
from raycomp.models.describe import describe_scorer
from raycomp.models.spec import ScorerSpec
from raycomp.run.progress import Progress
from raycomp.schema import CONTINUAL_SCHEMA
from raycomp.training.towers import find_rank

ZSCL = "zscl"
PLAIN: dict[str, type[Tuner]] = {"finetune": Finetune, "c-clip": CClip, "diki": Diki, "cl-moe": ClMoe}
TUNERS = (*PLAIN, ZSCL)


def make_tuner(
    learner: str | type,
    clip: Clip,
    spec: ScorerSpec,
    config: ContinualConfig,
    seed: int,
    reference: Reference | None = None,
) -> Learner:
    """Return a new learner of a copy of the model; zscl needs a reference. ``learner`` may be your own class.

    Raises UserError if the model does not fit the method.
    """
    if isinstance(learner, type):
        return learner(clip, spec, config, seed)
    check_choice("learner", learner, TUNERS)
    if learner == ZSCL:
        return Zscl(clip, spec, config, seed, reference)
    return PLAIN[learner](clip, spec, config, seed)


def run_one(job: RunJob) -> dict[str, Any]:
    """Train a method on a stream, in this process; see ``finish_one``."""
    opened = open_one(job)
    with Progress("continual", opened.loop.num_steps, unit="step") as progress:
        opened.loop.start(job.state)
        progress.start_at(opened.loop.taken)
        return finish_one(job, opened, lambda row: progress.reach(row["step"] + 1, opened.loop.batch_size))


class OpenedRun(NamedTuple):
    """A run before its first step, or before it resumes."""

    loop: TaskLoop
    stream: Stream
    started: float


def open_one(job: RunJob, device: str | None = None) -> OpenedRun:
    """Return a run's training loop, on one thread. ``device``: of methods that train the model; none = the
    visible GPU, or the CPU."""
    torch.set_num_threads(1)
    started, method = time.perf_counter(), get_method(job.one_run.method)
    own = replace(make_config(job.config, method, job.choice), model=job.model)
    stream = read_stream(job.place.files, method.trains == TUNE)
    learner = _make_learner(method, stream, own, job.one_run.seed, device)
    return OpenedRun(TaskLoop(job.one_run, stream, own, learner), stream, started)


def finish_one(
    job: RunJob,
    opened: OpenedRun,
    report: Report = lambda reported: None,
    is_warned: IsWarned = lambda: False,
) -> dict[str, Any]:
    """Take the remaining steps; write cells/NAME.parquet, and NAME.json last, which marks the run as done.

    An interrupted run resumes from its state below ``work``. The numbers depend on the run, the stream and
    the config's options alone. Of several ranks the first one writes.
    """
    loop, name = opened.loop, job.one_run.name
    table = loop.run(job.state, report, is_warned)
    rank, num_ranks = find_rank()
    facts = {
        "cell": vars(job.one_run),
        "backbone": job.place.variant,
        "order": loop.order,
        "tasks": [task.name for task in opened.stream.tasks],
        "zero_shot": [task.name for task in opened.stream.zero_shot],
        "alpha": loop.config.trust.alpha,
        "rate": job.choice.rate,
        "weight": loop.config.weight,
        "steps": loop.steps,
        "workers": num_ranks,
        "seconds": time.perf_counter() - opened.started,
    }
    if rank == 0:
        write_table(table, job.out.at(RUNS, f"{name}.parquet"), CONTINUAL_SCHEMA)
        job.out.write_json(facts, RUNS, f"{name}.json")
        job.state.remove()
    return facts


def _make_learner(
    method: Method, stream: Stream, config: ContinualConfig, seed: int, device: str | None
) -> Learner:
    """Return a new learner; ``config.model`` is the stream's backbone."""
    own_seed = 1000 * config.seed + seed
    if method.learner == "frozen":
        return Frozen()
    if method.trains != TUNE:
        kind: Any = HeadLearner if method.learner == "head" else method.learner
        return kind(config, stream, own_seed)
    fetched, kept = fetch_model(config.model), stream.reference
    reference = None
    if kept is not None:
        assert kept.pixels is not None and kept.token_TL is not None, "has pixels"
        reference = Reference(kept.pixels, kept.token_TL)
    clip = Clip(fetched, device)
    return make_tuner(method.learner, clip, describe_scorer(fetched), config, own_seed, reference)
