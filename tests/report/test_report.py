"""Charts lose no count and no estimate; a table is the same as text, CSV and HTML; the frame of a page."""

import base64
import csv
import hashlib
import importlib.resources
import io
import math
import re

import numpy as np
import pytest

from raycomp.report import page as pages
from raycomp.report.page import (
    MOST_ROWS,
    POLICY,
    SCRIPT,
    Layer,
    add_contents,
    link_index,
    load_templates,
    rebin,
    response,
)
from raycomp.table import Column, Estimate, Numeral, PValue, Table, join_text, read_csv, write_cell, write_csv
from tests.report.html_tree import Element, read_html

NAN = float("nan")
KEPT, DROPPED = Layer("k", "kept"), Layer("d", "dropped")


def test_bars_hold_what_numpy_counts_between_their_edges():
    for spread in (0.00001, 0.003, 0.04, 0.6):
        value_N = np.clip(np.random.default_rng(0).normal(0.07, spread, 5000), -0.99, 0.99)
        fine, edges_F = np.histogram(value_N, np.linspace(-1, 1, 10_001))
        counts, edges = rebin(np.stack([fine, 2 * fine]), -1.0, 0.0002)
        assert counts.shape[1] <= pages.MOST_BARS + 1 and counts[0, 0] > 0 and counts[0, -1] > 0
        oracle = np.add.reduceat(fine, np.searchsorted(edges_F, edges[:-1] - 1e-9))
        oracle[-1] = fine.sum() - oracle[:-1].sum()
        np.testing.assert_array_equal(counts, [oracle, 2 * oracle])
        width = edges[1] - edges[0]
        np.testing.assert_allclose(edges / width, np.round(edges / width), atol=1e-6)
    counts, edges = rebin(np.bincount([3, 3, 5], minlength=201)[None], -0.5, 1.0)
    assert counts.tolist() == [[2, 0, 1]] and edges.tolist() == [2.5, 3.5, 4.5, 5.5], "whole numbers"
    assert rebin(np.zeros((2, 201), int), -0.5, 1.0)[0].sum() == 0


def test_ticks_are_round_and_inside():
    for low, high in ((0, 1), (-0.03, 0.071), (12, 90_000), (0.2899, 0.2901)):
        values = pages.ticks(low, high, 6)
        assert 2 <= len(values) <= 7 and all(low - 1e-9 <= at <= high + 1e-9 for at, _ in values)
        for at, text in values:
            assert float(text.replace(",", "").replace("\u2212", "-")) == pytest.approx(at)
        step = pages.nice_step(high - low, 6)
        assert float(f"{step:.0e}"[0]) in (1, 2, 5) and step * 6 >= (high - low) * (1 - 1e-9)


def test_every_bar_and_point_is_drawn_and_text_is_escaped():
    drawn = pages.histogram("t", "x", (KEPT, DROPPED), np.array([[4, 2], [0, 6]]), np.arange(3.0))
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" class="(?:kept|dropped)"', drawn)]
    assert np.array(heights) / heights[0] == pytest.approx([1, 0.5, 1.5], rel=0.01)
    assert "0 to 1: 4 k, 0 d" in drawn and "1 to 2: 2 k, 6 d" in drawn
    x = np.array([0.1, 0.2, 0.3])
    for layers, count in (([(KEPT, x), (DROPPED, x[:1])], 4), ([(KEPT, x[:0])], 0), ([(KEPT, x[:1])], 1)):
        assert pages.scatter("t", "x", "y", [(layer, x, x) for layer, x in layers]).count("h0") == count
    assert "<b>" not in pages.bars("t", [("<b>x</b>", 1.0, "1 kept"), ("y", -1.0, "2")], "z")


def read_dots(drawn: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'd="M([\d.]+) ([\d.]+)h0"', drawn)]


