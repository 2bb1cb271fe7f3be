"""Parquet tables on disk: equal tables give equal bytes, however they were put together."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.schema import SHARD, STATUS
from raycomp.shards.files import new_file
from raycomp.shards.paths import resolve

ROW_GROUP_ROWS = 16_384


def write_table(table: pa.Table, uri: str, schema: pa.Schema) -> None:
    """Write ``table`` to ``uri`` as Parquet of ``schema``, whole or not at all.

    The bytes depend on the values and ``schema`` alone (and on Arrow's version, which it writes down): chunks
    are joined, row groups have a fixed size, metadata beside the types is dropped.
    Raises ValueError where the table's columns are not those of ``schema``, in its order.
    """
    if table.column_names != schema.names:
        raise ValueError(f"{uri}: the columns are {table.column_names}, must be {schema.names}")
    table = table.cast(schema).replace_schema_metadata(None).combine_chunks()
    with new_file(uri) as file:
        pq.write_table(
            table,
            file,
            row_group_size=ROW_GROUP_ROWS,
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            compression_level=3,
            use_dictionary=[name for name in (SHARD, STATUS) if name in schema.names],
            write_statistics=True,
        )


def join_tables(uris: Sequence[str], uri: str, schema: pa.Schema) -> None:
    """Join the columns of ``schema`` of many files into one, a row group for each that has rows.

    One file's rows are in memory at a time. Equal files give equal bytes.
    """
    with new_file(uri) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in uris:
            table = read_columns(part, schema.names)
            if len(table):
                writer.write_table(table.cast(schema).combine_chunks())


def read_columns(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the named columns (none = all) of a Parquet file, in file order of its rows.

    Raises ValueError naming a column that the file lacks, and OSError where there is no such file.
    """
    filesystem, path = resolve(uri)
    with filesystem.open_input_file(path) as source, pq.ParquetFile(source) as file:
        missing = set(columns or ()) - set(file.schema_arrow.names)
        if missing:
            raise ValueError(f"{uri}: has no column {', '.join(sorted(missing))}")
        table = file.read(columns=None if columns is None else list(columns))
    return table if columns is None else table.select(list(columns))


def read_matching(uri: str, columns: Sequence[str], column: str, value: str) -> pa.Table:
    """Return the rows whose ``column`` is ``value``; row groups without it are not read."""
    filesystem, path = resolve(uri)
    return pq.read_table(path, columns=list(columns), filesystem=filesystem, filters=[(column, "==", value)])
