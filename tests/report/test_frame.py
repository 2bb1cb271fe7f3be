"""The frame of every page: contents, anchors, the index, one script; and where the time of a run went."""

import base64
import hashlib

from raycomp.report import page as pages
from raycomp.report.page import MOST_ROWS, POLICY, SCRIPT, add_contents, link_index, load_templates
from raycomp.table import PValue, Table
from tests.report.html_tree import Element, read_html


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


def draw(phases: list[dict]) -> Element:
    run = {"phases": phases, "stages": STAGES}
    (page,) = read_html(pages.render_page("report/record.html.jinja", run=run)).all("section")
    return page


def test_each_phase_names_its_bottleneck_and_draws_its_shares():
    page = draw([{**PHASES[0], "gpu_busy_share": 0.45}, PHASES[1]])
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
    figure = draw([{**PHASES[0], "growth": growth}, PHASES[1]]).all("figure")
    assert len(figure) == 1 and "Scorers of align over time" in figure[0].text
    (line,) = [path for path in figure[0].all("path") if path.attributes["class"].startswith("line")]
    places = [tuple(map(float, at.split())) for at in line.attributes["d"][1:].split("L")]
    x, y = zip(*places, strict=True)
    assert [x.index(at) for at in x] == [0, 1, 1, 3, 3, 5]  # 0 to 2 s, to 6 s, to the end at 10 s
    assert y[0] == y[1] > y[2] == y[3] > y[4] == y[5]
