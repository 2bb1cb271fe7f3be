"""The candidates of one sequence of operations as features, and the tilting that is fitted to them.

Letters: T candidates of one sequence of operations, J judges, F features.
"""

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.core.refine import (
    find_edges,
    fit_tilting,
    join_columns,
    sparse_rows,
    spread_gaps,
    stack_rows,
)
from raycomp.data.arrow import from_rows
from raycomp.data.parquet import read_columns, write_table
from raycomp.language.pair_features import list_differences
from raycomp.language.text_only import count_words
from raycomp.negatives.judges import GAPS
from raycomp.words import CAPTION, NEGATIVES

NUM_COLUMNS = 1 << 18
"""Columns that differences of words are hashed into."""
_HARDNESS = 10.0
"""Log-odds of a candidate for a similarity larger by 1: of candidates that no judge distinguishes the harder
ones are preferred."""
_FITTED = pa.schema(
    [("op", pa.string()), ("name", pa.string()), ("place", pa.int64()), ("value", pa.float64())]
)


class Pairs(NamedTuple):
    """The candidates of one sequence of operations, of some captions."""

    row_T: np.ndarray
    candidate_T: np.ndarray
    """Place among the row's candidates."""
    kind_T: np.ndarray
    gap_TJ: np.ndarray
    """0 without a score."""
    longer_T: np.ndarray
    """Words of the caption minus words of the negative."""
    prior_T: np.ndarray
    text_TF: Any
    """Differences of words, sparse."""


@dataclass
class Tilting:
    """What is fitted for one sequence of operations."""

    weight_F: np.ndarray
    kinds: list[str]
    edges: list[np.ndarray]
    """Between the sizes of each judge's gap."""
    scale_J: np.ndarray
    grid: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Edges between the sizes of the mean gap, in units of the scales."""

    def features(self, pairs: Pairs) -> Any:
        """Return the features, sparse (T, F): differences of words, then gaps by kind, judge and size."""
        own = [(pairs.kind_T == kind)[:, None] for kind in self.kinds]
        gaps = [spread_gaps(*both) for both in zip(pairs.gap_TJ.T, self.edges, strict=True)]
        return join_columns(pairs.text_TF, [gap_TB * is_own_T for is_own_T in own for gap_TB in gaps])

    def mean_gap(self, pairs: Pairs) -> np.ndarray:
        """Return the mean over the judges of the gap in units of its scale, float64 (T,)."""
        return (pairs.gap_TJ / self.scale_J).mean(axis=1)


def list_pairs(table: pa.Table) -> dict[str, Pairs]:
    """Return the candidates of rows by sequence of operations; ``row_T`` is the place of the row."""
    found: dict[str, list[tuple]] = defaultdict(list)
    columns = (table[name].to_pylist() for name in (CAPTION, NEGATIVES))
    for row, (caption, negatives) in enumerate(zip(*columns, strict=True)):
        for place, one in enumerate(negatives):
            gaps = [one[name] or 0.0 for name in GAPS]
            longer = count_words(caption) - count_words(one["text"])
            text: dict[int, float] = {}
            for name, count in list_differences(caption, one["text"]):
                column = zlib.crc32(name.encode()) % NUM_COLUMNS
                text[column] = text.get(column, 0) + count
            prior = _HARDNESS * (one["similarity"] or 0.0)
            found[one["op"]].append((row, place, one["kind"], gaps, longer, prior, text))
    return {op: _to_pairs(rows) for op, rows in sorted(found.items())}


def _to_pairs(rows: Sequence[tuple]) -> Pairs:
    row, place, kind, gaps, longer, prior, text = zip(*rows, strict=True)
    text_TF = sparse_rows(text, NUM_COLUMNS)
    arrays = np.array(row), np.array(place), np.array(kind), np.array(gaps, np.float64)
    return Pairs(*arrays, np.array(longer), np.array(prior, np.float64), text_TF)


def join_pairs(parts: Sequence[Pairs]) -> Pairs:
    """Return the pairs of several tables, whose rows are numbered in order."""
    firsts = np.cumsum([0, *(int(part.row_T[-1]) + 1 for part in parts)])
    moved = [part._replace(row_T=part.row_T + first) for part, first in zip(parts, firsts[:-1], strict=True)]
    *columns, texts = zip(*moved, strict=True)
    return Pairs._make([*map(np.concatenate, columns), stack_rows(texts)])


def fit(pairs: Pairs, coverage: float) -> Tilting:
    """Return the tilting that balances the pairs' features."""
    scale_J = np.sqrt(np.square(pairs.gap_TJ).mean(axis=0))
    edges = [find_edges(gap_T) for gap_T in pairs.gap_TJ.T]
    fitted = Tilting(
        np.zeros(0), sorted(set(pairs.kind_T.tolist())), edges, np.where(scale_J > 0, scale_J, 1.0)
    )
    fitted.weight_F = fit_tilting(fitted.features(pairs), pairs.row_T, pairs.prior_T, coverage)
    fitted.grid = find_edges(fitted.mean_gap(pairs))
    return fitted


def write_tiltings(fitted: Mapping[str, Tilting], uri: str) -> None:
    """Write what was fitted for each sequence of operations, in long form."""
    rows: list[tuple[str, str, int, float]] = []
    for op, one in sorted(fitted.items()):
        places = np.flatnonzero(one.weight_F)
        rows += [(op, "weight", int(place), float(one.weight_F[place])) for place in places]
        rows += [(op, f"kind {kind}", place, 0.0) for place, kind in enumerate(one.kinds)]
        named = zip((*GAPS, "grid"), (*one.edges, one.grid), strict=True)
        rows += [
            (op, f"edge {name}", i, float(edge)) for name, edges in named for i, edge in enumerate(edges)
        ]
        rows += [(op, "scale", place, float(scale)) for place, scale in enumerate(one.scale_J)]
    write_table(from_rows(rows, _FITTED), uri, _FITTED)


def read_tiltings(uri: str) -> dict[str, Tilting]:
    """Return what ``write_tiltings`` wrote."""
    named: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in read_columns(uri).to_pylist():
        named[row["op"]][row["name"]].append((row["place"], row["value"]))
    found = {}
    for op, values in named.items():
        kinds = [name.partition(" ")[2] for name in values if name.startswith("kind ")]
        edges = [_array(values[f"edge {name}"]) for name in (*GAPS, "grid")]
        num = NUM_COLUMNS + len(kinds) * sum(len(one) + 1 for one in edges[:-1])
        weight_F = np.zeros(num)
        for place, value in values["weight"]:
            weight_F[place] = value
        found[op] = Tilting(weight_F, kinds, edges[:-1], _array(values["scale"]), edges[-1])
    return found


def _array(values: Sequence[tuple[int, float]]) -> np.ndarray:
    return np.array([value for _, value in sorted(values)])
