"""Choose among all candidates those that text-only judges cannot distinguish (``core.refine``).

Letters: T candidates of one sequence of operations, J judges, F features.

For every sequence of operations: the tilting is fitted to the candidates of some captions, at most one
candidate of every caption is drawn, and of each bin of kind, gap and length as many are kept as of the
mirrored bin. The corpus is read file by file; what is kept of a bin is found as a gate finds its rows.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycomp.core import refine as core
from raycomp.core import selection
from raycomp.core.selection import KthSearch, Threshold
from raycomp.data import parquet
from raycomp.data.files import Folder
from raycomp.language.overlap import count_words, list_differences
from raycomp.negatives.captions import draw_uid
from raycomp.negatives.config import WritingConfig
from raycomp.negatives.judges import GAPS, THRESHOLDS_FILE
from raycomp.run.local import cut
from raycomp.run.work import map_files
from raycomp.words import CAPTION, NEGATIVES, POSITION, UID

MOST_FITTED = 20_000
"""Captions that the tilting is fitted to, about; of more, some are drawn by their uids."""
NUM_COLUMNS = 1 << 18
"""Columns that differences of words are hashed into."""
_HARDNESS = 10.0
"""Log-odds of a candidate for a similarity larger by 1: of candidates that no judge distinguishes the harder
ones are preferred."""
_ROWS = 1_000
_FITTED = pa.schema(
    [("op", pa.string()), ("name", pa.string()), ("place", pa.int64()), ("value", pa.float64())]
)
_DRAWN = pa.schema(
    [
        *((UID, pa.string()), (POSITION, pa.int32()), ("candidate", pa.int32())),
        *(("op", pa.string()), ("kind", pa.string()), ("bin", pa.int64())),
    ]
)
Bin = tuple[tuple[str, str], int]
"""(sequence of operations, kind), and the bin of ``assign_bins``."""


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
        gaps = [core.spread_gaps(*both) for both in zip(pairs.gap_TJ.T, self.edges, strict=True)]
        return core.join_columns(pairs.text_TF, [gap_TB * is_own_T for is_own_T in own for gap_TB in gaps])

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
    pairs = {}
    for op, rows in sorted(found.items()):
        *arrays, texts = zip(*rows, strict=True)
        pairs[op] = Pairs._make([*map(np.array, arrays), core.sparse_rows(texts, NUM_COLUMNS)])
    return pairs


def fit(pairs: Pairs, coverage: float) -> Tilting:
    """Return the tilting that balances the pairs' features."""
    scale_J = np.sqrt(np.square(pairs.gap_TJ).mean(axis=0))
    edges = [core.compute_edges(gap_T) for gap_T in pairs.gap_TJ.T]
    fitted = Tilting(
        np.zeros(0), sorted(set(pairs.kind_T.tolist())), edges, np.where(scale_J > 0, scale_J, 1.0)
    )
    fitted.weight_F = core.fit_tilting(fitted.features(pairs), pairs.row_T, pairs.prior_T, coverage)
    fitted.grid = core.compute_edges(fitted.mean_gap(pairs))
    return fitted


def write_tiltings(fitted: Mapping[str, Tilting], uri: str) -> None:
    """Write what was fitted for each sequence of operations, in long form."""
    rows: list[tuple[str, str, int, float]] = []
    for op, one in sorted(fitted.items()):
        places = np.flatnonzero(one.weight_F)
        rows += [(op, "weight", int(place), float(one.weight_F[place])) for place in places]
        rows += [(op, f"kind {kind}", place, 0.0) for place, kind in enumerate(one.kinds)]
        arrays = {f"edge {name}": edges for name, edges in zip(GAPS, one.edges, strict=True)}
        for name, array in (arrays | {"edge grid": one.grid, "scale": one.scale_J}).items():
            rows += [(op, name, place, float(value)) for place, value in enumerate(array)]
    parquet.write_table(parquet.from_rows(rows, _FITTED), uri, _FITTED)


