"""The composition probe's tables as text, with the sentences without which they mislead."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raycomp.loops.probes.probe import ProbeResult

_SETS = (
    "The A-distance compares the set of originals with that of edits. The values are 2 (1 - 2 err) of the",
    "held-out error of a linear classifier, on average a lower bound: below 0 they say no more than 0 does.",
    "Where the curve still rises towards N the bound is loose; values of another N may not be compared. The",
    "interval is of what is expected at this N: only its lower end says something of the A-distance itself.",
    "Where editing twice gives the caption back (SWAP) the sets can have one distribution, and it is",
    "near 0 even for a perfect encoder: whether that sees the edit is said by the distance of pairs, over",
    "that of paraphrases, and by the accuracy.",
)


def format_probe(result: ProbeResult, notes: Sequence[str] = ()) -> str:
    """Return the tables as text. ``notes`` are sentences that stand below them."""
    head = f"{'operation':<18}{'calls':>5}"
    return "\n".join(
        [
            f"{result.num_uids:,} uids, {result.num_paraphrased:,} with a paraphrase, "
            f"{result.num_with_other:,} with another caption; in brackets 95 % intervals",
            f"{head}{'pairs':>8}{'|g(T)-g(T~)|':>21}{'over paraphrase':>19}{'farther than it':>19}"
            f"{'over other':>19}",
            *(_format_distances(line) for line in result.operations),
            "",
            f"{head}{'1 - cos(g(T), g(T~))':>27}{'s(I,T) - s(I,T~)':>29}{'accuracy':>22}",
            *(_format_drops(line) for line in result.operations),
            "",
            f"A-distance, lower bound, of one pair of each of N = {result.num_compared:,} captions "
            "(- where a line has fewer)",
            f"{head}{'N/8':>8}{'N/4':>8}{'N/2':>8}{'N':>22}{'exchanged by coins':>24}",
            *(_format_sets(line) for line in result.operations),
            "",
            f"{'words shuffled':<18}{'captions':>9}{'mean cosine to the caption':>30}",
            *(
                f"{row['share']:<18.0%}{row['num']:>9,}{_span(row, 'cosine', 30)}"
                for row in result.permutation
            ),
            "",
            *_SETS,
            *(
                []
                if result.has_images
                else ["s(I,T) - s(I,T~) and accuracy need image embeddings; none given."]
            ),
            *notes,
        ]
    )


def _format_distances(line: dict[str, Any]) -> str:
    columns = [_span(line, name, 19, 2) for name in ("relative", "farther", "over_other")]
    return f"{_format_name(line)}{line['num_pairs']:>8,}{_span(line, 'distance', 21)}{''.join(columns)}"


def _format_drops(line: dict[str, Any]) -> str:
    text = f"{_format_name(line)}{_span(line, 'text_drop', 27)}"
    return f"{text}{_span(line, 'image_drop', 29)}{_span(line, 'accuracy', 22)}"


def _format_sets(line: dict[str, Any]) -> str:
    curve = "".join(f"{_show(line[name], 2):>8}" for name in ("a_eighth", "a_quarter", "a_half"))
    null = f"{_show(line['a_null_low'], 2)} to {_show(line['a_null_high'], 2)}".replace("- to -", "-")
    return f"{_format_name(line)}{curve}{_span(line, 'a_distance', 22, 2)}{null:>24}"


def _format_name(line: dict[str, Any]) -> str:
    return f"{line['op']:<18}{line['calls'] or '':>5}"


def _span(line: dict[str, Any], name: str, width: int, digits: int = 3) -> str:
    """Return "value (low high)", right-aligned; without what there is not."""
    value, low, high = (_show(line[name + end], digits) for end in ("", "_low", "_high"))
    return f"{value if low == '-' else f'{value} ({low} {high})':>{width}}"


def _show(value: float, digits: int = 3) -> str:
    return "-" if np.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}"
