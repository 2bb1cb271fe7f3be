"""The page of negatives: counts add up over files, samples are a draw, text is never markup."""

import pyarrow as pa

from raycomp.data.runs import say_noise
from raycomp.negatives.page import SHOWN, Tally, mark_changes, render_negatives, tally_negatives
from raycomp.report.page import SCRIPT
from raycomp.schema import NEGATIVES_SCHEMA
from tests.curation.test_page import photo
from tests.report.html_tree import read_html


def make_row(number: int, caption: str | None, *texts: str, op: str = "SWAP", drops: tuple = ()) -> dict:
    """Return a row with negatives of similarity 0.5, 0.7."""
    found = [
        {"text": text, "op": op, "kind": "object", "calls": 1, "source": "rules", "concepts": ["dog", "cat"]}
        | {"similarity": 0.5 + i / 5, "image_drop": drops[i] if drops else None}
        for i, text in enumerate(texts)
    ]
    status = "ok" if texts else "no_caption"
    return {"uid": f"{number:032x}", "caption": caption, "negatives": found, "status": status}


def tally(*rows: dict) -> Tally:
    return tally_negatives(pa.Table.from_pylist(list(rows), schema=NEGATIVES_SCHEMA))


def draw_rows(start: int, count: int) -> list[dict]:
    rows = [
        make_row(7919 * i % 1000, f"<b>dog {i}</b>", f"<script>alert({i})</script>", "x")
        for i in range(start, start + count)
    ]
    return [*rows, make_row(2**127, None)]


def render(found: Tally, images: dict | None = None, weights: str = "openai", refine: str = "none") -> str:
    run = {
        "kind": "negatives",
        "config": {
            "input": "<here>",
            "scorer": {"weights": weights},
            "negatives": {"rank": True, "refine": refine},
        },
        "funnel": {"kept": found.statuses["ok"]},
        "rejected": {"SWAP: <reason>": 3, "ADD: other": 1},
        "warnings": ["input: 1 of 6 captions is no_caption (<i>none</i>); left out"],
    }
    run["warnings"] += filter(None, [say_noise(run)])
    return render_negatives(run, found, images or {})


def test_tallies_of_parts_add_up_to_that_of_the_whole():
    whole, parts = tally(*draw_rows(0, 60), *draw_rows(60, 60)), Tally()
    for start in (60, 0):
        parts.add(tally(*draw_rows(start, 60)))
    assert parts.statuses == whole.statuses == {"ok": 120, "no_caption": 2}
    assert (parts.negatives, parts.captions) == ({"SWAP": 240}, {"SWAP": 120})
    assert (whole.negatives, whole.captions) == ({"SWAP": 240}, {"SWAP": 120})
    assert abs(parts.similarity["SWAP"] - 144) < 1e-4
    assert parts.samples == whole.samples and len(whole.samples["SWAP"]) == SHOWN


def test_negatives_as_near_to_the_photo_as_the_caption_are_counted_where_compared():
    """Two of three drops are at most 0; what was not compared is in no share."""
    swaps = make_row(0, "a dog", *"wxyz", drops=(-0.1, 0.0, 0.2, None))
    found, whole = tally(swaps, make_row(1, "a dog", "x", op="ADD")), Tally()
    for _ in range(2):
        whole.add(found)
    assert (found.nearer["SWAP"], found.seen["SWAP"], found.seen["ADD"]) == (2, 3, 0)
    assert (whole.nearer["SWAP"], whole.seen["SWAP"]) == (4, 6)
    assert "66.7\u00a0%" in render(found) and "not compared" in render(found)
    noise = render(found, weights="random:4")
    assert "Random weights (random:4): every score" in noise and noise.count("is noise.") == 1
    assert "may be true of the photo" not in noise


def test_the_page_shows_text_as_text_with_its_photo_and_the_changed_words():
    page = render(tally(*draw_rows(0, 5)))
    tree = read_html(page)
    assert [one.text for one in tree.all("script")] == [SCRIPT]
    assert not [one for one in tree.all("b") if "dog" in one.text]
    assert "</b> hard negatives for 5 of 6 captions" in page
    rows = make_row(0, "a red dog", "a blue dog"), make_row(1, "a cat", "a dog")
    tree = read_html(render(tally(*rows), {"0" * 32: photo()}))
    first, second = tree.all("article")
    (image,) = first.all("img")
    assert image.attributes["alt"] == "a red dog" and image.attributes["src"].startswith("data:image/jpeg")
    assert [mark.text for mark in first.all("mark")] == ["red", "blue"]
    assert [one.text for one in first.all("p", "caption")] == ["caption a red dog", "negative a blue dog"]
    assert not second.all("img") and "no image" in second.text
    assert mark_changes("a b c", "a c") == [("a", False), ("b", True), ("c", False)]
    assert mark_changes("", "a") == [] and mark_changes("a", "a") == [("a", False)]
