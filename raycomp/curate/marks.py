"""Marks: the reasons to drop a row that are not the rule's own gates.

``marks/`` has a file for every scores file, with a row for every row of it. ``mark`` is the reason of a drop
before the shares are counted: the row is not in the corpus. ``mark_after`` is the reason of a drop after the
rule's gates. Both are null for other rows. Further columns are the evidence.
"""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.config import UserError
from raycomp.curate.config import CurateConfig
from raycomp.data.folder import Folder
from raycomp.data.manifest import check_results
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.runs import list_scores, list_tables
from raycomp.run.tasks import map_files
from raycomp.words import MARK, MARK_AFTER, UID

MARKS = "marks"


class ScoresFile(NamedTuple):
    """A scores file, or a file of aligned rows, and the file of its marks, if the run has any."""

    uri: str
    marks: str | None = None

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


Marker = Callable[[str], Found]
"""Finds the marks of one file, which is given by its uri; a plain callable that tasks can pickle."""


def list_markers(config: CurateConfig) -> list[Marker]:
    """Return the markers of a config, in their order: the first reason of a row counts."""
    return []


def mark_rows(scores: Sequence[str], config: CurateConfig, out: Folder) -> list[ScoresFile]:
    """Write ``marks/`` of the files to ``out``, if the config has markers; return the files with their marks.

    The files keep their names. Safe to repeat: equal files and options give equal bytes.
    """
    markers, files = list_markers(config), pair_marks(scores, config, out)
    if markers:
        for _ in map_files(_mark_file, files, markers, label="mark"):
            pass
    return files


def pair_marks(scores: Sequence[str], config: CurateConfig, out: Folder) -> list[ScoresFile]:
    """Return the files with the marks that ``mark_rows`` writes for them."""
    if not list_markers(config):
        return [ScoresFile(uri) for uri in scores]
    return [ScoresFile(uri, out.at(MARKS, posixpath.basename(uri))) for uri in scores]


def list_marked(run: dict[str, Any], source: str) -> list[ScoresFile]:
    """Return the scores files behind the finished run in ``source``, with the run's own marks.

    Raises as ``list_scores``, and where a marks file is missing or was changed.
    """
    scores = list_scores(run, source)
    marks = list_tables(check_results(Folder(source), run, MARKS))
    if marks and sorted(marks) != list(range(len(scores))):
        raise ValueError(f"{source}: holds {len(marks)} marks files, the run wrote {len(scores)}")
    return [ScoresFile(uri, marks.get(ordinal)) for ordinal, uri in enumerate(scores)]


def _mark_file(file: ScoresFile, markers: Sequence[Marker]) -> None:
    """Write the marks of one file."""
    uid, evidence = read_columns(file.uri, [UID])[UID], dict[str, pa.Array]()
    reasons = {name: np.full(len(uid), None, object) for name in (MARK, MARK_AFTER)}
    for marker in markers:
        found = marker(file.uri)
        reason_N = reasons[MARK_AFTER if found.is_after else MARK]
        reason_N[:] = np.where(reason_N == None, found.reason_N, reason_N)  # noqa: E711
        evidence |= found.evidence
    columns = {name: pa.array(reason_N, pa.string()) for name, reason_N in reasons.items()}
    table = pa.table({UID: uid, **columns, **evidence})
    assert file.marks is not None
    write_table(table, file.marks, table.schema)
