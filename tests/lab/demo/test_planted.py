"""The demo's tables on a world where alignment finds one fault, PAS another, and neither the third."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lab.demo.planted import Planted, read_planted, report_budget, report_separation, report_traits
from raycomp.core.metrics import auc
from raycomp.curation.config import AlignConfig, AttributeConfig, CurateConfig, SelectConfig, make_selection
from raycomp.curation.select.select import choose_tables
from raycomp.schema import PHRASE_TYPE
from raycomp.words import KEPT

CONFIG = CurateConfig(
    align=AlignConfig(keep=0.7),
    attribute=AttributeConfig(keep=0.5, pool=1.0, aggregate="mean", unit="drop", targets="showable"),
    select=SelectConfig("cpi"),
)
FAULTS = ["none"] * 360 + ["loud"] * 80 + ["quiet"] * 40 + ["hidden"] * 40 + ["broken"] * 10


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Of each score the clean rows are standard normal; captions of three things get a lower PAS."""
    rng = np.random.default_rng(0)
    faults = np.array(FAULTS)[rng.permutation(len(FAULTS))]
    alignment = rng.normal(0, 1, len(faults)) - 4 * (faults == "loud")
    three = rng.random(len(faults)) < 0.5
    pas = rng.normal(0, 1, len(faults)) - 2 * (faults == "quiet") - 1.0 * three
    broken = faults == "broken"
    captions = np.where(three, "a red star above a blue fish, which is left of a moon", "a star above a fish")
    names = [field.name for field in PHRASE_TYPE]
    lost = dict.fromkeys(names) | {"target": "red"}

    def phrases_of(drop: float, is_third: bool) -> list[dict]:
        near, far = ({**lost, "target": "star", "drop": drop, "displacement": d} for d in (0.1, 0.3))
        return [near, lost, far] + [far] * int(is_third)

    good = zip(~broken, pas, three, strict=True)
    phrases = [phrases_of(float(drop), third) if ok else None for ok, drop, third in good]
    return pa.table(
        {
            "uid": [f"{i:032x}" for i in rng.permutation(len(faults))],
            "status": ["corrupt_image" if b else "ok" for b in broken],
            "caption": captions.tolist(),
            "alignment": pa.array(np.where(broken, np.nan, alignment), pa.float32(), from_pandas=True),
            "mean_pas": pa.array(np.where(broken, np.nan, pas), pa.float32(), from_pandas=True),
            "phrases": pa.array(phrases, pa.list_(PHRASE_TYPE)),
            "content_words": pa.nulls(len(faults), pa.list_(PHRASE_TYPE)),
            "fault": [None if fault == "none" and i % 2 else fault for i, fault in enumerate(faults)],
        }
    )


@pytest.fixture(scope="module")
def planted(table: pa.Table) -> Planted:
    return read_planted(table, CONFIG)


