"""The page of ``raycomp train``: its loss, its evaluations, its pairs, and the use of its model."""

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from raycomp.data.files import join_uri
from raycomp.report.charts import LOW, TALL, Html, Layer, Mark, curves
from raycomp.report.page import render_page
from raycomp.table import Numeral, Table, number, percent
from raycomp.training.losses import LOSSES
from raycomp.words import HELD_OUT_LOSS, HELD_OUT_MEASURES, NEGATIVE_STATUSES, STATUSES

STEP, LOSS, RATE, SPEED = "step", "loss", "learning_rate", "samples_per_s"
NUM_POINTS = 1000
"""Of a drawn curve, at most."""
NUM_REPORTED = 12
"""Evaluations and resumptions that are written out, at most."""
_SMOOTHED = 0.02
"""Share of the steps that a smoothed value is the mean of."""
_RESUMED = Layer("resumed from a checkpoint", "mark")
_OTHER_REASONS = {
    "not_in_subset": "the subset does not list it",
    "held_out": "train.held_out keeps it for evaluation",
}
_HELD_OUT = "held_out_"
Metrics = Mapping[str, np.ndarray]
Evaluations = Sequence[Mapping[str, Any]]


def render_train(run: Mapping[str, Any], metrics: Metrics) -> str:
    """Return the page as text to be written as UTF-8.

    ``run``: the content of run.json. ``metrics``: loss, learning_rate and samples_per_s by step, NaN where
    there is none, as ``read_metrics`` returns them.
    """
    marks = [Mark(entry[STEP]) for entry in run["resumed"]]
    # Learning rates in units that leave no row of zeros at the axis.
    top = np.nanmax(metrics[RATE], initial=0.0)
    power = math.floor(math.log10(top)) if top > 0 else 0
    rate = {**metrics, RATE: metrics[RATE] / 10.0**power}
    negatives = [_report_negatives(run)] if run["negatives_by_kind"] else []
    names = _list_measures(run["evaluations"])
    shown = run["evaluations"][-NUM_REPORTED:]
    rows = [(entry[STEP], *(entry.get(name) for name in names)) for entry in shown]
    loss = LOSSES.get(run["config"]["train"]["loss"])
    has_chance = loss is not None and not loss.bias  # a sum of sigmoids has none
    return render_page(
        "training/page.html.jinja",
        run=run,
        num_reported=NUM_REPORTED,
        chance=math.log(run["batch_size"]) if has_chance else None,
        loss=draw_metric("Loss", "", metrics, LOSS, marks, TALL),
        plots=[
            draw_metric("Learning rate", f"in units of 1e{power}", rate, RATE, marks),
            draw_metric("Speed", "samples/s", metrics, SPEED, marks),
        ],
        evaluated=Table("Evaluation", ("Step", *names), rows),
        held_out=_draw_held_out(run["evaluations"]),
        held_chance=math.log(run["held_out"]["evaluated"]) if "held_out" in run else None,
        measures=_draw_evaluations(run["evaluations"]),
        tables=[_report_training(run), _report_pairs(run["funnel"], run["copies"]), *negatives],
    )


def list_uses(out: str) -> dict[str, str]:
    """Return uses of a model trained into ``out`` by name, each with its command lines."""
    is_near = "://" not in out
    place = join_uri(out, "checkpoint") if is_near else "checkpoint"
    model, weights = f"{place}/model.json", f"{place}/model.safetensors"
    scorer = f"--set {shlex.quote(f'scorer.model={model}')} --set {shlex.quote(f'scorer.weights={weights}')}"
    lines = [
        "import open_clip",
        f"open_clip.add_model_config({model!r})",
        f"model, _, preprocess = open_clip.create_model_and_transforms('model', pretrained={weights!r})",
    ]
    fetched = f"aws s3 cp --recursive {shlex.quote(join_uri(out, 'checkpoint'))} checkpoint"
    return {
        **({} if is_near else {"Fetch the model": fetched}),
        "Curate with it": f"raycomp curate --set input=SHARDS {scorer} --out DIR",
        "Load it in Python": "\n".join(lines),
        "Publish it": f"raycomp publish {shlex.quote(out)} --out FOLDER",
    }


def draw_metric(
    title: str, y_name: str, metrics: Metrics, name: str, marks: Sequence[Mark] = (), height: float = LOW
) -> Html:
    """Draw one metric over the steps that have it, if any do; the learning rate is smooth by itself."""
    known_N = np.isfinite(metrics[name])
    step_N, value_N = metrics[STEP][known_N], metrics[name][known_N]
    if not len(step_N):
        return Html()
    at = thin(value_N, NUM_POINTS)
    width = 2 * int(_SMOOTHED * len(value_N) / 2) + 1
    if name == RATE or width == 1:
        lines = [(Layer("each step", "kept"), step_N[at], value_N[at])]
    else:
        mean_N = smooth(value_N, width)
        near = thin(mean_N, NUM_POINTS)
        lines = [
            (Layer("each step", "dropped"), step_N[at], value_N[at]),
            (Layer(f"mean of {number(width)} steps", "kept"), step_N[near], mean_N[near]),
        ]
    return curves(title, "step", y_name, lines, marks, _RESUMED if height == TALL else None, height)


