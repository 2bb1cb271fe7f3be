"""The sentences that head the pages of ``evaluate`` and ``compare``: result, interval, baselines."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raycomp.evaluation.baselines import Margin, say_margins, say_verdict
from raycomp.evaluation.compare import Line as Difference
from raycomp.evaluation.table import Line
from raycomp.table import Estimate, group_by, number, write_cell
from raycomp.words import MACRO, MICRO

DIGITS = 3


class Answer(NamedTuple):
    """The answer of a page to its question, for one benchmark."""

    head: str
    """One sentence with the value and its interval."""
    details: Sequence[str] = ()
    """Sentences on splits and baselines."""


def answer_evaluation(name: str, lines: Sequence[Line], margins: Sequence[Margin]) -> list[Answer]:
    """Return an answer for each benchmark of an evaluation; ``name`` is that of the model."""
    answers = []
    for benchmark, own in group_by(lines, lambda line: line.benchmark).items():
        metric = own[0].metric
        main = [line for line in own if not line.control and line.metric == metric]
        best = next((line for line in main if line.split == MACRO), main[0])
        num = sum(line.split not in (MACRO, MICRO) for line in main)
        over = f", mean of {num} splits" if num > 1 else ""
        value = write_cell(Estimate.of(best), DIGITS)
        of_own = [one for one in margins if one.benchmark == benchmark]
        verdict = _say_head(of_own)
        details = [f"Blind baselines: {say_margins(of_own)}."] if of_own else []
        details += [f"Chance is {number(best.chance, DIGITS)}."] if best.chance == best.chance else []
        head = f"{name}: {_name(metric)} {value} on {benchmark}{over}{verdict}."
        answers.append(Answer(head, details))
    return answers


def _say_head(margins: Sequence[Margin]) -> str:
    verdict = say_verdict(margins)
    if not margins:
        return ""
    return f"; it {verdict} its blind baselines" if verdict == "passes" else f"; it is {verdict}"


def answer_comparison(lines: Sequence[Difference], margins: Mapping[str, Sequence[Margin]]) -> list[Answer]:
    """Return an answer for each run and benchmark; ``margins`` by the name of the run, the reference too."""
    answers = []
    for (_, benchmark), own in group_by(lines, lambda line: (line.run, line.benchmark)).items():
        main = [line for line in own if line.metric == own[0].metric]
        best = next((line for line in main if line.split == MACRO), main[0])
        splits = [line for line in main if line.split not in (MACRO, MICRO) and line.n]
        details = [_say_splits(splits)] if len(splits) > 1 else []
        for name in (best.reference, best.run):
            of_own = [one for one in margins.get(name, ()) if one.benchmark == benchmark]
            details += [f"Blind baselines of {name}: {say_margins(of_own)}."] if of_own else []
        answers.append(Answer(_say_difference(best, len(splits)), details))
    return answers


def _say_difference(line: Difference, num_splits: int) -> str:
    values = f"{number(line.run_value, DIGITS)} against {number(line.reference_value, DIGITS)}"
    found = Estimate(line.difference, line.low, line.high)
    over = f" (mean of {num_splits} splits)" if num_splits > 1 else ""
    what = f"{_name(line.metric)}{over} {values}, a difference of {write_cell(found, DIGITS)}"
    if line.side:
        verb = "is better than" if line.side > 0 else "is worse than"
        return f"{line.run} {verb} {line.reference} on {line.benchmark}: {what}."
    return f"{line.run} and {line.reference} do not differ significantly on {line.benchmark}: {what}."


def _say_splits(splits: Sequence[Difference]) -> str:
    """Return the splits by the side of their interval: "Higher in 1 of 3 splits: a. ..."."""
    said = []
    for what, side in (("Higher", 1), ("Lower", -1), ("No significant difference", 0)):
        names = [line.split.replace("_", " ") for line in splits if line.side == side]
        if not side and len(names) == len(splits):
            return f"No significant difference in any of {len(splits)} splits."
        said += [f"{what} in {len(names)} of {len(splits)} splits: {', '.join(names)}."] if names else []
    return " ".join(said)


def _name(metric: str) -> str:
    return metric.replace("_", " ")
