"""The share of a benchmark that SWAP, REPLACE and ADD explain, and the share that the rules regenerate.

The token-level causal lens (arXiv:2510.26302) reports that its algorithms replicate 60 to 80 %
of the hard negatives of ARO and VALSE, judged by an LLM. Here ``language/overlap.py`` judges, by a stated
definition over words. The table gives both figures; they need not agree.

A definition over words also explains many paraphrases: "a cat rests on a mat" for "a cat lies on a mat" is
one REPLACE by that definition. So where a benchmark's rows hold a second true caption, it is explained like a
negative. The explained share of negatives is meaningful only where it exceeds that of these paraphrases.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from itertools import groupby
from operator import add
from typing import Any

from raycomp.core.metrics import share_interval
from raycomp.evaluation.benchmarks.choice import Choice
from raycomp.language.concepts import parse_concepts
from raycomp.language.lexicon import Lexicon
from raycomp.language.overlap import Explanation, explain, is_regenerated, is_same_edit
from raycomp.language.propose import propose
from raycomp.language.tokens import Token
from raycomp.models.parser import Parser
from raycomp.report.page import render_page
from raycomp.table import Cell, Column, Columns, Estimate, Numeral, Table, write_cell
from raycomp.words import OPERATIONS

PAPER = {"aro": (0.6, 0.8), "valse": (0.6, 0.8)}
TWO_CALLS, NONE = "two calls", "none"
ANSWERS = (*OPERATIONS, TWO_CALLS, NONE)
MOST_EDITS = 1000
_NULLS = {"sugarcrepe": "those of sugarcrepe_pp are of its captions"}
_HINT = "those of another benchmark, of other captions, are a hint at most"
# Answers of one call first, so that the end of the third part is their share.
_COLOURS = dict(zip(ANSWERS, ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#bbbbbb"), strict=True))
LEFT, WIDTH = 250, 500


@dataclass(frozen=True)
class Overlap:
    """One split: its sound rows by the explanation of their first negative."""

    benchmark: str
    split: str
    count: int
    explained: Counter[str] = field(default_factory=Counter)
    """Rows by ``ANSWERS``."""
    paraphrased: Counter[str] = field(default_factory=Counter)
    """Rows with a second true caption, by its explanation from the first, of ``ANSWERS``; empty = none."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Unexplained rows by ``language.overlap.REASONS``."""
    left_out: int = 0
    """Rows with a defect; not in ``count``."""
    named: int = 0
    """Rows for which the benchmark names an operation."""
    agreed: int = 0
    """Of ``named``: rows that this one operation explains."""
    agreed_kind: int = 0
    """Of ``agreed``: rows whose kind of concept also equals the benchmark's, if it names one."""
    regenerated: int | None = None
    """Rows whose negative the rules engine writes, word for word, in one call; None without a lexicon."""
    same_edit: int | None = None
    """Rows where the engine applies the same operation to exactly the same words."""


def measure_overlap(
    choices: Sequence[Choice], parser: Parser, lexicon: Lexicon | None, seed: int = 0
) -> list[Overlap]:
    """Return one row per benchmark and split, in order; the first two captions of each choice are compared.

    With a ``lexicon`` the rules engine makes all its edits of every positive; ``seed`` draws its choice of
    words.
    """
    groups = groupby(choices, key=lambda choice: (choice.benchmark, choice.split))
    return [_measure_split(list(group), parser, lexicon, seed) for _, group in groups]


def _measure_split(rows: list[Choice], parser: Parser, lexicon: Lexicon | None, seed: int) -> Overlap:
    choices = [choice for choice in rows if not choice.defects]
    positives = parser.tokens([choice.positives[0] for choice in choices])
    found = _explain_all(positives, [choice.negatives[0] for choice in choices], parser)
    pairs = [
        (tokens, choice) for tokens, choice in zip(positives, choices, strict=True) if choice.positives[1:]
    ]
    reworded = _explain_all([tokens for tokens, _ in pairs], [c.positives[1] for _, c in pairs], parser)
    named = [(choice, answer) for choice, answer in zip(choices, found, strict=True) if choice.op]
    agreed = [(choice, answer) for choice, answer in named if answer.name == choice.op]
    exact, same = None, None
    if lexicon is not None:
        exact, same = _count_repeats(choices, positives, found, parser, lexicon, seed)
    return Overlap(
        benchmark=rows[0].benchmark,
        split=rows[0].split,
        count=len(choices),
        explained=Counter(map(_answer, found)),
        paraphrased=Counter(map(_answer, reworded)),
        reasons=Counter(answer.reason for answer in found if answer.reason),
        left_out=len(rows) - len(choices),
        named=len(named),
        agreed=len(agreed),
        agreed_kind=sum(choice.kind in ("", answer.calls[0].kind) for choice, answer in agreed),
        regenerated=exact,
        same_edit=same,
    )


def _explain_all(
    positives: Sequence[Sequence[Token]], texts: Sequence[str], parser: Parser
) -> list[Explanation]:
    return [explain(*pair) for pair in zip(positives, parser.tokens(texts), strict=True)]


