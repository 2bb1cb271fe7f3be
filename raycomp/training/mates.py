"""Pairs whose images are alike, for ``hard_images``: NegCLIP's hard images (Yuksekgonul et al. 2023)."""

from collections.abc import Sequence

import numpy as np

from raycomp.core.selection import parse_uids
from raycomp.core.uids import find_keys, to_keys
from raycomp.data.parquet import read_columns
from raycomp.words import NEIGHBOURS, NUM_ROWS, UID

MOST = 3
"""Neighbours of a pair that are used, as in NegCLIP."""


def load_mates(files: Sequence[str], pairs: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Return for each table of pairs the rows of the neighbours of each row, int32 (n, MOST), -1 for none.

    Neighbours in other tables, and those that are not trained on, are left out. It takes some 60 bytes for
    each pair. Raises ValueError where a uid is none.
    """
    tables = [read_columns(uri, [UID, NUM_ROWS]) for uri in pairs]
    counts = [table[NUM_ROWS].to_numpy() for table in tables]
    firsts = [np.cumsum(count_n) - count_n for count_n in counts]
    shard_N = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    first_N = np.concatenate([*firsts, np.zeros(0, np.int64)])
    key_N = np.concatenate([to_keys(parse_uids(table[UID])) for table in tables if len(table)])
    order_N = np.argsort(key_N, kind="stable")
    mate_NK = np.full((len(key_N), MOST), -1, np.int32)
    for uri in files:
        own_E, other_E = _read_edges(uri, key_N[order_N], order_N)
        is_near_E = (own_E != other_E) & (shard_N[own_E] == shard_N[other_E])
        own_E, other_E = own_E[is_near_E], other_E[is_near_E]
        starts = np.flatnonzero(np.diff(own_E, prepend=-1))
        rank_E = np.arange(len(own_E)) - np.repeat(starts, np.diff(starts, append=len(own_E)))
        kept_E = rank_E < MOST
        mate_NK[own_E[kept_E], rank_E[kept_E]] = first_N[other_E[kept_E]]
    parts = np.split(mate_NK, np.cumsum([len(table) for table in tables])[:-1])
    return tuple(np.repeat(part_nK, count_n, 0) for part_nK, count_n in zip(parts, counts, strict=True))


def _read_edges(uri: str, key_N: np.ndarray, order_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of pairs and of their neighbours, of those that both are trained on."""
    table = read_columns(uri, [UID, NEIGHBOURS])
    lists = table[NEIGHBOURS].combine_chunks()
    try:
        own_M = find_keys(key_N, to_keys(parse_uids(table[UID])))
        other_E = find_keys(key_N, to_keys(parse_uids(lists.flatten())))
    except ValueError as error:
        raise ValueError(f"hard_images={uri!r}: {error}") from error
    own_E = np.repeat(own_M, lists.value_lengths().fill_null(0).to_numpy())
    is_here_E = (own_E >= 0) & (other_E >= 0)
    return order_N[own_E[is_here_E]], order_N[other_E[is_here_E]]
