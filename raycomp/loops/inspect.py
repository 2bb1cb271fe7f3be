"""Look into a finished run from its files alone: the funnel, and one sample's way through it."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import CurateConfig, find_rule, from_dict, name_ranking
from raycomp.config.rules import DRAW
from raycomp.core.selection import Threshold
from raycomp.loops.curate.measures import corpus_columns
from raycomp.loops.curate.select import Gates, judge
from raycomp.shards.parquet import read_columns, read_schema
from raycomp.shards.runs import list_scores, read_finished
from raycomp.words import (
    ALIGNED_STATUSES,
    ALIGNMENT,
    CAPTION,
    DROPPED_UNSCORED,
    IMAGE_EMBEDDING,
    KEPT,
    PHRASES,
    POSITION,
    SHARD,
    STATUS,
    STATUSES,
    UID,
    UNSEEN,
)


def show(source: str) -> str:
    """Return the funnel of the run in ``source``. Raises ValueError where there is no finished run."""
    run = read_finished(source)
    funnel = run["funnel"]
    lines = [f"{funnel['read']:>14,}  read"]
    lines += [f"{-count:>14,}  {reason}" for reason, count in funnel["dropped"].items()]
    lines += [f"{funnel['kept']:>14,}  kept ({_percent(funnel['kept'], funnel['corpus'])} of the corpus"]
    lines[-1] += f" of {funnel['corpus']:,})"
    return "\n".join([*lines, *(f"warning: {warning}" for warning in run["warnings"])])


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def explain(source: str, uid: str) -> str:
    """Return every score, gate, value and threshold of one sample of the run in ``source``.

    A bad row or a duplicate may have the uid of one that was scored: that one is told whole, where the others
    stand in a line. Raises ValueError where there is no finished run or no such uid.
    """
    run = read_finished(source)
    if run["kind"] not in ("curate", "select"):
        raise ValueError(f"{source}: holds {run['kind']}; only samples of a curation can be explained")
    config, gates = from_dict(CurateConfig(), run["config"]), Gates.from_dict(run["gates"])
    found = [
        (uri, row)
        for uri in list_scores(run, source)
        for row in np.flatnonzero(pc.equal(read_columns(uri, [UID])[UID], uid.lower()).to_numpy())
    ]
    if not found:
        raise ValueError(f"{uid}: no such uid in {source}")
    tables = [_read_whole(uri, config).slice(int(row), 1) for uri, row in found]
    told = next((table for table in tables if table[STATUS][0].as_py() in ALIGNED_STATUSES), tables[0])
    others = [table for table in tables if table is not told]
    return "\n".join([*_tell(told, config, gates), *map(_tell_other, others)])


def _read_whole(uri: str, config: CurateConfig) -> pa.Table:
    """Return all columns of a scores file; UserError where one that explains a sample is not there."""
    wanted = [SHARD, POSITION, CAPTION, PHRASES, IMAGE_EMBEDDING, *corpus_columns(config, with_second=True)]
    return read_columns(uri, list(dict.fromkeys([*read_schema(uri).names, *wanted])))


def _tell_other(table: pa.Table) -> str:
    """Return where another row of the same uid stands; ``table`` has one row."""
    shard, position, status = (table[name][0].as_py() for name in (SHARD, POSITION, STATUS))
    return f"the same uid again: {shard}, row {position}: {status}"


def _tell(table: pa.Table, config: CurateConfig, gates: Gates) -> list[str]:
    """Return the lines that explain a table of one row."""
    row = table.drop_columns([IMAGE_EMBEDDING, PHRASES]).to_pylist()[0]
    width = max(map(len, row))
    lines = [f"{name:<{width}}  {'-' if value is None else value}" for name, value in row.items()]
    for phrase in table[PHRASES].to_pylist()[0] or []:
        lines += _tell_phrase(row[CAPTION], phrase)
    wanted = table.select(corpus_columns(config, with_second=True))
    reason_N, score_N = judge(wanted, config, gates)
    lines += ["", *_tell_gates(row, float(score_N[0]), config, gates)]
    reason = reason_N[0]
    lines.append(f"kept: {'yes' if reason == KEPT else 'no, ' + reason}")
    why = row[STATUS] if reason == DROPPED_UNSCORED else reason
    if why in STATUSES:
        lines[-1] += f" ({STATUSES[why]})"
    return lines


def _tell_phrase(caption: str, phrase: dict[str, Any]) -> list[str]:
    lines = [f"  {phrase['kind']}: {phrase['text']!r}, target {phrase['target']!r}"]
    if phrase["target_class"] == UNSEEN:
        lines[0] += ", which no picture can show"
    if not phrase["nonces"]:
        return [lines[0] + ", no valid nonce"]
    for nonce, drop in zip(phrase["nonces"], phrase["drops"], strict=True):
        text = caption[: phrase["target_start"]] + nonce + caption[phrase["target_end"] :]
        lines.append(f"    drop {drop:+.6f}  {text!r}")
    return lines


def _tell_gates(row: dict[str, Any], score: float, config: CurateConfig, gates: Gates) -> list[str]:
    """``score`` is what the last gate ranked the row by, NaN where it did not."""
    name = config.select.rule
    rule = find_rule(name)
    first = score if rule.gate_1 == DRAW else row[ALIGNMENT]
    lines = [f"rule {name}, corpus of {gates.num_corpus:,}"]
    lines.append(f"gate 1: {rule.gate_1} {_number(first)} against {_tell_threshold(gates.align)}")
    if gates.attribute is not None:
        ranking = name_ranking(name, config.attribute.aggregate, config.attribute.unseen)
        lines.append(f"gate 2: {ranking} {_number(score)} against {_tell_threshold(gates.attribute)}")
    return lines


def _tell_threshold(cut: Threshold | None) -> str:
    if cut is None or cut.value is None:
        return "a gate that keeps nothing"
    tie = f" (of that very score, uids up to {cut.to_dict()['uid']})" if cut.uid else ""
    return f"{_number(cut.value)} or more{tie}"


def _number(value: float | None) -> str:
    return "none" if value is None or value != value else f"{value:.6f}"
