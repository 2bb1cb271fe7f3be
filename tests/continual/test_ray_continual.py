"""Methods that train the model on several workers of Ray Train: from any storage, and whatever is killed."""

import io
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
import torch

from raycomp.config import override_all
from raycomp.continual.command import continual
from raycomp.continual.config import ContinualConfig
from raycomp.data.files import Folder
from raycomp.data.samples import write_tar
from tests.conftest import without_ray
from tests.drawn import world_shards
from tests.faults.harness import find_parent, processes
from tests.training.little import describe_model

pytestmark = pytest.mark.usefixtures("ray_cluster")
RANK = "ray::RayTrainWorker"
OPTIONS: dict[str, Any] = {
    "model.weights": "random:0",
    "order": "given",
    "tune.batch_size": 6,
    "tune.rank": 2,
    "checkpoint_steps": 2,
}


def write_stream(folder: Path, places: list[tuple[str, str]]) -> dict[str, Any]:
    """Write a stream of tasks whose train and test lie there; return the options that name it and a model."""
    tasks = [{"name": f"task-{i}", "train": train, "test": test} for i, (train, test) in enumerate(places)]
    (folder / "stream.json").write_text(json.dumps({"tasks": tasks}))
    (folder / "tiny.json").write_text(json.dumps(describe_model()))
    return {**OPTIONS, "stream": str(folder / "stream.json"), "model.name": str(folder / "tiny.json")}


def write_worlds(places: list[str]) -> None:
    for number, place in enumerate(places):
        for name, samples in world_shards(24, 0, number, per_shard=24):
            write_tar(f"{place}/{name}", samples)


def run(out: Path, options: dict[str, Any], **more: Any) -> tuple[dict[str, Any], list[str]]:
    said: list[str] = []
    config = override_all(ContinualConfig(), {**options, **more})
    return continual(config, str(out), said.append), said


def read_rows(out: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(out / "cells" / f"{name}.parquet").to_pylist()


@pytest.mark.slow
def test_tasks_on_disk_and_on_s3_are_learned_by_two_workers_as_by_one(tmp_path, bucket):
    """The second task lies on S3."""
    places = [str(tmp_path / "0"), str(tmp_path / "1"), f"{bucket}/2", f"{bucket}/3"]
    write_worlds(places)
    options = write_stream(tmp_path, [(places[0], places[1]), (places[2], places[3])])
    options |= {"method": "frozen,finetune", "tune.steps": 3, "prepared": str(tmp_path / "prepared")}
    record, said = run(tmp_path / "two", options, **{"tune.workers": 2})
    assert record["funnel"]["read"] == record["funnel"]["kept"] == 2 and not record["funnel"]["dropped"]
    facts = json.loads((tmp_path / "two/cells/stream-finetune-00.json").read_text())
    assert facts["workers"] == 2 and facts["steps"] == 3
    assert sum(": last " in line for line in said) == 2
    with without_ray():
        run(tmp_path / "one", options)
    both = (read_rows(tmp_path / name, "stream-finetune-00") for name in ("one", "two"))
    one, two = ([row["value"] for row in rows if row["figure"] == "loss_mean"] for rows in both)
    assert len(one) == 2 and one == pytest.approx(two, abs=1e-4)


def kill_a_rank(state: Path, raylet: int, killed: list[int]) -> None:
    """Kill a rank once the state in a file is of the second task, after its first checkpoint."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            found = torch.load(io.BytesIO(state.read_bytes()), weights_only=True)
            if found["number"] == 1 and found["step"] > 0:
                break
        except FileNotFoundError:
            pass
        time.sleep(0.005)
    lines = processes(os.getsid(0)).items()
    ranks = [pid for pid, line in lines if line.startswith(RANK) and find_parent(pid) == raylet]
    for pid in ranks[1:2]:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)


@pytest.mark.slow
def test_a_rank_that_is_killed_in_the_second_task_changes_no_bit(tmp_path):
    write_worlds([str(tmp_path / str(number)) for number in range(4)])
    options = write_stream(tmp_path, [("0", "1"), ("2", "3")])
    options |= {"method": "c-clip", "tune.steps": 100, "tune.workers": 2}
    options["prepared"] = str(tmp_path / "prepared")
    run(tmp_path / "calm", options)
    raylet = ray.get(ray.remote(lambda: os.getppid()).remote())
    killed: list[int] = []
    state = tmp_path / "hurt/work/cells/stream-c-clip-00/state.pt"
    killer = threading.Thread(target=kill_a_rank, args=(state, raylet, killed))
    killer.start()
    _, said = run(tmp_path / "hurt", options)
    killer.join()
    (line,) = [line for line in said if "a worker was lost" in line]
    assert killed and line.startswith("stream-c-clip-00: a worker was lost")
    assert int(line.rpartition(" ")[2]) > 100, "resumed within the second task"
    calm, hurt = (str(read_rows(tmp_path / name, "stream-c-clip-00")) for name in ("calm", "hurt"))
    assert calm == hurt
    assert not Folder(str(tmp_path / "hurt")).exists("work")


def test_more_workers_than_the_cluster_has_are_refused(tmp_path):
    options = write_stream(tmp_path, [("0", "1")])
    write_worlds([str(tmp_path / "0"), str(tmp_path / "1")])
    config = {**options, "method": "finetune", "tune.workers": 6}
    with pytest.raises(ValueError, match=r"tune\.workers=6: must be at most 5, the CPUs that the cluster"):
        run(tmp_path / "out", config)
    with pytest.raises(ValueError, match=r"cluster\.executor=local: tune\.workers=6 needs several processes"):
        run(tmp_path / "out", config, **{"cluster.executor": "local"})
