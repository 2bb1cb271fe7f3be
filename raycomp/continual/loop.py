"""The training loop of a method over tasks: learn one, evaluate all, next; resumable after a kill.

B samples of a step, N of a task.
"""

import io
from collections.abc import Callable, Sequence
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raycomp.config import UserError
from raycomp.continual.config import RANDOM, ContinualConfig
from raycomp.continual.data import Keys, Split, Stream, join_splits
from raycomp.continual.method import HEAD, JOINT, TUNE, get_method
from raycomp.continual.methods.head import HeadLearner, Learner
from raycomp.continual.schedule import StreamRun, count_steps
from raycomp.continual.scoring import (
    BEFORE,
    METHOD,
    TASK,
    ZERO_SHOT,
    Figure,
    gather_questions,
    judge_margins,
    judge_tasks,
    judge_text_only,
    judge_weights,
)
from raycomp.data.files import Folder
from raycomp.models.text import refuse_bad
from raycomp.schema import CONTINUAL_SCHEMA
from raycomp.training.towers import find_rank

Report = Callable[[dict[str, Any]], None]
IsWarned = Callable[[], bool]
_STATE = "state.pt"
# Added to a seed, so that the order of tasks and the order of rows are drawn independently.
_ORDER, _ROWS = 21, 22


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
        self.config, self.learner, self.seed = config, learner, one_run.seed
        self.order = order_tasks(len(stream.tasks), config, one_run.seed)
        tasks = [stream.tasks[number] for number in self.order]
        trainings = [task.train for task in tasks]
        steps, self.batch_size = count_steps(config, get_method(one_run.method))
        self.is_joint = one_run.method in JOINT
        self.trainings = [join_splits(trainings)] if self.is_joint else trainings
        self.steps = steps * len(tasks) if self.is_joint else steps
        self.asked = gather_questions([task.test for task in tasks])
        self.edited = [(task.test, task.edits) for task in tasks if task.edits is not None]
        self.unlearned = [gather_questions([task.test]) for task in stream.zero_shot]
        group = config.tune if one_run.is_tuned else config.head
        self.said_rate = f"{TUNE if one_run.is_tuned else HEAD}.learning_rate={group.learning_rate}"
        self.number, self.step, self.is_started = 0, 0, False
        self.rows: list[dict[str, Any]] = []
        self.reported: list[dict[str, float]] = []
        """Over the steps of this task."""

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
        found = [(TASK, one) for one in judge_tasks(self.asked, keys, self.config.weight)]
        found += [(TASK, one) for one in judge_weights(self.asked, keys, self.weights)]
        for number, asked in enumerate(self.unlearned):
            seen = judge_tasks(asked, self._find_keys(asked.split), self.config.weight)
            found += [(ZERO_SHOT, one._replace(task=number)) for one in seen]
        if isinstance(self.learner, HeadLearner):
            read = {**self.learner.read_out(self.asked.split), **self.learner.measure()}
            found += [(METHOD, Figure(0, name, value)) for name, value in read.items()]
        found += [(METHOD, Figure(0, name, value)) for name, value in summarise_steps(self.reported).items()]
        if after == len(self.order) - 1:
            text_only = judge_text_only(self.asked, keys, self.config.weight, self.trainings)
            found += [(TASK, one) for one in text_only]
            if self.edited:
                tests, edits = zip(*self.edited, strict=True)
                pairs = [(self._find_keys(test), self._find_keys(one.split)) for test, one in self.edited]
                margins = judge_margins(tests, edits, pairs, self.config.weight)
                found += [(METHOD, one) for one in margins]
        self.rows += [
            {"after": after, "of": of, "number": one.task, "figure": one.name, "value": one.value}
            for of, one in found
        ]

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
        names = ("number", "step", "rows", "reported")
        stream = io.BytesIO()
        torch.save({**{name: getattr(self, name) for name in names}, "learner": self.learner.state()}, stream)
        work.write_bytes(stream.getvalue(), _STATE)

    def _restore(self, work: Folder) -> None:
        data = work.read_bytes(_STATE)  # a storage failure is not damage
        try:
            state = torch.load(io.BytesIO(data), weights_only=True)
            for name in ("number", "step", "rows", "reported"):
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
