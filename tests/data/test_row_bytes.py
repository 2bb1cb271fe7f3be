"""Bytes of rows: equal for equal values, however they are stored, and different for different ones."""

import numpy as np
import pyarrow as pa

from raycomp.data.parquet import digest_rows, encode_rows
from raycomp.schema import PHRASE_TYPE

PHRASE = {"text": "a dog", "start": 0, "end": 5, "drops": [0.5, -0.25], "nonces": ["blick"], "drop": None}
COLUMNS = {
    "numbers": pa.array([1, None, 0, -3], pa.int32()),
    "floats": pa.array([0.5, None, -0.0, 0.0], pa.float32()),
    "bits": pa.array([True, False, None, True]),
    "texts": pa.array(["", None, "a", "ab"]),
    "lists": pa.array([[], None, ["a", "b"], ["ab"]], pa.list_(pa.string())),
    "vectors": pa.array([[1, 2], None, [3, 4], [0, 0]], pa.list_(pa.float16(), 2)),
    "structs": pa.array([[], None, [PHRASE], [PHRASE, PHRASE]], pa.list_(PHRASE_TYPE)),
    "nulls": pa.nulls(4),
}


def test_different_values_have_different_bytes():
    for name in COLUMNS:
        found = encode_rows(COLUMNS[name])
        values = [repr(value) for value in COLUMNS[name].to_pylist()]
        same = {(values[i] == values[j]) == (found[i] == found[j]) for i in range(4) for j in range(4)}
        assert same == {True}, name


def test_bytes_do_not_depend_on_slices_and_chunks():
    for name in COLUMNS:
        array = COLUMNS[name]
        whole = encode_rows(array)
        assert encode_rows(array.slice(1, 2)) == whole[1:3], name
        assert encode_rows(pa.chunked_array([array.slice(0, 1), array.slice(1)])) == whole, name
        assert encode_rows(array.take(pa.array([3, 1, 0, 2]))) == [whole[i] for i in (3, 1, 0, 2)], name
        assert encode_rows(array.slice(0, 0)) == [], name


def test_a_digest_is_of_all_columns():
    rows = digest_rows(COLUMNS.values())
    assert len(set(rows)) == 4 and {len(one) for one in rows} == {32}
    changed = dict(COLUMNS, floats=pa.array(np.array([0.5, 1, -0.0, 1e-7], np.float32)))
    again = digest_rows(changed.values())
    assert [a == b for a, b in zip(rows, again, strict=True)] == [True, False, True, False]