def test_every_estimate_is_drawn_and_said_with_its_interval():
    points = [(0.5, Estimate(0.6, 0.5, 0.7)), (1.0, Estimate(0.8, 0.7, 0.9)), (0.7, Estimate(0.7, NAN, NAN))]
    drawn = response("t", "x", "y", [("a", points)])
    dots = read_dots(drawn)
    assert len(dots) == 3 and drawn.count("<line") - drawn.count('class="grid"') - drawn.count('"axis"') == 2
    xs, ys = zip(*dots, strict=True)
    assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx(0.4, abs=0.01)
    assert ys[0] > ys[1] > ys[2] and "0.800 [0.700, 0.900] at 1" in drawn


def test_a_log_axis_sets_powers_equally_apart():
    points = [(10.0**-power, Estimate(0.5, 0.4, 0.6)) for power in (1, 2, 3)]
    (a, _), (b, _), (c, _) = read_dots(response("t", "x", "y", [("a", points)], is_log=True))
    assert b - a == pytest.approx(c - b, abs=0.2)
    many = [(1e-5 * 1.3**i, Estimate(0.1 * math.sin(i), NAN, NAN)) for i in range(30)]
    drawn = response("t", "x", "y", [("a", many)], is_log=True)
    assert (
        all(f">{label}</text>" in drawn for label in ("0.0001", "0.001", "0.01")) and ">0.002<" not in drawn
    )


def test_what_is_not_known_is_left_out_and_series_stand_next_to_one_another():
    points = [(0.5, Estimate(NAN, NAN, NAN)), (1.0, Estimate(0.8, NAN, NAN))]
    assert len(read_dots(response("t", "x", "y", [("a", points), ("b", [])]))) == 1
    one = [(0.5, Estimate(0.6, 0.5, 0.7))]
    drawn = response("t", "x", "y", [("first", one), ("second", one)])
    (a, _), (b, _) = read_dots(drawn)
    assert b - a == pytest.approx(5) and "first" in drawn and "second" in drawn


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


def test_every_heading_has_an_anchor_of_its_own_in_the_contents():
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in POLICY and "unsafe-inline' script" not in POLICY
    heads = ("A &amp; <b>b</b>", "Rows", "Rows", "\u4e2d", "&lt;i&gt;")
    content, contents = add_contents("".join(f"<section><h2>{head}</h2></section>" for head in heads))
    places = [head.attributes["id"] for head in read_html(content).all("h2")]
    links = read_html(contents).all("a")
    assert [link.attributes["href"] for link in links] == [f"#{place}" for place in places]
    assert len({*places}) == 5 and places[1:3] == ["rows", "rows-2"]
    assert [link.text for link in links] == ["A & b", "Rows", "Rows", "\u4e2d", "<i>"]
    (home, *_) = read_html(link_index(contents, "../index.html")).all("a")
    assert home.attributes["href"] == "../index.html" and home.text == "All runs"


def test_a_long_table_is_folded_and_cells_name_their_column():
    for num in (MOST_ROWS, MOST_ROWS + 1):
        table = Table("Made", ("name", "p"), [(str(i), PValue(0.5 / 10**i)) for i in range(num)])
        tree = read_html(load_templates().get_template("report/parts.html.jinja").module.draw_table(table))
        assert len(tree.all("details")) == (num > MOST_ROWS)
        assert [cell.attributes["data-head"] for cell in tree.all("td")[:2]] == ["name", "p"]
        assert [row[1] for row in tree.all("table")[0].rows()[2:5]] == ["0.0050", "0.0005", "< .0001"]


PHASES = [
    {"phase": "align", "rows": 600, "wall_s": 10.0, "commit_s": 0.1, "commit_share": 0.01,
     "scorer_busy_share": 0.8, "bottleneck": "image"},
    {"phase": "attribute", "rows": 0, "wall_s": 2.0, "commit_s": 0.0, "commit_share": 0.0,
     "bottleneck": "write"},
]  # fmt: skip
STAGES = [
    {"phase": "align", "stage": "image", "seconds": 12.0, "workers": 2, "busy_share": 0.6, "rows_per_s": 50.0,
     "says": "embeds images"},
    {"phase": "align", "stage": "text", "seconds": 4.0, "workers": 2, "busy_share": 0.2, "rows_per_s": 150.0},
    {"phase": "attribute", "stage": "write", "seconds": 1, "workers": 4, "busy_share": 1 / 8,
     "rows_per_s": 0.0},
]  # fmt: skip


