"""What is known to be wrong with the published files, and what is told of files of another size."""

import pytest

from raycomp.evaluation.benchmarks.choice import (
    DEFECTS,
    DUPLICATE,
    EQUAL,
    UNCONFIRMED,
    report_defects,
    warn_other_counts,
)
from tests.evaluation.benchmarks.test_benchmarks import SUGARCREPE, VALSE, read_shared


def count_defects(table):
    """Return what is not 0 of every split."""
    heads = table.columns[3:]
    lines = {line[1]: dict(zip(heads, line[3:], strict=True)) for line in table.rows}
    return {
        split: {name: n for name, n in line.items() if n and name in DEFECTS} for split, line in lines.items()
    }


def test_known_defects(shared):
    pp, checklist, valse = (
        report_defects(read_shared(shared, name)) for name in ("sugarcrepe_pp", "vl_checklist", "valse")
    )
    found = count_defects(pp)
    assert (found["swap_obj"], found["swap_att"], found["replace_rel"]) == ({EQUAL: 2}, {DUPLICATE: 1}, {})
    found = count_defects(checklist)
    assert found["attribute_vg/color"][EQUAL] == 66 and found["relation_vg/action"][EQUAL] == 28
    found = count_defects(valse)
    assert {split: line[UNCONFIRMED] for split, line in found.items()} == {
        split: n - valid for split, (valid, n) in VALSE.items()
    }
    # All of these are unconfirmed too: the sums below are those of unconfirmed rows alone.
    assert {split: line[EQUAL] for split, line in found.items() if EQUAL in line} == {
        "actant-swap": 14,
        "counting-hard": 9,
        "existence": 1,
    }
    assert sum(line[2] for line in valse.rows) == 8782 and sum(line[3] for line in valse.rows) == 7702


def test_rows_that_are_not_there_are_reported_and_no_fault(shared):
    choices = read_shared(shared, "sugarcrepe")
    assert warn_other_counts(choices) == []
    assert {line[1]: line[2] for line in report_defects(choices).rows} == SUGARCREPE
    assert warn_other_counts(choices[1:-2]) == [
        "sugarcrepe: add_att: 691 rows, 692 are published",
        "sugarcrepe: swap_obj: 243 rows, 245 are published",
    ]
    assert "691 rows, 692 are published" in report_defects(choices[1:]).to_text()


@pytest.mark.parametrize("name", ["sugarcrepe_pp", "valse", "vl_checklist", "hard_positives", "cola"])
def test_the_published_files_have_the_published_rows(shared, name):
    assert warn_other_counts(read_shared(shared, name)) == []
