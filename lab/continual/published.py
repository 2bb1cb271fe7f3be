"""``python -m lab published DIR``: the results reported in the paper of COMPO-REALIGN, and which of its
differences a finished run of ``raycomp continual`` reproduces.

openreview.net/forum?id=eiTy6AYeQi, the tables of retrieval, of questions and of the ablations: averages over
streams of real photos and larger models than here. Compare the signs, not the sizes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lab.words import FUNCTION, SCENE
from raycomp.config.commands import name_own
from raycomp.continual.data import StreamRun, name_stream
from raycomp.continual.method import FULL, METHODS, name_method
from raycomp.continual.scoring import ANSWERS, CRR, RUNS, measure, read_result
from raycomp.continual.tables import Runs, by_stream
from raycomp.core.intervals import Contrast
from raycomp.data.files import Folder, absolute_uri
from raycomp.table import Cell, Column, Columns, Estimate, Table, write_csv

REAPPEARS, REVERSED, UNDECIDED = "reappears", "reversed", "undecided"
INERT, UNREADABLE = "inert", "unreadable"
COUNTED, NOT_COUNTED = (REAPPEARS, REVERSED, UNDECIDED), (INERT, UNREADABLE)
MIN_BLOCKS = 10
"""Smallest number of backbones, or seeds of one backbone, behind a difference that counts."""
# The method that another equals, if not the whole one, where the part that differs has no effect, or trains
# nothing.
_EQUALS = {"replay-text": "sequential", "no-synthetic": "untrained"}


class Published(NamedTuple):
    """One column of the paper."""

    name: str
    metric: str
    values: Mapping[str, float]
    """By method, in percent or points."""
    scale: float = 1.0
    """Factor that brings our metric to the same unit."""


_ABLATED = ("no-synthetic", "no-trust", "linear-mix", "no-buffer", "attention-pool", "no-shaper")
_RIVALS = ("replay-text", "zscl", "c-clip", "diki", FULL)


def _of(methods: Sequence[str], *values: float) -> dict[str, float]:
    return dict(zip(methods, values, strict=True))


RETRIEVED = (
    Published(
        "R@1, image to text",
        "fused merged image_to_text last",
        _of(_RIVALS, 51.8, 54.2, 56.4, 56.0, 58.8) | _of(_ABLATED, 56.9, 57.9, 57.2, 56.3, 58.5, 57.6),
    ),
    Published(
        "R@1, text to image",
        "fused merged text_to_image last",
        _of(_RIVALS, 38.7, 40.8, 43.0, 43.2, 45.1),
    ),
    Published(
        "CRR, x 100",
        f"fused {CRR}",
        _of(_RIVALS, 84, 86, 88, 89, 91) | _of(_ABLATED, 87, 89, 88, 86, 91, 88),
        100,
    ),
    Published(
        "forgetting",
        "forgetting_best",
        _of(_RIVALS, 7.5, 6.1, 5.1, 5.0, 3.2) | _of(_ABLATED, 4.0, 4.3, 3.8, 4.7, 3.3, 3.9),
    ),
    Published("ZSTD", "fused zstd", _of(_RIVALS, -4.1, -2.9, -2.1, -1.9, -1.3)),
)
_OF_PAIR = ("cl-moe", FULL)
OF_QUESTIONS = (
    Published(
        "answers; published on VQACL",
        "last",
        _of(("cl-moe", FULL, *_ABLATED), 55.4, 56.8, 55.0, 56.0, 55.6, 54.3, 56.7, 55.7),
    ),
    Published("forgetting", "forgetting_best", _of(_OF_PAIR, 4.7, 3.6)),
)
OF_STREAMS = {
    SCENE: (Published("answers; published on CLOVE-scene", "last", _of(_OF_PAIR, 63.5, 65.1)),),
    FUNCTION: (Published("answers; published on CLOVE-function", "last", _of(_OF_PAIR, 59.2, 60.4)),),
}


class Line(NamedTuple):
    """A difference from the whole method, or a figure of the whole method itself."""

    method: str
    figure: Published
    found: Contrast
    published: float
    verdict: str


def published(source: str) -> Iterator[str]:
    """Yield the comparison of each stream of a finished run; write the differences to published.csv there.

    Raises ValueError if the folder has no runs.
    """
    folder = Folder(absolute_uri(source))
    names = [name for name in folder.list_names(RUNS) if name.endswith(".json")]
    if not names:
        raise ValueError(f"{source}: holds no finished run of raycomp continual")
    every = [StreamRun(**folder.read_json(RUNS, name)["cell"]) for name in names]
    order = list(METHODS)
    every.sort(key=lambda one: (one.seed, order.index(one.method) if one.method in order else len(order)))
    results = {one_run: read_result(folder, one_run) for one_run in every if one_run.rate is None}
    streams = by_stream(results, {one_run: measure(result) for one_run, result in results.items()})
    folder.write_bytes(write_published(streams.values()).encode(), "published.csv")
    for runs in streams.values():
        yield report_published(runs).to_text()


def report_published(runs: Runs) -> Table:
    """Return the paper's figures and differences with those measured here; empty without the whole method."""
    lines = list(judge_published(runs))
    rows: list[tuple[Cell, ...]] = []
    for method, figure, found, value, verdict in lines:
        name = FULL if method == FULL else f"{name_method(method)} minus {FULL}"
        here, least = Estimate.of(found).times(figure.scale), figure.scale * found.detectable
        rows.append((name, figure.name, here, None if method == FULL else least, value, verdict))
    columns: Columns = (
        "",
        "Figure",
        Column("here", digits=1),
        Column("detectable", digits=1),
        Column("published", digits=1),
        "",
    )
    words = [line.verdict for line in lines]
    inert = {line.method: find_equal(runs, line.method) or "" for line in lines if line.verdict == INERT}
    note = _say_counts(words, inert)
    return Table(runs.title("comparison with the paper"), columns, rows if any(words) else [], note)


