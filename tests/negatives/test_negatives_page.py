"""The page of negatives: counts add up over files, samples are a draw, text is never markup."""

import pyarrow as pa

from raycomp.negatives.page import SHOWN, Tally, mark_changes, render_negatives, tally_negatives
from raycomp.report.page import SCRIPT
from raycomp.schema import NEGATIVES_SCHEMA
from tests.curation.test_page import photo
from tests.report.html_tree import read_html


def negative(text: str, op: str, similarity: float | None = None, image_drop: float | None = None) -> dict:
    return {
        "text": text,
        "op": op,
        "kind": "object",
        "calls": op.count("+") + 1,
        "source": "rules",
        "similarity": similarity,
        "image_drop": image_drop,
        "concepts": ["dog", "cat"],
    }


def make_file(start: int, count: int) -> pa.Table:
    rows = [
        {
            "uid": f"{7919 * i % 1000:032x}",
            "caption": f"<b>dog {i}</b>",
            "negatives": [
                negative(f"<script>alert({i})</script>", "SWAP", 0.5),
                negative("x", "SWAP", 0.7),
            ],
            "status": "ok",
        }
        for i in range(start, start + count)
    ]
    rows.append({"uid": "f" * 32, "caption": None, "negatives": [], "status": "no_caption"})
    return pa.Table.from_pylist(rows, schema=NEGATIVES_SCHEMA)


def make_run(tally: Tally) -> dict:
    return {
        "config": {"input": "<here>"},
        "funnel": {"kept": tally.statuses["ok"]},
        "rejected": {"SWAP: <reason>": 3, "ADD: other": 1},
        "warnings": ["input: 1 of 6 captions is no_caption (<i>none</i>); left out"],
    }


def test_tallies_of_parts_add_up_to_that_of_the_whole():
    whole = tally_negatives(pa.concat_tables([make_file(0, 60), make_file(60, 60)]))
    parts = Tally()
    for part in (make_file(60, 60), make_file(0, 60)):
        parts.add(tally_negatives(part))
    assert parts.statuses == whole.statuses == {"ok": 120, "no_caption": 2}
    assert parts.negatives == whole.negatives == {"SWAP": 240}
    assert parts.captions == whole.captions == {"SWAP": 120}
    assert abs(parts.similarity["SWAP"] - 144) < 1e-4
    assert parts.samples == whole.samples and len(whole.samples["SWAP"]) == SHOWN


def test_negatives_as_near_to_the_photo_as_the_caption_are_counted_where_compared():
    """Two of three drops are at most 0; what was not compared is in no share."""
    drops = {"SWAP": (-0.1, 0.0, 0.2, None), "ADD": (None,)}
    negatives = [negative("x", op, 0.5, drop) for op, of_op in drops.items() for drop in of_op]
    row = {"uid": "0" * 32, "caption": "a dog", "negatives": negatives, "status": "ok"}
    tally = tally_negatives(pa.Table.from_pylist([row], schema=NEGATIVES_SCHEMA))
    whole = Tally()
    for _ in range(2):
        whole.add(tally)
    assert (tally.nearer["SWAP"], tally.seen["SWAP"], tally.seen["ADD"]) == (2, 3, 0)
    assert (whole.nearer["SWAP"], whole.seen["SWAP"]) == (4, 6)
    page = render_negatives(make_run(tally), tally)
    assert "66.7\u00a0%" in page and "not compared" in page
    assert "from the captions of its photo, not from the photo" in page


def test_the_page_shows_text_as_text():
    tally = tally_negatives(make_file(0, 5))
    page = render_negatives(make_run(tally), tally)
    tree = read_html(page)
    assert [one.text for one in tree.all("script")] == [SCRIPT] and not [
        b for b in tree.all("b") if "dog" in b.text
    ]
    assert "<script>alert(0)" not in page and "&lt;script&gt;alert(0)" in page
    assert "</b> hard negatives for 5 of 6 captions" in page


def test_negatives_are_shown_with_their_photo_and_the_changed_words():
    pairs = [("a red dog", "a blue dog"), ("a cat", "a dog")]
    rows = [
        {
            "uid": f"{i}" * 32,
            "caption": caption,
            "negatives": [negative(text, "REPLACE", 0.5)],
            "status": "ok",
        }
        for i, (caption, text) in enumerate(pairs)
    ]
    tally = tally_negatives(pa.Table.from_pylist(rows, schema=NEGATIVES_SCHEMA))
    tree = read_html(render_negatives(make_run(tally), tally, {"0" * 32: photo()}))
    first, second = tree.all("article")
    (image,) = first.all("img")
    assert image.attributes["alt"] == "a red dog" and image.attributes["src"].startswith("data:image/jpeg")
    assert [mark.text for mark in first.all("mark")] == ["red", "blue"]
    assert [one.text for one in first.all("p", "caption")] == ["captiona red dog", "negativea blue dog"]
    assert not second.all("img") and "no image" in second.text
    colours = [one.attributes["class"] for one in tree.all("b", "badge")]
    assert colours == ["badge true", "badge false"] * 2


def test_changed_words_are_those_of_no_common_order():
    assert mark_changes("a b c", "a c") == [("a", False), ("b", True), ("c", False)]
    assert mark_changes("", "a") == [] and mark_changes("a", "a") == [("a", False)]
