"""An update equals a run from scratch, byte for byte, whatever happened before; see bench/histories.py."""

import pytest

from raycomp.curation import outputs
from tests.curation.histories import History


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_history_ends_where_a_run_from_scratch_does(tmp_path, tiny_scorer, monkeypatch, seed):
    monkeypatch.setattr(outputs, "SPAN", 4)  # written shards of few rows, so that several are touched or not
    history = History(tmp_path, tiny_scorer, seed)
    for kills in (0, 2, 1):
        history.update(kills)
    assert history.read(history.run) == history.read(history.from_scratch())
