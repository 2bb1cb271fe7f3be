"""How much of a benchmark the operations SWAP, REPLACE and ADD explain, and how much the rules write again.

The token-level causal lens (arXiv:2510.26302) reports that its algorithms replicate 60 to 80 %
of the hard negatives of ARO and VALSE, judged by an LLM. Here ``core/overlap.py`` judges, by a stated
definition over words; the two figures stand side by side and need not agree.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from raycomp.benchmarks.choice import Choice
from raycomp.core.concepts import Edit, parse_concepts
from raycomp.core.edits import propose
from raycomp.core.lexicon import Lexicon
from raycomp.core.overlap import Explanation, explain, is_regenerated, is_same_edit
from raycomp.core.phrases import Token
from raycomp.models.parser import Parser
from raycomp.schema import OPERATIONS

PAPER = {"aro": (0.6, 0.8), "valse": (0.6, 0.8)}
TWO_CALLS, NONE = "two calls", "none"
ANSWERS = (*OPERATIONS, TWO_CALLS, NONE)
MOST_EDITS = 1000
Z_95 = 1.959964


@dataclass(frozen=True)
class Overlap:
    """One split: its sound rows by what explains their first negative."""

    benchmark: str
    split: str
    count: int
    explained: Counter[str] = field(default_factory=Counter)
    """Rows by ``ANSWERS``."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Rows that nothing explains by ``core.overlap.REASONS``."""
    left_out: int = 0
    """Rows with a defect: outside ``count``."""
    named: int = 0
    """Rows of which the benchmark says an operation,"""
    agreed: int = 0
    """of these, rows that this one operation explains,"""
    agreed_kind: int = 0
    """of these, rows where also the kind of concept is what the benchmark says, if it does."""
    regenerated: int | None = None
    """Rows whose negative the rules engine writes, word for word, in one call; None without a lexicon."""
    same_edit: int | None = None
    """Rows where it applies the same operation to the very same words."""


def interval(part: int, whole: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score; (0, 1) where there are no rows."""
    if not whole:
        return 0.0, 1.0
    share, square = part / whole, Z_95**2 / whole
    middle = share + square / 2
    half = math.sqrt(square * share * (1 - share) + square**2 / 4)
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def measure_overlap(
    choices: Sequence[Choice], parser: Parser, lexicon: Lexicon | None, seed: int = 0
) -> list[Overlap]:
    """Return one row per benchmark and split, in order; of each choice the first two captions are compared.

    With a ``lexicon`` the rules engine is asked for all its edits of every positive; its choice of words is
    drawn with ``seed``.
    """
    rows = []
    for _, group in groupby(choices, key=lambda choice: (choice.benchmark, choice.split)):
        rows.append(_measure_split(list(group), parser, lexicon, seed))
    return rows


def _measure_split(rows: list[Choice], parser: Parser, lexicon: Lexicon | None, seed: int) -> Overlap:
    choices = [choice for choice in rows if not choice.defects]
    positives = parser.tokens([choice.positives[0] for choice in choices])
    negatives = parser.tokens([choice.negatives[0] for choice in choices])
    found = [explain(*pair) for pair in zip(positives, negatives, strict=True)]
    pairs = list(zip(choices, found, strict=True))
    agreed = [(choice, answer) for choice, answer in pairs if choice.op and answer.name == choice.op]
    repeats = []
    if lexicon is not None:
        for (choice, answer), tokens in zip(pairs, positives, strict=True):
            edits = _write_all(choice, tokens, parser, lexicon, seed)
            exact = is_regenerated(choice.negatives[0], edits)
            same = exact or is_same_edit(choice.positives[0], choice.negatives[0], answer.name, edits)
            repeats.append((exact, same))
    return Overlap(
        rows[0].benchmark,
        rows[0].split,
        len(choices),
        Counter(_answer(answer) for answer in found),
        Counter(answer.reason for answer in found if answer.reason),
        len(rows) - len(choices),
        sum(bool(choice.op) for choice in choices),
        len(agreed),
        sum(choice.kind in ("", answer.calls[0].kind) for choice, answer in agreed),
        None if lexicon is None else sum(exact for exact, _ in repeats),
        None if lexicon is None else sum(same for _, same in repeats),
    )


def _write_all(
    choice: Choice, tokens: Sequence[Token], parser: Parser, lexicon: Lexicon, seed: int
) -> list[Edit]:
    """Return every edit of the choice's first caption that the rules engine makes in one call."""
    parsed = parse_concepts(choice.positives[0], tokens, lexicon, parser.labels)
    key = f"{choice.benchmark}/{choice.split}/{choice.id}"
    return [edit for op in OPERATIONS for edit in propose(parsed, op, lexicon, seed, key, MOST_EDITS)]


def _answer(explanation: Explanation) -> str:
    return TWO_CALLS if len(explanation.calls) == 2 else explanation.name or NONE


def sum_rows(rows: Sequence[Overlap]) -> list[Overlap]:
    """Return one row for each benchmark over all its splits, named "all"."""
    totals = []
    for benchmark, group in groupby(rows, key=lambda row: row.benchmark):
        ours = list(group)
        knows = all(row.regenerated is not None for row in ours)
        totals.append(
            Overlap(
                benchmark,
                "all",
                sum(row.count for row in ours),
                sum((row.explained for row in ours), Counter()),
                sum((row.reasons for row in ours), Counter()),
                sum(row.left_out for row in ours),
                sum(row.named for row in ours),
                sum(row.agreed for row in ours),
                sum(row.agreed_kind for row in ours),
                sum(row.regenerated or 0 for row in ours) if knows else None,
                sum(row.same_edit or 0 for row in ours) if knows else None,
            )
        )
    return totals


def format_overlap(rows: Sequence[Overlap]) -> str:
    """Return the rows and each benchmark's total as a table of percentages; 95 % intervals by Wilson."""
    head = ["benchmark", "split", "rows", "left out", *ANSWERS, "explained [95 %]", "paper"]
    lines = [[*head, "its op", "op + kind", "same edit [95 %]", "word for word [95 %]"]]
    for row in (*rows, *sum_rows(rows)):
        paper = "{:.0%}-{:.0%}".format(*PAPER[row.benchmark]) if row.benchmark in PAPER else "-"
        lines.append(
            [
                row.benchmark,
                row.split,
                f"{row.count}",
                f"{row.left_out}",
                *(_percent(row.explained[answer], row.count) for answer in ANSWERS),
                _with_interval(row.count - row.explained[NONE], row.count),
                paper,
                _percent(row.agreed, row.named),
                _percent(row.agreed_kind, row.named),
                _with_interval(row.same_edit, row.count),
                _with_interval(row.regenerated, row.count),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    reasons = [
        f"{total.benchmark}: none because of "
        + ", ".join(f"{name} {count}" for name, count in total.reasons.most_common())
        for total in sum_rows(rows)
        if total.reasons
    ]
    return "\n".join(line.rstrip() for line in [*shown, *reasons])


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"


def _with_interval(part: int | None, whole: int) -> str:
    if part is None or not whole:
        return "-"
    low, high = interval(part, whole)
    return f"{100 * part / whole:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
