"""The record of a run: what was wrong with rows, how fast it went, and how to do it again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raycomp.report.markup import Html, number, numeral, percent, table, tag
from raycomp.report.sections import section
from raycomp.report.summary import Summary
from raycomp.schema import OK, STATUSES

MOST_CAPTION = 80


def draw_statuses(summary: Summary) -> Html:
    """Return every status with its count and meaning, and a few examples of each but ok."""
    counts = sorted(summary.statuses.items(), key=lambda item: (-item[1], item[0]))
    rows = [
        (tag("td", tag("code", name)), STATUSES.get(name, ""), n, numeral(percent(n, summary.rows)))
        for name, n in counts
    ]
    examples = [
        (
            tag("td", tag("code", name)),
            sample.shard,
            sample.position,
            sample.key,
            tag("td", _start(sample.caption), dir="auto"),
            tag("td", tag("code", sample.uid)),
        )
        for name, _ in counts
        if name != OK and name in summary.picks
        for sample in summary.picks[name].samples
    ]
    columns = ("Example of", "shard", "position", "key", "caption", "uid")
    return section(
        "Rows by status",
        table(("Status", "meaning", "rows", "of read"), rows),
        tag("details", tag("summary", "Examples"), table(columns, examples)) if examples else None,
    )


def _start(caption: str | None) -> str:
    text = caption or ""
    return text if len(text) <= MOST_CAPTION else text[: MOST_CAPTION - 1] + "\u2026"


def draw_run(run: Mapping[str, Any]) -> Iterator[Html]:
    """Yield the sections that run.json has the content for."""
    if run.get("stages"):
        yield _draw_speed(run["stages"])
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
    versions = flatten(run.get("versions", {}))
    if run.get("fingerprint"):
        versions["fingerprint"] = str(run["fingerprint"])
    facts = {"Config": flatten(run.get("config", {})), "Versions": versions}
    written = [
        tag("div", tag("h3", name), _draw_facts(values), class_="facts")
        for name, values in facts.items()
        if values
    ]
    if written:
        yield section("Config and versions", *written)


def _draw_speed(stages: Sequence[Mapping[str, Any]]) -> Html:
    """Return the throughput per stage; the bottleneck is the stage that would take longest alone."""
    alone = [stage["seconds"] / max(stage["workers"], 1) for stage in stages]
    slowest = max(alone)
    rows = []
    for stage, seconds in zip(stages, alone, strict=True):
        rate = stage["rows"] / seconds if seconds else None
        share = 100 * seconds / slowest if slowest else 0
        bar = tag("svg", tag("rect", width=f"{share:.2f}%", height="100%"), class_="bar", aria_hidden="true")
        name = tag("b", stage["stage"]) if seconds == slowest else stage["stage"]
        rows.append(
            (
                tag("td", name),
                tag("td", bar, class_="bar-cell"),
                numeral(f"{number(seconds, 1)} s"),
                stage["rows"],
                stage["workers"],
                numeral(number(rate, 1)),
            )
        )
    name = stages[alone.index(slowest)]["stage"]
    text = (
        "Bottleneck: ",
        tag("b", name),
        f", busy for {number(slowest, 1)} s. Seconds are a stage's busy time, shared by its workers.",
    )
    columns = ("Stage", "", "busy", "rows", "workers", "rows/s")
    return section("Throughput", tag("p", *text, class_="lead"), table(columns, rows, class_="speed"))


def flatten(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return nested values under dotted names, as text."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = _write(value)
    return flat


def _write(value: Any) -> str:
    """Write a value as ``--set`` takes it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_write, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _draw_facts(values: Mapping[str, str]) -> Html:
    return tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in values.items()))
