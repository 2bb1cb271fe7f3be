"""Inspect a finished run from its files alone: the results of all rows, and of one row."""

import os
from collections.abc import Iterator
from typing import Any

from raycomp.config import flatten
from raycomp.config.own_code import is_own
from raycomp.curation.config import describe_rule, read_config
from raycomp.curation.explain import explain_sample
from raycomp.curation.rules import Rule, find_rule
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.paths import REPORT
from raycomp.data.rows import parse_uid
from raycomp.data.runs import read_finished
from raycomp.look.show.names import find_samples, list_samples
from raycomp.negatives.explain import explain_caption
from raycomp.probe.explain import explain_targets
from raycomp.table import Column, Table, format_facts
from raycomp.words import UID

_EXPLAIN = {"curate": explain_sample, "select": explain_sample, "negatives": explain_caption}
_EXPLAIN |= {"probe pas": explain_targets}


def show(source: str) -> Iterator[str]:
    """Yield a summary of the run in ``source``: its result, options, counts, phases, warnings, report's path.

    Raises ValueError if there is no finished run, and at the end if its files differ from those it wrote.
    """
    run, folder = read_finished(source), Folder(source)
    yield _describe(run, folder)
    check_results(folder, run)


def _describe(run: dict[str, Any], folder: Folder) -> str:
    report = folder.at(REPORT) if folder.exists(REPORT) else None
    facts = {"run": run["kind"], "input": run["config"].get("input"), "rule": _describe_rule(run)}
    facts |= _describe_training(run, folder)
    facts |= {"started": run.get("started"), "finished": run.get("finished"), "report": report}
    lead = [run.get("headline"), format_facts({name: value for name, value in facts.items() if value})]
    phases = [_report_phases(run["phases"])] if run.get("phases") else []
    warnings = "\n".join(f"warning: {warning}" for warning in run["warnings"])
    parts = [
        *lead,
        _report_funnel(run["funnel"]).to_text(),
        *(table.to_text() for table in phases),
        warnings,
    ]
    return "\n\n".join(part for part in parts if part)


def _describe_rule(run: dict[str, Any]) -> str | None:
    """Return rule and reading of a curation or selection, and its shares; None for other runs."""
    options = dict(flatten(run["config"]))
    if "select.rule" not in options:
        return None
    name = str(options["select.rule"])
    # The file of the user's own rule may be gone.
    rule = Rule(attribute_by=(run.get("gates") or {}).get("attribute")) if is_own(name) else find_rule(name)
    shares = ["align.keep"] * bool(rule.attribute_by) + ["attribute.keep"] * (not rule.keeps_all)
    kept = ", ".join(f"{path} {options.get(path)}" for path in shares)
    said = run.get("rule") or (name if is_own(name) else describe_rule(read_config(run["config"])))
    return "; ".join(filter(None, (said, kept)))


def _describe_training(run: dict[str, Any], folder: Folder) -> dict[str, str]:
    """Return a training's model, first and last loss and model path; empty for other runs."""
    if run["kind"] != "train":
        return {}
    options = dict(flatten(run["config"]))
    return {
        "model": f"{options.get('model.name')}, trained from {options.get('model.weights')}",
        "steps": f"{run['steps']:,}, {run['epochs']:.2f} epochs of {run['pairs']:,} pairs",
        "loss": f"{options.get('train.loss')}, {run['first_loss']:.4f} to {run['last_loss']:.4f}",
        "checkpoint": folder.at("checkpoint"),
    }


def _report_funnel(funnel: dict[str, Any]) -> Table:
    share = f"{100 * funnel['kept'] / funnel['corpus']:.1f} %" if funnel["corpus"] else "none"
    kept = f"kept ({share} of the corpus of {funnel['corpus']:,})"
    dropped = [(-count, reason) for reason, count in funnel["dropped"].items()]
    return Table("", ("", ""), [(funnel["read"], "read"), *dropped, (funnel["kept"], kept)])


def _report_phases(phases: list[dict[str, Any]]) -> Table:
    columns = ("phase", "rows", Column("time", "s", 1), Column("rate", "rows/s", 1), "bottleneck")
    rows = [
        (
            phase["phase"],
            phase["rows"],
            phase["wall_s"],
            phase["rows"] / phase["wall_s"] if phase["wall_s"] else None,
            phase["bottleneck"] or "-",
        )
        for phase in phases
    ]
    return Table("", columns, rows)


def explain(source: str, uid: str) -> str:
    """Return the results of one sample in ``source``: its scores and gates, its negatives, its targets.

    ``uid`` may also be a key, a file name, a url or a caption; where several samples have it, they are
    listed. Raises ValueError if there is no finished run, or none of its samples has it.
    """
    try:
        uid.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{os.fsencode(uid)!r}: no such uid in {source}, which is UTF-8") from None
    run = read_finished(source)
    find = _EXPLAIN.get(run["kind"])
    if find is None:
        raise ValueError(f"{source}: holds {run['kind']}, which says nothing of single samples")
    # A user's own uids stay unchanged; uids that raycomp treats as equal are written in one spelling.
    reported = find(run, source, uid) or find(run, source, parse_uid(uid) or uid.lower())
    if reported is not None:
        return reported
    named = find_samples(run, source, uid)
    if not len(named):
        raise ValueError(f"{uid}: no such uid, key, file name, url or caption in {source}")
    uids = list(dict.fromkeys(named[UID].to_pylist()))
    return list_samples(named, uid) if len(uids) > 1 else find(run, source, uids[0]) or ""
