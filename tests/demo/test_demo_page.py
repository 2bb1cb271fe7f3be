"""The demo's page: five steps, links that stay in the folder, figures as they came, text as text."""

from raycomp.report.frame import SCRIPT
from raycomp.report.page import render_page
from raycomp.table import Estimate, Table
from tests.report.html_tree import Element, read_html

HOSTILE = "<script>alert(1)</script>\"'&"


def draw() -> Element:
    runs = {
        "curated": {"funnel": {"read": 3000, "kept": 1475}},
        "negatives": {"written": 4425},
        "negclip": {"steps": 200, "batch_size": 64, "train_s": 61.2},
        "compared": {"funnel": {"read": 5123}},
    }
    means = (Estimate(0.7, 0.68, 0.72), Estimate(0.745, 0.725, 0.765))
    table = Table(HOSTILE, ("Negative", "before"), [(HOSTILE, means[0])], HOSTILE)
    learned = {"losses": [1.0] * 500, "num_train": 10_000}
    shown = {"learned": learned, "runs": runs, "means": means, "figures": [table]}
    return read_html(render_page("demo/page.html.jinja", **shown, reported={"Results": HOSTILE}))


def test_steps_are_reported_and_lead_to_their_reports():
    page = draw()
    steps = page.all("li")
    assert len(steps) == 5
    for step, words in zip(steps, ("10,000", "1,475", "4,425", "61 s", "5,123"), strict=True):
        assert words in step.text
    links = [link.attributes["href"] for link in page.all("main")[0].all("a")]
    folders = ("curated", "negatives", "negclip", "evaluated/clip", "evaluated/negclip", "compared")
    assert links == [f"{folder}/report.html" for folder in folders]
    assert "0.700 to 0.745" in page.all("h1")[0].text


def test_text_is_no_markup():
    page = draw()
    assert [one.text for one in page.all("script")] == [SCRIPT]
    assert page.all("table")[0].rows() == [[HOSTILE, "0.7000 [0.6800, 0.7200]"]]
    assert sum(HOSTILE in lead.text for lead in page.all("p")) == 2
