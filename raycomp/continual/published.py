"""What the paper of COMPO-REALIGN reports, and which of its differences reappear.

openreview.net/forum?id=eiTy6AYeQi, the tables of retrieval, of questions and of the ablations: averages over
streams of real photos and larger models than here. The signs are to be compared, not the sizes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from raycomp.continual.judge import ANSWERS
from raycomp.continual.means import Runs
from raycomp.continual.method import FULL
from raycomp.core.contrasts import Contrast
from raycomp.table import Cell, Column, Columns, Estimate, Table
from raycomp.words import FUNCTION, SCENE

REAPPEARS, REVERSED, UNDECIDED, NO_INTERVAL = "reappears", "reversed", "undecided", "no interval"
WORDS = (REAPPEARS, REVERSED, UNDECIDED, NO_INTERVAL)


class Published(NamedTuple):
    """One column of the paper."""

    name: str
    metric: str
    values: Mapping[str, float]
    """By method, in percent or points."""
    scale: float = 1.0
    """What the metric is multiplied by to be so, too."""


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
        "fused crr",
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


def tell_published(runs: Runs) -> Table:
    """Return the paper's figures and differences beside those found here; empty without the whole method."""
    has_answers = runs.main.endswith(ANSWERS)
    asked = (*OF_STREAMS.get(runs.stream, ()), *OF_QUESTIONS) if has_answers else RETRIEVED
    rows: list[tuple[Cell, ...]] = []
    words = []
    for one in asked:
        own = runs.estimate(FULL, one.metric)
        if own is None:
            continue
        rows.append((FULL, one.name, Estimate.of(own).times(one.scale), one.values[FULL], ""))
        for method in runs.methods:
            found = runs.compare(method, FULL, one.metric)
            if method != FULL and method in one.values and found is not None:
                gap = one.values[method] - one.values[FULL]
                words.append(say_sign(found, gap))
                here = Estimate.of(found).times(one.scale)
                rows.append((f"{method} less {FULL}", one.name, here, gap, words[-1]))
    known = Counter(word for word in words if word)
    counted = ", ".join(f"{word} {known[word]}" for word in WORDS if known[word])
    columns: Columns = ("", "Figure", Column("here", digits=1), Column("published", digits=1), "")
    note = (
        f"Of {known.total()} published differences: {counted}. Undecided: the 95 % interval holds 0. "
        "Published by COMPO-REALIGN (ICLR 2026) on other data and larger models: the signs are to be "
        "compared, not the sizes. Not adjusted for their number."
    )
    return Table(runs.title("beside the paper"), columns, rows if any(words) else [], note)


def say_sign(found: Contrast, gap: float) -> str:
    """Return whether a difference has the sign of the published one; nothing where that is 0."""
    if not gap:
        return ""
    if not found.low <= found.high:
        return NO_INTERVAL
    if found.low <= 0 <= found.high:
        return UNDECIDED
    return REAPPEARS if (found.value > 0) == (gap > 0) else REVERSED
