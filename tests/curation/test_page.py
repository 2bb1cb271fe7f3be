"""Summaries against slow counting; the page shows what they hold, and no text of a corpus is markup on it."""

import base64
import io
import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from raycomp import words
from raycomp.config import ScorerConfig, override_all, to_dict
from raycomp.core.metrics import pearson
from raycomp.core.selection import Threshold
from raycomp.curation import summary as counting
from raycomp.curation.config import PAS, make_selection
from raycomp.curation.page import (
    FunnelRow,
    find_warnings,
    make_funnel,
    render_curate,
    say_outcome,
    split_caption,
)
from raycomp.curation.select.select import Gates
from raycomp.curation.summary import (
    DROP,
    DROPPED,
    Sample,
    Summary,
    WordCounts,
    choose_shown,
    merge,
    summarise,
)
from raycomp.report.page import SCRIPT, make_thumbnail
from raycomp.table import Table
from raycomp.words import ALIGNMENT, KEPT, KINDS, PHRASES, SCORE, UNSEEN
from tests.corpus import by_cpi, mean_drop
from tests.look.scored import make_phrase
from tests.report.corpus import choose, make_table
from tests.report.html_tree import Element, read_html

HOSTILE = [
    "</title></style></script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    '" onmouseover="document.title=\'owned\'" x="',
    "' onload='x' & &lt;b&gt; \x00 \u202e <svg/onload=alert(1)>",
]


def photo(colour: str = "red", size: tuple[int, int] = (400, 300), **options: object) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", size, colour).save(written, "PNG", **options)
    return written.getvalue()


def make_times(phase: str, stage: str) -> dict:
    """Return what run.json says of one phase with one stage."""
    reported = {"rows": 400, "wall_s": 80.0, "commit_s": 0.8, "commit_share": 0.01, "scorer_busy_share": 0.5}
    times = {"rows": 400, "seconds": 40.0, "workers": 1, "busy_share": 0.5, "rows_per_s": 10.0}
    return {
        "phases": [{"phase": phase, **reported, "bottleneck": stage}],
        "stages": [{"phase": phase, "stage": stage, **times}],
    }


def run_json(settings: dict[str, Any] | None = None, **changes: object) -> dict:
    """Return a record whose config ranks by the mean drop of nouns, but for settings by path."""
    config = by_cpi(input="photos/*.tar", seed=5, attribute=mean_drop(targets="nouns"))
    return {
        "config": to_dict(override_all(config, settings or {})),
        "versions": {"raycomp": "0.1.0", "torch": "2.13.0"},
        "fingerprint": "f00d",
        "commands": {"Run again": "raycomp curate --out out"},
        **make_times("align", "image"),
        "scorer_check": {"matched_mean": 0.31, "shuffled_mean": 0.2, "auc": 0.93, "n": 390},
        **changes,
    }


def summarise_captions(captions: list[str], **options: object) -> Summary:
    table = make_table(captions, **options)
    return summarise(table, *choose(table), seed=5)


def render(summary: Summary, run: dict, **options: object) -> str:
    photos = options.pop("photos", {s.uid: photo() for s in choose_shown(summary).samples})
    return render_curate(summary, photos, run, make_funnel(summary.reasons), **options)


def section(page: Element, title: str) -> Element:
    return next(s for s in page.all("section") if any(h.text == title for h in s.all("h2")))


def first_rows(page: Element, title: str) -> list[list[str]]:
    return section(page, title).all("table")[0].rows()


def minus(text: str) -> str:
    return text.replace("-", "\u2212")


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarise_captions([f"A dog number {i % 7} with a ball in a big river" for i in range(400)])


@pytest.fixture(scope="module")
def page(summary) -> Element:
    return read_html(render(summary, run_json()))


