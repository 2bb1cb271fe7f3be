"""A scores file with the metadata and the marks of its rows, which are files of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.config import UserError
from raycomp.data.parquet import read_columns
from raycomp.words import MARK, MARK_AFTER


class ScoresFile(NamedTuple):
    """A scores file, or a file of aligned rows; ``marks`` and ``metadata`` where the run has any."""

    uri: str
    marks: str | None = None
    metadata: str | None = None

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the scores file, and ``mark`` and ``mark_after`` if it has marks.

        Raises as ``read_columns``, and UserError if the marks are of other rows.
        """
        table = read_columns(self.uri, columns)
        if self.marks is None:
            return table
        marks = read_columns(self.marks, [MARK, MARK_AFTER])
        if len(marks) != len(table):
            said = f"{self.marks}: has {len(marks):,} rows, {self.uri} has {len(table):,}; run it again"
            raise UserError(said)
        return table.append_column(MARK, marks[MARK]).append_column(MARK_AFTER, marks[MARK_AFTER])


@dataclass(frozen=True)
class Found:
    """What a marker found in one file of N rows."""

    reason_N: np.ndarray
    """Reasons, object [N]; None = the row is not dropped."""
    is_after: bool = False
    """Whether the rows are dropped after the rule's gates."""
    evidence: Mapping[str, pa.Array] = field(default_factory=dict)
    """Columns of the marks file, [N]."""


Marker = Callable[[ScoresFile], Found]
"""Finds the marks of one file; a plain callable that tasks can pickle."""
