"""The study's arms, cells and slots: halves of one size, an oracle without faults, negatives as asked."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from raycomp.core.selection import format_uids
from raycomp.study.arms import choose_rows
from raycomp.study.cells import FULL, HALVES, METHODS, list_cells
from raycomp.study.config import StudyConfig
from raycomp.study.train import draw_slots
from raycomp.words import OK

NUM = 200


@pytest.fixture(scope="module")
def scores() -> pa.Table:
    rng = np.random.default_rng(0)
    uids = format_uids(rng.integers(0, 2**63, (NUM, 2)).astype(np.uint64))
    faults = ["none" if i % 3 else "wrong_object" for i in range(NUM)]
    columns = {
        "uid": uids,
        "status": [OK] * NUM,
        "alignment": rng.random(NUM).astype(np.float32),
        "mean_pas": rng.random(NUM).astype(np.float32),
        "fault": [fault if i % 2 else None for i, fault in enumerate(faults)],
    }
    return pa.table(columns)


def test_all_halves_are_halves_and_the_oracle_has_no_fault(scores: pa.Table) -> None:
    fault_N = np.array([fault == "wrong_object" for fault in scores["fault"].to_pylist()])
    assert fault_N.any()
    chosen = {arm: choose_rows(scores, arm, 5) for arm in HALVES}
    assert {len(rows) for rows in chosen.values()} == {NUM // 2}
    assert all((np.diff(rows) > 0).all() for rows in chosen.values())
    assert not fault_N[chosen["oracle50"]].any()
    assert choose_rows(scores, FULL, 5).tolist() == list(range(NUM))


def test_rules_choose_what_they_say_against_a_plain_sort(scores: pa.Table) -> None:
    alignment_N, pas_N = (scores[name].to_numpy() for name in ("alignment", "mean_pas"))
    best = np.argsort(-alignment_N)
    assert choose_rows(scores, "align50", 0).tolist() == sorted(best[: NUM // 2])
    pool = best[: NUM * 7 // 10]
    by_pas = pool[np.argsort(-pas_N[pool])][: NUM // 2]
    assert choose_rows(scores, "cpi50", 0).tolist() == sorted(by_pas)
    assert set(choose_rows(scores, "align70_random50", 0)) < set(pool)


def test_seeds_draw_random_arms_anew_and_leave_the_others(scores: pa.Table) -> None:
    for arm in HALVES:
        first, second = (choose_rows(scores, arm, seed).tolist() for seed in (0, 1))
        assert (first == second) == (arm in ("cpi50", "align50"))
        assert first == choose_rows(scores, arm, 0).tolist()


def test_an_arm_that_cannot_have_its_half_is_told(scores: pa.Table) -> None:
    faulty = scores.filter(pa.array([fault == "wrong_object" for fault in scores["fault"].to_pylist()]))
    with pytest.raises(ValueError, match=r"oracle50: has 0 of the \d+ pairs"):
        choose_rows(faulty, "oracle50", 0)


def test_cells_come_with_all_arms_of_a_seed_before_the_next() -> None:
    cells = list_cells(StudyConfig(seeds=4, other_seeds=2))
    assert len({cell.name for cell in cells}) == len(cells) == 4 * 5 + 2 * (7 + 5 + 3)
    assert [cell.seed for cell in cells[:10]] == [0] * 5 + [1] * 5
    assert [cell.group for cell in cells[:2]] == ["clip-cpi50", "clip-align50"]
    some = list_cells(StudyConfig(cells=("negclip-full-swap", "clip-cpi50")))
    assert Counter(cell.group for cell in some) == {"clip-cpi50": 16, "negclip-full-swap": 3}
    with pytest.raises(ValueError, match=r"cells='negclip-ful'.*negclip-full"):
        list_cells(StudyConfig(cells=("negclip-ful",)))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.num_negatives])
def test_slots_are_of_the_calls_that_a_method_has(name: str) -> None:
    method, rng = METHODS[name], np.random.default_rng(0)
    once_J = np.arange(12) < 8
    allowed_2BJ = np.stack(
        [np.tile(once_J, (400, 1)), np.tile(once_J if method.calls == 1 else ~once_J, (400, 1))]
    )
    # The first caption has no negative at all, the second a single one.
    allowed_2BJ[:, 0] = False
    allowed_2BJ[:, 1] = np.arange(12) == 3
    kind_J = np.array([0] * 6 + [1] * 2 + [2] * 4)
    slot_BK, valid_BK = draw_slots(allowed_2BJ, np.tile(kind_J, (400, 1)), method, rng)
    num = method.num_negatives
    assert slot_BK.shape == valid_BK.shape == (400, num)
    assert not valid_BK[0].any() and valid_BK[2:].all()
    assert all(len(set(row)) == num for row in slot_BK[2:].tolist())
    twice = (slot_BK[2:] >= 8).sum(1)
    # Of one edit there are more negatives of the first kind, which make it no likelier.
    firsts = kind_J[slot_BK[2:, 0]]
    assert 0.4 < (firsts == 0).sum() / (firsts < 2).sum() < 0.6
    if method.calls == 1:
        assert valid_BK[1].sum() == 1 and not twice.any()
        assert set(slot_BK[2:].ravel()) == set(range(8))
    elif num == 1:
        assert 0.42 < twice.mean() < 0.58
    else:
        assert (twice == num // 2).all()
