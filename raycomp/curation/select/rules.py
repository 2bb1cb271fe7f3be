"""The selection rules: the measure that each gate of a rule ranks by."""

import inspect
import re
from dataclasses import dataclass
from decimal import Decimal

from raycomp.config.options import check_choice
from raycomp.config.own_code import is_own, load_own
from raycomp.words import ALIGNMENT, CAPTION, CONTENT_WORDS, MEAN_PAS, PHRASES

OPTION = "select.rule"

# Measures that a gate can rank by in addition to the alignment, largest first. "pas" is the aggregated PAS.
DRAW, PAS, MINUS_PAS, RESIDUAL, ALIGN_PAS = "draw", "pas", "minus_pas", "residual", "align_pas"
NUM_WORDS, NUM_PHRASES, DISPLACEMENT = "num_words", "num_phrases", "displacement"
PAS_MEASURES = (PAS, MINUS_PAS, RESIDUAL, ALIGN_PAS)


@dataclass(frozen=True)
class Rule:
    """The measures that a rule ranks by, largest first, ties to the smaller uid.

    The align gate ranks the whole corpus. Without an attribute gate it keeps ``attribute.keep``. With one it
    keeps ``align.keep``, and the attribute gate keeps ``attribute.keep`` of the corpus out of the rows past
    the align gate that have a PAS. Every such rule ranks the rows that cpi ranks and differs from cpi only in
    its measure.
    """

    align_by: str = ALIGNMENT
    attribute_by: str | None = None
    columns: tuple[str, ...] = ()
    """Columns of a scores file that the attribute gate reads in addition to the PAS."""
    keeps_all: bool = False


RULES = {
    "cpi": Rule(attribute_by=PAS),
    "align_pas": Rule(attribute_by=ALIGN_PAS),
    "align_only": Rule(),
    "random": Rule(align_by=DRAW),
    "full": Rule(keeps_all=True),
    "align70_random50": Rule(attribute_by=DRAW),
    "cpi_reverse": Rule(attribute_by=MINUS_PAS),
    "length": Rule(attribute_by=NUM_WORDS, columns=("caption",)),
    "phrase_count": Rule(attribute_by=NUM_PHRASES, columns=("phrases",)),
    "displacement": Rule(attribute_by=DISPLACEMENT, columns=("phrases",)),
    "pas_residual": Rule(attribute_by=RESIDUAL, columns=("caption", "phrases")),
}
# The column that a measure is computed from, for measures that are no columns.
_COLUMN_OF = {NUM_WORDS: CAPTION, NUM_PHRASES: PHRASES, DISPLACEMENT: PHRASES}
_DRAWN = re.compile(r"align(\d{1,9}(?:\.\d{1,9})?)_random(\d{1,9}(?:\.\d{1,9})?)", re.ASCII)


def get_rule(name: str) -> Rule:
    """Return the measures that a rule ranks by. Raises ValueError if there is no such rule.

    FILE.py:NAME names a function of the user's, which is the rule's measure. With a parameter that only
    attributed rows have it ranks at the attribute gate, else the whole corpus. Only ``CurateConfig`` knows
    the shares that the name of a draw past the align gate must hold.
    """
    if is_own(name):
        wanted = find_parameters(name)
        columns = tuple(dict.fromkeys(_COLUMN_OF.get(one, one) for one in wanted if one != PAS))
        if {PAS, MEAN_PAS, PHRASES, CONTENT_WORDS} & {*wanted, *columns}:
            return Rule(attribute_by=name, columns=columns)
        return Rule(align_by=name, columns=columns)
    key = "align70_random50" if _DRAWN.fullmatch(name) else name
    if key not in RULES:
        own = "; or alignA_randomB with your own shares, as in align70_random50; or FILE.py:NAME"
        check_choice(OPTION, name, tuple(RULES), own)
    return RULES[key]


def find_parameters(name: str) -> tuple[str, ...]:
    """Return the parameters of the user's function: columns of scores/, or measures.

    Raises ValueError if the file has no function of this name, or the function has no parameters.
    """
    function = load_own(OPTION, name)
    if not inspect.isfunction(function):
        raise ValueError(f"{OPTION}={name}: must name a function in that file")
    wanted = tuple(inspect.signature(function).parameters)
    if not wanted:
        raise ValueError(f"{OPTION}={name}: must have parameters: columns of scores/, such as alignment")
    return wanted


def read_draw(name: str) -> tuple[float, float]:
    """Return the ``align.keep`` and ``attribute.keep`` in the name of a draw past the align gate."""
    match = _DRAWN.fullmatch(name)
    assert match, name
    align_keep, attribute_keep = (float(Decimal(percent) / 100) for percent in match.groups())
    return align_keep, attribute_keep


def name_draw(align_keep: float, attribute_keep: float) -> str:
    """Return the name of a draw past the align gate: align70.5_random50 of 0.705 and 0.5."""
    shares = (f"{(100 * Decimal(str(share))).normalize():f}" for share in (align_keep, attribute_keep))
    return "align{}_random{}".format(*shares)
