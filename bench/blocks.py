"""Tables and numbers of the documents, from the committed results.

    python -m bench.blocks            # writes the tables anew, checks the numbers
    python -m bench.blocks --check    # says what differs; exit code 1

A table stands in a document between `<!-- table NAME -->` and `<!-- end -->`.

Each number in the prose of ``PAGES`` has its source in a comment at the end of its paragraph or list item,
which no reader of the page sees:

    Brittleness is .141 after it (difference .014 [.000, .027]).
    <!-- from demo.csv / brittleness: after / difference / low / high -->

A source is a file below bench/results or the name of a table here, then entries that only one row has, then
columns; `number of COLUMN` and `sum of COLUMN` are over all rows that have the entries. Sources follow each
other after `;`, in the order of the numbers. A share may be written in percent, and a difference without its
minus ("fewer"). Code, links and what has a letter in front of it (``ViT-B/16``) are not numbers.
tests/test_blocks.py fails where a table or a number is not what its file says.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

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
PAGES = ("README.md", "docs/results.md")
"""The pages of which every number has a source."""
_BY_TEXT = ("classifier", "few_words")
_BLOCK = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SOURCES = re.compile(r"<!-- from (.*?) -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```|<!-- table .*?<!-- end -->", re.DOTALL | re.MULTILINE)
_VERSIONS = r"Python \d\.\d+(?:(?:, | or )\d\.\d+)*|CC BY-SA 4\.0"
_NO_PROSE = re.compile(rf"<!--.*?-->|`[^`]*`|\]\([^)]*\)|{_VERSIONS}", re.DOTALL)
_NUMERAL = r"[-\u2212]?(?=\.?\d)(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?(?:e-?\d+)?"
_NUMBERS = re.compile(rf"\[({_NUMERAL}),\s+({_NUMERAL})\]|(?<![\w@/.-])({_NUMERAL})")
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


def photo_text() -> Table:
    """What the caption alone reveals of SugarCrepe's edits."""
    rows = []
    for line in read_csv((RESULTS / "pas_screen" / "photo_text.csv").read_text()):
        areas = [Estimate(*(float(line[f"{n}{end}"]) for end in ("", "_low", "_high"))) for n in _BY_TEXT]
        rows.append([line["kind"], int(line["true"]), int(line["false"]), *areas])
    heads = ("kind of edit", "true", "false", "AUC, text-only classifier", "AUC, few words")
    return Table("", [*heads[:3], *(Column(head, digits=3) for head in heads[3:])], rows)


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


def sight() -> Table:
    """Paired differences between choices of negatives, over worlds, in points."""
    found: dict[str, list[dict[str, str]]] = {}
    for line in read_csv((RESULTS / "sight.csv").read_text()):
        found.setdefault(line["choice"], []).append(line)
    names = {"relation": "relations", "attribute": "attributes", "recall": "recall@1"}
    pairs = ("refined", "unrefined"), ("refined", "thinned"), ("unrefined", "clip"), ("refined", "clip")
    rows: list[list[Any]] = []
    for one, other in pairs:
        lines = list(zip(found[one], found[other], strict=True))
        differences = ([100 * (float(a[name]) - float(b[name])) for a, b in lines] for name in names)
        rows.append([f"{one} minus {other}", *map(_estimate, differences)])
    return Table("", ["contrast", *(Column(name, "points", 1) for name in names.values())], rows)


def readings() -> Table:
    """The time of PAS next to that of alignment, by reading."""
    rows: list[list[Any]] = [
        [
            {"nouns": "all nouns", "default": "content words"}.get(line["reading"], line["reading"]),
            *(int(line[name]) for name in ("nonces", "targets", "valid", "pool", "with_pas")),
            float(line["cpu_seconds"]),
            float(line["attribute_s"]) / float(line["align_s"]),
        ]
        for line in read_csv((RESULTS / "readings.csv").read_text())
    ]
    heads = ("nonces", "targets", "with a valid nonce", "pool", "with PAS")
    ends = Column("CPU s of the command", digits=1), Column("PAS over alignment, time", digits=2)
    return Table("", ["reading", *(Column(head) for head in heads), *ends], rows)


