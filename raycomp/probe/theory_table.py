"""The tables of ``raycomp probe theory``: what both encoders measure, and which premises hold."""

from typing import Any

from raycomp.probe.theory import BLIND, BUILT, MEASURES, ORDERED, PREMISES, summarise
from raycomp.table import Column, Columns, Numeral, Table, plain, take_estimate, write_cell
from raycomp.words import ADD, OPERATIONS


def tell_theory(rows: list[dict[str, Any]]) -> list[Table | str]:
    """Return what ``run_theory`` found: means over seeds, with standard deviations in brackets."""
    lines = summarise(rows)
    blocks: list[Table | str] = [
        f"Means over {lines[0]['num_seeds']} seeds (standard deviation); chance of a choice is 0.5."
    ]
    for blind, ordered in zip(lines[::2], lines[1::2], strict=True):
        blocks += _tell_setting(blind, ordered)
    return [*blocks, _tell_shown(lines)]


def _tell_setting(blind: dict[str, Any], ordered: dict[str, Any]) -> list[Table]:
    told = "every scene also occurs mirrored" if blind["mirrored"] else "order is redundant"
    title = f"{blind['version']}, {blind['num_scenes']} scenes, {told}"
    more = take_estimate(blind, "infonce_more")
    rows = [(head, _tell_mean(blind, name), _tell_mean(ordered, name)) for name, head in MEASURES.items()]
    note = f"InfoNCE, {BLIND} less {ORDERED}, with its 95 % interval: {plain(write_cell(more))}"
    tables = [Table(title, ("measure", BLIND, ORDERED), rows, note)]
    if blind["version"] == BUILT:
        premises = [
            (head, *(blind[f"{op.lower()}_{name}"] for op in OPERATIONS)) for name, head in PREMISES.items()
        ]
        columns: Columns = (
            "all edits of all captions",
            *(Column(op, digits=3) for op in OPERATIONS),
        )
        tables.append(Table(f"Premises: {title}", columns, premises, "Of the seeds the least."))
    return tables


def _tell_mean(line: dict[str, Any], name: str) -> Numeral:
    return Numeral(f"{line[name]:z.3f} ({line[name + '_sd']:.3f})")


def _tell_shown(lines: list[dict[str, Any]]) -> str:
    """Say what of the theorems the built rows show, and what not."""
    least = min(line[f"{ADD.lower()}_nearest"] for line in lines)
    return (
        "SWAP (Theorem 7) asks that an edit's tokens share one z_inv: premise and conclusion are shown where "
        "all do. REPLACE (Theorem 8) asks for the caption's g**, here by a majority of tokens: no z_inv fits "
        "them all. ADD (Theorem 9) asks for a z_inv that caption and edit share, but theirs differ by at "
        f"least {least:.3f}: the conclusion is shown, not from its premise."
    )
