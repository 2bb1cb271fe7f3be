"""Rungs of shorter schedules: is the best of 20 full trainings found, and for what share of the steps.

    OMP_NUM_THREADS=1 python -m bench.asha [--steps 720] [--repeats 5]

Each repeat has a rendered little world, initial weights and 20 random trials of its own: learning rate (1e-4
to 1e-2) and weight decay (.01 to 1) log-uniform, warm-up 0 to .3 uniform. A trial trains a CLIP of one layer
per tower on 2,000 clean pairs from scratch in this process, with raycomp's optimizer and schedule, 720 steps
of 32 pairs; token embeddings stay random, as their updates would take half of a step. Among 500 held-out
pairs two metrics are measured, each the mean of both directions: the contrastive loss and recall@1. For each
of them ``rungs=steps`` advances trials with the functions of ``raycomp sweep``: 20 trials for 80 steps, 7 for
240, 3 for all 720. For comparison all 20 are trained for all steps.

Reported for each repeat and metric: the rank of the selected trial among the 20 full trainings, its regret
(its distance from the best, in the metric), the share of the steps, the Spearman correlation of each short
rung with the full trainings. Baselines, in expectation and without further trainings: the regret of one
random trial, and of the best of 7 random full trainings, which cost about as many steps.

Expected, before the first run: .38 of the steps by arithmetic (20 / 9 + 7 / 3 + 3, of 20). By the loss, the
best is found in 3 or 4 of 5 repeats, and the mean regret is less than a third of that of 7 random full
trainings; Spearman about .8 on the first rung. By recall@1, which is close to chance after 80 steps, the
first rung orders trials less well (about .6), the best is found in 2 or 3 of 5 repeats, and the mean regret
is about .02, still below that of 7 random full trainings.

Cost: 25 to 27 times 720 steps a repeat, about 25 minutes on one core for five. Result: bench/RESULTS.md.
Writes bench/results/asha.csv, a row per repeat, metric and trial; prints one JSON object last.

B pairs of a batch, S held-out pairs, D embedding dims.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.worlds.shards import make_world
from lab.worlds.tiny_clip import draw_batches, load_pairs, recall_at_1
from raycomp.config import ScorerConfig, UserError
from raycomp.core.alignment import normalise
from raycomp.data.files import Folder
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.models.clip import Clip
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import Options, Plan, make_plan
from raycomp.sweep.result import choose_best, climb, count_rungs, get_reached, read_trials
from raycomp.sweep.trials import (
    DIVISORS,
    FAILED,
    FINISHED,
    Journal,
    Outcome,
    SeedTraining,
    list_rungs,
    name_trial,
)
from raycomp.table import Estimate, write_csv
from raycomp.training.config import FitConfig
from raycomp.training.loop import Trainer
from raycomp.training.towers import Batch, PairsObjective

SPACE = (
    "train.learning_rate=loguniform(1e-4,1e-2) train.weight_decay=loguniform(0.01,1) "
    "train.warmup=uniform(0,0.3)"
)
MODES = {"loss": "min", "recall@1": "max"}
RESULTS = Path("bench/results/asha.csv")
NUM_TRIALS, NUM_PAIRS, NUM_HELD_OUT, BATCH = 20, 2000, 500, 32
ARCHITECTURE = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 26, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
}


class Trainings:
    """The trainings of one repeat, each run at most once."""

    def __init__(self, seed: int, folder: Path):
        self.seed = seed
        sizes = {"num_train": NUM_PAIRS, "num_clean": 2, "num_faulty": 0, "num_held_out": NUM_HELD_OUT}
        world = make_world(folder / "world", seed, **sizes)
        (folder / "model.json").write_text(json.dumps(ARCHITECTURE))
        self.start = ScorerConfig(str(folder / "model.json"), f"random:{seed}")
        spec = describe_scorer(self.start)
        self.pairs, self.held_out = (self._load(part, spec) for part in (world.train, world.held_out))
        self.found: dict[tuple[str, int], Outcome] = {}

    def _load(self, part: str, spec: ScorerSpec) -> Batch:
        pixels_SHWC, token_SN = load_pairs(part, self.start, spec)
        mean, std = torch.tensor(spec.image.mean), torch.tensor(spec.image.std)
        return Batch(((pixels_SHWC / 255 - mean) / std).permute(0, 3, 1, 2).contiguous(), token_SN)

    def train(
        self, plan: Plan, journal: Journal, points: Sequence[Options], rung: Sequence[SeedTraining]
    ) -> None:
        """Write the outcomes of a rung into a journal."""
        for point in points:
            name = journal.start(point, "")
            for training in rung:
                journal.write(name, training, self.find(plan, point, training.divisor))

    def find(self, plan: Plan, point: Options, divisor: int) -> Outcome:
        """Return the outcome of a trial with 1 / divisor of the steps."""
        key = (name_trial(point), divisor)
        if key not in self.found:
            fit = plan.make_trial(point).train
            fit = replace(fit, steps=-(-fit.steps // divisor))
            started = time.perf_counter()
            try:
                metrics = {name: Estimate(value) for name, value in self._train(fit).items()}
                outcome = Outcome(FINISHED, metrics, steps=fit.steps)
            except UserError as error:  # a loss that is not finite
                outcome = Outcome(FAILED, {}, why=str(error), steps=fit.steps)
            self.found[key] = replace(outcome, seconds=time.perf_counter() - started)
        return self.found[key]

    def _train(self, fit: FitConfig) -> dict[str, float]:
        assert fit.steps
        model = Clip(self.start, device="cpu").model
        model.token_embedding.weight.requires_grad_(False)
        rows = draw_batches(NUM_PAIRS, BATCH, torch.Generator().manual_seed(self.seed))
        batches = (Batch(self.pairs.image_RCHW[row_B], self.pairs.token_RN[row_B]) for row_B in rows)
        for _ in Trainer(PairsObjective(model, fit, fit.steps, BATCH), fit.steps).run(batches):
            pass
        model.eval()
        with torch.inference_mode():
            image_SD = normalise(model.encode_image(self.held_out.image_RCHW))
            text_SD = normalise(model.encode_text(self.held_out.token_RN))
            return measure(image_SD, text_SD, model.logit_scale.exp())


def measure(image_SD: Tensor, text_SD: Tensor, scale: Tensor) -> dict[str, float]:
    """Return the contrastive loss and recall@1, each the mean of both directions."""
    logit_SS, own_S = scale * image_SD @ text_SD.T, torch.arange(len(image_SD))
    losses = [float(torch.nn.functional.cross_entropy(one, own_S)) for one in (logit_SS, logit_SS.T)]
    recalls = [recall_at_1(image_SD, text_SD), recall_at_1(text_SD, image_SD)]
    return {"loss": fmean(losses), "recall@1": fmean(recalls)}


def make_repeat(repeat: int, steps: int, mode: str) -> Plan:
    """Return the plan of a repeat's sweep; its trials do not depend on the mode."""
    config = SweepConfig(
        space=SPACE,
        search="random",
        num_samples=NUM_TRIALS,
        scheduler="asha",
        rungs="steps",
        mode=mode,
        seeds=1,
        report_seeds=0,
        seed=repeat,
        train=FitConfig(steps=steps, batch_size=BATCH),
    )
    return make_plan(config, None)


