"""The record of a run: what was wrong with rows, how fast it went, and how to do it again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raycomp.config import as_setting, flatten
from raycomp.report.charts import Layer, curves
from raycomp.report.markup import Html, tag
from raycomp.report.page import section
from raycomp.report.table import table
from raycomp.table import Numeral, number, percent


def draw_run(run: Mapping[str, Any]) -> Iterator[Html]:
    """Yield the sections that run.json has the content for."""
    if run.get("phases"):
        yield _draw_speed(run["phases"], run["stages"])
    if run.get("scorer_check"):
        check = run["scorer_check"]
        columns = ("Pairs", "mean cosine of pairs", "of shuffled pairs", "AUC")
        row = (check["n"], check["matched_mean"], check["shuffled_mean"], check["auc"])
        text = "How well the scorer tells the corpus's own pairs from shuffled ones; an AUC of 0.5 is chance."
        yield section("Scorer check", tag("p", text, class_="lead"), table(columns, [row]))
    if run.get("commands"):
        parts = [
            tag("div", tag("h3", what), tag("pre", tag("code", line), tabindex=0))
            for what, line in run["commands"].items()
        ]
        yield section("Do it again", *parts)
    versions = {**run.get("versions", {})}
    if run.get("fingerprint"):
        versions["fingerprint"] = str(run["fingerprint"])
    facts = {"Config": run.get("config", {}), "Versions": versions}
    written = [
        tag("div", tag("h3", name), _draw_facts(values), class_="facts")
        for name, values in facts.items()
        if values
    ]
    if written:
        yield section("Config and versions", *written)


def _draw_speed(phases: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]]) -> Html:
    """Return how long each phase took, how busy its stages were, and which of them held it up."""
    text = (
        "The stages of a phase work side by side. Its bottleneck is the longest stage of the workers that "
        "had the least rest: more or faster ones would shorten the phase. Busy is the share of the phase's "
        "time that a stage's workers were at work; that time includes starting them, which weighs on short "
        "runs."
    )
    parts = []
    for phase in phases:
        own = [stage for stage in stages if stage["phase"] == phase["phase"]]
        parts += [tag("h3", _headline(phase)), _tell_busy(phase), _draw_stages(phase, own)]
        if phase.get("growth"):
            parts.append(_draw_growth(phase))
    return section("Where the time went", tag("p", text, class_="lead"), *parts)


def _headline(phase: Mapping[str, Any]) -> str:
    rate = phase["rows"] / phase["wall_s"] if phase["wall_s"] else None
    return (
        f"{phase['phase']}: {number(phase['rows'])} rows in {number(phase['wall_s'], 1)} s, "
        f"{number(rate, 1)} rows/s"
    )


def _tell_busy(phase: Mapping[str, Any]) -> Html:
    """Return the bottleneck, and how busy scorers, GPUs and commits were, in one line."""
    parts: list[object] = ["Bottleneck: ", tag("b", phase["bottleneck"] or "\u2013")]
    if "scorer_busy_share" in phase:
        parts.append(f". Scorers busy {percent(phase['scorer_busy_share'], 1)}")
    if "gpu_busy_share" in phase:
        parts.append(f". GPU busy share {percent(phase['gpu_busy_share'], 1)}")
    parts.append(f". Committing finished waves took {percent(phase['commit_share'], 1)} of the time.")
    return tag("p", *parts)


def _draw_stages(phase: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> Html:
    rows = []
    for stage in stages:
        name, share = stage["stage"], stage["busy_share"]
        bar = tag(
            "svg", tag("rect", width=f"{100 * share:.2f}%", height="100%"), class_="bar", aria_hidden="true"
        )
        rows.append(
            (
                tag("td", tag("b", name) if name == phase["bottleneck"] else name),
                tag("td", bar, class_="bar-cell"),
                Numeral(percent(share, 1)),
                Numeral(f"{number(stage['seconds'], 1)} s"),
                stage["workers"],
                Numeral(number(stage["rows_per_s"], 1)),
                tag("td", stage.get("says", ""), class_="quiet"),
            )
        )
    columns = ("Stage", "", "busy", "busy time", "workers", "rows/s of a busy worker", "what it does")
    return table(columns, rows, class_="speed")


def _draw_growth(phase: Mapping[str, Any]) -> Html:
    """Return how many scorers there were over the phase's time: a line of steps."""
    since_S, scorers_S, _ = np.array(phase["growth"], float).T
    x = np.append(np.repeat(since_S, 2)[1:], phase["wall_s"]).round()
    title = f"Scorers of {phase['phase']} over time"
    drawn = curves(title, "seconds", "scorers", [(Layer("scorers", "kept"), x, np.repeat(scorers_S, 2))])
    return tag("div", drawn, class_="pair")


def _draw_facts(values: Mapping[str, Any]) -> Html:
    """Return nested values under dotted names, each as ``--set`` takes it."""
    facts = (tag("div", tag("dt", path), tag("dd", as_setting(value))) for path, value in flatten(values))
    return tag("dl", *facts)