def thin(value_N: np.ndarray, most: int) -> np.ndarray:
    """Return the places, rising, of at most ``most`` (from 2) values: all of them where they are no more.

    Else the smallest and the largest of each of ``most`` // 2 stretches of equal length, so that no peak is
    lost and a line through them covers what a line through all does.
    """
    if len(value_N) <= most:
        return np.arange(len(value_N))
    edges = np.linspace(0, len(value_N), most // 2 + 1).astype(int)
    stretches = [(start, value_N[start:end]) for start, end in pairwise(edges)]
    return np.unique([start + pick(some) for start, some in stretches for pick in (np.argmin, np.argmax)])


def smooth(value_N: np.ndarray, width: int) -> np.ndarray:
    """Return each value's mean over ``width`` (odd) values around it, over fewer at both ends."""
    place_N, half = np.arange(len(value_N)), width // 2
    low_N, high_N = np.maximum(place_N - half, 0), np.minimum(place_N + half + 1, len(value_N))
    total = np.concatenate([[0.0], np.cumsum(value_N, dtype=np.float64)])
    return (total[high_N] - total[low_N]) / (high_N - low_N)


def _list_measures(evaluations: Evaluations) -> list[str]:
    return list(dict.fromkeys(name for entry in evaluations for name in entry if name != STEP))


def _draw_evaluations(evaluations: Evaluations) -> list[Html]:
    """Return a chart of each measure that has a finite value; one evaluation gives no curve."""
    if len(evaluations) < 2:
        return []
    step_N = np.array([entry[STEP] for entry in evaluations])
    names = [name for name in _list_measures(evaluations) if not name.startswith(_HELD_OUT)]
    by_name = {name: {STEP: step_N, name: _read_measure(evaluations, name)} for name in names}
    return [chart for name, values in by_name.items() if (chart := draw_metric(name, "", values, name))]


def _read_measure(evaluations: Evaluations, name: str) -> np.ndarray:
    return np.array([math.nan if entry.get(name) is None else float(entry[name]) for entry in evaluations])


def _draw_held_out(evaluations: Evaluations) -> list[Html]:
    """Return a chart of the held-out loss and one of both recalls, nothing without held-out pairs."""
    known = [entry for entry in evaluations if math.isfinite(entry.get(HELD_OUT_LOSS, math.nan))]
    if not known:
        return []
    step_N = np.array([entry[STEP] for entry in known])
    loss_N, *recalls = (_read_measure(known, name) for name in HELD_OUT_MEASURES)
    layers = (Layer("image to text", "kept"), Layer("text to image", "kind-relation"))
    lines = [(layer, step_N, 100 * recall_N) for layer, recall_N in zip(layers, recalls, strict=True)]
    return [
        curves("Held-out loss", "step", "", [(Layer("after each evaluation", "kept"), step_N, loss_N)]),
        curves("Held-out recall@1", "step", "%", lines),
    ]


def _report_training(run: Mapping[str, Any]) -> Table:
    config, minutes = run["config"], run["train_s"] / 60
    time = f"{number(run['train_s'], 1)} s" + (f" ({number(minutes, 1)} minutes)" if minutes >= 2 else "")
    facts = {
        "Model": config["model"]["name"],
        "Initial weights": config["model"]["weights"],
        "Loss": config["train"]["loss"],
        "Steps": f"{number(run['steps'])} of {number(run['batch_size'])} pairs",
        "Epochs": f"{number(float(run['epochs']), 2)} of {number(run['pairs'])} pairs",
        "Loss of the first step": number(run["first_loss"], 6),
        "Loss of the last step": number(run["last_loss"], 6),
        "Time": time,
        "Speed": f"{number(run['samples_per_s'], 1)} samples/s",
        "Workers": f"{number(run['workers'])} on {run['device']}",
    }
    return Table("Training", ("Property", "value"), list(facts.items()))


def _report_pairs(funnel: Mapping[str, Any], copies: int) -> Table:
    read, kept = funnel["read"], funnel["kept"]
    dropped = sorted(funnel["dropped"].items(), key=lambda item: (-item[1], item[0]))
    meanings = {**STATUSES, **NEGATIVE_STATUSES, **_OTHER_REASONS}
    rows = [("read", read, Numeral(percent(read, read)), "")]
    for why, count in dropped:
        name, meaning = why.replace("_", " "), meanings.get(why, "")
        rows.append((name, -count, Numeral(percent(count, read)), meaning))
    rows.append(("used for training", kept, Numeral(percent(kept, read)), ""))
    if copies:
        meaning = "the subset lists these pairs more than once; an epoch repeats them"
        rows.append(("copies", copies, Numeral(""), meaning))
    return Table("Pairs read and pairs used", ("Pairs", "rows", "of read", "meaning"), rows)


def _report_negatives(run: Mapping[str, Any]) -> Table:
    by_kind, pairs, some = run["negatives_by_kind"], run["pairs"], run["pairs_with_negatives"]
    total = sum(by_kind.values())
    split = sorted((*name.partition(" ")[::2], count) for name, count in by_kind.items())
    rows = [(op, kind, count, Numeral(percent(count, total))) for op, kind, count in split]
    note = f"{number(some)} of {number(pairs)} pairs ({percent(some, pairs)}) have at least one."
    return Table("Hard negatives", ("Operation", "kind", "negatives", "share"), rows, note)
