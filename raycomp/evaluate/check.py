"""Whether a table of scores is one that an evaluation wrote: any other is told in a line."""

import pyarrow as pa
import pyarrow.compute as pc

from raycomp.evaluate.outcomes import list_controls
from raycomp.schema import CLASSIFIED_SCHEMA, RETRIEVED_SCHEMA, example_schema
from raycomp.words import OK, STATUS

_NUMBERS = {"rank", "ties", "num_own", "num_targets", "num_classes"}
_AGAIN = "evaluate again, into another folder"


def check_table(table: pa.Table, said: str) -> None:
    """Raise ValueError naming the file ``said`` unless its rows are what ``find_outcomes`` can judge."""
    schema = _find_schema(table)
    for field in schema:
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            raise ValueError(f"{said}: has no column {field.name} of {field.type}; {_AGAIN}")
    scored = table.filter(pc.equal(table[STATUS], OK))
    for name in _NUMBERS & {*schema.names}:
        if scored[name].null_count:
            raise ValueError(f"{said}: a row with status ok has no {name}; {_AGAIN}")
    for field in schema:
        if not _is_finite(scored[field.name]):
            raise ValueError(f"{said}: {field.name} must be finite numbers, holds NaN or infinity; {_AGAIN}")
    for side in {"positives", "negatives"} & {*schema.names}:
        for name in (f"{side[:-1]}_scores", *(f"{control}_{side}" for control in list_controls(table))):
            if not _is_one_each(scored[name], scored[side]):
                raise ValueError(f"{said}: {name} must have a number for each of {side}; {_AGAIN}")


def _find_schema(table: pa.Table) -> pa.Schema:
    if "num_classes" in table.column_names:
        return CLASSIFIED_SCHEMA
    return RETRIEVED_SCHEMA if "num_targets" in table.column_names else example_schema(list_controls(table))


def _is_finite(column: pa.ChunkedArray) -> bool:
    """Return whether a column holds nothing else than finite numbers, nulls, or what is no number."""
    values = pc.list_flatten(column) if pa.types.is_list(column.type) else column
    is_number = pa.types.is_floating(values.type)
    return not is_number or bool(pc.all(pc.is_finite(values), min_count=0).as_py())


def _is_one_each(scores: pa.ChunkedArray, texts: pa.ChunkedArray) -> bool:
    """Return whether every row has texts and as many scores."""
    counts = pc.fill_null(pc.list_value_length(texts), 0)
    is_same = pc.fill_null(pc.equal(pc.list_value_length(scores), counts), False)
    return bool(pc.all(pc.and_(is_same, pc.greater(counts, 0)), min_count=0).as_py())
