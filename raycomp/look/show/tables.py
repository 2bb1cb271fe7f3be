"""The tables among a run's files, by a short name each: Parquet, CSV and lines of JSON."""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from raycomp.data.manifest import STATE, read_result
from raycomp.data.parquet import read_columns
from raycomp.data.written import ResultFile
from raycomp.table import read_csv

# Folders whose Parquet files are not result tables: the input's samples, and what updates and proofs need.
_OTHERS = ("shards", STATE)


def name_tables(files: Mapping[str, ResultFile]) -> dict[str, list[ResultFile]]:
    """Return the files of each table, in order, by its name; the tables in the order of their names.

    Numbered files, such as scores/00000.parquet, form one table named after their folder; another file is
    named by its stem.
    """
    found: dict[str, list[ResultFile]] = {}
    for name in sorted(files):
        folder, base = posixpath.split(name)
        stem, suffix = posixpath.splitext(base)
        if suffix in _READERS and folder.partition("/")[0] not in _OTHERS:
            own = posixpath.basename(folder) if stem.isdecimal() and folder else stem
            found.setdefault(own, []).append(files[name])
    return dict(sorted(found.items()))


def read_tables(files: Iterable[ResultFile]) -> pa.Table:
    """Return the rows of one table's files. Raises ValueError if one differs from the file the run wrote."""
    tables = [_READERS[posixpath.splitext(file)[1]](file) for file in files]
    return pa.concat_tables(tables).combine_chunks()


def _read_csv(file: ResultFile) -> pa.Table:
    rows = read_csv(read_result(file).decode())
    names = list(rows[0]) if rows else []
    return pa.table({name: _type_column([row[name] for row in rows]) for name in names})


def _type_column(texts: Sequence[str]) -> pa.Array:
    """Return whole numbers, else numbers, with null for an empty text; else the texts unchanged."""
    kinds: tuple[tuple[Callable[[str], Any], pa.DataType], ...] = (int, pa.int64()), (float, pa.float64())
    for read, kind in kinds if any(texts) else ():
        try:
            return pa.array([read(text) if text else None for text in texts], kind)
        except (ValueError, OverflowError):
            continue
    return pa.array(texts, pa.string())


def _read_lines(file: ResultFile) -> pa.Table:
    try:
        return pyarrow.json.read_json(pa.BufferReader(read_result(file)))
    except pa.ArrowException as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"{file}: holds no lines of JSON ({line})") from error


_READERS: dict[str, Callable[[ResultFile], pa.Table]] = {
    ".parquet": read_columns,
    ".csv": _read_csv,
    ".jsonl": _read_lines,
}
