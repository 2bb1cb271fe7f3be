"""Merge a shard's staged parts into its one file.

Kept apart from what lays the phases over Ray: a worker that only merges need not load torch.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycomp.data.arrow import add_columns
from raycomp.data.parquet import read_columns, write_table
from raycomp.data.paths import join_uri
from raycomp.run.parts import read_parts
from raycomp.schema import ATTRIBUTED_SCHEMA
from raycomp.words import POSITION, STATUS


def merge_aligned(ordinal: int, parts_uri: str, names: list[str], target_uri: str, schema: pa.Schema) -> int:
    """Write the shard's rows after alignment, in the order of their positions; return their number."""
    table = read_parts(parts_uri, names)
    assert table is not None, "every shard has a part"
    write_table(table, join_uri(target_uri, f"{ordinal:05d}.parquet"), schema)
    return len(table)


def merge_scores(
    ordinal: int, parts_uri: str, names: list[str], aligned_uri: str, scores_uri: str, schema: pa.Schema
) -> int:
    """Join a shard's aligned rows with what attribution found for those in the pool; return their number."""
    aligned = read_columns(join_uri(aligned_uri, f"{ordinal:05d}.parquet"))
    found = read_parts(parts_uri, names)
    if found is None:
        found = ATTRIBUTED_SCHEMA.empty_table()
    row_N = np.full(len(aligned), -1)
    row_N[found[POSITION].to_numpy()] = np.arange(len(found))
    added = found.take(pa.array(row_N, mask=row_N < 0))
    columns = {name: added[name] for name in ATTRIBUTED_SCHEMA.names if name != POSITION}
    columns[STATUS] = pc.coalesce(added[STATUS], aligned[STATUS])
    target = join_uri(scores_uri, f"{ordinal:05d}.parquet")
    write_table(add_columns(aligned, columns).select(schema.names), target, schema)
    return len(aligned)
