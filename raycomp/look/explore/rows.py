"""The rows of a curation that are shown: their columns and outcomes, a condition, a seeded draw of many.

N rows of a scores file, M of them shown.
"""

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.selection import hash_uids, parse_uids
from raycomp.curation.config import SelectionRule, find_selection, read_config
from raycomp.curation.filters import add_metadata, add_short_names
from raycomp.curation.marks import list_marked
from raycomp.curation.metadata import METADATA
from raycomp.curation.scored import ScoresFile
from raycomp.curation.select import Gates, judge_file
from raycomp.data.expression import evaluate, find_columns
from raycomp.data.folder import Folder
from raycomp.data.parquet import read_columns, read_schema
from raycomp.look.explore.config import ExploreConfig
from raycomp.run.tasks import map_files
from raycomp.words import IMAGE_EMBEDDING, MARK, MARK_AFTER, OUTCOME, SCORE, UID

WHERE = "where"
SHOWN, NOT_SHOWN, NOT_DRAWN = "shown", "not_where", "not_drawn"
_DRAWN = np.dtype([("hash", "<u8"), ("file", "<i4"), ("row", "<i4")])
# Rows that are kept at a time, in multiples of those that are drawn.
_SLACK = 4


class Shown(NamedTuple):
    """The rows of a file that are shown: ``row_M``, ascending, and the number ``first`` of the first one."""

    ordinal: int
    file: ScoresFile
    row_M: np.ndarray
    first: int


class Drawn(NamedTuple):
    """The rows that are shown by file, the outcomes of all rows, and how many are shown or why not."""

    shown: list[Shown]
    outcomes: Counter[str]
    counts: Counter[str]


@dataclass(frozen=True)
class Source:
    """A finished curation or selection, and the condition on its rows."""

    selection: SelectionRule
    gates: Gates
    where: str | None
    seed: int

    def read(self, file: ScoresFile, with_nested: bool = True) -> pa.Table:
        """Return the columns of scores/ but embeddings, of marks/ but reasons, and the metadata, [N].

        Added are ``outcome``, kept or why not, and ``score``, what the last gate ranked by, null where it did
        not. Without nested columns there are no phrases.
        """
        schema = read_schema(file.uri)
        is_wanted = {one.name: with_nested or not pa.types.is_nested(one.type) for one in schema}
        names = [name for name in schema.names if is_wanted[name] and name != IMAGE_EMBEDDING]
        table, reason_N, score_N = judge_file(file, self.selection, self.gates, names)
        columns = {name: table[name] for name in names}
        columns[OUTCOME] = pa.array(reason_N, pa.string())
        columns[SCORE] = pa.array(score_N, mask=np.isnan(score_N))
        marks = pa.table({}) if file.marks is None else read_columns(file.marks)
        for name in marks.column_names:
            if name not in (UID, MARK, MARK_AFTER):
                columns.setdefault(name, marks[name])
        return pa.table(add_metadata(columns, file))

    def find(self, table: pa.Table) -> np.ndarray:
        """Return for which rows the condition is true, bool [N]."""
        if self.where is None:
            return np.ones(len(table), bool)
        flat = add_short_names({name: table[name] for name in list_flat(table)})
        columns = {name: flat[name] for name in find_columns(WHERE, self.where, list(flat))}
        value = evaluate(WHERE, self.where, pa.table(columns or {UID: table[UID]}))
        return pc.fill_null(value, False).to_numpy()


def open_source(run: dict[str, Any], source: str, config: ExploreConfig) -> tuple[Source, list[ScoresFile]]:
    """Return the run in ``source`` with its files; ValueError or UserError where the condition does not fit.

    Raises as ``list_marked``.
    """
    curation = posixpath.dirname(run["scores"]) if run["kind"] == "select" else source
    names = {*Folder(curation).list_names(METADATA)}
    files = []
    for file in list_marked(run, source):
        name = posixpath.basename(file.uri)
        metadata = Folder(curation).at(METADATA, name) if name in names else None
        files.append(file._replace(metadata=metadata))
    selection = find_selection(read_config(run["config"]))
    found = Source(selection, Gates.from_dict(run["gates"]), config.where, config.seed)
    if config.where is not None:
        found.find(
            found.read(files[0], with_nested=False).slice(0, 0)
        )  # an error now, not after half the files
    return found, files


def list_flat(table: pa.Table) -> list[str]:
    """Return the names of the columns that hold one value a row."""
    return [one.name for one in table.schema if not pa.types.is_nested(one.type)]


def draw_rows(source: Source, files: list[ScoresFile], most: int) -> Drawn:
    """Return the rows for which the condition is true; of more than ``most``, those of the smallest seeded
    hash of their uid."""
    outcomes: Counter[str] = Counter()
    counts: Counter[str] = Counter()

    def gather() -> Iterator[np.ndarray]:
        jobs = list(enumerate(files))
        for found, drawn, num in map_files(_draw_file, jobs, source, most, label="rows"):
            outcomes.update(found)
            counts.update({NOT_SHOWN: found.total() - num, SHOWN: num})
            yield drawn

    drawn = _keep_smallest(gather(), most)
    counts[NOT_DRAWN] = counts[SHOWN] - len(drawn)
    counts[SHOWN] = len(drawn)
    shown, first = [], 0
    for ordinal, file in enumerate(files):
        row_M = np.sort(drawn["row"][drawn["file"] == ordinal])
        if len(row_M):
            shown.append(Shown(ordinal, file, row_M, first))
            first += len(row_M)
    return Drawn(shown, outcomes, counts)


def _draw_file(
    numbered: tuple[int, ScoresFile], source: Source, most: int
) -> tuple[Counter[str], np.ndarray, int]:
    """Return the outcomes of a file's rows, the first rows of the draw, and how many rows fit."""
    ordinal, file = numbered
    table = source.read(file, with_nested=False)
    row_M = np.flatnonzero(source.find(table))
    drawn = np.empty(len(row_M), _DRAWN)
    uids = table[UID].take(pa.array(row_M))
    drawn["hash"] = hash_uids(parse_uids(uids), source.seed) if len(row_M) else 0
    drawn["file"], drawn["row"] = ordinal, row_M
    return Counter(table[OUTCOME].to_pylist()), _cut(drawn, most), len(row_M)


def _keep_smallest(parts: Iterable[np.ndarray], most: int) -> np.ndarray:
    """Return the ``most`` smallest rows; memory is bounded by a multiple of them."""

    def add(kept: np.ndarray, part: np.ndarray) -> np.ndarray:
        both = np.concatenate([kept, part])
        return _cut(both, most) if len(both) > _SLACK * most else both

    return _cut(reduce(add, parts, np.empty(0, _DRAWN)), most)


def _cut(drawn: np.ndarray, most: int) -> np.ndarray:
    return drawn if len(drawn) <= most else drawn[np.argsort(drawn, order=_DRAWN.names)[:most]]