def _count_repeats(
    choices: Sequence[Choice],
    positives: Sequence[Sequence[Token]],
    found: Sequence[Explanation],
    parser: Parser,
    lexicon: Lexicon,
    seed: int,
) -> tuple[int, int]:
    """Return how many negatives the rules engine writes word for word, and how many by the same edit."""
    num_exact = num_same = 0
    for choice, tokens, answer in zip(choices, positives, found, strict=True):
        parsed = parse_concepts(choice.positives[0], tokens, lexicon, parser.labels)
        key = f"{choice.benchmark}/{choice.split}/{choice.id}"
        edits = [edit for op in OPERATIONS for edit in propose(parsed, op, lexicon, seed, key, MOST_EDITS)]
        is_exact = is_regenerated(choice.negatives[0], edits)
        num_exact += is_exact
        num_same += is_exact or is_same_edit(choice.positives[0], choice.negatives[0], answer.name, edits)
    return num_exact, num_same


def _answer(explanation: Explanation) -> str:
    return TWO_CALLS if len(explanation.calls) == 2 else explanation.name or NONE


def count_calls(answers: Counter[str]) -> tuple[int, int]:
    """Return how many of the answers take one call, and how many at most two."""
    one_call = sum(answers[op] for op in OPERATIONS)
    return one_call, one_call + answers[TWO_CALLS]


def sum_rows(rows: Sequence[Overlap]) -> list[Overlap]:
    """Return one row for each benchmark over all its splits, named "all"."""
    totals = []
    for benchmark, group in groupby(rows, key=lambda row: row.benchmark):
        ours = list(group)
        sums: dict[str, Any] = {}
        for name in (one.name for one in fields(Overlap)[2:]):
            values = [getattr(row, name) for row in ours]
            sums[name] = None if None in values else reduce(add, values)
        totals.append(Overlap(benchmark, "all", **sums))
    return totals


def report_overlap(rows: Sequence[Overlap]) -> list[Table | str]:
    """Return the rows and each benchmark's total as two tables, in percent with 95 % intervals by Wilson.

    The first table explains the negatives and the second true captions. The second gives the agreement with
    the benchmark and with the rules.
    """
    totals = sum_rows(rows)
    shown = [*rows, *totals]
    shares = [Column(name, "%", 1) for name in (*ANSWERS, "one call", "one or two")]
    null = [Column(name, "%", 1) for name in ("theirs, one call", "theirs, one or two")]
    columns: Columns = (
        *("benchmark", "split", "rows", "left out"),
        *shares,
        *("paper", "paraphrases"),
        *null,
    )
    # Paraphrases are a reference for the negatives; where a benchmark has none, which ones to read.
    lead = "Paraphrases: second true captions, explained in the same way, as a reference for the negatives."
    lacking = [row.benchmark for row in totals if not row.paraphrased]
    paraphrases = [lead, *(f"{name}: no paraphrases; {_NULLS.get(name, _HINT)}." for name in lacking)]
    agreed = ("benchmark", "split", "its op", "its op and kind", "rules: same edit", "rules: word for word")
    counts = [(t.benchmark, ", ".join(f"{why} {n}" for why, n in t.reasons.most_common())) for t in totals]
    unexplained = [f"{name}: unexplained because of {said}." for name, said in counts if said]
    explained_rows, agreed_rows = list(map(_report_explained, shown)), list(map(_report_agreed, shown))
    return [
        Table("Explanations of the negatives", columns, explained_rows, " ".join(paraphrases)),
        Table("Agreement with the benchmark and with the rules", agreed, agreed_rows, " ".join(unexplained)),
    ]


def say_overlap(rows: Sequence[Overlap]) -> str:
    """Return a sentence with the first benchmark's share of negatives that one call explains."""
    total = next(iter(sum_rows(rows)), None)
    if total is None or not total.count:
        return ""
    share = _estimate(count_calls(total.explained)[0], total.count)
    return (
        f"One call of SWAP, REPLACE or ADD explains {write_cell(share, 1)} % of {total.benchmark}'s negatives"
    )


def _report_explained(row: Overlap) -> list[Cell]:
    paper = Numeral("{:.0%}-{:.0%}".format(*PAPER[row.benchmark])) if row.benchmark in PAPER else None
    shares: list[Cell] = [
        100 * row.explained[answer] / row.count if row.count else None for answer in ANSWERS
    ]
    calls = [_estimate(part, row.count) for part in count_calls(row.explained)]
    reworded = row.paraphrased.total()
    null = [_estimate(part, reworded) for part in count_calls(row.paraphrased)]
    counts: list[Cell] = [row.benchmark, row.split, row.count, row.left_out]
    return [*counts, *shares, *calls, paper, reworded or None, *null]


def _report_agreed(row: Overlap) -> list[Cell]:
    parts = ((row.agreed, row.named), (row.agreed_kind, row.named))
    repeats = ((row.same_edit, row.count), (row.regenerated, row.count))
    return [row.benchmark, row.split, *(_of(*pair) for pair in (*parts, *repeats))]


def _estimate(part: int, whole: int) -> Estimate | None:
    """Return a share in percent with its interval, None for an empty whole."""
    return Estimate(part / whole, *share_interval(part, whole)).times(100) if whole else None


def _of(part: int | None, whole: int) -> Numeral | None:
    """Return a share with its counts: "3/4 75.0 [30.1, 95.4]"."""
    if part is None or not whole:
        return None
    return Numeral(f"{part}/{whole} {write_cell(_estimate(part, whole), 1)}")


def draw_overlap(rows: Sequence[Overlap]) -> str:
    """Return an SVG file's text: stacked shares, 500 px for all rows; dashes mark the paper's range."""
    values = {"rows": rows, "colours": _COLOURS, "paper": PAPER, "left": LEFT, "width": WIDTH}
    return render_page("probe/overlap.svg.jinja", **values) + "\n"