def draw_record(phases: list[dict]) -> Element:
    run = {"phases": phases, "stages": STAGES}
    (page,) = read_html(pages.render_page("report/record.html.jinja", run=run)).all("section")
    return page


def test_each_phase_names_its_bottleneck_and_draws_its_shares():
    page = draw_record([{**PHASES[0], "gpu_busy_share": 0.45}, PHASES[1]])
    assert page.all("h3")[0].text == "align: 600 rows in 10.0 s, 60.0 rows/s"
    lines = [line.text.replace("\xa0", " ") for line in page.all("p")[1:]]
    assert lines[0].startswith("Bottleneck: image. Scorers busy 80.0 %. GPU busy share 45.0 %.")
    assert lines[1] == "Bottleneck: write. Commits of finished waves took 0.0 % of the time."
    align, attribute = page.all("table")
    image, text = ([cell.replace("\xa0", " ") for cell in row] for row in align.rows())
    assert image[2:7] == ["60.0 %", "12.0 s", "2", "50.0", "embeds images"] and text[6] == ""
    assert [bar.attributes["width"] for bar in align.all("rect")] == ["60.00%", "20.00%"]
    assert [name.text for name in align.all("b") + attribute.all("b")] == ["image", "write"]


def test_scorers_that_came_and_went_are_drawn_as_steps():
    growth = [[0.0, 0, 4], [2.0, 1, 4], [6.0, 3, 8]]
    figure = draw_record([{**PHASES[0], "growth": growth}, PHASES[1]]).all("figure")
    assert len(figure) == 1 and "Scorers of align over time" in figure[0].text
    (line,) = [path for path in figure[0].all("path") if path.attributes["class"].startswith("line")]
    places = [tuple(map(float, at.split())) for at in line.attributes["d"][1:].split("L")]
    x, y = zip(*places, strict=True)
    assert [x.index(at) for at in x] == [0, 1, 1, 3, 3, 5]  # 0 to 2 s, to 6 s, to the end at 10 s
    assert y[0] == y[1] > y[2] == y[3] > y[4] == y[5]


def contrast(*colours: np.ndarray) -> float:
    """Contrast ratio of WCAG 2.1, 1 to 21."""
    c = np.stack(colours) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_on_every_ground():
    css = (importlib.resources.files("raycomp.report") / "style.css").read_text("utf-8")
    light, dark = (
        {
            name: np.array([int(value[i : i + 2], 16) for i in (1, 3, 5)], float)
            if value.startswith("#")
            else np.array([float(one) for one in value.split(",")])
            for name, value in re.findall(r"--([\w-]+):\s*(#\w{6}|\d+, *\d+, *\d+);", part)
        }
        for part in re.findall(r":root \{(.*?)\}", css, re.S)
    )
    texts = {"ink": ("page", "surface"), "quiet": ("page", "surface", "line"), "kept": ("page", "surface")}
    texts |= {"dropped-ink": ("surface",), "alert": ("alert-page",)}
    for colours in (light, light | dark):
        for text, grounds in texts.items():
            assert all(contrast(colours[text], colours[ground]) >= 4.5 for ground in grounds), text
        for shade in ("positive", "negative"):
            full = 0.52 * colours[shade] + 0.48 * colours["surface"]
            assert contrast(colours["ink"], full) >= 4.5, shade
        for bar in ("kept", "object", "relation", "predicate", "dropped"):
            assert contrast(colours[bar], colours["page"]) >= 2.5, bar
