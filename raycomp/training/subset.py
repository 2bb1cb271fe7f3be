"""Reads a file of uids of training pairs: DataComp's ``subset.npy``, or Parquet with ``uid``.

A uid that occurs k times is trained on k times in each epoch (upsampling). N uids of the file, M sorted keys
of pairs.
"""

from functools import lru_cache

import numpy as np
import pyarrow as pa

from raycomp.core.selection import parse_uids
from raycomp.core.uids import find_keys, to_keys
from raycomp.data.datacomp import read_subset
from raycomp.data.parquet import read_columns
from raycomp.words import UID


@lru_cache(maxsize=1)
def load_keys(uri: str, token: str) -> np.ndarray:
    """Return the sorted keys of a subset, (N,), repeated ones too, cached for the next call with ``token``.

    Raises as ``read_uids``.
    """
    return np.sort(to_keys(read_uids(uri)))


def read_uids(uri: str) -> np.ndarray:
    """Return the uids of a subset, repeated ones too, uint64 (N, 2).

    Raises ValueError, one line, where the file cannot be read or has another form.
    """
    try:
        if uri.endswith(".npy"):
            return read_subset(uri)
        uids = read_columns(uri, [UID])[UID]
        if pa.types.is_dictionary(uids.type) or pa.types.is_string_view(uids.type):
            uids = uids.cast(pa.string())  # as pandas and newer writers store text
        if not (pa.types.is_string(uids.type) or pa.types.is_large_string(uids.type)):
            raise ValueError(f"its column uid must be text, is {uids.type}")
        return parse_uids(uids)
    except OSError as error:
        line = " ".join(str(error).split())
        raise ValueError(f"subset={uri!r}: cannot be read; name a .npy or Parquet file ({line})") from error
    except ValueError as error:
        raise ValueError(f"subset={uri!r}: {error}") from error


def refuse_unknown(uri: str, source: str, uid_N2: np.ndarray, key_M: np.ndarray, num_bad: int) -> None:
    """Raise ValueError where more uids of a subset have no pair than ``num_bad``, the number of its samples
    that are bad and therefore have none."""
    key_N = np.unique(to_keys(uid_N2))
    lost_n = np.flatnonzero(find_keys(key_M, key_N) < 0)
    if len(lost_n) > num_bad:
        example = key_N[lost_n[0]].ljust(16, b"\0").hex()
        of_these = f", {num_bad:,} of them bad samples of it" if num_bad else ""
        raise ValueError(
            f"subset={uri!r}: {len(lost_n):,} of the {len(key_N):,} uids that it names have no pair in "
            f"{source}{of_these}; one is {example}"
        )
