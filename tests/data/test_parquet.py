"""Tables on disk: equal bytes, damage in one line, bytes of rows; PyArrow without pandas."""

from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.config import UserError
from raycomp.data.parquet import (
    aligned_schema,
    digest_rows,
    encode_rows,
    new_groups,
    read_columns,
    read_matching,
    read_rows,
    read_schema,
    scores_schema,
    write_groups,
    write_table,
)
from raycomp.schema import PHRASE_TYPE

NUM_ROWS = 500
SCHEMA = scores_schema(aligned_schema(8, "float32"))


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(NUM_ROWS):
        phrase = {name: None for name in PHRASE_TYPE.names} | PHRASE | {"nonces": ["blick"] * (i % 3)}
        row = {name: None for name in SCHEMA.names} | {"uid": f"{i:032x}", "key": f"{i}", "status": "ok"}
        row |= {"shard": "00000.tar", "position": i, "caption": "" if i % 7 else "caf\u00e9"}
        row |= {"phrases": [phrase] * (i % 4) if i % 6 else None}
        if i % 5:
            row |= {"alignment": float(rng.random()), "image_embedding": rng.random(8).tolist()}
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_equal_tables_give_equal_bytes_that_are_read_as_they_were(table, tmp_path):
    path = tmp_path / "deep" / "0.parquet"
    other = pa.concat_tables([table.slice(0, 13), table.slice(13, 300), table.slice(313)])
    padded = pa.concat_tables([table.slice(5, 5), table, table]).combine_chunks().slice(5, NUM_ROWS)
    marked = table.replace_schema_metadata({"pandas": "{}"})
    written = set()
    for version in (table, other, padded, marked):
        write_table(version, str(path), SCHEMA)
        written.add(path.read_bytes())
    assert len(written) == 1
    changed = table.set_column(3, "position", pa.array(range(1, NUM_ROWS + 1), pa.int32()))
    write_table(changed.select(SCHEMA.names), str(path), SCHEMA)
    assert path.read_bytes() not in written
    for dtype in ["float32", "float16"]:
        schema = scores_schema(aligned_schema(8, dtype))
        write_table(table.cast(schema), str(path), schema)
        back = read_columns(str(path))
        assert back.schema.equals(schema) and back.equals(table.cast(schema)), dtype
        assert read_columns(str(path), ["alignment", "uid"]).equals(table.select(["alignment", "uid"])), dtype


def test_wrong_columns_are_named(table, tmp_path):
    with pytest.raises(ValueError, match="columns are"):
        write_table(table.drop_columns(["url"]), str(tmp_path / "0.parquet"), SCHEMA)
    write_table(table, str(tmp_path / "0.parquet"), SCHEMA)
    with pytest.raises(ValueError, match="has no column beauty, score"):
        read_columns(str(tmp_path / "0.parquet"), ["uid", "score", "beauty"])
    with pytest.raises(FileNotFoundError):
        read_columns(str(tmp_path / "1.parquet"))


def test_tables_in_one_file_are_the_rows_in_order_however_they_came(tmp_path):
    schema = pa.schema([("uid", pa.string()), ("score", pa.float32())])
    rows = [{"uid": f"{i:032x}", "score": i / 7} for i in range(8)]
    whole = pa.Table.from_pylist(rows, schema)
    write_groups([whole.slice(0, 3), whole.slice(3, 0), whole.slice(3)], str(tmp_path / "a"), schema)
    with new_groups(str(tmp_path / "b"), schema) as write:
        for part in (rows[:3], [], rows[3:]):
            write(pa.Table.from_pylist(part, schema))
    assert pq.read_table(tmp_path / "a").equals(whole)
    assert pq.ParquetFile(tmp_path / "a").num_row_groups == 2
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_damaged_file_is_said_in_one_line(table, tmp_path):
    path = tmp_path / "0.parquet"
    write_table(table, str(path), SCHEMA)
    whole = path.read_bytes()
    for cut in [0, 3, 100, -1, -5, -200]:
        path.write_bytes(whole[:cut])
        for read in (read_columns, read_schema, lambda u: read_matching(u, ["uid"], "shard", "00000.tar")):
            with pytest.raises(UserError, match=r"0\.parquet: is damaged or no Parquet file") as error:
                read(str(path))
            assert "\n" not in str(error.value), cut


def test_a_failed_request_is_no_damage(table, tmp_path, monkeypatch):
    path = str(tmp_path / "0.parquet")
    write_table(table, path, SCHEMA)
    failed = OSError("AWS Error INTERNAL_FAILURE during GetObject operation: Failed to flush response stream")
    monkeypatch.setattr(pq, "ParquetFile", Mock(side_effect=failed))
    with pytest.raises(OSError, match="AWS Error"):
        read_columns(path)


def test_chosen_rows_are_read_from_their_row_groups_alone(tmp_path):
    uri = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": range(20), "b": range(20)}), uri, row_group_size=6)
    row_N = np.array([0, 5, 5, 6, 19])
    found = [table.to_pydict() for table in read_rows(uri, ["b"], row_N)]
    assert found == [{"b": [0, 5, 5]}, {"b": [6]}, {"b": [19]}]
    assert list(read_rows(uri, ["b"], row_N[:0])) == []
    with pytest.raises(UserError, match="has no column c"):
        next(read_rows(uri, ["c"], row_N))


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


def test_different_values_have_different_bytes_whatever_their_slices_and_chunks():
    for name, array in COLUMNS.items():
        found = encode_rows(array)
        values = [repr(value) for value in array.to_pylist()]
        for i, j in np.ndindex(4, 4):
            assert (values[i] == values[j]) == (found[i] == found[j]), (name, i, j)
        assert encode_rows(array.slice(1, 2)) == found[1:3], name
        assert encode_rows(pa.chunked_array([array.slice(0, 1), array.slice(1)])) == found, name
        assert encode_rows(array.take(pa.array([3, 1, 0, 2]))) == [found[i] for i in (3, 1, 0, 2)], name
        assert encode_rows(array.slice(0, 0)) == [], name


def test_a_digest_is_of_all_columns():
    rows = digest_rows(COLUMNS.values())
    assert len(set(rows)) == 4 and {len(one) for one in rows} == {32}
    changed = dict(COLUMNS, floats=pa.array(np.array([0.5, 1, -0.0, 1e-7], np.float32)))
    again = digest_rows(changed.values())
    assert [a == b for a, b in zip(rows, again, strict=True)] == [True, False, True, False]
