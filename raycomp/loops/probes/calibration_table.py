"""The tables of ``raycomp probe pas``, and the sentences without which they mislead."""

import math
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
from raycomp.loops.probes.calibration import LEAST_SAMPLES, LEFT_OUT, PasResult

_PAPER_SAYS = "paper: CC3M, CLIP ViT-B/16 of OpenAI, 100,000 interventions"


def format_pas(result: PasResult, scorer: str) -> str:
    """Return the tables as text; ``scorer`` names model and weights."""
    taking_part = len(result.targets)
    return "\n".join(
        [
            f"scorer {scorer}; {result.num_samples:,} samples",
            f"{taking_part:,} of {result.num_targets:,} targets have a nonce, both words and another picture",
            *(f"  {reason} {num:,}: {LEFT_OUT[reason]}" for reason, num in result.left_out.items()),
            *(_tell_others(result) if taking_part and result.num_others else ()),
            "",
            *(_format_calibration(result.calibration) if taking_part else ()),
            *(
                _format_retest(result)
                if result.retest
                else [f"no retest: fewer than {LEAST_SAMPLES} samples"]
            ),
        ]
    )


def _format_calibration(lines: list[dict[str, Any]]) -> list[str]:
    total = next(line for line in lines if line["kind"] == ALL)
    paper = "".join(f"{PAPER[name]:>27.4f}" if name in PAPER else f"{'-':>27}" for name in CONDITIONS)
    return [
        "mean drop s(I, T) - s(I, T~); 95 % intervals over pictures, with the words as drawn",
        *_table(lines, tuple(CONDITIONS)),
        f"{'paper':<17}{paper}",
        f"({_PAPER_SAYS})",
        "",
        "paired differences; 95 % intervals over pictures",
        *_table(lines, tuple(DIFFERENCES)),
        f"the same; 95 % intervals over the {total['num_words']:,} target words, by Student's t",
        *_table(lines, tuple(DIFFERENCES), "_words"),
        "the same; 95 % intervals over nonces, by Student's t",
        *_table(lines, tuple(DIFFERENCES), "_nonces"),
        "",
        describe_order(total),
        describe_picture(total),
        "",
    ]


def _tell_others(result: PasResult) -> list[str]:
    """Say what nonces cost where no comparison was possible: the compared ones are no draw of all."""
    mean = next(line for line in result.calibration if line["kind"] == ALL)[NONCE]
    return [
        f"mean drop of a nonce: {mean:.4f} in the targets compared, {result.others_nonce:.4f} in the "
        f"{result.num_others:,} others with a nonce"
    ]


def _format_retest(result: PasResult) -> list[str]:
    names = ("reliability", "predicted")
    head = f"{'nonces':<8}{'reliability':>23}{'Spearman-Brown from 1':>23}{'kept by both':>14}"
    rows = [
        f"{line['count']:<8}"
        + "".join(f"{_span(line, name, 3):>23}" for name in names)
        + f"{_share(line['in_common']):>14}"
        for line in result.retest
    ]
    return [
        f"mean PAS of the same samples with other nonces ({result.num_again:,} targets with two or more)",
        head,
        *rows,
        f"By chance alone {result.keep:.1%} of the kept set would be kept by both.",
        f"Standard deviation of drops: {result.between:.4f} between targets, {result.within:.4f} between the "
        "nonces of one target.",
    ]


def _table(lines: list[dict[str, Any]], names: tuple[str, ...], over: str = "") -> list[str]:
    head = f"{'kind':<10}{'targets':>7}" + "".join(f"{name.replace('_', ' '):>27}" for name in names)
    rows = [
        f"{line['kind']:<10}{line['num_targets']:>7,}"
        + "".join(f"{_span(line, name, over=over):>27}" for name in names)
        for line in lines
    ]
    return [head, *rows]


def _span(line: dict[str, Any], name: str, digits: int = 4, over: str = "") -> str:
    """Return "value (low high)", without what there is not; ``over`` says what the interval resamples."""
    value, low, high = (f"{line[name + end]:.{digits}f}" for end in ("", f"{over}_low", f"{over}_high"))
    if value == "nan":
        return "-"
    return value if low == "nan" else f"{value} ({low} {high})"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
