"""The page of ``raycomp train``: how the loss fell, what was trained on what, and how to use it."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.data.paths import join_uri
from raycomp.report import run as record
from raycomp.report.charts import LOW, TALL, Layer, Mark, curves
from raycomp.report.curves import smooth, thin
from raycomp.report.markup import Html, tag
from raycomp.report.page import draw_table, draw_warnings, frame, section
from raycomp.report.table import table
from raycomp.table import Numeral, Table, number, percent
from raycomp.train.losses import LOSSES
from raycomp.words import NEGATIVE_STATUSES, STATUSES

STEP, LOSS, RATE, SPEED = "step", "loss", "learning_rate", "samples_per_s"
NUM_POINTS = 1000
"""Of a drawn curve, at most."""
NUM_TOLD = 12
"""Evaluations and resumptions that are written out, at most."""
_SMOOTHED = 0.02
"""Share of the steps that a smoothed value is the mean of."""
_RESUMED = Layer("went on from a checkpoint", "mark")
_OTHER_REASONS = {"not_in_subset": "the subset does not name it"}
Metrics = Mapping[str, np.ndarray]


def render_train(run: Mapping[str, Any], metrics: Metrics) -> str:
    """Return the page as text to be written as UTF-8.

    ``run``: the content of run.json. ``metrics``: loss, learning_rate and samples_per_s by step, NaN where
    there is none, as ``read_metrics`` returns them.
    """
    body = [
        _draw_header(run),
        draw_warnings(run["warnings"]),
        _draw_loss(run, metrics),
        _draw_evaluations(run["evaluations"]),
        draw_table(_tell_training(run)),
        draw_table(_tell_pairs(run["funnel"], run["copies"])),
        draw_table(_tell_negatives(run)) if run["negatives_by_kind"] else None,
        *record.draw_run(run),
    ]
    return frame(f"raycomp: trained {run['config']['model']['name']}", body)


def list_uses(out: str) -> dict[str, str]:
    """Return what a model trained into ``out`` is good for -> its lines, for a run's ``commands``."""
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


def _draw_header(run: Mapping[str, Any]) -> Html:
    model, loss = run["config"]["model"], run["config"]["train"]["loss"]
    parts = (model["name"], model["weights"], f"loss {loss}", run["config"]["input"])
    spans = (tag("span", part) for part in parts)
    fall = f"{number(run['first_loss'])} to {number(run['last_loss'])}"
    told = f" in {_count(run['steps'], 'step')} on {_count(run['pairs'], 'pair')}."
    return tag(
        "header",
        tag("p", tag("b", "raycomp"), " train", *spans, class_="eyebrow"),
        tag("h1", "Trained: loss from ", tag("b", fall), tag("span", told, class_="quiet")),
    )


def _count(count: int, name: str) -> str:
    return f"{number(count)} {name}{'' if count == 1 else 's'}"


def _draw_loss(run: Mapping[str, Any], metrics: Metrics) -> Html:
    lead = "The loss of each step's batch, before the step."
    known = LOSSES.get(run["config"]["train"]["loss"])
    if known and not known.bias:  # a sum of sigmoids has no such chance
        pairs, chance = number(run["batch_size"]), number(math.log(run["batch_size"]))
        more = ", and more with their negatives" if run["negatives_by_kind"] else ""
        lead += f" Chance among {pairs} pairs is {chance}{more}."
    marks = [Mark(entry[STEP]) for entry in run["resumed"]]
    loss = draw_metric("Loss", "", metrics, LOSS, marks, TALL)
    rate, unit = _scale(metrics)
    beside = [
        draw_metric("Learning rate", unit, rate, RATE, marks),
        draw_metric("Speed", "samples/s", metrics, SPEED, marks),
    ]
    charts = tag("div", loss, tag("div", *beside, class_="stack"), class_="pair")
    return section("How the loss fell", tag("p", lead, class_="lead"), charts, _tell_resumed(run["resumed"]))


def _scale(metrics: Metrics) -> tuple[Metrics, str]:
    """Return learning rates in units that leave no row of zeros at the axis, and the unit."""
    top = np.nanmax(metrics[RATE], initial=0.0)
    power = math.floor(math.log10(top)) if top > 0 else 0
    return {**metrics, RATE: metrics[RATE] / 10.0**power}, f"in units of 1e{power}"


def draw_metric(
    title: str, y_name: str, metrics: Metrics, name: str, marks: Sequence[Mark] = (), height: float = LOW
) -> Html | None:
    """Draw one metric over the steps that have it; the learning rate is smooth by itself."""
    known_N = np.isfinite(metrics[name])
    step_N, value_N = metrics[STEP][known_N], metrics[name][known_N]
    if not len(step_N):
        return None
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


