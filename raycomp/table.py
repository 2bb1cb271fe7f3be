"""A table as a value: the results, separate from their format. Text and CSV; the report writes the HTML."""

import csv
import io
import sys
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
LEAST_P = 0.0001
"""The smallest p value that is shown as a number."""
WIDTH = 100
"""Characters of a line of running text."""
FORMULA_STARTS = (*"=+-@\t\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that start a spreadsheet formula, full-width ones included, or that it skips before one."""
_GUARD = "\u00a0"
_PLAIN = str.maketrans({"\u2212": "-", "\u2013": "-", "\u00a0": " "})


class Numeral(str):
    """A formatted number, aligned to the right like numbers."""

    __slots__ = ()


class PValue(float):
    """A p value: text and pages show "< .0001" below that, CSV has the number in full."""

    __slots__ = ()


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, NaN where there is none.

    With ``chance`` the three are shares in [0, 1], and a page draws them on an axis with a mark there.
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")
    chance: float | None = None

    @classmethod
    def of(cls, found: Any, chance: float | None = None) -> "Estimate":
        """Return the ``value``, ``low`` and ``high`` of an object that has them: a line, a test, a share."""
        return cls(found.value, found.low, found.high, chance)

    def times(self, factor: float) -> "Estimate":
        """Return it multiplied by a factor, for another unit; percent for 100."""
        return Estimate(factor * self.value, factor * self.low, factor * self.high)


def take_estimate(line: Mapping[str, Any], name: str, over: str = "") -> Estimate:
    """Return ``name`` of a plain row with its interval ends, such as ``name_low``; ``over`` names others."""
    return Estimate(line[name], *(line[f"{name}{over}{end}"] for end in ("_low", "_high")))


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items of each key, both in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


Cell = str | float | Estimate | None


class Column(NamedTuple):
    """The content of a column; ``digits`` are the decimal places of numbers that are not whole."""

    name: str
    unit: str = ""
    digits: int = 4

    @property
    def head(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


Columns = Sequence[str | Column]


class Plot(NamedTuple):
    """Named estimates of one unit, for a plot; ``mark`` is the value to compare them with."""

    title: str
    unit: str
    rows: Sequence[tuple[str, Estimate]]
    mark: float | None = None


@dataclass(frozen=True)
class Table:
    """One table; a column without unit and with numbers of 4 digits may be given by its name alone."""

    title: str
    columns: Columns
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def to_text(self) -> str:
        """Return lines of ASCII except for cell texts; a header of empty names is left out."""
        columns = as_columns(self.columns)
        heads = [column.head for column in columns]
        lines = [heads] if any(heads) else []
        for row in self.rows:
            texts = [write_cell(cell, column.digits) for cell, column in zip(row, columns, strict=True)]
            lines.append(
                [plain(text) if is_number(cell) else text for cell, text in zip(row, texts, strict=True)]
            )
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        sides = zip(self.list_sides(), widths, strict=False)
        aligned = [f"{'>' if is_right else '<'}{width}" for is_right, width in sides]
        body = ["  ".join(map(format, line, aligned)).rstrip() for line in lines]
        parts = [self.title, *body, textwrap.fill(self.note, WIDTH)]
        return "\n".join(part for part in parts if part)

    def to_csv(self) -> str:
        """Return the numbers in full; an estimate gets two more columns with its interval ends."""
        lines: list[list[object]] = [[] for _ in range(len(self.rows) + 1)]
        for i, column in enumerate(as_columns(self.columns)):
            cells = [row[i] for row in self.rows]
            has_ends = any(isinstance(cell, Estimate) for cell in cells)
            lines[0] += [column.head + end for end in (("", " low", " high") if has_ends else ("",))]
            for line, cell in zip(lines[1:], cells, strict=True):
                alone = [cell, None, None][: 3 if has_ends else 1]
                line += [cell.value, cell.low, cell.high] if isinstance(cell, Estimate) else alone
        return write_csv(lines)

    def list_sides(self) -> list[bool]:
        """Return which columns are aligned to the right: those that have a number in the first row."""
        return [is_number(cell) for cell in self.rows[0]] if self.rows else [False] * len(self.columns)


def write_csv(lines: Iterable[Iterable[object]], delimiter: str = ",") -> str:
    """Return lines of cells as CSV: numbers in full, nothing for None and NaN, no text that starts a formula.

    A spreadsheet evaluates "=..." in a user's caption or name as a formula. Such a text gets a no-break
    space before it, unless it is a number; ``read_csv`` removes it. A carriage return, which csv leaves
    unquoted and a spreadsheet reads as the end of the line, becomes a line feed.
    """
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    for line in lines:
        cells = [_guard(cell) if isinstance(cell, str) else cell for cell in line]
        writer.writerow([None if cell != cell else cell for cell in cells])
    return out.getvalue()


def _guard(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    is_formula = text.lstrip(_GUARD).startswith(FORMULA_STARTS) and not is_numeral(text)
    return _GUARD + text if is_formula else text


def is_numeral(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_csv(text: str) -> list[dict[str, str]]:
    """Return the lines below the header of ``write_csv``'s output, by the names in the header.

    Raises ValueError where a line has more or fewer cells than the header.
    """
    csv.field_size_limit(sys.maxsize)
    heads, *lines = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    rows = []
    for number, line in enumerate(lines, 2):
        if len(line) != len(heads):
            raise ValueError(f"line {number} of the table has not the {len(heads)} cells of its first line")
        bare = (text.removeprefix(_GUARD) for text in line)
        cells = (own if _guard(own) == text else text for own, text in zip(bare, line, strict=True))
        rows.append(dict(zip(heads, cells, strict=True)))
    return rows


def as_columns(columns: Iterable[str | Column]) -> list[Column]:
    return [column if isinstance(column, Column) else Column(column) for column in columns]


def is_number(cell: object) -> bool:
    """Return whether a cell is aligned to the right: a number, an estimate, or a missing one."""
    return isinstance(cell, Numeral) or not isinstance(cell, str | bool)


def number(value: float | None, digits: int = 4) -> str:
    """Return a formatted number: thousands separated, floats to ``digits`` places, a true minus sign."""
    if value is None or value != value:
        return "\u2013"
    text = f"{value:,}" if isinstance(value, Integral) else f"{value:z,.{digits}f}"
    return text.replace("-", "\u2212")


def percent(part: float, whole: float) -> str:
    """Return ``part`` of ``whole`` as "50.0 %"; a dash where the whole is 0."""
    return f"{100 * part / whole:.1f}\u00a0%" if whole else "\u2013"


def write_cell(cell: Cell, digits: int = 4) -> str:
    """Return a formatted cell; an estimate as "value [low, high]"."""
    if isinstance(cell, PValue):
        return f"< {LEAST_P:.4f}".replace("0.", ".") if cell < LEAST_P else number(cell, max(digits, 4))
    if isinstance(cell, Estimate):
        ends = f" [{number(cell.low, digits)}, {number(cell.high, digits)}]" if cell.low <= cell.high else ""
        return number(cell.value, digits) + ends
    return str(cell) if isinstance(cell, str | bool) else number(cell, digits)


def join_text(blocks: Iterable[Table | str]) -> str:
    """Return tables and paragraphs as one text."""
    return "\n\n".join(
        textwrap.fill(block, WIDTH) if isinstance(block, str) else block.to_text() for block in blocks
    )


def format_facts(facts: Mapping[str, object]) -> str:
    """Return a line for each fact, after its name; an unknown value is a dash."""
    rows = [(name, "-" if value is None else str(value)) for name, value in facts.items()]
    return Table("", ("", ""), rows).to_text()


def plain(text: str) -> str:
    """Return a formatted number with ASCII signs."""
    return text.translate(_PLAIN)
