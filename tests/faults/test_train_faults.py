"""Trainings that are killed at any step: the losses and weights of one that nobody disturbed, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import raycomp
from raycomp.cli import STORAGE_FAILED
from raycomp.config import ClusterFailed, override_all
from raycomp.data.files import Folder
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.training.config import TrainConfig
from raycomp.training.journal import read_metrics
from tests.conftest import without_ray
from tests.faults.harness import (
    ENDS,
    PROGRESS,
    Run,
    find_parent,
    mount,
    num_files,
    processes,
    seeded,
    start_command,
)

RANK = "ray::RayTrainWorker"
STEPS, EVERY = 40, 4


@dataclass(frozen=True)
class Calm:
    """What trains with augmentation and negatives on two workers, and what comes of it undisturbed."""

    options: dict[str, str]
    losses: np.ndarray
    weights: bytes

    @contextmanager
    def start(self, out: Folder, *more: str, **other: str) -> Iterator[Run]:
        options = {**self.options, **other}
        with start_command(
            "train", [*(f"{name}={value}" for name, value in options.items()), *more], out.uri
        ) as run:
            yield run

    def finish(self, out: Folder, *more: str, **other: str) -> None:
        """Start once more, undisturbed: the same bits, and nothing left."""
        with self.start(out, *more, **other) as run:
            run.end_well()
        self.check(out)

    def check(self, out: Folder) -> None:
        assert np.array_equal(read_metrics(out)["loss"], self.losses)
        assert out.read_bytes("checkpoint", "model.safetensors") == self.weights
        assert not out.exists("work") and not out.exists("lease.json")


@pytest.fixture(scope="session")
def trained(curated, tmp_path_factory, ray_cluster) -> Calm:
    """A training that nothing disturbed."""
    folder = tmp_path_factory.mktemp("trained")
    negatives = NegativesConfig(input=str(curated[1]), negatives=WritingConfig(rank=False))
    with without_ray():
        raycomp.negatives(negatives, str(folder / "negatives"))
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    model = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    (folder / "tiny.json").write_text(json.dumps(model))
    options = {
        "input": str(curated[1]),
        "negatives": str(folder / "negatives"),
        "model.name": str(folder / "tiny.json"),
        "model.weights": "random:0",
        "train.loss": "negclip",
        "train.batch_size": "7",
        "train.steps": str(STEPS),
        "train.workers": "2",
        "train.checkpoint_steps": str(EVERY),
    }
    out = Folder(str(folder / "out"))
    raycomp.train(override_all(TrainConfig(), options), out.uri)
    return Calm(options, read_metrics(out)["loss"], out.read_bytes("checkpoint", "model.safetensors"))


@pytest.fixture
def raylet(ray_cluster) -> int:
    """The process above the ranks of runs that join the tests' cluster."""
    return ray.get(ray.remote(lambda: os.getppid()).remote())


def count_steps(out: Folder) -> int:
    """Return how many steps a run has taken, as far as its folder tells."""
    try:
        return out.read_bytes("metrics.jsonl").count(b"\n")
    except FileNotFoundError:
        return 0


def has_kept(out: Folder, step: int) -> bool:
    """Return whether there is a checkpoint of that step or a later one."""
    return any(int(name) >= step for name in out.list_names("checkpoints"))


def list_workers(raylet: int, name: str = RANK) -> list[int]:
    """Return the processes of a name that a raylet has started."""
    found = processes(os.getsid(0)).items()
    return sorted(pid for pid, line in found if line.startswith(name) and find_parent(pid) == raylet)


def kill(raylet: int, number: int, name: str = RANK) -> bool:
    """Kill one of the ranks, or of the processes of another name; return whether it was there."""
    pids = list_workers(raylet, name)[number:][:1]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return bool(pids)


@pytest.mark.slow
def test_workers_killed_at_random_steps_change_no_bit(trained, out, raylet, joined):
    """While one driver goes on; each start that comes as far as to train has a file of curves."""
    random = seeded(1)
    with trained.start(out, joined) as run:
        for step in sorted(random.sample(range(EVERY + 1, STEPS), 5)):
            run.reach(lambda step=step: count_steps(out) >= step)
            rank, started = random.randrange(2), num_files(out, "tensorboard")
            run.reach(lambda rank=rank: kill(raylet, rank))
            run.reach(lambda started=started: num_files(out, "tensorboard") != started)
        run.end_well()
    assert run.printed.count("train: a worker was lost") == run.printed.count("; resumed from step ") == 5
    resumed = out.read_json("run.json")["resumed"]
    assert len(resumed) == 5 and all(start["step"] > 0 for start in resumed), resumed
    trained.check(out)