def test_first_sentence_and_funnel_say_the_counts(summary, page):
    kept, rows = summary.reasons[KEPT], summary.rows
    sentence = page.all("h1")[0].text.replace("\u00a0", " ")
    assert f"Kept {kept} ({100 * kept / rows:.1f} %) of {rows} " in sentence
    said = [sentence.index(one) for one in ("corrupt", "duplicate", "alignment gate", "attribution gate")]
    assert said == sorted(said)  # in the order of the pipeline, not of names or counts
    dropped = [int(n) for n in re.findall(r"(\d+) [a-z]", sentence.split(": ", 1)[1])]
    assert sum(dropped) == rows - kept and len(dropped) == len(summary.reasons) - 1
    table = page.all("table", "funnel")[0].rows()
    counts = [int(row[2]) for row in table]
    assert (counts[0], counts[1], counts[-1]) == (rows, summary.num_aligned, kept)
    lost = [sum(int(n) for n in re.findall(r"\u2212(\d+)", row[6])) for row in table]
    assert lost == [0, *(a - b for a, b in pairwise(counts))]
    assert table[-1][3:6] == [f"{100 * kept / n:.1f}\u00a0%" for n in (rows, summary.num_aligned, counts[-2])]
    funnel = make_funnel(summary.reasons)
    for broken in ([*funnel[:-1], FunnelRow(KEPT, kept, ())], make_funnel(summary.reasons + summary.reasons)):
        with pytest.raises(ValueError, match="funnel"):
            render_curate(summary, {}, {}, broken)


def cut_at(value: float) -> Threshold:
    bits = int(np.float32(value).view(np.uint32))
    return Threshold(1, bits ^ (0xFFFF_FFFF if bits >> 31 else 0x8000_0000))


def test_a_row_says_what_ranked_it_the_cut_and_the_words_that_counted():
    dog, view = make_phrase("dog", 0.02), make_phrase("view", -0.03, 8) | {"target_class": UNSEEN}
    large = make_phrase("large", -0.01, 20) | {"displacement": 0.02}
    row = {"status": "ok", "alignment": 0.25, "phrases": [view, dog], "content_words": [large]}
    content = {"attribute.targets": "content"}
    below = words.DROPPED_ATTRIBUTION
    for settings, reason, score, said in [
        (content, below, -0.0067, "lost on 'view': drop -0.030; mean drop of 3 content words -0.007, cut "
         "0.013; counted: dog, view, large"),
        ({}, KEPT, 0.02, "mean drop of 1 showable noun 0.020, cut 0.013; lowest 'dog': drop 0.020; counted: "
         "dog"),
        ({"attribute.targets": "nouns"}, below, 0.01299, "lost on 'view': drop -0.030; mean drop of 2 nouns "
         "0.01299, cut 0.01300; counted: dog, view"),
        ({"select.rule": "length"}, words.DROPPED_CONTROL, -1.0, "words of the caption -1.000, cut 0.013"),
        ({}, words.DROPPED_ALIGNMENT, None, "alignment 0.250, cut 0.300"),
        ({}, words.DROPPED_UNSCORED, None, "no mean drop of showable nouns: no word of the caption counts"),
    ]:  # fmt: skip
        selection = make_selection(override_all(by_cpi(), settings))
        gates = Gates(4, cut_at(0.3), cut_at(0.013), 3)
        assert say_outcome(row, reason, score, selection, gates) == said


def test_cards_carry_photo_scores_and_shaded_phrases(summary, page):
    cards = section(page, "Twelve pairs at the threshold").all("article")
    for card, sample in zip(cards, choose_shown(summary).around, strict=True):
        assert card.all("img")[0].attributes["src"].startswith("data:image/jpeg;base64,")
        assert card.all("p", "caption")[0].text == sample.caption
        assert [m.text for m in card.all("mark")] == [p["target"] for p in sample.phrases]
        assert card.all("b", "badge")[0].text == ("kept" if sample.reason == KEPT else "dropped")
        assert card.all("p", "score")[0].all("b")[0].text == minus(f"{sample.score:.4f}")
        for mark, phrase in zip(card.all("mark"), sample.phrases, strict=True):
            style, title = mark.attributes["class"], mark.attributes["title"]
            assert style.startswith(("shade-0", "shade-none", f"shade-{'np'[(phrase['drop'] or 0) > 0]}"))
            assert all(nonce in title for nonce in phrase["nonces"])
            assert ("not counted" in title) == (phrase["drop"] is None) == style.startswith("shade-none")
            assert ("not visible in a picture" in title) == (phrase["target_class"] == UNSEEN)


