"""One sample's path through a curation or selection, from the files alone: scores, gates, thresholds."""

from typing import Any

import pyarrow as pa

from raycomp.core.selection import Threshold
from raycomp.curation.config import CurateConfig, describe_rule, find_selection, read_config
from raycomp.curation.marks import list_marked
from raycomp.curation.measures import corpus_columns, take_columns
from raycomp.curation.rules import DRAW, find_rule
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, judge_table
from raycomp.data.parquet import find_rows, read_schema
from raycomp.language.nonce import make_counterfactual
from raycomp.table import format_facts
from raycomp.words import (
    ALIGNED_STATUSES,
    ALIGNMENT,
    CAPTION,
    CONTENT_WORDS,
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

_NESTED = (IMAGE_EMBEDDING, PHRASES, CONTENT_WORDS)


def explain_sample(run: dict[str, Any], source: str, uid: str) -> str | None:
    """Return every score, gate, value and threshold of one sample of the run in ``source``, if present.

    A bad row or a duplicate may share the uid of a scored row. The scored row is explained in full, the
    others in one line.
    """
    config, gates = read_config(run["config"]), Gates.from_dict(run["gates"])
    found = [(file, row) for file in list_marked(run, source) for row in find_rows(file.uri, UID, uid)]
    if not found:
        return None
    tables = [_read_whole(file, config).slice(row, 1) for file, row in found]
    reported = next((table for table in tables if table[STATUS][0].as_py() in ALIGNED_STATUSES), tables[0])
    others = [table for table in tables if table is not reported]
    return "\n".join([*_report(reported, config, gates), *map(_report_other, others)])


def _read_whole(file: ScoresFile, config: CurateConfig) -> pa.Table:
    """Return all columns of a scores file; UserError if a column that explains a sample is missing."""
    columns = corpus_columns(find_selection(config), with_attribute=True)
    wanted = [SHARD, POSITION, CAPTION, PHRASES, IMAGE_EMBEDDING, *columns]
    return file.read(list(dict.fromkeys([*read_schema(file.uri).names, *wanted])))


def _report_other(table: pa.Table) -> str:
    """Return the location of another row with the same uid; ``table`` has one row."""
    shard, position, status = (table[name][0].as_py() for name in (SHARD, POSITION, STATUS))
    return f"the same uid again: {shard}, row {position}: {status}"


def _report(table: pa.Table, config: CurateConfig, gates: Gates) -> list[str]:
    """Return the lines that explain a table of one row."""
    row = table.select([name for name in table.column_names if name not in _NESTED]).to_pylist()[0]
    lines = [format_facts(row)]
    for column in (PHRASES, CONTENT_WORDS):
        for phrase in (column in table.column_names and table[column].to_pylist()[0]) or []:
            lines += _describe_phrase(row[CAPTION], phrase)
    selection = find_selection(config)
    reason_N, score_N = judge_table(take_columns(table, selection, with_attribute=True), selection, gates)
    lines += ["", *_describe_gates(row, float(score_N[0]), config, gates)]
    reason = reason_N[0]
    lines.append(f"kept: {'yes' if reason == KEPT else 'no, ' + reason}")
    why = row[STATUS] if reason == DROPPED_UNSCORED else reason
    if why in STATUSES:
        lines[-1] += f" ({STATUSES[why]})"
    return lines


def _describe_phrase(caption: str, phrase: dict[str, Any]) -> list[str]:
    lines = [f"  {phrase['kind']}: {phrase['text']!r}, target {phrase['target']!r}"]
    if phrase["target_class"] == UNSEEN:
        lines[0] += ", which an image cannot show"
    if not phrase["nonces"]:
        return [lines[0] + ", no valid nonce"]
    for nonce, drop in zip(phrase["nonces"], phrase["drops"], strict=True):
        text = make_counterfactual(caption, phrase["target_start"], phrase["target_end"], nonce)
        lines.append(f"    drop {drop:+.6f}  {text!r}")
    return lines


def _describe_gates(row: dict[str, Any], score: float, config: CurateConfig, gates: Gates) -> list[str]:
    """``score`` is what the last gate ranked the row by, NaN where it did not."""
    rule = find_rule(config.select.rule)
    first = score if rule.align_by == DRAW else row[ALIGNMENT]
    lines = [f"rule {describe_rule(config)}; corpus of {gates.num_corpus:,}"]
    lines.append(f"gate 1: {rule.align_by} {_number(first)} against {_describe_threshold(gates.align)}")
    if gates.attribute is not None:
        ranking = find_selection(config).ranking
        lines.append(f"gate 2: {ranking} {_number(score)} against {_describe_threshold(gates.attribute)}")
    return lines


def _describe_threshold(cut: Threshold | None) -> str:
    if cut is None or cut.value is None:
        return "a gate that drops everything"
    tie = f" (at exactly that score: uids up to {cut.to_dict()['uid']})" if cut.uid else ""
    return f"{_number(cut.value)} or more{tie}"


def _number(value: float | None) -> str:
    return "none" if value is None or value != value else f"{value:.6f}"
