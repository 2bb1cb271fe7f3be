"""The tables of ``raycomp probe pas``, with notes that prevent misreading."""

from collections.abc import Iterable
from typing import Any

from raycomp.core.calibration import (
    ALL,
    CONDITIONS,
    DIFFERENCES,
    NONCE,
    PAPER,
    describe_order,
    describe_picture,
)
from raycomp.core.pas_profile import PAPER_ALIGNMENT, PAPER_DISPLACEMENT
from raycomp.curation.config import PAPER_READING
from raycomp.probe.calibration import LEAST_SAMPLES, LEFT_OUT, PasResult
from raycomp.table import Cell, Column, Columns, Estimate, Table, take_estimate, write_cell

_PAPER_SAYS = "Paper: CC3M, CLIP ViT-B/16 of OpenAI, 100,000 interventions."
_DIFFERENCES = "Paired differences; 95 % intervals over"


def report_pas(result: PasResult, scorer: str) -> list[Table | str]:
    """Return the tables; ``scorer`` names model and weights."""
    lead = (
        f"Scorer {scorer}; {result.num_samples:,} samples. {len(result.targets):,} of "
        f"{result.num_targets:,} targets have a nonce, both replacement words and another picture."
    )
    left_out = [(reason, num, LEFT_OUT[reason]) for reason, num in result.left_out.items()]
    return [
        lead,
        _table_profile(result),
        *([Table("Targets left out", ("reason", "targets", "meaning"), left_out)] if left_out else []),
        *(_report_calibration(result) if result.targets else []),
        _report_retest(result) if result.retest else f"No retest: fewer than {LEAST_SAMPLES} samples.",
    ]


def say_pas(result: PasResult) -> str:
    """Return a sentence on the drop of a nonce beyond its drop with a wrong image; "" without targets."""
    total = next((line for line in result.calibration if line["kind"] == ALL), None)
    if total is None:
        return ""
    found = take_estimate(total, "right_over_wrong")
    value, low, high = found.value, found.low, found.high
    if low <= 0 <= high:
        reported = write_cell(found, 4)
        return f"A nonce's drop does not differ visibly between its own and a wrong image: {reported}"
    more = found if value > 0 else Estimate(-value, -high, -low)
    side = "more" if value > 0 else "less"
    reported = write_cell(more, 4)
    return (
        f"A nonce lowers the cosine by {reported} {side} with the caption's own image than with a wrong one"
    )


def _table_profile(result: PasResult) -> Table:
    """Return the correlates of the score that ranks, with the paper's figures, which are of its own PAS."""
    profile, is_paper = result.profile, result.score == PAPER_READING
    names = {
        "alignment": ("score with alignment, r", PAPER_ALIGNMENT if is_paper else None),
        "displacement": ("drop with displacement of the text, r", PAPER_DISPLACEMENT),
        "text": ("score explained by the text alone, R^2", None),
    }
    rows: list[tuple[Cell, ...]] = [
        (what, take_interval(profile[name]), profile[name]["num"], paper)
        for name, (what, paper) in names.items()
    ]
    note = (
        "Over the samples that passed the alignment gate. The text alone: words of the caption, targets, "
        "mean displacement (shift of the text embedding). A high R^2, or drops that follow the displacement, "
        "mean that PAS ranks captions, not the content of pictures. docs/study_pas.md has these values for "
        "worlds with known faults."
    )
    title = f"Correlates of the score: {result.score}"
    return Table(title, ("", Column("value", digits=3), "rows", "paper"), rows, note)


def take_interval(values: dict[str, float]) -> Estimate:
    """Return a value with its interval."""
    return Estimate(values["value"], values["low"], values["high"])


def _report_calibration(result: PasResult) -> list[Table]:
    lines = result.calibration
    total = next(line for line in lines if line["kind"] == ALL)
    means = _report_lines("Mean drop s(I, T) - s(I, T~)", lines, CONDITIONS)
    paper = ("paper", None, *(PAPER.get(name) for name in CONDITIONS))
    note = "95 % intervals over pictures, with the words as drawn. "
    note += f"{_PAPER_SAYS}{_describe_others(result, total)}"
    over = {"_words": f"the {total['num_words']:,} target words, by Student's t"}
    over |= {"_nonces": "nonces, by Student's t"}
    reported = f"{describe_order(total)} {describe_picture(total)}"
    return [
        Table(means.title, means.columns, [*means.rows, paper], note),
        _report_lines(f"{_DIFFERENCES} pictures", lines, DIFFERENCES, note=reported),
        *(_report_lines(f"{_DIFFERENCES} {what}", lines, DIFFERENCES, end) for end, what in over.items()),
    ]


def _report_lines(
    title: str, lines: list[dict[str, Any]], names: Iterable[str], over: str = "", note: str = ""
) -> Table:
    """Return a row of estimates per kind of phrase; ``over`` names the unit that the intervals resample."""
    columns = ("kind", "targets", *(name.replace("_", " ") for name in names))
    rows = [(x["kind"], x["num_targets"], *(take_estimate(x, name, over) for name in names)) for x in lines]
    return Table(title, columns, rows, note)


def _describe_others(result: PasResult, total: dict[str, Any]) -> str:
    """Describe the drops of targets without a comparison: the compared ones are no random sample of all."""
    if not result.num_others:
        return ""
    return (
        f" Mean drop of a nonce: {total[NONCE]:.4f} in the targets compared, {result.others_nonce:.4f} in "
        f"the {result.num_others:,} others with a nonce."
    )


def _report_retest(result: PasResult) -> Table:
    names = {"reliability": "reliability", "predicted": "Spearman-Brown from 1"}
    estimates = (Column(head, digits=3) for head in names.values())
    rows = [
        (line["count"], *(take_estimate(line, name) for name in names), 100 * line["in_common"])
        for line in result.retest
    ]
    note = (
        f"{result.num_again:,} targets have two nonces or more. At chance both keep {result.keep:.1%} of the "
        f"kept set. Standard deviation of drops: {result.between:.4f} between targets, "
        f"{result.within:.4f} between the nonces of one target."
    )
    columns: Columns = ("nonces", *estimates, Column("kept by both", "%", 1))
    return Table(f"The same samples with other nonces: {result.score}", columns, rows, note)
