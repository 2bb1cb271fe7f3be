"""What only a Ray cluster shows, on one: the bytes of the local executor, two ranks, and how it fails."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

import raycomp
from raycomp.cli import main
from raycomp.config import ClusterConfig, override_all
from raycomp.curation.config import CurateConfig
from raycomp.run import work
from raycomp.run.executor import connect
from raycomp.sweep.config import SweepConfig
from raycomp.training.config import TrainConfig
from tests.corpus import write_world_shards
from tests.drawn import WORLD, write_test_set

LOCAL: dict[str, Any] = {"cluster.executor": "local"}
OTHER = "ray.io/market-type=spot"
ALIGN = "ray::MapWorker(MapBatches(align))"
# A scorer of the user's own in the pass of the alignment: slow enough to be killed at work, if it is told to.
SLOW = """
import time
from pathlib import Path


class Wait:
    columns = {"waited": "float32"}
    needs = ("captions",)

    def __call__(self, captions):
        time.sleep(0.5 if (Path(__file__).parent / "slow").exists() else 0)
        return {"waited": [0.0] * len(captions)}
"""
LOSS = """
from raycomp.training.losses import Loss


class Mistyped(Loss):
    def __call__(self, batch, config):
        return mistyped
"""


class Cut(Exception):
    """Stands for a kill."""


@pytest.fixture(scope="module")
def label() -> Iterator[str]:
    """A label of the one node of a cluster of five CPUs, which this process has joined."""
    import ray

    with connect(ClusterConfig(executor="ray", num_cpus=5)):
        yield f"ray.io/node-id={ray.get_runtime_context().get_node_id()}"


@pytest.fixture(scope="module")
def options(label, tiny_scorer, tmp_path_factory) -> dict[str, Any]:
    """The options of a curation of three shards of 20 rows."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "own.py").write_text(SLOW)
    return {
        "input": write_world_shards(folder / "in", 60, 20),
        "scorer.model": tiny_scorer.model,
        "scorer.weights": "random:0",
        "scorer.batch_size": 4,
        "scorers": f"{folder}/own.py:Wait",
        "waves.shards_per_wave": 1,
        "attribute.pool": 1,
        "near.rules": "exact,perceptual,semantic,captions",
        "near.action": "flag",
    }


@pytest.fixture(scope="module")
def curated(options, tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """The folder of the local executor's curation, and the digests of its results."""
    out = tmp_path_factory.mktemp("curated") / "local"
    curate(options | LOCAL, out)
    return out, digest(out)


def curate(options: dict[str, Any], out: Path) -> None:
    raycomp.curate(override_all(CurateConfig(), options), str(out))


def digest(out: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a curation that repeats byte by byte."""
    folders = ("scores", "metadata", "marks", "subset", "shards")
    paths = [path for folder in folders for path in (out / folder).rglob("*") if path.is_file()]
    assert paths
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def train_config(curated: Path, **more: Any) -> TrainConfig:
    options = json.loads((curated / "run.json").read_text())["config"]["scorer"]
    own = {"input": str(curated), "model.name": options["model"], "model.weights": "random:0"}
    own |= {"train.steps": 3, "train.batch_size": 8, "train.eps": 1e-4, "train.workers": 1}
    return override_all(TrainConfig(), own | more)


def read_losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_ray_finishes_what_the_local_executor_started_and_a_killed_scorer_changes_no_byte(
    label, options, curated, tmp_path, monkeypatch
):
    """Cut off after the first wave, so that Ray has one to skip and others to do, on nodes with a label; its
    scorer is killed at work."""
    commit, out = work._Attempt._commit, tmp_path / "out"

    def cut(self: Any, *args: Any) -> None:
        commit(self, *args)
        raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(work._Attempt, "_commit", cut)
        curate(options | LOCAL, out)
    slow = Path(options["scorers"].rpartition(":")[0]).parent / "slow"
    slow.touch()
    killed: list[int] = []

    def find_parts() -> set[Path]:
        return {*(out / "work/parts/align").glob("**/*.parquet")}

    first = find_parts()

    def kill() -> None:
        until = time.monotonic() + 120
        while not killed and time.monotonic() < until:
            time.sleep(0.1)
            if find_parts() - first:
                for process in psutil.process_iter(["cmdline"]):
                    if (process.info["cmdline"] or [""])[0] == ALIGN and not killed:
                        process.kill()
                        killed.append(process.pid)
                        slow.unlink()

    watcher = threading.Thread(target=kill, daemon=True)
    watcher.start()
    curate(options | {"cluster.labels": label}, out)
    watcher.join()
    assert killed and digest(out) == curated[1]


def test_two_ranks_have_the_curve_of_one(curated, tmp_path):
    raycomp.train(train_config(curated[0], **LOCAL), str(tmp_path / "one"))
    record = raycomp.train(train_config(curated[0], **{"train.workers": 2}), str(tmp_path / "two"))
    one, two = read_losses(tmp_path / "one"), read_losses(tmp_path / "two")
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)
    assert record["workers"] == 2 and len(one) == 3 and len({*one}) > 1


def test_a_mistake_in_a_rank_and_a_label_that_no_node_has_are_one_line(curated, options, tmp_path, capsys):
    (tmp_path / "own.py").write_text(LOSS)
    model = {"model.name": options["scorer.model"], "model.weights": "random:0"}
    train = {"input": curated[0], **model, "train.batch_size": 8, "train.steps": 2, "train.workers": 1}
    for command, chosen, said in (
        ("train", train | {"train.loss": f"{tmp_path}/own.py:Mistyped"}, ["own.py:Mistyped", "mistyped"]),
        (
            "curate",
            options | {"cluster.labels": OTHER},
            [f"cluster.labels='{OTHER}': no node has these labels"],
        ),
    ):
        line = [f"--set={name}={value}" for name, value in chosen.items()]
        assert main([command, *line, "--out", str(tmp_path / "out")]) == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert all(word in last for word in said), last


def test_tune_trains_each_trial_once_and_says_which_is_best(curated, tmp_path):
    write_test_set(str(tmp_path / "exam"), 8, 0)
    train = train_config(curated[0])
    options = {
        "space": "attribute.keep=grid(0.5,0.4)",
        "seeds": 1,
        "report_seeds": 1,
        "curated": str(curated[0]),
        "evaluate.benchmarks": WORLD,
        "evaluate.own.annotations": str(tmp_path / "exam"),
        "metric": "world.accuracy",
        "max_concurrent": 1,  # one process trains them all
    }
    config = replace(override_all(SweepConfig(), options), model=train.model, train=train.train)
    config = replace(config, train=replace(train.train, steps=1))
    raycomp.sweep(config, str(tmp_path / "out"))
    rows = pq.read_table(tmp_path / "out/trials.parquet").to_pylist()
    assert [(row["split"], row["status"]) for row in rows].count(("development", "finished")) == 2
    assert all(0 <= row["metric"] <= 1 and row["starts"] == 1 for row in rows) and len(rows) == 3
    best = json.loads((tmp_path / "out/run.json").read_text())["best"][0]
    assert best["development"]["value"] == max(row["metric"] for row in rows if row["split"] == "development")