def test_tables_and_histograms_say_what_the_summary_holds(summary, page):
    statuses = {row[0]: int(row[2]) for row in first_rows(page, "Rows by status")}
    assert statuses == dict(summary.statuses)
    inside, whole, *_ = first_rows(page, "Correlates of PAS")
    for row, moments in ((inside, summary.passed["pas"]), (whole, summary.moments["pas"])):
        assert row[2] == str(moments.count) and row[3].startswith(minus(f"{moments.pearson:z.3f} ["))
    assert (inside[1], inside[2], whole[1], whole[2]) == ("pairs inside the pool", "273", "all pairs", "390")
    kinds = {row[0]: row[1:4] for row in first_rows(page, "Phrases")}
    assert list(kinds) == ["object", "relation", "predicate", "unseen, of these"]
    for name, counts in kinds.items():
        sides = [summary.kinds[name.removesuffix(", of these"), side] for side in ("kept", "dropped")]
        assert [int(n.replace(",", "")) for n in counts] == [sum(sides), *sides]
    for title in ("Alignment", "PAS", "Caption length", "Phrases of a caption"):
        figure = next(f for f in page.all("figure") if f.all("figcaption")[0].text == title)
        said = [g.all("title")[0].text.split(": ")[1] for g in figure.all("g")]
        kept, dropped = (sum(int(text.split(", ")[i].split()[0]) for text in said) for i in (0, 1))
        assert (kept, dropped) == (summary.reasons[KEPT], summary.num_aligned - summary.reasons[KEPT]), title
    gates = [f"gate {summary.lowest[name]:.4f}" for name in ("alignment", "score")]
    assert [mark.text for mark in page.all("text", "mark")] == gates


def test_warnings_stand_first_and_only_when_due(summary):
    good = summarise_captions(["A dog in a river"] * 40, bad_every=0)
    assert find_warnings(good, run_json()) == [] and "<aside" not in render(good, run_json())
    check = {"matched_mean": 0.2, "shuffled_mean": 0.2, "auc": 0.52, "n": 9}
    settings = {"scorer.weights": "random:3", "attribute.keep": 0.69}
    assert "A high mean drop means" in render(good, run_json())
    tree = read_html(render(summary, run_json(settings, scorer_check=check, warnings=["Mine: look here"])))
    expected = [
        "Random weights (random:3)",
        "Scoring model near chance: it scores a pair above a shuffled pair in 52.0 %",
        f"Bad data: {summary.num_bad} of {summary.rows} rows",
        f"Fewer rows than requested: the options ask for {int(0.69 * summary.num_aligned)} of ",
        "Mine: look here",
    ]
    for item, start in zip(tree.all("aside")[0].all("li"), expected, strict=True):
        assert item.text.startswith(start)
    assert "A high mean drop means" not in tree.text


def plant_displacement(slope: float, num_targets: int) -> Summary:
    """Give every phrase a displacement that its drop follows with ``slope`` and as much noise."""
    table = make_table(["A dog with a ball in a big river"] * 400, bad_every=0)
    rng, rows = np.random.default_rng(7), table.to_pylist()
    phrases = (phrase for row in rows for phrase in row["phrases"] if phrase["drop"] is not None)
    for i, phrase in enumerate(phrases):
        phrase["target"] = f"target{i % num_targets}"
        phrase["displacement"] = 0.2 + slope * phrase["drop"] + float(rng.normal(0, 0.022))
    table = pa.Table.from_pylist(rows, table.schema)
    return summarise(table, *choose(table), seed=5)


def test_displacement_that_drives_drops_is_warned_of():
    """r = slope / sqrt(slope^2 + 1): 0.71, -0.71 and 0.36, whose interval holds 0.3."""
    for slope, num_targets, unit, warns in [
        (1.0, 1000, "drop", True),
        (-1.0, 1000, "drop", False),
        (0.38, 1000, "drop", False),
        (1.0, 1000, "per_displacement", False),  # which divides it out
        (1.0, 4, "drop", False),  # four words tell little
    ]:
        found = find_warnings(plant_displacement(slope, num_targets), run_json({"attribute.unit": unit}))
        assert [text.partition(":")[0] for text in found] == ["Displacement explains drops"] * warns


def test_an_empty_corpus_still_has_a_page():
    assert read_html(render(Summary(), {})).all("h1")[0].text.startswith("Kept 0")


