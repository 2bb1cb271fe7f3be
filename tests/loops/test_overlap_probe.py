from xml.etree import ElementTree

import pytest

from raycomp.benchmarks.choice import EQUAL, Choice
from raycomp.benchmarks.read import read_benchmark
from raycomp.loops.overlap import NONE, TWO_CALLS, format_overlap, interval, measure_overlap, sum_rows
from raycomp.loops.overlap_plot import WIDTH, draw_overlap
from raycomp.models.lexicon import load_lexicon
from raycomp.models.parser import load_parser
from raycomp.schema import ATTRIBUTE, OBJECT, REPLACE, SWAP


def choice(place, positive, negative, op="", kind="", defects=()):
    return Choice("valse", "made", str(place), "1.jpg", (positive,), (negative,), op, kind, defects)


CHOICES = [
    choice(0, "A red ball on a table.", "A blue ball on a table.", REPLACE, ATTRIBUTE),
    choice(1, "A dog chases a cat.", "A cat chases a dog.", SWAP, OBJECT),
    choice(2, "A red ball on a table.", "A red ball on a table.", SWAP, OBJECT, (EQUAL,)),
    choice(3, "A dog sits on a mat.", "Nothing whatever of this is to be seen anywhere near here."),
    choice(4, "A dog on a mat.", "A small dog on a red mat."),
]


def test_every_sound_row_is_counted_once():
    (row,) = measure_overlap(CHOICES, load_parser(), None)
    assert (row.count, row.left_out, row.regenerated) == (4, 1, None)
    assert row.explained == {REPLACE: 1, SWAP: 1, TWO_CALLS: 1, NONE: 1}
    assert (row.named, row.agreed, row.agreed_kind) == (2, 2, 2)
    assert sum(row.reasons.values()) == row.explained[NONE]


def test_the_rules_write_a_plain_swap_again():
    (row,) = measure_overlap(CHOICES[1:2], load_parser(), load_lexicon())
    assert (row.same_edit, row.regenerated) == (1, 1)


def test_wilson_against_published_values():
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20.
    assert [round(x, 4) for x in interval(81, 263)] == [0.2553, 0.3662]
    assert [round(x, 4) for x in interval(15, 148)] == [0.0624, 0.1605]
    assert [round(x, 4) for x in interval(0, 20)] == [0.0, 0.1611]
    assert interval(0, 0) == (0.0, 1.0)


def test_the_table_has_the_papers_range_beside_ours():
    rows = measure_overlap(CHOICES, load_parser(), None)
    table = format_overlap(rows)
    assert "75.0 [30.1, 95.4]" in table and "60%-80%" in table
    assert sum_rows(rows)[0].explained == rows[0].explained


def test_the_bar_of_a_split_is_whole():
    picture = ElementTree.fromstring(draw_overlap(measure_overlap(CHOICES, load_parser(), None)))
    shares = [
        rect for rect in picture.iter("{http://www.w3.org/2000/svg}rect") if rect.get("class") == "share"
    ]
    assert sum(float(rect.get("width")) for rect in shares) == pytest.approx(WIDTH)


def test_sugarcrepe_names_its_operation_and_so_do_we(shared):
    """The split's name is the oracle; where we disagree it is mostly with two calls or none."""
    choices = read_benchmark("sugarcrepe", shared / "data/benchmarks/sugarcrepe")[::5]
    total = sum_rows(measure_overlap(choices, load_parser(), None))[0]
    assert total.count == total.named == 1503
    assert total.agreed / total.named > 0.85
    other = total.count - total.agreed - total.explained[TWO_CALLS] - total.explained[NONE]
    assert other / total.count < 0.03
