"""Tables of the documents, made from the committed results.

    python -m bench.blocks            # writes them anew
    python -m bench.blocks --check    # says which differ; exit code 1

A block stands in a document between `<!-- table NAME -->` and `<!-- end -->`. tests/test_blocks.py fails
where one is not what its file says.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lab.screen.judge import ALIGNMENT, KEEP, REGISTERED
from lab.screen.tables import (
    SEEN_KINDS,
    STRATA,
    compare,
    compare_registered,
    list_shares,
    report_registered,
)
from lab.worlds.crowds import KINDS
from raycomp.core.intervals import contrast
from raycomp.table import Column, Estimate, Table, as_columns, read_csv, write_cell

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
_BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_RULES = (
    "cpi paper",
    "cpi showable drop mean",
    "cpi content drop mean",
    "cpi content drop min",
    "cpi content per_displacement min",
    "alignment + paper",
    "alignment + content drop mean",
    "alignment + content drop min",
    REGISTERED,
    "alignment + text",
)


def read_screen(name: str) -> list[dict[str, Any]]:
    """Return the runs of a screen, each with its rows, from its faults.csv."""
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    for line in read_csv((RESULTS / "pas_screen" / f"{name}_faults.csv").read_text()):
        world, cue = line.pop("world"), line.pop("cue")
        one_run = runs.setdefault((world, cue), {"world": int(world), "cue": cue, "rows": []})
        texts = {key: line.pop(key) for key in ("kind", "rule")}
        one_run["rows"].append({**texts, **{key: float(value or "nan") for key, value in line.items()}})
    return list(runs.values())


def registered() -> Table:
    """The figure that was named before its worlds were drawn."""
    return report_registered(read_screen("confirm"), ["no-logo"])


def rules() -> Table:
    """Faults kept by rule and kind, against alignment; worlds 4 to 15."""
    found = read_screen("confirm")
    base = [list_shares(found, "no-logo", kind, ALIGNMENT) for kind in KINDS]
    rows: list[list[Any]] = [["alignment, %", *(_estimate(one) for one in base), _estimate(_mean_seen(base))]]
    for rule in _RULES:
        own = [compare(found, "no-logo", kind, rule) for kind in KINDS]
        every = [
            np.subtract(list_shares(found, "no-logo", kind, rule), one)
            for kind, one in zip(KINDS, base, strict=True)
        ]
        rows.append([f"{rule}, points", *(Estimate.of(one) for one in own), _estimate(_mean_seen(every))])
    names = [*(kind.replace("_", " ") for kind in KINDS), "mean without relation"]
    return Table("", ["rule", *(Column(name, digits=1) for name in names)], rows)


def lengths_alike() -> Table:
    """Faults kept against alignment with every caption length alike, and without; worlds 4 to 15."""
    found = read_screen("confirm")
    rows: list[list[Any]] = []
    for rule in ("cpi paper", "cpi content per_displacement min", REGISTERED):
        counts = (
            [list_shares(found, "no-logo", kind, one, name=name) for kind in KINDS]
            for name in (STRATA, "faults_kept")
            for one in (rule, ALIGNMENT)
        )
        alike, base_alike, free, base = map(_mean_seen, counts)
        rows.append([rule, _estimate(alike - base_alike), _estimate(free - base)])
    heads = "equal share per caption length", "any caption length"
    return Table("", ["rule", *(Column(head, "points", 1) for head in heads)], rows)


def cues() -> Table:
    """Faults kept under every cue, the mean of four kinds; worlds 0 to 3, and 4 to 15 without a logo."""
    rows: list[list[Any]] = []
    for name, worlds in (("explore", "0 to 3"), ("confirm", "4 to 15")):
        found = read_screen(name)
        for cue in dict.fromkeys(one["cue"] for one in found):
            shares = {
                rule: _mean_seen([list_shares(found, cue, kind, rule) for kind in KINDS])
                for rule in (ALIGNMENT, "cpi paper", REGISTERED, "alignment + text")
            }
            base = shares.pop(ALIGNMENT)
            differences = [_estimate(np.subtract(one, base)) for one in shares.values()]
            alike = Estimate.of(compare_registered(found, cue))
            rows.append([cue, worlds, _estimate(base), *differences, alike])
    heads = (
        "alignment, %",
        "cpi paper, points",
        "registered rule, points",
        "alignment + text, points",
        "registered rule, each length alike, points",
    )
    return Table("", ["cue", "worlds", *(Column(head, digits=1) for head in heads)], rows)


def kept_lengths() -> Table:
    """Sound pairs kept, in percent, by how many things their captions name: means over kinds of fault."""
    lines = read_csv((RESULTS / "pas_screen" / "confirm_traits.csv").read_text())
    rows = []
    for rule in (ALIGNMENT, "cpi paper", "cpi content per_displacement min", REGISTERED):
        values = []
        for things in range(2, 7):
            own = [
                x
                for x in lines
                if x["rule"] == rule and x["trait"] == f"{things} things" and x["cue"] == "no-logo"
            ]
            values.append(100 * float(np.mean([float(x["kept"]) for x in own if x["kind"] in SEEN_KINDS])))
        one = [x for x in lines if x["rule"] == rule and x["trait"] == "1 things" and x["kind"] in SEEN_KINDS]
        rows.append([rule, 100 * float(np.mean([float(x["kept"]) for x in one])), *values])
    heads = ["1 thing", *(f"{num} things" for num in range(2, 7))]
    return Table("", ["rule", *(Column(head, "%", 0) for head in heads)], rows)


def faulty_shares() -> Table:
    """Faulty pairs among those kept, in percent, the mean over four kinds; worlds 4 to 15 without a logo."""
    found = read_screen("confirm")
    shares = {
        rule: _mean_seen([_list_faulty(found, kind, rule) for kind in KINDS])
        for rule in (ALIGNMENT, "cpi paper", REGISTERED)
    }
    base = shares[ALIGNMENT]
    rows: list[list[Any]] = [
        [rule, _estimate(one), None if rule == ALIGNMENT else _estimate(np.subtract(one, base))]
        for rule, one in shares.items()
    ]
    heads = (Column("faulty among those kept", "%", 1), Column("minus alignment", "percentage points", 1))
    return Table("", ["rule", *heads], rows)


def _list_faulty(found: Sequence[Mapping[str, Any]], kind: str, rule: str) -> list[float]:
    """Return the faulty pairs among those that a rule keeps, in percent, world by world."""
    return [
        100 * row["faults_kept"] / row["kept"]
        for one in found
        for row in one["rows"]
        if (row["kind"], row["rule"], row["keep"]) == (kind, rule, KEEP)
    ]


def text_only() -> Table:
    """What a text-only classifier finds, by cue: the largest figures over kinds of fault."""
    lines = read_csv((RESULTS / "pas_screen" / "explore_text.csv").read_text())
    rows = []
    for cue in dict.fromkeys(line["cue"] for line in lines):
        own = [line for line in lines if line["cue"] == cue]
        largest = max(float(line["auc"]) for line in own)
        ends = [float(line["high"]) for line in own if line["high"]]
        rows.append([cue, largest, max(ends) if ends else None])
    return Table("", ["cue", Column("largest AUC", digits=3), Column("largest upper end", digits=3)], rows)


def continual_heads() -> Table:
    """Methods on frozen embeddings, track ``world``."""
    return _tabulate_runs("continual_heads_runs.csv")


def continual_tuned() -> Table:
    """Methods that train the model, track ``world``."""
    return _tabulate_runs("continual_tuned_runs.csv")


def continual_others(track: str) -> Table:
    """Methods on frozen embeddings, another track."""
    return _tabulate_runs("continual_others_runs.csv", track)


def _tabulate_runs(name: str, track: str = "world") -> Table:
    """Return the table of continual runs: means over backbones, with paired differences."""
    lines = [
        line
        for line in read_csv((RESULTS / name).read_text())
        if not line["tried"] and line["track"] == track  # "tried" is of development runs
    ]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for line in lines:
        figures = {name: float(line[name] or "nan") for name in ("last", "learned", "forgetting_best")}
        found.setdefault(line["method"], {})[line["seed"]] = figures

    def differ(method: str, other: str, name: str) -> Estimate | None:
        if method == other:
            return None
        return _estimate([found[method][seed][name] - found[other][seed][name] for seed in found[method]])

    rows: list[list[Any]] = [
        [
            method,
            *(float(np.mean([one[name] for one in runs.values()])) for name in ("last", "learned")),
            differ(method, "frozen", "last"),
            differ(method, "compo-realign", "last"),
            float(np.mean([one["forgetting_best"] for one in runs.values()])),
            differ(method, "compo-realign", "forgetting_best"),
        ]
        for method, runs in found.items()
    ]
    heads = (
        "last, %",
        "learned, %",
        "last minus frozen",
        "last minus compo-realign",
        "forgetting",
        "forgetting minus compo-realign",
    )
    return Table("", ["method", *(Column(head, digits=1) for head in heads)], rows)


BLOCKS: dict[str, Callable[[], Table]] = {
    "pas-registered": registered,
    "pas-rules": rules,
    "pas-alike": lengths_alike,
    "pas-cues": cues,
    "pas-lengths": kept_lengths,
    "pas-text": text_only,
    "pas-faulty": faulty_shares,
    "continual-heads": continual_heads,
    "continual-tuned": continual_tuned,
    "continual-domains": partial(continual_others, "domains"),
    "continual-questions-scene": partial(continual_others, "questions-scene"),
    "continual-questions-function": partial(continual_others, "questions-function"),
}


def _mean_seen(values: Sequence[Any]) -> np.ndarray:
    """Return the mean over the kinds of fault that scorers see, world by world."""
    return np.mean([one for kind, one in zip(KINDS, values, strict=True) if kind in SEEN_KINDS], axis=0)


def _estimate(values: Any) -> Estimate:
    return Estimate.of(contrast(values))


def to_markdown(table: Table) -> str:
    """Return a table's lines, and its note."""
    columns = as_columns(table.columns)
    lines = [[column.head for column in columns], ["---"] * len(columns)]
    lines += [
        [write_cell(cell, column.digits) for cell, column in zip(row, columns, strict=True)]
        for row in table.rows
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text + (f"\n\n{table.note}" if table.note else "") + "\n"


def fill(text: str, made: Mapping[str, str]) -> str:
    """Return a document with its blocks written anew."""
    return _BLOCK.sub(lambda match: match[1] + made[match[2]] + match[3], text)


def list_documents() -> list[Path]:
    """Return the documents that have blocks."""
    documents = [ROOT / "README.md", ROOT / "bench" / "RESULTS.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in documents if _BLOCK.search(path.read_text())]


def make(names: Sequence[str]) -> dict[str, str]:
    """Return blocks by name, as markdown."""
    return {name: to_markdown(BLOCKS[name]()) for name in names}


def main() -> int:
    """Write the blocks, or say which differ."""
    changed = []
    for path in list_documents():
        text = path.read_text()
        filled = fill(text, make([match[2] for match in _BLOCK.finditer(text)]))
        if filled != text:
            changed.append(path.relative_to(ROOT))
            if "--check" not in sys.argv:
                path.write_text(filled)
    for name in changed:
        print(f"{name}: {'differs from its results' if '--check' in sys.argv else 'written'}")
    return int(bool(changed) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