def hostile_page(texts: Sequence[str] = HOSTILE) -> str:
    """Return a page with each of four texts wherever a corpus or a run can put it."""
    made = make_table([f"A {texts[i % 4]} dog with a ball" for i in range(60)])
    columns = made.to_pydict()
    for name in ("key", "shard", "url"):
        columns[name] = [texts[i % 4] + text for i, text in enumerate(columns[name])]
    for phrases in columns["phrases"]:
        for phrase in phrases or ():
            phrase |= {"target": texts[0], "nonces": [texts[3]], "drops": [0.1]}
    table = pa.Table.from_pydict(columns, made.schema)
    summary, bad = summarise(table, *choose(table), seed=0), texts[3]
    config = to_dict(by_cpi(input=bad, scorer=ScorerConfig(model=texts[1], weights=bad)))
    run = run_json(config=config, versions={bad: bad}, fingerprint="\ud800" + bad, commands={bad: bad})
    run |= {"warnings": texts, **make_times(bad, bad)}
    extra = Table(bad, (bad, "x"), [(bad, texts[2])], note=bad)
    photos = {s.uid: b"<svg onload=alert(1)>" for s in choose_shown(summary).samples}
    return render(summary, run, photos=photos, extra_tables=[extra])


def test_hostile_text_stays_text():
    text = hostile_page()
    text.encode("utf-8")
    tree = read_html(text)
    names = {element.name for element in tree.all()}
    assert not names & {"iframe", "object", "embed", "link", "base", "form"}
    assert [one.text for one in tree.all("script")] == [SCRIPT]
    assert all(re.fullmatch("#[a-z0-9-]+", one.attributes["href"]) for one in tree.all("a"))
    assert not [key for element in tree.all() for key in element.attributes if key.startswith("on")]
    assert "\x00" not in text and "<svg/onload=alert(1)>" in tree.all("h2")[1].text
    assert not any({"src", "srcset"} & {*e.attributes} for e in tree.all()) and "url(" not in text
    policy = next(m for m in tree.all("meta") if m.attributes.get("http-equiv") == "Content-Security-Policy")
    start = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert policy.attributes["content"].startswith(start)


