"""The study's arms, cells and negatives: halves of one size, an oracle without faults, negatives as asked."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from raycomp.core.selection import format_uids
from raycomp.study.config import StudyConfig
from raycomp.study.runs import METHODS, StudyRun, list_runs
from raycomp.study.trial import count_faults, draw_clean
from raycomp.words import OPERATIONS

NUM = 200


@pytest.fixture(scope="module")
def scores() -> pa.Table:
    rng = np.random.default_rng(0)
    uids = format_uids(rng.integers(0, 2**63, (NUM, 2)).astype(np.uint64))
    faults = ["none" if i % 3 else "wrong_object" for i in range(NUM)]
    return pa.table({"uid": uids, "fault": [fault if i % 2 else None for i, fault in enumerate(faults)]})


def test_the_oracle_is_a_half_without_faults_drawn_by_the_seed(scores: pa.Table) -> None:
    first, again, other = (draw_clean(scores, seed)["uid"] for seed in (5, 5, 6))
    assert count_faults("oracle50", first, scores) == {"pairs": NUM // 2, "faults": {"none": NUM // 2}}
    assert first.equals(again) and set(first.to_pylist()) != set(other.to_pylist())
    found = count_faults("full", scores["uid"], scores)
    assert found == {"pairs": NUM, "faults": {"none": 167, "wrong_object": 33}}


def test_a_rule_that_cannot_have_its_half_is_reported(scores: pa.Table) -> None:
    faulty = scores.filter(pa.array([fault == "wrong_object" for fault in scores["fault"].to_pylist()]))
    with pytest.raises(ValueError, match=r"oracle50: has 0 pairs, must have"):
        count_faults("oracle50", draw_clean(faulty, 0)["uid"], faulty)


def test_runs_come_with_all_rules_of_a_seed_before_the_next() -> None:
    runs = list_runs(StudyConfig(seeds=4, other_seeds=2))
    assert len({one_run.name for one_run in runs}) == len(runs) == 4 * 5 + 2 * (7 + 5 + 3)
    assert [one_run.seed for one_run in runs[:10]] == [0] * 5 + [1] * 5
    assert [one_run.group for one_run in runs[:2]] == ["clip-cpi50", "clip-align50"]
    some = list_runs(StudyConfig(runs=("negclip-full-swap", "clip-cpi50")))
    assert Counter(one_run.group for one_run in some) == {"clip-cpi50": 16, "negclip-full-swap": 3}
    with pytest.raises(ValueError, match=r"runs='negclip-ful'.*negclip-full"):
        list_runs(StudyConfig(runs=("negclip-ful",)))


def test_negatives_are_written_as_methods_and_operations_ask() -> None:
    for method in METHODS:
        writing = StudyRun(method, "full", 0).writing
        assert writing.calls == 1 + method.endswith("_mc") and writing.operations == OPERATIONS
        assert writing.per_caption >= METHODS[method].num_negatives
    assert StudyRun("negclip", "full", 0, "ADD").writing.operations == ("ADD",)
