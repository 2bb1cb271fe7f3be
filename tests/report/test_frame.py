"""The frame of every page: contents, anchors, the index, one script that the policy names."""

import base64
import hashlib

import pytest

from raycomp.report.page import MOST_ROWS, POLICY, SCRIPT, add_contents, link_index, load_templates
from raycomp.table import PValue, Table, write_cell, write_csv
from tests.report.html_tree import read_html


def test_the_policy_names_the_script():
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in POLICY and "unsafe-inline' script" not in POLICY


def test_every_heading_has_an_anchor_of_its_own_in_the_contents():
    heads = ("A &amp; <b>b</b>", "Rows", "Rows", "\u4e2d", "&lt;i&gt;")
    content, contents = add_contents("".join(f"<section><h2>{head}</h2></section>" for head in heads))
    places = [head.attributes["id"] for head in read_html(content).all("h2")]
    links = read_html(contents).all("a")
    assert [link.attributes["href"] for link in links] == [f"#{place}" for place in places]
    assert len({*places}) == 5 and places[1:3] == ["rows", "rows-2"]
    assert [link.text for link in links] == ["A & b", "Rows", "Rows", "\u4e2d", "<i>"]


def test_an_index_is_linked_where_one_exists():
    page = add_contents("<h2>x</h2>")[1]
    assert "index.html" not in page
    (home, _) = read_html(link_index(page, "../index.html")).all("a")
    assert home.attributes["href"] == "../index.html" and home.text == "All runs"


@pytest.mark.parametrize("num", [MOST_ROWS, MOST_ROWS + 1])
def test_a_long_table_is_folded_and_cells_name_their_column(num):
    table = Table("Made", ("name", "p"), [(str(i), PValue(0.5 / 10**i)) for i in range(num)])
    tree = read_html(load_templates().get_template("report/parts.html.jinja").module.draw_table(table))
    assert len(tree.all("details")) == (num > MOST_ROWS)
    assert [cell.attributes["data-head"] for cell in tree.all("td")[:2]] == ["name", "p"]
    assert [row[1] for row in tree.all("table")[0].rows()[2:5]] == ["0.0050", "0.0005", "< .0001"]


def test_a_small_p_is_a_bound_in_text_and_a_number_in_csv():
    assert [write_cell(PValue(p), 3) for p in (0.04, 1e-4, 9e-5, 0.0)] == [
        "0.0400",
        "0.0001",
        *["< .0001"] * 2,
    ]
    assert write_cell(PValue(float("nan"))) == "\u2013" and write_csv([[PValue(1e-7)]]) == "1e-07\n"
