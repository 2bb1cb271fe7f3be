"""What is wrong with a benchmark before any model has seen it, as a table."""

from collections import Counter
from collections.abc import Sequence

from raycomp.evaluate.benchmarks.choice import DEFECTS, Choice
from raycomp.evaluate.benchmarks.published import tell_other_counts
from raycomp.table import Cell, Table


def tell_defects(choices: Sequence[Choice]) -> Table:
    """Return rows, sound rows and rows by defect of every split; a row may have several defects.

    The note says which splits have another number of rows than was published.
    """
    rows = Counter((choice.benchmark, choice.split) for choice in choices)
    sound = Counter((choice.benchmark, choice.split) for choice in choices if not choice.defects)
    counts = Counter((choice.benchmark, choice.split, name) for choice in choices for name in choice.defects)
    lines: list[list[Cell]] = [
        [*place, count, sound[place], *(counts[*place, defect] for defect in DEFECTS)]
        for place, count in rows.items()
    ]
    meanings = [f"{name}: {meaning}." for name, meaning in DEFECTS.items()]
    others = [f"{line}." for line in tell_other_counts(choices)]
    columns = ("benchmark", "split", "rows", "sound", *DEFECTS)
    return Table("Rows before any image is looked for", columns, lines, " ".join([*meanings, *others]))
