"""The demo's page: its steps, links that stay in the folder, text as text."""

import io
from pathlib import Path

from PIL import Image

from lab import demo
from lab.demo.halves import Example
from raycomp.report.page import SCRIPT, Html, render_page
from raycomp.table import Estimate, Table
from tests.report.html_tree import Element, read_html

HOSTILE = "<script>alert(1)</script>\"'&"


def draw() -> Element:
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    table = Table(HOSTILE, ("Negative", "random"), [(HOSTILE, Estimate(0.7, 0.68, 0.72))], HOSTILE)
    return read_html(
        render_page(
            Path(demo.__file__).with_name("page.html.jinja"),
            learned={"losses": [1.0] * 500, "num_train": 10_000},
            runs={"curated": {"funnel": {"read": 3000, "kept": 1475}}, "negatives": {"written": 4425}},
            head=HOSTILE,
            others=HOSTILE,
            halves=table,
            steps=300,
            chart=Html("<figure></figure>"),
            examples=[
                Example(HOSTILE, None, True, image.getvalue()),
                Example("a red circle", HOSTILE, False, b"no picture"),
            ],
            reported={"Results": HOSTILE, "Limits": HOSTILE},
            figures=[table],
        )
    )


def test_steps_are_reported_and_lead_to_their_reports():
    page = draw()
    steps = page.all("li")
    for step, words in zip(steps, ("10,000", "1,475", "at random", "300", "evaluated", "4,425"), strict=True):
        assert words in step.text
    links = [link.attributes["href"] for link in page.all("main")[0].all("a")]
    halves = ("random", "alignment", "chosen")
    folders = ("curated", "curated", "selected/random", "selected/alignment")
    folders += (
        *(f"{step}/{half}" for step in ("trained", "evaluated") for half in halves),
        "compared",
        "negatives",
    )
    assert links == [f"{folder}/report.html" for folder in folders]


def test_text_is_no_markup():
    page = draw()
    assert [one.text for one in page.all("script")] == [SCRIPT]
    assert [one.rows() for one in page.all("table")] == [[[HOSTILE, "0.7000 [0.6800, 0.7200]"]]] * 2
    assert page.all("h1")[0].text == HOSTILE
    assert [one.attributes["alt"] for one in page.all("img")] == [HOSTILE]
    assert sum(HOSTILE in lead.text for lead in page.all("p")) == 7
