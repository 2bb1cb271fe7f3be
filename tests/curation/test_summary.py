"""Summaries against slow counting, and parts merged in any order against the whole."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from raycomp.core.metrics import pearson
from raycomp.curation import summary as counting
from raycomp.curation.config import PAS
from raycomp.curation.summary import DROP, DROPPED, Summary, WordCounts, choose_shown, merge, summarise
from raycomp.words import ALIGNMENT, KEPT, KINDS, PHRASES, SCORE, UNSEEN
from tests.report.corpus import choose, make_table

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