BLOCKS: dict[str, Callable[[], Table]] = {
    "sight": sight,
    "readings": readings,
    "pas-registered": registered,
    "pas-rules": rules,
    "pas-alike": lengths_alike,
    "pas-cues": cues,
    "pas-lengths": kept_lengths,
    "pas-text": text_only,
    "pas-photo-text": photo_text,
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


class Source(NamedTuple):
    """A value of a table, with the ends of its interval if the table has them, and the words that name it."""

    name: str
    values: tuple[float, ...]


@cache
def _read_rows(source: str) -> list[dict[str, Any]]:
    if source not in BLOCKS:
        return list(read_csv((RESULTS / source).read_text()))
    table = BLOCKS[source]()
    return [
        dict(zip((one.head for one in as_columns(table.columns)), row, strict=True)) for row in table.rows
    ]


def find_sources(text: str) -> list[Source]:
    """Return what a comment names; raises ValueError where it names no entry of one row."""
    found = []
    for one in " ".join(text.split()).split("; "):
        where, _, names = one.partition(": ")
        source, *cells = where.split(" / ")
        if source not in BLOCKS and not (RESULTS / source).is_file():
            raise ValueError(f"{source}: neither a file of bench/results nor a table of bench.blocks")
        rows = [row for row in _read_rows(source) if {*cells} <= {*map(str, row.values())}]
        for name in names.split(" / "):
            how, of, column = name.partition(" of ") if re.match("(number|sum) of ", name) else ("", "", name)
            if not rows or column not in rows[0]:
                raise ValueError(f"{one}: no such row, or no column {column!r}")
            if not of and len(rows) > 1:
                raise ValueError(f"{one}: {len(rows)} rows have these entries; name one")
            if how == "number":
                cell: Any = len({row[column] for row in rows})
            else:
                cell = sum(float(row[column]) for row in rows) if of else rows[0][column]
            values = (cell.value, cell.low, cell.high) if isinstance(cell, Estimate) else (float(cell),)
            found.append(Source(f"{where}: {name}", values))
    return found


def list_paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs and list items without code and tables, with the number of their first line."""
    start = 0
    lines: list[str] = []
    plain = _CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate([*plain.split("\n"), ""], 1):
        if lines and (not line.strip() or re.match(r"\s*[-*] ", line)):
            yield start, "\n".join(lines)
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line)


def read_prose(paragraph: str) -> str:
    """Return a paragraph with blanks in place of comments, code and links, as long as it was."""
    return _NO_PROSE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), paragraph)


def check_numbers(text: str) -> Iterator[str]:
    """Yield the line of each number of a page that has no source, or another value there, and why."""
    for start, paragraph in list_paragraphs(text):
        named = ";\n".join(_SOURCES.findall(paragraph))
        prose = read_prose(paragraph)
        # A number, and the interval that follows it.
        groups: list[list[re.Match[str]]] = []
        for match in _NUMBERS.finditer(prose):
            if match[1] and groups:
                groups[-1].append(match)
            else:
                groups.append([match])
        try:
            sources = find_sources(named) if named else []
        except ValueError as error:
            yield f"{start}: {error}"
            continue
        for group in groups:
            written = [numeral for match in group for numeral in match.groups() if numeral]
            values: list[float] = []
            names = []
            while sources and (not values or len(values) < len(written)):
                names.append(sources[0].name)
                values += sources.pop(0).values
            line = start + prose[: group[0].start()].count("\n")
            shown = " ".join(match[0] for match in group)
            if not names:
                yield f"{line}: {shown}: no source; name one in `<!-- from ... -->`, or leave it out"
            elif not _agree(written, values):
                rounded = ", ".join(f"{value:.6g}" for value in values)
                yield f"{line}: {shown}: {rounded} in {'; '.join(names)}"
        for source in sources:
            yield f"{start}: {source.name}: a source too many; no number is left for it"


def _agree(written: Sequence[str], values: Sequence[float]) -> bool:
    """Return whether numbers are these values, rounded; in percent too, and turned around without a minus."""
    plain = [one.replace(",", "").replace("\u2212", "-") for one in written]
    values = values[: len(plain)]
    turned = [-values[0], *(-one for one in reversed(values[1:]))]
    choices = [values] if plain[0].startswith("-") else [values, turned]
    reach = [0.5 * 10.0 ** int(Decimal(one).as_tuple().exponent) + 1e-9 for one in plain]
    return any(
        len(own) == len(plain)
        and all(abs(times * b - float(a)) <= half for a, b, half in zip(plain, own, reach, strict=True))
        for own in choices
        for times in (1, 100)
    )


def main() -> int:
    """Write the blocks, or say which differ, and which numbers do."""
    changed = []
    wrong = [f"{page}:{one}" for page in PAGES for one in check_numbers((ROOT / page).read_text())]
    for path in list_documents():
        text = path.read_text()
        filled = fill(text, make([match[2] for match in _BLOCK.finditer(text)]))
        if filled != text:
            changed.append(path.relative_to(ROOT))
            if "--check" not in sys.argv:
                path.write_text(filled)
    for name in changed:
        print(f"{name}: {'differs from its results' if '--check' in sys.argv else 'written'}")
    print("".join(f"{one}\n" for one in wrong), end="")
    return int(bool(wrong) or (bool(changed) and "--check" in sys.argv))


if __name__ == "__main__":
    sys.exit(main())