@pytest.mark.slow
def test_drivers_killed_at_random_steps_change_no_bit(trained, out, joined):
    with ExitStack() as stack:  # what a killed driver leaves lives on while its successors run
        for step in sorted(seeded(2).sample(range(EVERY + 1, STEPS), 5)):
            run = stack.enter_context(trained.start(out, joined))
            run.reach(lambda step=step: count_steps(out) >= step)
            run.kill()
        trained.finish(out, joined)
    (resumed,) = out.read_json("run.json")["resumed"]
    assert resumed["step"] > 0 and resumed["why"] == "started earlier"


@pytest.mark.slow
def test_kills_change_no_bit_of_a_training_on_s3(trained, bucket, joined, raylet):
    """Shards, negatives and output on S3; a checkpoint at every step, for which the storage needs a while."""
    near = {name: trained.options[name] for name in ("input", "negatives")}
    far = {name: f"{bucket}/{name}" for name in near}
    options = {**far, "train.checkpoint_steps": "1"}
    for name, place in near.items():
        for path in Path(place).rglob("*"):
            if path.is_file():
                Folder(far[name]).write_bytes(path.read_bytes(), *path.relative_to(place).parts)
    out, random = Folder(f"{bucket}/out"), seeded(3)
    with ExitStack() as stack:
        for rank_at, driver_at in ((None, 2 * EVERY), (4 * EVERY, 8 * EVERY)):
            run = stack.enter_context(trained.start(out, joined, **options))
            if rank_at:
                run.reach(lambda step=rank_at: has_kept(out, step))
                time.sleep(random.uniform(0, 0.3))
                run.reach(lambda: kill(raylet, 0))
            run.reach(lambda step=driver_at: has_kept(out, step))
            time.sleep(random.uniform(0, 0.3))
            run.kill()
        trained.finish(out, joined, **options)


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDS)
def test_a_signal_ends_a_training_in_one_line(trained, out, joined, raylet, number):
    """And what ran for it in a cluster that lives on ends with it."""
    with trained.start(out, joined, **{"train.steps": "100000"}) as run:
        run.reach(lambda: count_steps(out) > EVERY)
        started = time.monotonic()
        run.end(number)
    assert time.monotonic() - started < 20
    while (left := list_workers(raylet)) and time.monotonic() < started + 40:
        time.sleep(0.1)
    assert not left, left


@pytest.mark.slow
def test_only_our_lines_reach_the_terminal_and_no_process_is_left(trained, out):
    """Of a run with a cluster of its own."""
    with trained.start(out, **{"train.steps": "6"}) as run:
        said, reported = run.process.communicate(timeout=300)
        left = processes(run.process.pid)
    assert run.process.returncode == 0, reported
    lines = [line for line in said.splitlines() if not line.startswith("train: checking ")]  # which took long
    assert lines[0] == "executor: ray (cluster.executor=ray)"
    assert lines[1].startswith("trained 6 steps of 7 pairs in ") and len(lines) == 2, said
    assert all(map(PROGRESS.match, reported.splitlines())), reported
    assert not left, left


@pytest.mark.slow
def test_a_lost_controller_is_one_line_and_a_restart_goes_on(trained, out, joined, raylet):
    with trained.start(out, joined) as run:
        run.reach(lambda: has_kept(out, EVERY))
        run.reach(lambda: kill(raylet, 0, "ray::TrainController"))
        run.end_in_a_line(ClusterFailed.exit_code, "raycomp: ")
    trained.finish(out, joined)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_a_restart_goes_on(trained, disk, joined):
    """A checkpoint takes 10 MB; one more is written than are kept."""
    out = Folder(str(disk / "out"))
    mount(disk, "remount,size=24m")
    with trained.start(out, joined) as run:
        said = run.end_in_a_line(STORAGE_FAILED, "raycomp: ")
    assert "No space left" in said and out.uri in said, said
    mount(disk, "remount,size=64m")
    trained.finish(out, joined)
    assert out.read_json("run.json")["resumed"][0]["step"] > 0


@pytest.mark.slow
def test_a_notice_of_preemption_keeps_a_checkpoint(trained, out):
    """On a cluster whose head has no room for a rank, and whose two nodes have room for one each."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    options = {"train.steps": "100000", "train.checkpoint_steps": "90000"}
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=2)
        nodes.wait_for_nodes()
        with trained.start(out, f"cluster.address={nodes.address}", **options) as run:
            run.reach(lambda: count_steps(out) > 3)
            line = [str(Path(sys.executable).parent / "ray"), "drain-node", "--address", nodes.address]
            line += ["--node-id", nodes.list_all_nodes()[-1].node_id, "--reason-message", "test"]
            line += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--deadline-remaining-seconds", "60"]
            subprocess.run(line, capture_output=True, check=True)
            run.reach(lambda: has_kept(out, 1))
            run.end(signal.SIGTERM)
    finally:
        nodes.shutdown()