def read_tiltings(uri: str) -> dict[str, Tilting]:
    """Return what ``write_tiltings`` wrote."""
    named: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in parquet.read_columns(uri).to_pylist():
        named[row["op"]][row["name"]].append((row["place"], row["value"]))

    def array(values: Sequence[tuple[int, float]]) -> np.ndarray:
        return np.array([value for _, value in sorted(values)])

    found = {}
    for op, values in named.items():
        kinds = [name.partition(" ")[2] for name in values if name.startswith("kind ")]
        edges = [array(values[f"edge {name}"]) for name in GAPS]
        weight_F = np.zeros(NUM_COLUMNS + len(kinds) * sum(len(one) + 1 for one in edges))
        for place, value in values["weight"]:
            weight_F[place] = value
        found[op] = Tilting(weight_F, kinds, edges, array(values["scale"]), array(values["edge grid"]))
    return found


def fit_all(uris: Sequence[str], num_captions: int, config: WritingConfig) -> dict[str, Tilting]:
    """Return what is fitted to the candidates of some captions, by sequence of operations."""
    limit = min(1.0, MOST_FITTED / max(num_captions, 1))
    parts: dict[str, list[Pairs]] = defaultdict(list)
    for sampled in map_files(_sample_pairs, uris, limit, label="fit"):
        for op, pairs in sampled.items():
            parts[op].append(pairs)
    fitted = {}
    for op, several in sorted(parts.items()):  # rows of several tables are numbered in order
        firsts = np.cumsum([0, *(int(one.row_T[-1]) + 1 for one in several)])
        moved = [one._replace(row_T=one.row_T + at) for one, at in zip(several, firsts[:-1], strict=True)]
        *columns, texts = zip(*moved, strict=True)
        pairs = Pairs._make([*map(np.concatenate, columns), core.stack_rows(texts)])
        fitted[op] = fit(pairs, _compute_coverage(config))
    return fitted


def _sample_pairs(uri: str, limit: float) -> dict[str, Pairs]:
    parts = []
    for table in parquet.read_groups(uri):
        is_drawn = [draw_uid(uid, "fit") < limit for uid in table[UID].to_pylist()]
        parts.append(table.filter(pa.array(is_drawn, pa.bool_())))
    return list_pairs(pa.concat_tables(parts)) if parts else {}


def _compute_coverage(config: WritingConfig) -> float:
    return inf if config.refine == "draw" else config.coverage


def draw_file(files: tuple[str, str], fitted_uri: str, config: WritingConfig) -> dict[Bin, int]:
    """Draw at most one candidate of each caption and sequence; return how many each bin has.

    ``files``: a file of candidates, and the file of those drawn, which is written.
    """
    uri, drawn_uri = files
    fitted, coverage, seed = read_tiltings(fitted_uri), _compute_coverage(config), config.seed
    drawn: list[tuple] = []
    for table in cut(parquet.read_groups(uri), _ROWS):
        uids, positions = (table[name].to_pylist() for name in (UID, POSITION))
        for op, pairs in list_pairs(table).items():
            if op not in fitted:
                continue
            one = fitted[op]
            share_T = core.tilt(one.features(pairs), pairs.row_T, pairs.prior_T, coverage, one.weight_F)
            uniform_N = np.array([draw_uid(uid, f"draw {seed} {op}") for uid in uids])
            bin_T = core.assign_bins(one.mean_gap(pairs), pairs.longer_T, one.grid, core.MOST_LONGER)
            for place in np.flatnonzero(core.draw_one(share_T, pairs.row_T, uniform_N)):
                row, candidate = int(pairs.row_T[place]), int(pairs.candidate_T[place])
                key = blake2b(uids[row].encode(), digest_size=16).hexdigest()
                kind, bin = str(pairs.kind_T[place]), int(bin_T[place])
                drawn.append((key, positions[row], candidate, op, kind, bin))
    parquet.write_table(parquet.from_rows(drawn, _DRAWN), drawn_uri, _DRAWN)
    return Counter(((op, kind), bin) for *_, op, kind, bin in drawn)


