"""Look into a finished run from its files alone: the funnel, and one sample's way through it."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.config import CurateConfig, from_dict
from raycomp.loops.select import Gates, corpus_columns, judge
from raycomp.schema import (
    ALIGNMENT,
    CAPTION,
    IMAGE_EMBEDDING,
    KEPT,
    MEAN_PAS,
    PHRASES,
    STATUSES,
    UID,
)
from raycomp.shards.folder import Folder
from raycomp.shards.scores import read_columns


def _read_finished(source: str) -> dict[str, Any]:
    folder = Folder(source)
    if not folder.exists("run.json"):
        raise ValueError(f"{source}: no run.json here")
    run = folder.read_json("run.json")
    if run["status"] != "finished":
        raise ValueError(f"{source}: the run has not finished; the same command goes on with it")
    return run


def show(source: str) -> str:
    """Return the funnel of the run in ``source``. Raises ValueError where there is no finished run."""
    run = _read_finished(source)
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

    Raises ValueError where there is no finished run or no such uid.
    """
    run = _read_finished(source)
    config, gates = from_dict(CurateConfig(), run["config"]), Gates.from_dict(run["gates"])
    folder = Folder(run["scores"]) if Folder(run["scores"]).exists() else Folder(Folder(source).at("scores"))
    for name in folder.list_names():
        uids = read_columns(folder.at(name), [UID])[UID]
        row = pc.index(uids, uid.lower()).as_py()
        if row >= 0:
            table = read_columns(folder.at(name)).slice(row, 1)
            return "\n".join(_tell(table, config, gates))
    raise ValueError(f"{uid}: no such uid in {source}")


def _tell(table: pa.Table, config: CurateConfig, gates: Gates) -> list[str]:
    """Return the lines that explain a table of one row."""
    row = table.drop_columns([IMAGE_EMBEDDING, PHRASES]).to_pylist()[0]
    width = max(map(len, row))
    lines = [f"{name:<{width}}  {'-' if value is None else value}" for name, value in row.items()]
    for phrase in table[PHRASES].to_pylist()[0] or []:
        lines += _tell_phrase(row[CAPTION], phrase)
    reason = judge(table.select(corpus_columns(config, with_pas=True)), config, gates)[0][0]
    lines += ["", *_tell_gates(row, config, gates)]
    lines.append(f"kept: {'yes' if reason == KEPT else 'no, ' + reason}")
    if reason in STATUSES:
        lines[-1] += f" ({STATUSES[reason]})"
    return lines


def _tell_phrase(caption: str, phrase: dict[str, Any]) -> list[str]:
    lines = [f"  {phrase['kind']}: {phrase['text']!r}, target {phrase['target']!r}"]
    if not phrase["nonces"]:
        return [lines[0] + ", no valid nonce"]
    for nonce, drop in zip(phrase["nonces"], phrase["drops"], strict=True):
        text = caption[: phrase["target_start"]] + nonce + caption[phrase["target_end"] :]
        lines.append(f"    drop {drop:+.6f}  {text!r}")
    return lines


def _tell_gates(row: dict[str, Any], config: CurateConfig, gates: Gates) -> list[str]:
    rule = config.select.rule
    lines = [f"rule {rule}, corpus of {gates.num_corpus:,}"]
    ranked = {"random": "a draw by uid"}.get(rule, f"alignment {_number(row[ALIGNMENT])}")
    lines.append(f"gate 1: {ranked} against {_number(gates.align and gates.align.value)} or more")
    if gates.attribute is not None:
        how = config.attribute.aggregate
        lines.append(
            f"gate 2: {how} PAS ({MEAN_PAS} {_number(row[MEAN_PAS])}) against "
            f"{_number(gates.attribute.value)} or more"
        )
    return lines


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6f}"