def by_hand(planted: Planted) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return by plain sorting who is in the pool, who is kept by cpi and who by align_only."""
    order = np.argsort(-np.where(np.isnan(planted.alignment_N), -np.inf, planted.alignment_N))
    pool, kept, aligned = (np.zeros(len(order), bool) for _ in range(3))
    pool[order[: int(0.7 * 520)]] = aligned[order[:260]] = True
    kept[[i for i in np.argsort(-planted.pas_N) if pool[i]][:260]] = True
    return pool, kept, aligned


def test_pool_and_choices_are_those_of_plain_sorting(planted):
    for found, known in zip((planted.pool_N, *planted.kept.values()), by_hand(planted), strict=True):
        np.testing.assert_array_equal(found, known)
    assert planted.budget == 260 and planted.chance == pytest.approx(260 / planted.pool_N.sum())
    assert set(planted.targets) == {"star"}


def test_auc_is_reported_over_all_pairs_and_inside_the_pool(planted):
    rows = {(row[0], row[2]): row for row in report_separation(planted).rows}
    faults, pool = planted.fault_N, by_hand(planted)[0]
    for fault in ("loud", "quiet", "hidden"):
        for over, at in (("all pairs", ~np.isnan(planted.alignment_N)), ("the pool", pool)):
            _, num_planted, _, num_scored, *reported = rows[fault, over]
            clean, faulty = at & (faults == "none"), at & (faults == fault)
            assert (num_planted, num_scored) == (FAULTS.count(fault), faulty.sum())
            for one, score in zip(reported, (planted.alignment_N, planted.pas_N), strict=True):
                if faulty.any():
                    assert one.value == pytest.approx(auc(score[clean], score[faulty]))
                    assert not one.value < one.low and not one.value > one.high
                else:
                    assert one is None
    # What alignment finds is gone from the pool; what PAS finds is found there too.
    assert rows["loud", "all pairs"][4].value > 0.99 and rows["loud", "the pool"][3] < 4
    assert rows["quiet", "the pool"][5].low > 0.7 and rows["hidden", "the pool"][5].value < 0.7
    assert rows["broken", "all pairs"][3:] == (0, None, None)


def test_budget_is_reported_by_rule_and_the_draw_is_the_mean_of_the_rules_own_draws(table, planted):
    rows = {row[0]: row for row in report_budget(planted).rows}
    faults, (pool, kept, aligned) = planted.fault_N, by_hand(planted)
    draws = []
    for seed in range(150):
        config = replace(CONFIG, seed=seed, select=SelectConfig(rule="align70_random50"))
        draws.append(choose_tables([table], make_selection(config))[1][0][0] == KEPT)
    drawn = np.array(draws)
    for fault in ("quiet", "hidden", "all faults"):
        mine = faults == fault if fault != "all faults" else faults != "none"
        numbers = [float(cell.split(" ")[0]) for cell in rows[fault][3:]]
        assert numbers[:2] == [(kept & mine).sum(), (aligned & mine).sum()]
        counts = drawn[:, mine].sum(axis=1)
        # 5 standard errors of 150 draws, and the rounding to one place.
        assert abs(numbers[2] - counts.mean()) < 5 * counts.std() / 150**0.5 + 0.05
    bad = faults != "none"
    expected = [(aligned & bad).sum(), 260 * (pool & bad).sum() / pool.sum()]
    for cell, kept_by_other in zip(rows["all faults, cpi minus these"][4:], expected, strict=True):
        reported = f"{(kept & bad).sum() - kept_by_other:z.1f} [".replace("-", "\u2212")
        assert cell.startswith(reported)


def test_what_the_score_favours_next_to_faults_is_reported(planted):
    """PAS alone was planted to depend on the number of things; alignment was not."""
    table = report_traits(planted)
    rows = {row[0]: row for row in table.rows}
    clean = by_hand(planted)[0] & (planted.fault_N == "none")
    assert rows["2 things"][1] + rows["3 things"][1] == clean.sum() == rows["a star"][1]
    chance = 260 / planted.pool_N.sum()
    for what, by_cpi, by_alignment in ((row[0], *row[3:]) for row in table.rows):
        assert by_cpi.chance == by_alignment.chance == pytest.approx(chance), what
    assert rows["3 things"][3].high < chance < rows["2 things"][3].low
    assert rows["3 things"][4].low < chance < rows["3 things"][4].high
    assert "PAS has Spearman's rho \u22120." in table.note
    # Phrases of 0.1 and 0.3, and in captions of three things another of 0.3.
    assert rows["2 things"][2] == pytest.approx(0.2) and rows["3 things"][2] == pytest.approx(0.7 / 3)


def test_a_world_of_nothing_has_tables(table):
    empty = read_planted(table.slice(0, 0), CONFIG)
    assert [len(make(empty).rows) for make in (report_separation, report_budget, report_traits)] == [
        0,
        2,
        0,
    ]
