"""One run, the work of one cluster task: from its stream's arrays, task after task, to its table.

Learn one task, evaluate all, next; resumable after a kill. B samples of a step, N of a task; of hidden
states, K blocks of the text tower, T texts, W dims.
"""

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raycomp.config import UserError
from raycomp.continual import scoring
from raycomp.continual.config import RANDOM, ContinualConfig
from raycomp.continual.data import Keys, Split, Stream, StreamRun, join_splits, make_config
from raycomp.continual.embed import RunJob
from raycomp.continual.method import HEAD, JOINT, TUNE, get_method
from raycomp.continual.methods.head import Frozen, HeadLearner, Learner
from raycomp.continual.methods.published import CClip, ClMoe, Diki, Zscl
from raycomp.continual.methods.tuner import Finetune, Tuner
from raycomp.continual.scoring import BEFORE, METHOD, RUNS, TASK, ZERO_SHOT, Figure, gather_questions
from raycomp.continual.streams.build import read_stream
from raycomp.data.files import Folder
from raycomp.data.parquet import write_table
from raycomp.data.runs import fetch_model
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip, refuse_bad
from raycomp.run.progress import Progress
from raycomp.schema import CONTINUAL_SCHEMA
from raycomp.training.towers import find_rank

Report = Callable[[dict[str, Any]], None]
IsWarned = Callable[[], bool]
_STATE, _SAVED = "state.pt", ("number", "step", "rows", "reported")
# Added to a seed, so that the order of tasks and the order of rows are drawn independently.
_ORDER, _ROWS = 21, 22
# Texts of the first task whose hidden states are compared with the start model's; the seed of their draw.
_MOST_TEXTS, _TEXTS = 256, 23


def order_tasks(num_tasks: int, config: ContinualConfig, seed: int) -> list[int]:
    """Return the tasks in this seed's training order."""
    order = np.arange(num_tasks)
    if config.order == RANDOM:
        order = np.random.default_rng([config.seed, seed, _ORDER]).permutation(order)
    return [int(task) for task in order]


