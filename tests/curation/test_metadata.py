"""The side table of metadata: one type for each field over all shards."""

import math

import numpy as np

from raycomp.curation.score.columns import Kinds, choose_types, count_kinds, type_fields


def test_a_field_has_the_type_of_most_values():
    for values, expected, num_misfits in [
        ([1, 2, None], [1, 2, None], 0),
        ([1, 2.5], [1.0, 2.5], 0),
        ([2**53 + 1, 0.5], [None, 0.5], 1),
        ([2**53 + 1, 5], [2**53 + 1, 5], 0),
        ([1, 2, 4, "3", "x"], [1, 2, 4, 3, None], 1),
        ([1, "x"], ["1", "x"], 0),
        ([0.5, 0.25, "1e400"], [0.5, 0.25, None], 1),
        (["a", [1, None], {"b": 2}, True], ["a", "[1, null]", '{"b": 2}', "true"], 0),
        ([True, False, 1], [True, False, None], 1),
        ([1, 1, True], [1, 1, None], 1),
        ([2**70, 1], [float(2**70), 1.0], 0),
        ([1, 2, 3, "4.5"], [1, 2, 3, None], 1),
        ([math.nan, 1.5], [None, 1.5], 0),
        (["\ud800", "b"], ["?", "b"], 0),
        ([None], None, 0),  # a field that is never there has no column
    ]:
        rows = [{"x": value} for value in values]
        columns, misfits = type_fields(rows, choose_types(count_kinds(rows)))
        assert {name: one.to_pylist() for name, one in columns.items()} == (
            {"x": expected} if expected else {}
        )
        assert misfits["x"] == num_misfits, values


def test_types_do_not_depend_on_shards_or_their_order():
    rng = np.random.default_rng(0)
    pool = [None, 1, 2.5, True, "a", "7", [1]]
    rows = [{name: pool[i] for name, i in zip("abc", rng.integers(0, 7, 3), strict=True)} for _ in range(60)]
    whole = choose_types(count_kinds(rows))
    for cut in (1, 20, 59):
        first, second = count_kinds(rows[:cut]), count_kinds(rows[cut:])
        assert choose_types(first + second) == choose_types(second + first) == whole


def test_of_too_many_fields_the_most_frequent_stay():
    rows = [{f"f{i}": 1} for i in range(400)] + [{"often": 1}] * 2
    types = choose_types(count_kinds(rows))
    assert len(types) == 256 and "often" in types
    assert choose_types(Kinds()) == {}
