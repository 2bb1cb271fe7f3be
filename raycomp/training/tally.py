"""Counts pairs and their negatives shard by shard, and checks the sums over all shards."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.core.uids import to_keys
from raycomp.run.bad_data import check_bad_rows, describe_dropped
from raycomp.training.hard import HardImages
from raycomp.training.pairs import Pairs
from raycomp.training.subset import read_uids, refuse_unknown
from raycomp.words import (
    CAPTIONS,
    DUPLICATE_UID,
    HELD_OUT,
    NEGATIVES,
    NOT_IN_SUBSET,
    NUM_ROWS,
    OK,
    SHARD_STATUSES,
    UID,
    UNREADABLE_PICTURE,
)


def tally_pairs(index: pa.Table, pictures: HardImages | None = None) -> Counter[str]:
    """Return the number of samples in an index, and counts over an epoch: pairs, pairs with negatives, pairs
    with images of negatives, captions, negatives and images of negatives, each as often as its sample is
    trained on, and copies, all pairs of a sample but its first. ``bad_pictures``: listed images of negatives
    that cannot be read, each counted once."""
    flat = index[NEGATIVES].combine_chunks()
    length_N, rows_N = pc.list_value_length(flat).to_numpy(), index[NUM_ROWS].to_numpy()
    num_listed = pictures.count_listed(index[UID], flat) if pictures else 0
    shown_F = pc.struct_field(flat.flatten(), "image").to_numpy(zero_copy_only=False).astype(bool)
    row_F = np.repeat(np.arange(len(index)), length_N)
    return Counter(
        samples=len(index),
        pairs=int(rows_N.sum()),
        copies=int(rows_N.sum()) - len(index),
        with_negatives=int(rows_N[length_N > 0].sum()),
        with_negative_images=int(rows_N[np.unique(row_F[shown_F])].sum()),
        captions=int(pc.list_value_length(index[CAPTIONS]).to_numpy() @ rows_N),
        negatives=int(length_N @ rows_N),
        negative_images=int(rows_N[row_F[shown_F]].sum()),
        bad_pictures=max(0, num_listed - int(shown_F.sum())),
    )


def count_kinds(index: pa.Table) -> Counter[tuple[str, str]]:
    """Return the number of negatives of every operation and kind in an epoch, counted as in
    ``tally_pairs``."""
    lists = index[NEGATIVES].combine_chunks()
    flat, rows_N = lists.flatten(), index[NUM_ROWS].to_numpy()
    columns = {name: pc.struct_field(flat, name) for name in ("op", "kind")}
    columns[NUM_ROWS] = pa.array(np.repeat(rows_N, pc.list_value_length(lists).to_numpy()))
    lines = pa.table(columns).group_by(["op", "kind"]).aggregate([(NUM_ROWS, "sum")]).to_pylist()
    return Counter({(line["op"], line["kind"]): line[f"{NUM_ROWS}_sum"] for line in lines})


def count_most(index: pa.Table) -> int:
    """Return the maximum number of negatives of a pair."""
    return pc.max(pc.list_value_length(index[NEGATIVES])).as_py() or 0


def check_pairs(
    pairs: Pairs, reasons: Counter[str], tally: Counter[str], uids: Sequence[np.ndarray] = ()
) -> None:
    """Raise ValueError, one line, for errors that only the sums over all shards show.

    ``reasons`` and ``tally`` are sums of what ``index_shard`` and ``tally_pairs`` return; ``uids`` those of
    all indices, uint64 (n, 2), where there is a subset. These are: a run's shards do not hold the pairs that
    it kept; there are no pairs; the subset names uids without a pair (other than bad samples); no pair has a
    negative, or no negative has an image. Raises TooMuchBadData where too many rows, or images of negatives,
    are bad.
    """
    if pairs.is_curated and not pairs.scores:
        _check_carried(pairs, reasons)
    if pairs.subset is not None and not pairs.is_curated:
        others = (OK, NOT_IN_SUBSET, HELD_OUT, DUPLICATE_UID, *SHARD_STATUSES)
        named_bad = sum(count for reason, count in reasons.items() if reason not in others)
        key_M = np.sort(to_keys(np.concatenate([np.empty((0, 2), np.uint64), *uids])))
        refuse_unknown(pairs.subset, pairs.source, read_uids(pairs.subset), key_M, named_bad)
    if not tally["pairs"]:
        said = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()) if count)
        raise ValueError(f"input={pairs.source!r}: no pairs to train on ({said or 'no rows'})")
    if pairs.negatives and not tally["negatives"]:
        raise ValueError(
            f"negatives: none of the {tally['pairs']:,} pairs of {pairs.source} has negatives in "
            f"{pairs.negatives[0].rpartition('/')[0]}; they are joined by uid"
        )
    if pairs.negative_images and not tally["negative_images"]:
        raise ValueError(
            f"negative_images: none of the {tally['negatives']:,} negatives has a readable image in "
            f"{pairs.negative_images[0]}; they are joined by uid and negative"
        )
    for (said, what), counts in _count_judged(pairs, reasons, tally).items():
        check_bad_rows(said, counts, pairs.max_bad_fraction, what)


def describe_lost(pairs: Pairs, reasons: Counter[str], tally: Counter[str]) -> list[str]:
    """Return a warning for every status whose rows, or images of negatives, are left out."""
    judged = _count_judged(pairs, reasons, tally).items()
    return [line for (said, what), counts in judged for line in describe_dropped(said, counts, what)]


def _count_judged(
    pairs: Pairs, reasons: Counter[str], tally: Counter[str]
) -> dict[tuple[str, str], dict[str, int]]:
    """Return counts by status for each option and kind of row that is checked here; a curation has checked
    its own rows."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    if not pairs.is_curated:
        found["input", "rows"] = reasons
    if pairs.negative_images:
        bad = {UNREADABLE_PICTURE: tally["bad_pictures"]}
        found["negative_images", "pictures"] = {OK: tally["negative_images"], **bad}
    return found


def _check_carried(pairs: Pairs, reasons: Counter[str]) -> None:
    """Raise ValueError unless the shards of a run hold as many pairs as it kept, and nothing else."""
    sound = (OK, NOT_IN_SUBSET, HELD_OUT)
    bad = {why: count for why, count in sorted(reasons.items()) if count and why not in sound}
    if bad or reasons.total() != pairs.num_kept:
        said = ", ".join(f"{count:,} {why}" for why, count in bad.items()) or "all ok"
        raise ValueError(
            f"input={pairs.source!r}: its shards hold {reasons.total():,} samples ({said}), the run kept "
            f"{pairs.num_kept:,}"
        )
