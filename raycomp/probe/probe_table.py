"""The tables of ``raycomp probe composition``, with notes that prevent misreading."""

from collections.abc import Sequence
from typing import Any

from raycomp.probe.probe import ProbeResult
from raycomp.table import Column, Columns, Numeral, Table, number, take_estimate, write_cell

_SETS = (
    "The A-distance compares the set of originals with the set of edits. The values are 2 (1 - 2 err) for "
    "the held-out error err of a linear classifier, a lower bound on average; values below 0 count as 0. "
    "Where the curve still rises towards N the bound is loose; do not compare values of different N. The "
    "interval covers the expected value at this N: only its lower end bounds the A-distance. Two SWAPs "
    "restore the caption, so both sets can have one distribution, and the A-distance is near 0 even for a "
    "perfect encoder. The distance of pairs relative to paraphrases, and the accuracy, show whether the "
    "encoder distinguishes the edit."
)
_NO_IMAGES = "s(I,T) - s(I,T~) and accuracy need image embeddings; images is not set."
_FIRST = ("operation", "calls")


def report_probe(result: ProbeResult, notes: Sequence[str] = ()) -> list[Table | str]:
    """Return the tables. ``notes`` are sentences below them."""
    lead = (
        f"{result.num_uids:,} uids, {result.num_paraphrased:,} with a paraphrase, "
        f"{result.num_with_other:,} with another caption; in brackets 95 % intervals"
    )
    tables = [
        _report_distances(result),
        _report_drops(result),
        _report_sets(result),
        _report_shuffles(result),
    ]
    return [lead, *tables, *([] if result.has_images else [_NO_IMAGES]), *notes]


def say_probe(result: ProbeResult) -> str:
    """Return a sentence with the distance of all edits over that of paraphrases; "" if it is not known."""
    line = result.operations[-1] if result.operations else {}
    ratio = take_estimate(line, "relative") if line else None
    if ratio is None or ratio.value != ratio.value:
        return ""
    return f"Edits move the text embedding {write_cell(ratio, 2)} times as far as paraphrases ({line['op']})"


def _report_distances(result: ProbeResult) -> Table:
    ratios = {"relative": "over paraphrase", "farther": "farther than it", "over_other": "over other"}
    columns: Columns = (*_FIRST, "pairs", Column("|g(T)-g(T~)|", digits=3))
    rows = [
        (*_name(line), line["num_pairs"], *(take_estimate(line, name) for name in ("distance", *ratios)))
        for line in result.operations
    ]
    over = (Column(name, digits=2) for name in ratios.values())
    return Table("Distances", [*columns, *over], rows)


def _report_drops(result: ProbeResult) -> Table:
    measures = {"text_drop": "1 - cos(g(T), g(T~))", "image_drop": "s(I,T) - s(I,T~)", "accuracy": "accuracy"}
    columns: Columns = (*_FIRST, *(Column(name, digits=3) for name in measures.values()))
    rows = [(*_name(line), *(take_estimate(line, name) for name in measures)) for line in result.operations]
    return Table("Cosines", columns, rows)


def _report_sets(result: ProbeResult) -> Table:
    curve = {"a_eighth": "N/8", "a_quarter": "N/4", "a_half": "N/2"}
    columns: Columns = (
        *(Column(name, digits=2) for name in (*curve.values(), "N")),
        "labels at random",
    )
    rows = [
        (*_name(line), *(line[name] for name in curve), take_estimate(line, "a_distance"), _report_null(line))
        for line in result.operations
    ]
    note = (
        f"A lower bound from one pair of each of N = {result.num_compared:,} captions (- where a row has "
        f"fewer). Labels at random: the middle 95 % of values if original and edit are swapped at random. "
        f"{_SETS}"
    )
    if not result.num_compared:
        return Table("A-distance", (*_FIRST, *columns), [], "Not measured: too few captions have an edit.")
    return Table("A-distance", (*_FIRST, *columns), rows, note)


def _report_shuffles(result: ProbeResult) -> Table:
    columns = (Column("words shuffled", "%", 0), "captions", Column("mean cosine to the caption", digits=3))
    rows = [(100 * row["share"], row["num"], take_estimate(row, "cosine")) for row in result.permutation]
    return Table("Shuffled words", columns, rows)


def _name(line: dict[str, Any]) -> tuple[str, int | None]:
    return line["op"], line["calls"] or None


def _report_null(line: dict[str, Any]) -> Numeral | None:
    low, high = (line[f"a_null_{end}"] for end in ("low", "high"))
    return Numeral(f"{number(low, 2)} to {number(high, 2)}") if low == low else None