def draw_rows(num_rows: int, batch_size: int, key: Sequence[int], step: int) -> np.ndarray:
    """Return the rows of a step: each epoch shuffles the task anew and drops its last incomplete batch.

    A task with less than a batch has all its rows in every step.
    """
    num_batches = max(1, num_rows // batch_size)
    turn, place = divmod(step, num_batches)
    order_N = np.random.default_rng([*key, _ROWS, turn]).permutation(num_rows)
    return order_N[place * batch_size : (place + 1) * batch_size]


class TaskLoop:
    """One run: its tasks, its progress and its figures so far."""

    def __init__(self, one_run: StreamRun, stream: Stream, config: ContinualConfig, learner: Learner):
        """``config``: with the method's own options. In development, all weights to try are evaluated."""
        self.weights = () if one_run.rate is None else config.develop.weights
        self.stream, self.config, self.learner, self.seed = stream, config, learner, one_run.seed
        self.started = time.perf_counter()
        self.order = order_tasks(len(stream.tasks), config, one_run.seed)
        tasks = [stream.tasks[number] for number in self.order]
        trainings = [task.train for task in tasks]
        group = config.tune if one_run.is_tuned else config.head
        is_trained = get_method(one_run.method).trains is not None
        steps, self.batch_size = (group.steps, group.batch_size) if is_trained else (0, 1)
        self.is_joint = one_run.method in JOINT
        self.trainings = [join_splits(trainings)] if self.is_joint else trainings
        self.steps = steps * len(tasks) if self.is_joint else steps
        self.asked = gather_questions([task.test for task in tasks])
        self.edited = [(task.test, task.edits) for task in tasks if task.edits is not None]
        self.unlearned = [gather_questions([task.test]) for task in stream.zero_shot]
        self.said_rate = f"{TUNE if one_run.is_tuned else HEAD}.learning_rate={group.learning_rate}"
        self.number, self.step, self.is_started = 0, 0, False
        self.rows: list[dict[str, Any]] = []
        self.reported: list[dict[str, float]] = []
        """Over the steps of this task."""
        self.start_KTW: np.ndarray | None = None
        """States of the text tower's blocks before any training; none where they are not followed."""

    @property
    def taken(self) -> int:
        """Steps taken so far, of all tasks."""
        return self.number * self.steps + self.step

    @property
    def num_steps(self) -> int:
        """Total steps of all tasks."""
        return len(self.trainings) * self.steps

    def start(self, work: Folder) -> None:
        """Resume from the state in ``work`` if there is one; else evaluate for the first time and open a
        task.

        Raises UserError if the state is damaged, or an embedding is not of length 1.
        """
        self.is_started = True
        self.start_KTW = self._find_states()  # a state below restores what was learned since
        if work.exists(_STATE):
            self._restore(work)
        else:
            self._ask(BEFORE)
            self._start_task()

    def run(
        self, work: Folder, report: Report = lambda reported: None, is_warned: IsWarned = lambda: False
    ) -> pa.Table:
        """Learn to the end after ``start``; return CONTINUAL_SCHEMA. Of several ranks the first one writes.

        ``report`` is called after every step. ``is_warned`` is called after every step; when it first returns
        true, this process will soon end, and one more state is saved. Raises UserError if a loss is not
        finite, or an embedding is not of length 1.
        """
        if not self.is_started:
            self.start(work)
        was_warned = False
        while True:
            while self.step < self.steps:
                key = (self.config.seed, self.seed, self.number)
                row_B = draw_rows(len(self.trainings[self.number]), self.batch_size, key, self.step)
                self.reported.append(self.learner.step(self.step, row_B))
                self.step += 1
                report({**self.reported[-1], "step": self.taken - 1})
                warned = is_warned()
                is_due = self.step % self.config.checkpoint_steps == 0 or warned > was_warned
                if is_due and self.step < self.steps:
                    self._save(work)
                was_warned = warned
            self.learner.end()
            self._ask(len(self.order) - 1 if self.is_joint else self.number)
            self.number, self.step, self.reported = self.number + 1, 0, []
            if self.number == len(self.trainings):
                return pa.Table.from_pylist(self.rows, CONTINUAL_SCHEMA)
            self._start_task()
            self._save(work)

    def _start_task(self) -> None:
        self.learner.start_task(self.number, self.trainings[self.number])

    def _ask(self, after: int) -> None:
        """Evaluate on all tasks, learned or not, and on the zero-shot sets."""
        keys = self._find_keys(self.asked.split)
        judged = scoring.judge_tasks(self.asked, keys, self.config.weight, self.weights)
        found = [(TASK, one) for one in judged]
        for number, asked in enumerate(self.unlearned):
            seen = scoring.judge_tasks(asked, self._find_keys(asked.split), self.config.weight)
            found += [(ZERO_SHOT, one._replace(task=number)) for one in seen]
        if isinstance(self.learner, HeadLearner):
            read = self.learner.read_out(self.asked.split)
            found += [(METHOD, Figure(0, name, value)) for name, value in read.items()]
        found += [(METHOD, Figure(0, name, value)) for name, value in summarise_steps(self.reported).items()]
        if self.start_KTW is not None and after != BEFORE:
            now_KTW = self._find_states()
            assert now_KTW is not None, "a tower keeps its blocks"
            found += [(METHOD, one) for one in scoring.judge_drift(self.start_KTW, now_KTW)]
        if after == len(self.order) - 1:
            text_only = scoring.judge_text_only(self.asked, keys, self.config.weight, self.trainings)
            found += [(TASK, one) for one in text_only]
            if self.edited:
                tests, edits = zip(*self.edited, strict=True)
                pairs = [(self._find_keys(test), self._find_keys(one.split)) for test, one in self.edited]
                margins = scoring.judge_margins(tests, edits, pairs, self.config.weight)
                found += [(METHOD, one) for one in margins]
        self.rows += [
            {"after": after, "of": of, "number": one.task, "figure": one.name, "value": one.value}
            for of, one in found
        ]

    def _find_states(self) -> np.ndarray | None:
        """Return the text tower's states, (K, T, W), of a sample of the first task's test texts, the same for
        all methods and seeds; none for a head, whose CLIP is frozen, and where ``list_states`` has none."""
        if not isinstance(self.learner, Tuner):
            return None
        split, text_T = self.asked.split, self.asked.text_IT[0]
        assert split.token_TL is not None, "a tuner needs tokens"
        drawn_T = np.random.default_rng(_TEXTS).permutation(len(text_T))[:_MOST_TEXTS]
        return self.learner.list_states(split.token_TL[text_T[drawn_T]], split.text_TD[text_T[drawn_T]])

    def _find_keys(self, split: Split) -> Keys:
        """Return the split as embedded by the method; raises if training left an embedding without a
        direction."""
        keys = self.learner.find_keys(split)
        for rows in (keys.image_ND, keys.text_TD, keys.composed_ETD):
            if rows is not None:
                flat_RD = torch.from_numpy(rows).flatten(0, -2)
                refuse_bad(flat_RD, self.said_rate, "rows", "lower it")
        return keys

    def _save(self, work: Folder) -> None:
        if find_rank()[0]:
            return
        stream, own = io.BytesIO(), {name: getattr(self, name) for name in _SAVED}
        torch.save({**own, "learner": self.learner.state()}, stream)
        work.write_bytes(stream.getvalue(), _STATE)

    def _restore(self, work: Folder) -> None:
        data = work.read_bytes(_STATE)  # a storage failure is not damage
        try:
            state = torch.load(io.BytesIO(data), weights_only=True)
            for name in _SAVED:
                setattr(self, name, state[name])
        except (RuntimeError, ValueError, LookupError, EOFError, UnpicklingError) as error:
            line = " ".join(str(error).split())[:200]
            raise UserError(f"{work.at(_STATE)}: does not belong to this run ({line}); remove it") from error
        self._start_task()
        self.learner.restore(state["learner"])


def summarise_steps(reported: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return a summary of a task's step metrics: means, the largest sigma, and means of the last tenth."""
    found: dict[str, float] = {}
    last = reported[-max(1, len(reported) // 10) :]
    for name in dict.fromkeys(name for one in reported for name in one):
        found[f"{name}_mean"] = float(np.mean([one[name] for one in reported if name in one]))
        found[f"{name}_last"] = float(np.mean([one[name] for one in last if name in one] or [np.nan]))
    if any("sigma" in one for one in reported):
        found["sigma_max"] = max(one["sigma"] for one in reported if "sigma" in one)
    return found


TUNERS: dict[str, Callable[..., Learner]] = {
    "finetune": Finetune,
    "zscl": Zscl,
    "c-clip": CClip,
    "diki": Diki,
    "cl-moe": ClMoe,
}
"""Learners that train the model; zscl has a reference, too."""


def run_one(job: RunJob) -> dict[str, Any]:
    """Train a method on a stream, in this process; see ``finish_one``."""
    loop = open_one(job)
    with Progress("continual", loop.num_steps, unit="step") as progress:
        loop.start(job.state)
        progress.start_at(loop.taken)
        return finish_one(job, loop, lambda row: progress.reach(row["step"] + 1, loop.batch_size))


def open_one(job: RunJob, device: str | None = None) -> TaskLoop:
    """Return a run's training loop, on one thread. ``device``: of methods that train the model; none = the
    visible GPU, or the CPU.

    Raises UserError if the model does not fit the method.
    """
    torch.set_num_threads(1)
    started, method = time.perf_counter(), get_method(job.one_run.method)
    own = replace(make_config(job.config, method, job.choice), model=job.model)
    stream = read_stream(job.place.files, method.trains == TUNE)
    seed = 1000 * own.seed + job.one_run.seed
    made: Any = {"frozen": Frozen, "head": HeadLearner, **TUNERS}.get(str(method.learner), method.learner)
    if method.trains is None:
        learner = made()
    elif method.trains == HEAD:
        learner = made(own, stream, seed)
    else:
        fetched = fetch_model(own.model)
        more = [stream.reference] if method.learner == "zscl" else []
        learner = made(Clip(fetched, device), describe_scorer(fetched), own, seed, *more)
    loop = TaskLoop(job.one_run, stream, own, learner)
    loop.started = started
    return loop


def finish_one(
    job: RunJob, loop: TaskLoop, report: Report, is_warned: IsWarned = lambda: False
) -> dict[str, Any]:
    """Take the remaining steps; write cells/NAME.parquet, and NAME.json last, which marks the run as done.

    An interrupted run resumes from its state below ``work``. The numbers depend on the run, the stream and
    the config's options alone. Of several ranks the first one writes.
    """
    table, name = loop.run(job.state, report, is_warned), job.one_run.name
    rank, num_ranks = find_rank()
    facts = {
        "cell": vars(job.one_run),
        "backbone": job.place.variant,
        "order": loop.order,
        "tasks": [task.name for task in loop.stream.tasks],
        "zero_shot": [task.name for task in loop.stream.zero_shot],
        "alpha": loop.config.trust.alpha,
        "rate": job.choice.rate,
        "weight": loop.config.weight,
        "steps": loop.steps,
        "workers": num_ranks,
        "seconds": time.perf_counter() - loop.started,
    }
    if rank == 0:
        write_table(table, job.out.at(RUNS, f"{name}.parquet"), CONTINUAL_SCHEMA)
        job.out.write_json(facts, RUNS, f"{name}.json")
        job.state.remove()
    return facts
