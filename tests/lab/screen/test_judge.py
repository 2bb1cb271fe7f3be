"""What rules keep of a corpus, against plain loops, and of a score that knows all or nothing."""

from dataclasses import replace

import numpy as np
import pytest

from lab.screen.judge import (
    ALIGNMENT,
    KEEPS,
    TEXT,
    Corpus,
    auc_in_strata,
    count_traits,
    judge,
    keep_best,
    list_rules,
    standardise,
)
from raycomp.curation.config import PAS, AttributeConfig, CurateConfig, SelectConfig, make_selection
from raycomp.curation.select.measures import read_corpus
from raycomp.words import ALIGNMENT as ALIGN
from raycomp.words import KEPT, SHOWABLE
from tests.curation.test_select import choose, make_table

NUM = 400


def make_corpus(seed: int = 0) -> Corpus:
    rng = np.random.default_rng(seed)
    fault_N = rng.random(NUM) < 1 / 3
    targets_N = rng.integers(1, 5, NUM)
    some_N = rng.normal(size=NUM)
    some_N[rng.random(NUM) < 0.05] = np.nan
    return Corpus(
        fault_N=fault_N,
        alignment_N=rng.normal(size=NUM) - 0.5 * fault_N,
        text_N=rng.normal(size=NUM),
        readings={"knows": -fault_N.astype(float), "guesses": some_N, "counts": -targets_N.astype(float)},
        num_targets_N=targets_N,
        num_things_N=targets_N,
        template_N=rng.integers(0, 3, NUM),
        draw_N=rng.permutation(NUM).astype(np.uint64),
    )


def loop(corpus: Corpus, score_N: np.ndarray, keep: float) -> list[int]:
    """The rows that a gate of 70 % by alignment and then ``score_N`` keep."""
    order = sorted(range(NUM), key=lambda i: (-corpus.alignment_N[i], corpus.draw_N[i]))
    pool = order[: int(0.7 * NUM)]
    rank = {i: -np.inf if np.isnan(score_N[i]) else score_N[i] for i in pool}
    return sorted(pool, key=lambda i: (-rank[i], corpus.draw_N[i]))[: round(keep * NUM)]


def test_rules_keep_what_a_loop_keeps():
    corpus = make_corpus()
    rows = {(row.rule, row.keep): row for row in judge(corpus)}
    assert len(rows) == (2 + 2 * len(corpus.readings)) * len(KEEPS)
    for keep in KEEPS:
        for rule, score_N in ((ALIGNMENT, corpus.alignment_N), ("cpi guesses", corpus.readings["guesses"])):
            row, kept = rows[rule, keep], loop(corpus, score_N, keep)
            assert row.kept == len(kept) == round(keep * NUM)
            assert row.faults_kept == sum(corpus.fault_N[i] for i in kept)
            assert (row.pairs, row.planted) == (NUM, corpus.fault_N.sum())
            pool = loop(corpus, corpus.alignment_N, 0.7)
            assert row.planted_in_pool == sum(corpus.fault_N[i] for i in pool)
            sound = [score_N[i] for i in pool if not corpus.fault_N[i] and not np.isnan(score_N[i])]
            faulty = [score_N[i] for i in pool if corpus.fault_N[i] and not np.isnan(score_N[i])]
            above = np.mean([(a > b) + (a == b) / 2 for a in sound for b in faulty])
            assert row.auc == pytest.approx(above)


def test_who_knows_keeps_no_fault_that_need_not_be_kept():
    corpus = make_corpus(1)
    rows = {(row.rule, row.keep): row for row in judge(corpus)}
    for keep in KEEPS:
        row = rows["cpi knows", keep]
        sound = int(0.7 * NUM) - row.planted_in_pool
        assert row.faults_kept == max(0, row.kept - sound) and row.auc == row.auc_in_strata == 1


def test_a_score_of_the_number_of_targets_separates_nothing_within_strata():
    corpus = make_corpus(2)
    rows = {(row.rule, row.keep): row for row in judge(corpus)}
    assert rows["cpi counts", 0.5].auc_in_strata == 0.5 != rows["cpi counts", 0.5].auc
    row = rows["cpi counts", 0.5]
    assert abs(row.faults_kept_in_strata - row.planted_in_pool * 5 / 7) < 12


def test_strata_weigh_as_many_pairs_as_they_have():
    score_N = np.array([1.0, 0.0, 5.0, 6.0, 7.0])
    fault_N = np.array([False, True, False, True, True])
    stratum_N = np.array([1, 1, 2, 2, 2])
    found = auc_in_strata(score_N, fault_N, np.ones(5, bool), stratum_N)
    assert found == pytest.approx((1 * 1 + 2 * 0) / 3)


def test_sums_are_standardised_over_the_pool_alone():
    pool_N = np.array([True, True, False])
    assert standardise(np.array([1.0, 3.0, 9.0]), pool_N).tolist() == [-1, 1, 7]
    assert standardise(np.full(3, 2.0), pool_N).tolist() == [0, 0, 0]
    among_N = np.array([True, True, False])
    kept_N = keep_best(np.array([1.0, np.nan, 2.0]), 0.7, among_N, np.arange(3))
    assert kept_N.tolist() == among_N.tolist(), "what has no score is last among those it chooses from"


def test_the_sum_of_the_screen_is_the_rule_align_pas():
    """What the screen confirmed is what ``select.rule=align_pas`` keeps."""
    config = CurateConfig(select=SelectConfig("align_pas"), attribute=AttributeConfig(targets=SHOWABLE))
    table = make_table(700, 5, unscored=0.0)
    kept_N = choose(table, config)[0] == KEPT
    found = read_corpus(table, make_selection(config))
    num = len(found.row_M)
    corpus = replace(
        make_corpus(),
        fault_N=np.zeros(num, bool),
        alignment_N=found.measures[ALIGN].astype(float),
        readings={"pas": found.measures[PAS].astype(float)},
        draw_N=found.uid_M2[:, 0],
    )
    pool_N = keep_best(corpus.alignment_N, 0.7, np.ones(num, bool), corpus.draw_N)
    scores = dict(list_rules(replace(corpus, text_N=np.zeros(num)), pool_N))
    by_screen_N = keep_best(scores["alignment + pas"], 0.5, pool_N, corpus.draw_N)
    assert np.array_equal(by_screen_N, kept_N[found.row_M]) and 0 < by_screen_N.sum() == num // 2


def test_traits_are_of_sound_pairs():
    corpus = make_corpus(3)
    rows = list(count_traits(corpus))
    assert {rule for rule, *_ in rows} >= {ALIGNMENT, TEXT, "cpi knows", "alignment + knows"}
    for rule, trait, sound, kept in rows:
        assert 0 <= kept <= sound
        if rule == ALIGNMENT and trait == "2 things":
            kept_N = np.isin(np.arange(NUM), loop(corpus, corpus.alignment_N, 0.5))
            own_N = (corpus.num_things_N == 2) & ~corpus.fault_N
            assert (sound, kept) == (own_N.sum(), (own_N & kept_N).sum())