def _tell_resumed(resumed: Sequence[Mapping[str, Any]]) -> Html | None:
    if not resumed:
        return None
    told = [f"step {number(entry[STEP])} ({entry['why']})" for entry in resumed[-NUM_TOLD:]]
    earlier = f", the last {NUM_TOLD} of them" if len(resumed) > NUM_TOLD else ""
    times = "once" if len(resumed) == 1 else f"{number(len(resumed))} times"
    return tag("p", f"Went on from a checkpoint {times}{earlier}: {', '.join(told)}.", class_="lead told")


def _draw_evaluations(evaluations: Sequence[Mapping[str, Any]]) -> Html | None:
    if not evaluations:
        return None
    names = list(dict.fromkeys(name for entry in evaluations for name in entry if name != STEP))
    rows = [(entry[STEP], *(entry.get(name) for name in names)) for entry in evaluations[-NUM_TOLD:]]
    lead = "What the model measured, on its way and at its end, by how many steps it had taken."
    if len(evaluations) > NUM_TOLD:
        lead += f" The table has the last {NUM_TOLD} of {number(len(evaluations))} evaluations."
    charts = [_draw_evaluation(name, evaluations) for name in names] if len(evaluations) > 1 else []
    drawn = tag("div", *charts, class_="pair") if any(charts) else None
    written = tag("div", table(("Step", *names), rows), class_="told" if drawn else None)
    return section("Evaluation", tag("p", lead, class_="lead"), drawn, written)


def _draw_evaluation(name: str, evaluations: Sequence[Mapping[str, Any]]) -> Html | None:
    values = [math.nan if entry.get(name) is None else float(entry[name]) for entry in evaluations]
    metrics = {STEP: np.array([entry[STEP] for entry in evaluations]), name: np.array(values)}
    return draw_metric(name, "", metrics, name)


def _tell_training(run: Mapping[str, Any]) -> Table:
    config, minutes = run["config"], run["train_s"] / 60
    time = f"{number(run['train_s'], 1)} s" + (f" ({number(minutes, 1)} minutes)" if minutes >= 2 else "")
    facts = {
        "Model": config["model"]["name"],
        "Begun from": config["model"]["weights"],
        "Loss": config["train"]["loss"],
        "Steps": f"{number(run['steps'])} of {number(run['batch_size'])} pairs",
        "Epochs": f"{number(float(run['epochs']), 2)} of {number(run['pairs'])} pairs",
        "Loss of the first step": number(run["first_loss"], 6),
        "Loss of the last step": number(run["last_loss"], 6),
        "Time": time,
        "Speed": f"{number(run['samples_per_s'], 1)} samples/s",
        "Workers": f"{number(run['workers'])} on {run['device']}",
    }
    return Table("What was trained", ("What", "value"), list(facts.items()))


def _tell_pairs(funnel: Mapping[str, Any], copies: int) -> Table:
    read, kept = funnel["read"], funnel["kept"]
    dropped = sorted(funnel["dropped"].items(), key=lambda item: (-item[1], item[0]))
    rows = [
        ("read", read, Numeral(percent(read, read)), ""),
        *((_name(why), -count, Numeral(percent(count, read)), _explain(why)) for why, count in dropped),
        ("trained on", kept, Numeral(percent(kept, read)), ""),
    ]
    if copies:
        rows.append(
            ("copies", copies, Numeral(""), "the subset names these pairs again: an epoch repeats them")
        )
    return Table("From pairs read to pairs trained on", ("Pairs", "rows", "of read", "meaning"), rows)


def _name(reason: str) -> str:
    return reason.replace("_", " ")


def _explain(reason: str) -> str:
    return {**STATUSES, **NEGATIVE_STATUSES, **_OTHER_REASONS}.get(reason, "")


def _tell_negatives(run: Mapping[str, Any]) -> Table:
    by_kind, pairs, some = run["negatives_by_kind"], run["pairs"], run["pairs_with_negatives"]
    total = sum(by_kind.values())
    split = sorted((*name.partition(" ")[::2], count) for name, count in by_kind.items())
    rows = [(op, kind, count, Numeral(percent(count, total))) for op, kind, count in split]
    note = f"{number(some)} of {number(pairs)} pairs ({percent(some, pairs)}) have one or more."
    return Table("Hard negatives", ("Operation", "kind", "negatives", "share"), rows, note)