def test_thumbnails_are_small_upright_jpegs_and_bad_images_grey_tiles(summary):
    def opened(data: bytes) -> Image.Image:
        return Image.open(io.BytesIO(base64.b64decode(make_thumbnail(data).split(",")[1])))

    small = opened(photo(size=(1000, 500)))
    assert (small.format, small.size, small.mode) == ("JPEG", (240, 120), "RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    assert opened(photo(size=(400, 200), exif=exif)).size == (120, 240)
    written = io.BytesIO()
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(written, "PNG")
    assert opened(written.getvalue()).size == (10, 10)
    bomb = bytearray(photo(size=(8, 8)))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    assert [make_thumbnail(data) for data in (b"no image", photo()[:60], bytes(bomb))] == [None] * 3
    tree = read_html(render(summary, {}, photos={choose_shown(summary).around[0].uid: b"broken"}))
    tiles = [card.all("div", "photo")[0].text for card in tree.all("article")]
    assert tiles[:2] == ["unreadable image", "no image"] and not tree.all("img")


def test_shading_never_changes_a_caption():
    caption = "a <b> & caf\u00e9 \U0001f415 \u05db\u05dc\u05d1"
    for places, num_shaded in [
        ([], 0),
        ([(0, 5), (6, 9)], 2),
        ([(4, 12), (0, 8)], 1),
        ([(3, 3)], 1),
        ([(5, 2)], 0),
    ]:
        rest = {"drop": None, "displacement": None, "target_class": "head"}
        phrases = tuple({"target_start": first, "target_end": last} | rest for first, last in places)
        sample = Sample((0.0, 0, ""), "u", "k", "s", 0, None, caption, 0, "ok", KEPT, 0.3, 0.1, phrases)
        pieces = [*split_caption(sample, make_selection(by_cpi()))]
        assert "".join(text for before, target, *_ in pieces for text in (before, target)) == caption
        assert len(pieces) == num_shaded + 1


CAPTIONS = [
    f"A {colour} dog with a {size} ball {verb} a river"
    for colour in ("red", "brown", "white", "tiny", "wet")
    for size in ("big", "small", "torn", "yellow", "flat", "lost", "new", "old")
    for verb in ("riding", "holding", "near", "in", "behind", "of", "the the", "wearing a", "and", "on")
]


@pytest.fixture(scope="module")
def corpus() -> tuple[pa.Table, np.ndarray, np.ndarray]:
    table = make_table(CAPTIONS)
    return table, *choose(table)


@pytest.fixture(scope="module")
def whole(corpus) -> Summary:
    return summarise(*corpus, seed=0)


def test_counts_equal_a_slow_loop(corpus, whole):
    table, reason, score = corpus
    rows = [r | {"reason": w, "score": s} for r, w, s in zip(table.to_pylist(), reason, score, strict=True)]
    assert whole.rows == len(rows) == sum(whole.reasons.values())
    assert whole.num_aligned == sum(r["alignment"] is not None for r in rows)
    for kind in (*KINDS, UNSEEN):
        field = "target_class" if kind == UNSEEN else "kind"
        phrases = [(r, p) for r in rows for p in r["phrases"] or () if p[field] == kind]
        drops = [p["drop"] for _, p in phrases if p["drop"] is not None]
        num_kept = sum(r["reason"] == KEPT for r, _ in phrases)
        counts = [num_kept, len(phrases) - num_kept, len(drops), sum(drop > 0 for drop in drops)]
        sides = (KEPT, DROPPED, counting.VALID, counting.SUPPORTED)
        assert [whole.kinds[kind, side] for side in sides] == counts and min(counts) > 0, kind
        assert kind == UNSEEN or len(drops) == sum(whole.histograms[DROP, kind].counts)
        assert whole.moments[kind].mean_y == pytest.approx(np.mean(drops), abs=1e-9)
    for side, on in ((KEPT, True), (DROPPED, False)):
        mine = [r for r in rows if (r["reason"] == KEPT) == on and r["alignment"] is not None]
        for measure, lengths in (
            (counting.WORDS, [len(r["caption"].split()) for r in mine]),
            (PHRASES, [len(r["phrases"]) for r in mine]),
        ):
            counts = np.bincount(lengths, minlength=201).tolist()
            assert list(whole.histograms[measure, side].counts) == counts, (measure, side)
        heads = [p["target"].lower() for r in mine for p in r["phrases"]]
        assert (whole.heads[side].counts["dog"], whole.heads[side].total) == (heads.count("dog"), len(heads))
    passed = [r for r in rows if r["alignment"] is not None and r["reason"] != "below_alignment_gate"]
    assert whole.lowest == {
        SCORE: min(r["score"] for r in rows if r["reason"] == KEPT),
        ALIGNMENT: min(r["alignment"] for r in passed),
    }
    for status in {*whole.statuses} - {"ok"}:
        samples = whole.picks[status].samples
        assert len(samples) == min(whole.statuses[status], 3) and {s.status for s in samples} == {status}


def test_correlations_are_those_of_the_columns_of_all_rows_and_of_the_pool(corpus, whole):
    table, reason, _ = corpus
    in_pool = [why != "below_alignment_gate" for why in reason]
    for inside in (False, True):
        rows = [row for row, is_in in zip(table.to_pylist(), in_pool, strict=True) if is_in or not inside]
        pairs = [(r["alignment"], r["mean_pas"]) for r in rows if r["mean_pas"] is not None]
        drops = [
            (p["displacement"], p["drop"]) for r in rows for p in r["phrases"] or () if p["drop"] is not None
        ]
        moments = whole.passed if inside else whole.moments
        for name, known in ((PAS, pairs), (DROP, drops))[: 1 + inside]:
            assert moments[name].count == len(known)
            assert moments[name].pearson == pytest.approx(pearson(*np.array(known).T), abs=1e-12)
        with_drop = [r for r in rows if any(p["drop"] is not None for p in r["phrases"] or ())]
        assert whole.with_drop[counting.PASSED if inside else DROP] == len(with_drop)
        drawn = whole.points[PAS].columns
        at_M = drawn[counting.PASSED] | (not inside)
        assert set(zip(drawn[ALIGNMENT][at_M], drawn[PAS][at_M], strict=True)) == {*pairs}
    assert len(whole.points[DROP].columns[DROP]) == sum(whole.moments[kind].count for kind in KINDS)


def test_parts_merged_in_any_order_equal_the_whole(corpus, whole):
    table, reason, score = corpus
    edges = [0, 1, 77, 250, len(table)]
    pieces = [summarise(table.slice(a, b - a), reason[a:b], score[a:b], 0) for a, b in pairwise(edges)]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        merged = Summary()
        for i in order:
            merged = merge(merged, pieces[i])
        for name in ("statuses", "reasons", "lowest", "histograms", "kinds", "heads", "picks", "with_drop"):
            assert getattr(merged, name) == getattr(whole, name), name
        for part in ("moments", "passed"):
            for name, moments in getattr(whole, part).items():
                found = getattr(merged, part)[name]
                assert found.count == moments.count
                assert found.pearson == pytest.approx(moments.pearson, abs=1e-12)
        for name, points in whole.points.items():
            for column, values in points.columns.items():
                np.testing.assert_array_equal(merged.points[name].columns[column], values)


def test_twelve_lie_nearest_to_the_threshold_on_both_sides(corpus, whole):
    table, reason, score = corpus
    shown, other = choose_shown(whole), choose_shown(summarise(*corpus, seed=1))
    assert [s.reason == KEPT for s in shown.around] == [True] * 6 + [False] * 6 and shown.has_threshold
    assert sorted((s.score for s in shown.around), reverse=True) == [s.score for s in shown.around]
    ranked, num_kept = np.sort(score[~np.isnan(score)])[::-1], np.sum(reason == KEPT)
    near = ranked[num_kept - counting.NUM_NEAREST : num_kept + counting.NUM_NEAREST]
    assert all(near[0] >= s.score >= near[-1] for s in shown.around)
    assert [s.score for s in shown.top] == [s.score for s in other.top] == ranked[:6].tolist()
    assert [s.score for s in shown.bottom] == ranked[-6:].tolist()
    assert len({s.uid for s in shown.samples}) == len(shown.samples)
    assert {s.uid for s in other.around} != {s.uid for s in shown.around}, "another seed draws others"
    few = reason.copy()
    few[np.flatnonzero(reason == "below_attribution_gate")[2:]] = KEPT
    shown = choose_shown(summarise(table, few, score, 0))
    assert [s.reason == KEPT for s in shown.around] == [True] * 10 + [False] * 2, "a short side leaves more"
    gates = np.isin(reason, ["below_alignment_gate", "below_attribution_gate"])
    shown = choose_shown(summarise(table, np.where(gates, "not_drawn", reason), score, 0))
    assert not shown.has_threshold and len(shown.around) == 12 and not shown.top, "a draw has no threshold"
    assert choose_shown(Summary()).samples == []


def test_reason_that_contradicts_the_status_names_the_uid(corpus):
    table, reason, score = corpus
    row, wrong = table["status"].to_pylist().index("corrupt_image"), reason.copy()
    wrong[row] = KEPT
    with pytest.raises(ValueError, match=f"{table['uid'][row].as_py()}.*'kept'.*'corrupt_image'"):
        summarise(table, wrong, score, 0)


def test_long_texts_are_cut_with_the_phrases_beyond():
    table = make_table(["a dog " + "runs " * 300 + "with a " + "ball" * 99], bad_every=0)
    table = table.set_column(table.column_names.index("key"), "key", pa.array(["k" * 999]))
    summary = summarise(table, np.array(["not_drawn"], object), np.array([0.5]), 0)
    assert summary.heads[DROPPED].counts == {"runs": 1, ("ball" * 99)[:40]: 1}
    (sample,) = choose_shown(summary).around
    most = counting.MOST_CHARACTERS
    assert (len(sample.caption), sample.cut) == (most, len(table["caption"][0].as_py()) - most)
    assert all(p["end"] <= most for p in sample.phrases) and sample.key == "k" * 199 + "\u2026"


def test_word_counts_forget_the_rarest_and_planted_words_lean_most():
    counts = WordCounts.of(3, ["a"] * 9 + ["b"] * 7 + ["c"] * 3 + ["d"] * 2 + ["e"])
    assert counts.counts == {"a": 9, "b": 7, "c": 3} and (counts.total, counts.most_lost) == (22, 2)
    both = counts.merge(WordCounts.of(3, ["d"] * 5))
    assert both.counts == {"a": 9, "b": 7, "d": 5} and (both.total, both.most_lost) == (27, 5)
    kept = WordCounts.of(99, ["dog"] * 200 + ["sail"] * 40 + ["cup"] * 50 + ["once"])
    dropped = WordCounts.of(99, ["dog"] * 200 + ["logo"] * 30 + ["cup"] * 50)
    first, last = counting.rank_leanings(kept, dropped, 1)
    assert (first[:3], last[:3]) == (("sail", 40, 0), ("logo", 0, 30)) and first[3] > 0 > last[3]
    assert counting.rank_leanings(kept, WordCounts.of(99, []), 5) == []
