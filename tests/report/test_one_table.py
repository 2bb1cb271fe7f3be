"""A table is said once and read in three ways: text in columns, CSV in full, HTML with text as text."""

import csv
import io

import pytest

from raycomp.report.page import load_templates
from raycomp.table import Column, Estimate, Numeral, PValue, Table, join_text, read_csv, write_cell, write_csv
from tests.report.html_tree import read_html


def draw(table: Table) -> str:
    return load_templates().get_template("report/parts.html.jinja").module.draw_table(table)


NAN = float("nan")
TABLE = Table(
    "Made <up>",
    ("name", "rows", Column("drop", "cosine", 2), Column("AUC", digits=3), "share"),
    [
        ("a <b>", 12345, -0.125, Estimate(0.9, 0.8, 0.95), Numeral("50.0\u00a0%")),
        ("longer", None, NAN, Estimate(NAN, NAN, NAN), Numeral("\u2013")),
    ],
    "One note.",
)


def test_text_stands_in_columns_and_csv_has_the_numbers_in_full_with_the_ends_of_intervals():
    assert TABLE.to_text().splitlines() == [
        "Made <up>",
        "name      rows  drop, cosine                   AUC   share",
        "a <b>   12,345         -0.12  0.900 [0.800, 0.950]  50.0 %",
        "longer       -             -                     -       -",
        "One note.",
    ]
    assert [*csv.reader(io.StringIO(TABLE.to_csv()))] == [
        ["name", "rows", "drop, cosine", "AUC", "AUC low", "AUC high", "share"],
        ["a <b>", "12345", "-0.125", "0.9", "0.8", "0.95", "50.0\u00a0%"],
        ["longer", "", "", "", "", "", "\u2013"],
    ]
    said = [write_cell(PValue(p), 3) for p in (0.04, 1e-4, 9e-5, 0.0, NAN)]
    assert said == ["0.0400", "0.0001", "< .0001", "< .0001", "\u2013"], "a small p is a bound in text"
    assert write_csv([[PValue(1e-7)]]) == "1e-07\n"


def test_html_escapes_and_says_the_same_numbers():
    tree = read_html(draw(TABLE))
    (table,) = tree.all("table")
    assert table.rows()[0] == ["a <b>", "12,345", "\u22120.12", "0.900 [0.800, 0.950]", "50.0\u00a0%"]
    assert [head.attributes.get("class") for head in table.all("th")] == [None, *["num"] * 4]
    assert not tree.all("b") and not tree.all("svg"), "without a chance there is no axis"
    assert tree.all("h2")[0].text == "Made <up>"


def test_a_head_of_empty_names_is_left_out_and_paragraphs_are_filled():
    facts = Table("", ("", ""), [("rows", Numeral("7")), ("shards", Numeral("12"))])
    assert facts.to_text() == "rows     7\nshards  12"
    empty = Table("None", ("a", "b"), [])
    assert empty.to_text() == "None\na  b" and empty.to_csv() == "a,b\n"
    assert not read_html(draw(empty)).all("th") and "None.</p>" in draw(empty)
    text = join_text(["word " * 50, TABLE, "end"])
    assert text.count("\n\n") == 2 and max(map(len, text.splitlines())) <= 100


FORMULAS = ["=LINK(1)", "+1 2", "-2+3", "@SUM(1)", "\t=1", "\n=1", "\n\n=1", "\uff1d1", "-", '="a"']
HARMLESS = ["a = b", "a-b", "", "1+1", " =1", "\u00a0a", "-0.5", "+3", "-1e-5", "-inf", "a\nb", 'a"']


def test_no_text_in_csv_starts_a_formula_and_numbers_stay_numbers():
    lines = [["name", "value"], *([text, -0.5] for text in FORMULAS + HARMLESS), [None, -7]]
    text = write_csv(lines)
    written = list(csv.reader(io.StringIO(text, newline="")))
    assert [cells[0] for cells in written[1:]] == [*(f"\u00a0{text}" for text in FORMULAS), *HARMLESS, ""]
    assert [cells[1] for cells in written[1:]] == ["-0.5"] * (len(lines) - 2) + ["-7"]
    assert [row["name"] for row in read_csv(text)] == [*FORMULAS, *HARMLESS, ""]
    assert read_csv(write_csv([["a", "b"], ["x\r=1", "y\r\n=1"]])) == [{"a": "x\n=1", "b": "y\n=1"}]
    tabbed = list(csv.reader(io.StringIO(write_csv(lines, "\t"), newline=""), delimiter="\t"))
    assert tabbed == written


def test_odd_csv_is_read_back_or_refused_in_a_line():
    lines = [("a", "b"), ("\u00a0=x", "=x"), ("\u00a0\u00a0=x", "\u00a0x"), ("x" * 200_000, "-1")]
    assert [tuple(row.values()) for row in read_csv(write_csv(lines))] == lines[1:]
    for text in ("a,b\n1\n", "a,b\n1,2,3\n"):
        with pytest.raises(ValueError, match="line 2 of the table has not the 2 cells"):
            read_csv(text)
    assert read_csv("") == []