def judge_published(runs: Runs) -> Iterator[Line]:
    """Yield each published figure of the whole method, followed by each difference with its verdict."""
    has_answers = runs.main.endswith(ANSWERS)
    asked = (*OF_STREAMS.get(name_stream(runs.stream), ()), *OF_QUESTIONS) if has_answers else RETRIEVED
    inert = {method for method in runs.methods if find_equal(runs, method)}
    for one in asked:
        own = runs.estimate(FULL, one.metric)
        if own is None:
            continue
        yield Line(FULL, one, own, one.values[FULL], "")
        for method in runs.methods:
            found = runs.compare(method, FULL, one.metric)
            if method != FULL and method in one.values and found is not None:
                gap = one.values[method] - one.values[FULL]
                word = judge_sign(found, one, gap, _count_blocks(runs, method))
                yield Line(method, one, found, gap, INERT if word and method in inert else word)


def _count_blocks(runs: Runs, method: str) -> int:
    """Return the number of independent units of a method's interval: backbones if there are several, else
    seeds."""
    own = [result.facts["backbone"] for one, result in runs.results.items() if one.method == method]
    return len({*own}) if len({*own}) > 1 else len(own)


def write_published(streams: Iterable[Runs]) -> str:
    """Return the published differences with their verdicts as CSV."""
    head = ("track", "method", "figure", "less compo-realign", "low", "high", "detectable", "published")
    lines: list[tuple[object, ...]] = [(*head, "verdict")]
    for runs in streams:
        for method, figure, found, gap, verdict in judge_published(runs):
            if verdict:
                values = (found.value, found.low, found.high, found.detectable)
                scaled = (figure.scale * value for value in values)
                lines.append((name_stream(runs.stream), method, figure.name, *scaled, gap, verdict))
    return write_csv(lines)


def find_equal(runs: Runs, method: str) -> str | None:
    """Return another method with bit-identical figures in every run: the part that differs is inert on this
    stream."""
    named = {name_own(one): one for one in runs.methods}
    equals = [one for one in (FULL, _EQUALS.get(method, FULL)) if one != method and one in named]
    return next((equal for equal in equals if runs.are_equal(method, named[equal])), None)


def judge_sign(found: Contrast, figure: Published, gap: float, num_blocks: int) -> str:
    """Return the verdict on a measured difference; empty if the published difference is 0.

    Unreadable: a CRR, which is 1 for independent correctness and moves with accuracy itself; a difference
    over fewer than ``MIN_BLOCKS``, or without an interval; a difference whose interval contains 0 if even the
    published size would not have been detected in 80 % of studies.
    """
    if not gap:
        return ""
    if figure.metric.endswith(CRR) or num_blocks < MIN_BLOCKS or not found.low <= found.high:
        return UNREADABLE
    if found.low <= 0 <= found.high:
        return UNREADABLE if figure.scale * found.detectable > abs(gap) else UNDECIDED
    return REAPPEARS if (found.value > 0) == (gap > 0) else REVERSED


def _say_counts(words: Sequence[str], inert: Mapping[str, str]) -> str:
    known = Counter(word for word in words if word)
    counted, left = (
        ", ".join(f"{word} {known[word]}" for word in some if known[word]) for some in (COUNTED, NOT_COUNTED)
    )
    num = sum(known[word] for word in COUNTED)
    said = "".join(f" {name_method(method)} is {equal} in every figure." for method, equal in inert.items())
    return (
        f"{num} of {known.total()} published differences are readable "
        f"here{': ' if counted else ''}{counted}. Not counted: {left or 'none'}. Inert: bit-identical "
        f"results in every run.{said} Unreadable: CRR, whose sign alone has no meaning; fewer than "
        f"{MIN_BLOCKS} backbones (or seeds of one); an interval that contains 0 while the detectable "
        "difference (80 % of studies, at 5 % two-sided) exceeds the published one. Undecided: the interval "
        "contains 0, and a difference of the published size would have been detectable. COMPO-REALIGN (ICLR "
        "2026) used other data and larger models: compare the signs, not the sizes. Not adjusted for their "
        "number. The table excludes methods whose options were selected on this world (compo_realign_adapted "
        "and its ablations)."
    )
