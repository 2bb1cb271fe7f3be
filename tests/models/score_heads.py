"""Scores a parser's phrases against ``tests/files/heads.jsonl``, 200 captions labelled by hand.

The captions are the first ones of 100 photos of each set, drawn by ``random.Random(20260521)``. They were
labelled by reading them, before any parser had seen them: [start, end, kind] of every noun that heads a noun
phrase, by the rules of ``raycomp.language.phrases``. Garbled captions are labelled as they stand.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from raycomp.language.phrases import Phrase

LABELS = Path(__file__).parents[1] / "files" / "heads.jsonl"


def read_labels() -> list[dict]:
    """Return the labelled captions: image, source, caption, heads."""
    return [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]


def score_heads(parse: Callable[[Sequence[str]], list[list[Phrase]]]) -> dict[str, dict[str, float]]:
    """Return precision, recall and F1 of exact target spans, and the share of the found ones with equal kind.

    One entry per source and one for both together, each value in [0, 1].
    """
    rows = read_labels()
    phrases = parse([row["caption"] for row in rows])
    scores = {}
    for source in (*sorted({row["source"] for row in rows}), "both"):
        wanted, found = {}, {}
        for place, (row, spans) in enumerate(zip(rows, phrases, strict=True)):
            if source in (row["source"], "both"):
                wanted.update({(place, start, end): kind for start, end, kind in row["heads"]})
                found.update({(place, p.target_start, p.target_end): p.kind for p in spans})
        hits = wanted.keys() & found.keys()
        precision, recall = len(hits) / len(found), len(hits) / len(wanted)
        scores[source] = {
            "precision": round(precision, 4),
            "recall": round(recall, 4),
            "f1": round(2 * precision * recall / (precision + recall), 4),
            "kind_agreement": round(sum(wanted[hit] == found[hit] for hit in hits) / len(hits), 4),
            "heads": len(wanted),
        }
    return scores
