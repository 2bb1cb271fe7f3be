"""An update equals a run from scratch, byte for byte, whatever happened before."""

import pytest

from raycomp.curation import outputs
from tests.update.histories import History

QUICK, ALL = 20, 200


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Written shards of few rows, so that several are touched or not."""
    monkeypatch.setattr(outputs, "SPAN", 4)


def check_history(folder, scorer, seed: int) -> None:
    history = History(folder, scorer, seed)
    for _ in range(3):
        history.update(kills=history.random.choice([0, 0, 1, 2]))
    assert history.read(history.run) == history.read(history.from_scratch())


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_history_ends_where_a_run_from_scratch_does(tmp_path, tiny_scorer, seed):
    check_history(tmp_path, tiny_scorer, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, ALL))
def test_many_histories_do(tmp_path, tiny_scorer, seed):
    check_history(tmp_path, tiny_scorer, seed)
