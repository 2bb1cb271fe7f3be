"""One side of a diff: a finished curation or selection, its scores files, and the outcome of every row.

N rows of one side, in the order of its files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycomp.core.selection import parse_uids
from raycomp.core.uids import to_keys
from raycomp.curation.config import CurateConfig, find_selection, read_config
from raycomp.curation.marks import list_marked
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, judge_file
from raycomp.data.paths import absolute_uri
from raycomp.data.runs import SUBSET_KINDS, find_curation, read_finished
from raycomp.words import ALIGNMENT, UID


@dataclass(frozen=True)
class Side:
    """A finished curation or selection."""

    uri: str
    run: dict[str, Any]
    curated: dict[str, Any]
    """run.json of the curation that scored."""
    files: list[ScoresFile]

    @property
    def config(self) -> CurateConfig:
        return read_config(self.run["config"])


def open_side(source: str) -> Side:
    """Open a finished curation or selection. Raises ValueError where ``source`` holds another run, or none,
    or its files are not the ones that it wrote."""
    uri = absolute_uri(source)
    run = read_finished(uri)
    if run["kind"] not in SUBSET_KINDS:
        raise ValueError(f"{source}: holds {run['kind']}, must hold a curation or a selection")
    return Side(uri, run, find_curation(run, uri), list_marked(run, uri))


@dataclass(frozen=True)
class Outcomes:
    """The outcome of every row of a side. 29 bytes a row."""

    key_N: np.ndarray
    """uids as sortable keys."""
    code_N: np.ndarray
    """The outcome, a place in ``names``: kept, the reason of a gate or mark, or the status."""
    alignment_N: np.ndarray
    """float32, NaN where there is none."""
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Rows of each file."""


def read_outcomes(side: Side) -> Outcomes:
    """Return the outcome of every row; one file is in memory at a time."""
    places: dict[str, int] = {}
    keys, codes, alignments = [np.empty(0, "S16")], [np.empty(0, np.uint8)], [np.empty(0, np.float32)]
    for reason_N, table in judge_files(side):
        name_V, which_N = np.unique(reason_N.astype(str), return_inverse=True)
        code_V = np.array([places.setdefault(name, len(places)) for name in name_V.tolist()], np.uint8)
        keys.append(to_keys(parse_uids(table[UID])))
        codes.append(code_V[which_N])
        alignments.append(table[ALIGNMENT].to_numpy().astype(np.float32))
    sizes = tuple(map(len, keys[1:]))
    key_N, code_N, alignment_N = map(np.concatenate, (keys, codes, alignments))
    return Outcomes(key_N, code_N, alignment_N, tuple(places), sizes)


def judge_files(side: Side, columns: tuple[str, ...] = ()) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield the reasons of each file's rows, and its table with ``columns`` in addition to the gates'."""
    selection, gates = find_selection(side.config), Gates.from_dict(side.run["gates"])
    for file in side.files:
        table, reason_N, _ = judge_file(file, selection, gates, columns)
        yield reason_N, table