def run_repeat(repeat: int, steps: int) -> list[dict[str, Any]]:
    """Return a row for every metric and trial of a repeat."""
    with tempfile.TemporaryDirectory() as folder:
        trainings = Trainings(repeat, Path(folder))
        rows = []
        for metric, mode in MODES.items():
            plan, journal = make_repeat(repeat, steps, mode), Journal(Folder(f"{folder}/{metric}"))
            train = partial(trainings.train, plan, journal)
            train(plan.list_points(), list_rungs(plan.config)[0])
            climb(plan, journal, {}, metric, train, lambda line: None)
            rows += list_rows(repeat, plan, journal, metric, trainings)
    return rows


def list_rows(
    repeat: int, plan: Plan, journal: Journal, metric: str, trainings: Trainings
) -> list[dict[str, Any]]:
    """Return a row for every trial: its rung and metrics, next to the training for all steps."""
    trials = read_trials(plan, journal)
    chosen = choose_best(trials, {}, metric, plan.config.mode, plan.config.seeds).trial
    rows = []
    for number, trial in enumerate(trials):
        full = trainings.find(plan, trial.options, 1)
        own = {training.divisor: outcome.value(metric) for training, outcome in trial.outcomes.items()}
        rows.append(
            {
                "repeat": repeat,
                "metric": metric,
                "trial": number,
                **{option.removeprefix("train."): trial.options[option] for option in plan.space},
                "rung": get_reached(trial, plan.config),
                "is_selected": int(trial.name == chosen.name),
                "steps": sum(one.steps or 0 for one in trial.outcomes.values()),
                **{f"1/{divisor}": own.get(divisor, "") for divisor in DIVISORS[:-1]},
                "full": full.value(metric),
                "full_steps": full.steps,
                "full_s": round(full.seconds, 2),
            }
        )
    return rows


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of a repeat by one metric."""
    sign = 1 if MODES[rows[0]["metric"]] == "max" else -1
    full = sign * np.array([row["full"] for row in rows], float)
    full = np.where(np.isnan(full), np.nanmin(full), full)  # failed trainings are as bad as the worst
    selected = full[[row["is_selected"] for row in rows].index(1)]
    steps, full_steps = (sum(row[name] for row in rows) for name in ("steps", "full_steps"))
    return {
        "rank": int(1 + np.sum(full > selected)),
        "best": float(sign * full.max()),
        "regret": float(full.max() - selected),
        "share": steps / full_steps,
        "one_random": float(full.max() - full.mean()),
        "seven_random": float(full.max() - expect_best(full, count_rungs(len(rows))[1])),
        **{f"spearman_1/{one}": correlate(rows, f"1/{one}", sign, full) for one in DIVISORS[:-1]},
    }


def expect_best(values: np.ndarray, num: int) -> float:
    """Return the expected maximum of ``num`` of the values, drawn without replacement."""
    ways = [comb(i, num - 1) for i in range(len(values))]
    return float(np.dot(np.sort(values), ways) / sum(ways))


def correlate(rows: Sequence[dict[str, Any]], rung: str, sign: int, full: np.ndarray) -> float:
    """Return Spearman's correlation of a rung with the full trainings, over the trials on the rung."""
    there = [i for i, row in enumerate(rows) if row[rung] != "" and row[rung] == row[rung]]
    short = sign * np.array([rows[i][rung] for i in there], float)
    return float(np.corrcoef(_rank(short), _rank(full[there]))[0, 1])


def _rank(values: np.ndarray) -> np.ndarray:
    """Return ranks; ties share their mean."""
    return np.array([np.sum(values < one) + np.sum(values == one) / 2 for one in values])


def main() -> None:
    """Run all repeats; write the rows and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=720)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, rows = time.perf_counter(), []
    figures: dict[str, list[dict[str, float]]] = {metric: [] for metric in MODES}
    for repeat in range(args.repeats):
        own = run_repeat(repeat, args.steps)
        rows += own
        for metric, found in figures.items():
            found.append(summarize([row for row in own if row["metric"] == metric]))
            print(repeat, metric, {name: round(value, 4) for name, value in found[-1].items()}, flush=True)
        args.out.write_text(write_csv([list(rows[0]), *(list(row.values()) for row in rows)]))
    means = {
        metric: {name: fmean(one[name] for one in found) for name in found[0]}
        for metric, found in figures.items()
    }
    hits = {metric: sum(one["rank"] == 1 for one in found) for metric, found in figures.items()}
    seconds = round(time.perf_counter() - started)
    print(json.dumps({"bench": "asha", "found": hits, "means": means, "seconds": seconds}))


if __name__ == "__main__":
    main()
