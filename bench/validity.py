"""Precision and recall of the validity rules on labelled edits, and their speed on one core.

Command: OMP_NUM_THREADS=1 python bench/validity.py

The edits of tests/files/labelled_negatives.jsonl were written by hand for this project and labelled before
the rules saw them; positive is "valid", intervals are Wilson's at 95 %. "held_out" was labelled when the
rules were final: over its 73 edits they had precision 0.906 [0.758, 0.968] and recall 0.967 [0.833, 0.994] in
the first run. The faults of that run were then fixed, so what is printed for it now is no longer held out;
"fresh" (32 edits) was labelled after that and changed nothing: precision 0.889 [0.672, 0.969], recall 1.000
[0.806, 1.000]. Each edit judged otherwise than its label says is printed. The last line is one JSON object.
"""

import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

from raycomp.language.concepts import parse_concepts
from raycomp.language.judge import judge_edit
from raycomp.models.parser import load_lexicon, load_parser
from raycomp.table import Table

LABELS = Path(__file__).parents[1] / "tests" / "files" / "labelled_negatives.jsonl"
VALID = "valid"
PARTS = ("before", "after", "original")
REPEATS = 5
Z = 1.96


def judge_all(rows: list[dict[str, Any]]) -> tuple[list[str], float]:
    """Return the verdict on every row, and the judgements per second of CPU time, parsing not counted."""
    parser, lexicon = load_parser(), load_lexicon()
    texts = sorted({text for row in rows for text in (*row["others"], *(row[key] for key in PARTS))})
    tokens = parser.tokens(texts)
    parsed = {
        text: parse_concepts(text, own, lexicon, parser.labels)
        for text, own in zip(texts, tokens, strict=True)
    }
    cases = [
        (row["op"], *(parsed[row[key]] for key in PARTS), [parsed[text] for text in row["others"]])
        for row in rows
    ]
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        verdicts = [judge_edit(*case, lexicon) or VALID for case in cases]
        seconds.append(time.process_time() - start)
    return verdicts, len(rows) / min(seconds)


def score(rows: list[dict[str, Any]], verdicts: list[str]) -> dict[str, Any]:
    """Return precision and recall of "valid", each with its interval, and the share of right reasons."""
    pairs = [(row["valid"], verdict == VALID) for row, verdict in zip(rows, verdicts, strict=True)]
    hits = sum(label and found for label, found in pairs)
    bad = [(row["reason"], verdict) for row, verdict in zip(rows, verdicts, strict=True) if not row["valid"]]
    return {
        "edits": len(rows),
        "labelled_valid": sum(label for label, _ in pairs),
        "precision": share(hits, sum(found for _, found in pairs)),
        "recall": share(hits, sum(label for label, _ in pairs)),
        "reason_as_labelled": share(sum(reason == verdict for reason, verdict in bad), len(bad)),
    }


def share(part: int, whole: int) -> list[float]:
    """Return part / whole and Wilson's interval."""
    p = part / whole
    middle = p + Z**2 / (2 * whole)
    reach = Z * math.sqrt(p * (1 - p) / whole + Z**2 / (4 * whole**2))
    low, high = ((middle + side * reach) / (1 + Z**2 / whole) for side in (-1, 1))
    return [round(value, 3) for value in (p, low, high)]


def main() -> None:
    """Print scores, confusions, and the edits that were judged otherwise."""
    rows = [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]
    verdicts, speed = judge_all(rows)
    result: dict[str, Any] = {"bench": "validity", "judgements_per_s_per_core": round(speed)}
    for part in ("dev", "held_out", "fresh"):
        own = [i for i, row in enumerate(rows) if row["part"] == part]
        if own:
            result[part] = score([rows[i] for i in own], [verdicts[i] for i in own])
            print(part, result[part])
    confusion = Counter(
        (row["reason"] or VALID, verdict) for row, verdict in zip(rows, verdicts, strict=True)
    )
    shown = [(*pair, number, "" if pair[0] == pair[1] else "<") for pair, number in sorted(confusion.items())]
    print(Table("", ("label", "verdict", "number", ""), shown).to_text())
    for row, verdict in zip(rows, verdicts, strict=True):
        if (row["reason"] or VALID) != verdict:
            print(
                f"{row['part']}: {row['op']} {row['before']!r} -> {row['after']!r}, others {row['others']}: "
                f"label {row['reason'] or VALID}, judged {verdict}"
            )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
