"""The part of the report that tells where the time went, read back from its markup."""

from raycomp.report.page import render_page
from tests.report.html_tree import Element, read_html

PHASES = [
    {
        "phase": "align",
        "rows": 600,
        "wall_s": 10.0,
        "commit_s": 0.1,
        "commit_share": 0.01,
        "scorer_busy_share": 0.8,
        "bottleneck": "image",
    },
    {
        "phase": "attribute",
        "rows": 0,
        "wall_s": 2.0,
        "commit_s": 0.0,
        "commit_share": 0.0,
        "bottleneck": "write",
    },
]
STAGES = [
    {
        "phase": "align",
        "stage": "image",
        "seconds": 12.0,
        "workers": 2,
        "busy_share": 0.6,
        "rows_per_s": 50.0,
        "says": "embeds images",
    },
    {"phase": "align", "stage": "text", "seconds": 4.0, "workers": 2, "busy_share": 0.2, "rows_per_s": 150.0},
    {
        "phase": "attribute",
        "stage": "write",
        "seconds": 1,
        "workers": 4,
        "busy_share": 1 / 8,
        "rows_per_s": 0.0,
    },
]


def draw(phases: list[dict]) -> Element:
    run = {"phases": phases, "stages": STAGES}
    (page,) = read_html(render_page("report/record.html.jinja", run=run)).all("section")
    return page


def test_each_phase_names_its_bottleneck_and_draws_its_shares():
    page = draw(PHASES)
    assert page.all("h3")[0].text == "align: 600 rows in 10.0 s, 60.0 rows/s"
    lines = [line.text.replace("\xa0", " ") for line in page.all("p")[1:]]
    assert (
        lines[0]
        == "Bottleneck: image. Scorers busy 80.0 %. Commits of finished waves took 1.0 % of the time."
    )
    assert lines[1] == "Bottleneck: write. Commits of finished waves took 0.0 % of the time."
    align, attribute = page.all("table")
    image = align.rows()[0]
    assert [text.replace("\xa0", " ") for text in image[2:6]] == ["60.0 %", "12.0 s", "2", "50.0"]
    assert [row[6] for row in align.rows()] == ["embeds images", ""]  # the older run.json says nothing
    assert [bar.attributes["width"] for bar in align.all("rect")] == ["60.00%", "20.00%"]
    assert [name.text for name in align.all("b") + attribute.all("b")] == ["image", "write"]


def test_a_gpu_is_spoken_of_where_there_is_one():
    assert "GPU" not in draw(PHASES).text
    text = draw([{**PHASES[0], "gpu_busy_share": 0.45}]).text.replace("\xa0", " ")
    assert "Scorers busy 80.0 %. GPU busy share 45.0 %." in text


def test_scorers_that_came_and_went_are_drawn_as_steps():
    growth = [[0.0, 0, 4], [2.0, 1, 4], [6.0, 3, 8]]
    figure = draw([{**PHASES[0], "growth": growth}, PHASES[1]]).all("figure")
    assert len(figure) == 1 and "Scorers of align over time" in figure[0].text
    (line,) = [path for path in figure[0].all("path") if path.attributes["class"].startswith("line")]
    places = [tuple(map(float, at.split())) for at in line.attributes["d"][1:].split("L")]
    x, y = zip(*places, strict=True)
    assert [x.index(at) for at in x] == [0, 1, 1, 3, 3, 5]  # 0 to 2 s, to 6 s, to the end at 10 s
    assert y[0] == y[1] > y[2] == y[3] > y[4] == y[5]