def write_thresholds(counts: Mapping[Bin, int], uris: Sequence[str], seed: int, out: Folder) -> None:
    """Write ``judges/thresholds.json``: which of the drawn stay in each bin that has more than its quota.

    Exactly as many stay as that. Rows of operations, kind, bin and threshold.
    """
    wanted = core.quotas(dict(counts))
    searches = {bin: KthSearch(wanted[bin]) for bin in sorted(counts) if wanted[bin] < counts[bin]}
    while open_bins := {bin: search for bin, search in searches.items() if not search.done}:
        histograms = {bin: np.zeros(selection.NUM_BINS, np.int64) for bin in open_bins}
        for counted in map_files(_count_bins, uris, open_bins, seed, label="balance"):
            for bin, (digits, numbers) in counted.items():
                histograms[bin][digits] += numbers
        for bin, search in open_bins.items():
            search.advance(histograms[bin])
    rows = [[op, kind, bin, one.threshold.to_dict()] for ((op, kind), bin), one in searches.items()]
    out.write_json(rows, THRESHOLDS_FILE)


def read_thresholds(out: Folder) -> dict[Bin, Threshold]:
    """Return what ``write_thresholds`` wrote."""
    rows = out.read_json(THRESHOLDS_FILE)
    return {((op, kind), bin): Threshold.from_dict(one) for op, kind, bin, one in rows}


def _count_bins(
    uri: str, searches: Mapping[Bin, KthSearch], seed: int
) -> dict[Bin, tuple[np.ndarray, np.ndarray]]:
    """Return one file's histogram of the next digit in each bin: the digits that occur, and how often."""
    found = {}
    for bin, place_K, uid_N2, score_N in _read_bins(parquet.read_columns(uri), seed):
        if bin in searches:
            counted = selection.count_digit(searches[bin], score_N[place_K], uid_N2[place_K])
            digits = np.flatnonzero(counted)
            found[bin] = digits, counted[digits]
    return found


def _read_bins(table: pa.Table, seed: int) -> Iterator[tuple[Bin, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield each bin of a file of drawn candidates: its places, uids and scores of the whole file."""
    uid_N2 = selection.parse_uids(table[UID])
    score_N = selection.random_scores(uid_N2, seed)
    places: dict[Bin, list[int]] = defaultdict(list)
    columns = (table[name].to_pylist() for name in ("op", "kind", "bin"))
    for place, (op, kind, bin) in enumerate(zip(*columns, strict=True)):
        places[(op, kind), bin].append(place)
    for bin, found in places.items():
        yield bin, np.array(found), uid_N2, score_N


def load_refined(
    files: tuple[str, str], thresholds: Mapping[Bin, Threshold], seed: int, block_rows: int
) -> Iterator[pa.Table]:
    """Yield a file's captions with the candidates that were drawn and stay."""
    uri, drawn_uri = files
    drawn = parquet.read_columns(drawn_uri)
    is_kept_N = np.ones(len(drawn), bool)
    for bin, place_K, uid_N2, score_N in _read_bins(drawn, seed):
        if bin in thresholds:
            is_kept_N[place_K] = selection.keep_mask(thresholds[bin], score_N[place_K], uid_N2[place_K])
    rows = drawn.filter(pa.array(is_kept_N))
    stays = {*zip(rows[POSITION].to_pylist(), rows["candidate"].to_pylist(), strict=True)}
    for table in cut(parquet.read_groups(uri), block_rows):
        columns = (table[name].to_pylist() for name in (POSITION, NEGATIVES))
        kept = [
            [one for place, one in enumerate(negatives) if (position, place) in stays]
            for position, negatives in zip(*columns, strict=True)
        ]
        at = table.schema.get_field_index(NEGATIVES)
        yield table.set_column(at, NEGATIVES, pa.array(kept, table.schema.field(at).type))
