"""``train`` on a real Ray cluster: one curve on any number of workers."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from raycomp.config import UserError
from raycomp.core.selection import parse_uids
from raycomp.training.command import train
from raycomp.training.ray_train import Stopped, judge_failure
from tests.training.little import as_datacomp, count_heads, read_losses, refuse

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_negatives_are_the_same_for_any_number_of_workers(world, curated, negatives, tmp_path):
    """Of a curation, with a subset of it that names four of them three times."""
    kept = parse_uids(pq.read_table(curated[1] / "subset/kept.parquet")["uid"])
    some = kept[::2]
    np.save(tmp_path / "some.npy", as_datacomp(np.concatenate([some, some[:4], some[:4]])))
    options = {"input": str(curated[1]), "negatives": negatives, "train.loss": "negclip"}
    options |= {"train.num_negatives": 2, "subset": str(tmp_path / "some.npy")}
    said: list[str] = []
    places = {"1": {"cluster.executor": "local"}, "2": {"train.workers": 2}}
    runs = [
        train(world.config(**options, **where), str(tmp_path / name), said.append)
        for name, where in places.items()
    ]
    np.testing.assert_allclose(*(read_losses(tmp_path / name) for name in "12"), rtol=0, atol=1e-5)
    for run in runs:
        assert run["copies"] == 8 and run["funnel"]["kept"] == len(some)
        assert run["pairs"] == len(some) + 8 >= run["pairs_with_negatives"] > 10
        assert run["funnel"]["dropped"] == {"not_in_subset": len(kept) - len(some)}
        assert sum(run["negatives_by_kind"].values()) > run["pairs_with_negatives"]
    assert f"; 8 of the {len(some) + 8} pairs are copies of others: loss" in said[-1]


def test_more_workers_than_cpus_are_refused(world, tmp_path, capsys):
    message = "train.workers=9: must be at most 5, the CPUs of the cluster"
    refuse(world.line(tmp_path / "out", **{"train.workers": 9}), tmp_path / "out", capsys, message)


@pytest.mark.slow
def test_a_run_that_ended_goes_on_from_its_checkpoint_with_other_workers(world, trained, tmp_path):
    """What evaluates fails once: our own mistake is told with its traceback, and nothing is lost."""
    options = {"train.checkpoint_steps": 6, "train.evaluate_steps": 8}
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*ZeroDivisionError"):
        train(world.config(**options), str(tmp_path / "out"), evaluate=_divide_later)
    said: list[str] = []
    config = world.config(**options, **{"train.workers": 2})
    run = train(config, str(tmp_path / "out"), said.append, evaluate=count_heads)
    assert run["resumed"] == [{"step": 6, "why": "started earlier"}]
    assert "train: started earlier; resumed from step 6" in said
    np.testing.assert_allclose(read_losses(tmp_path / "out"), read_losses(trained[0]), rtol=0, atol=1e-5)


def _divide_later(clip, step: int) -> dict[str, float]:
    return {"none": step / (0 if step else 1)}


def test_only_what_a_start_may_fix_is_started_again():
    for error, why, ends in [
        (OSError(28, "No space left on device", "/x"), "[Errno 28] No space left on device: '/x'", None),
        (ConnectionError("Connection reset by peer"), "Connection reset by peer", None),
        (RuntimeError("[/gloo/tcp/pair.cc:537] Read error [10.0.0.1]:9: Connection reset"), "", None),
        (Stopped(), "", None),
        (RuntimeError("CUDA error"), "RuntimeError: CUDA error", None),
        (UserError("a: must\nbe b"), "a: must be b", UserError),
        (KeyError("x"), "KeyError: 'x'", RuntimeError),
    ]:
        found, final = judge_failure(error)
        assert found == why and (final is None if ends is None else type(final) is ends)
