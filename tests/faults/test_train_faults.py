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
from tests.faults.harness import Run, find_parent, mount, num_files, processes, report, seeded, start_command

RANK = "ray::RayTrainWorker"
STEPS, EVERY = 40, 4
ENDS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}


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

    def check(self, out: Folder) -> None:
        """The same bits, and nothing left."""
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


def report_steps(out: Folder) -> str:
    """Return how far a run has come."""
    kept = ", ".join(str(int(name)) for name in out.list_names("checkpoints"))
    return f"{count_steps(out)} steps, checkpoints of {kept}"


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


def kill_workers(calm: Calm, out: Folder, raylet: int, joined: str, seed: int, count: int) -> None:
    """Kill a rank at one random step after the other, while one driver goes on."""
    random = seeded(seed)
    with calm.start(out, joined) as run:
        for step in sorted(random.sample(range(EVERY + 1, STEPS), count)):
            run.reach(lambda step=step: count_steps(out) >= step)
            rank, started = random.randrange(2), find_started(out)
            run.reach(lambda rank=rank: kill(raylet, rank))
            report(f"rank {rank} of 2 killed", f"seed {seed}: step {step} or just after", report_steps(out))
            run.reach(lambda started=started: find_started(out) != started)
        code, said = run.wait()
    assert code == 0 and not said, said
    resumed = out.read_json("run.json")["resumed"]
    assert len(resumed) == count and all(start["step"] > 0 for start in resumed), resumed
    calm.check(out)
    report(f"{count} such kills", "the end", f"losses and weights as undisturbed; {resumed}")


def find_started(out: Folder) -> int:
    """Return how many starts have come as far as to train: each has a file of curves."""
    return num_files(out, "tensorboard")


def kill_drivers(calm: Calm, out: Folder, joined: str, seed: int, count: int) -> None:
    """Kill the driver at one random step after the other, start the same command again each time."""
    random = seeded(seed)
    with ExitStack() as stack:  # what a killed driver leaves lives on while its successors run
        for step in sorted(random.sample(range(EVERY + 1, STEPS), count)):
            run = stack.enter_context(calm.start(out, joined))
            run.reach(lambda step=step: count_steps(out) >= step)
            run.kill()
            report(
                "driver of a training killed", f"seed {seed}: step {step} or just after", report_steps(out)
            )
        with calm.start(out, joined) as run:
            code, said = run.wait()
    assert code == 0 and not said, said
    calm.check(out)
    (resumed,) = out.read_json("run.json")["resumed"]
    assert resumed["step"] > 0 and resumed["why"] == "begun before"
    report(f"{count} such kills", "the end", f"losses and weights as undisturbed; {resumed}")


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_driver_change_no_bit(trained, out, raylet, joined):
    random = seeded(0)
    first, second = random.randrange(EVERY + 1, 16), random.randrange(20, STEPS - 2)
    with trained.start(out, joined) as run:
        run.reach(lambda: count_steps(out) >= first)
        run.reach(lambda: kill(raylet, 1))
        run.reach(lambda: count_steps(out) >= second)
        run.kill()
        executor, said = run.process.stdout.read().split("\n", 1)
    assert executor == "executor: ray (cluster.executor=ray)"
    assert said.startswith("train: a worker was lost") and said.count("\n") == 1, said
    assert "; resumed from step " in said
    with trained.start(out, joined) as run:
        code, reported = run.wait()
    assert code == 0 and not reported, reported
    trained.check(out)
    report("rank killed, then the driver", f"steps {first}, {second}", "losses and weights as undisturbed")


@pytest.mark.slow
def test_workers_killed_at_random_steps_change_no_bit(trained, out, raylet, joined):
    kill_workers(trained, out, raylet, joined, 1, 5)


@pytest.mark.slow
def test_drivers_killed_at_random_steps_change_no_bit(trained, out, joined):
    kill_drivers(trained, out, joined, 2, 5)


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
    out = Folder(f"{bucket}/out")
    random = seeded(3)
    drivers = [random.randrange(1, 3) * EVERY, random.randrange(7, 9) * EVERY]
    with ExitStack() as stack:
        for step in drivers:
            run = stack.enter_context(trained.start(out, joined, **options))
            if step == drivers[-1]:
                run.reach(lambda: has_kept(out, 4 * EVERY))
                time.sleep(random.uniform(0, 0.3))
                run.reach(lambda: kill(raylet, 0))
                report("S3: rank 0 of 2 killed", f"seed 3: step {4 * EVERY} kept", report_steps(out))
            run.reach(lambda step=step: has_kept(out, step))
            time.sleep(random.uniform(0, 0.3))
            run.kill()
            report("S3: driver of a training killed", f"seed 3: step {step} kept", report_steps(out))
        with trained.start(out, joined, **options) as run:
            code, said = run.wait()
    assert code == 0 and not said, said
    trained.check(out)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_in_one_line(trained, out, joined, raylet, number):
    """And what ran for it in a cluster that lives on ends with it."""
    code, word = ENDS[number]
    with trained.start(out, joined, **{"train.steps": "100000"}) as run:
        run.reach(lambda: count_steps(out) > EVERY)
        started = time.monotonic()
        found, said = run.end(number)
        spent = time.monotonic() - started
    assert found == code and said.startswith(f"raycomp: {word}") and said.count("\n") == 1, said
    assert not out.exists("lease.json")
    report(f"{word} ({number.name})", "training", f"exit {found} after {spent:.1f} s: {said.strip()}")
    assert spent < 20
    until = time.monotonic() + 20
    while (left := list_workers(raylet)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left, left


@pytest.mark.slow
def test_only_our_lines_reach_the_terminal_and_no_process_is_left(trained, out):
    """Of a run with a cluster of its own."""
    with trained.start(out, **{"train.steps": "6"}) as run:
        said, reported = run.process.communicate(timeout=300)
        left = processes(run.process.pid)
    assert run.process.returncode == 0, reported
    executor, said = said.split("\n", 1)
    assert executor == "executor: ray (cluster.executor=ray)"
    assert said.startswith("trained 6 steps of 7 pairs in ") and said.count("\n") == 1, said
    assert all(line.startswith("train: step ") for line in reported.splitlines()), reported
    assert not left, left


@pytest.mark.slow
def test_a_lost_controller_is_one_line_and_a_restart_goes_on(trained, out, joined, raylet):
    with trained.start(out, joined) as run:
        run.reach(lambda: has_kept(out, EVERY))
        run.reach(lambda: kill(raylet, 0, "ray::TrainController"))
        code, said = run.wait()
    report("controller of Ray Train killed", report_steps(out), f"exit {code}: {said.strip()[-300:]}")
    assert code == ClusterFailed.exit_code and said.count("\n") == 1, said
    with trained.start(out, joined) as run:
        code, said = run.wait()
    assert code == 0 and not said, said
    trained.check(out)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_a_restart_goes_on(trained, disk, joined):
    """A checkpoint takes 10 MB; one more is written than are kept."""
    out = Folder(str(disk / "out"))
    mount(disk, "remount,size=24m")
    with trained.start(out, joined) as run:
        code, said = run.wait()
    report("disk of 24 MB full", report_steps(out), f"exit {code}: {said.strip()[-300:]}")
    assert code == STORAGE_FAILED, said
    assert said.count("\n") == 1 and "No space left" in said and out.uri in said, said
    mount(disk, "remount,size=64m")
    with trained.start(out, joined) as run:
        code, said = run.wait()
    assert code == 0 and not said, said
    trained.check(out)
    assert out.read_json("run.json")["resumed"][0]["step"] > 0


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A head without room for a rank, and two nodes with room for one each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_notice_of_preemption_keeps_a_checkpoint(trained, out, nodes):
    options = {"train.steps": "100000", "train.checkpoint_steps": "90000"}
    with trained.start(out, f"cluster.address={nodes.address}", **options) as run:
        run.reach(lambda: count_steps(out) > 3)
        line = [str(Path(sys.executable).parent / "ray"), "drain-node", "--address", nodes.address]
        line += ["--node-id", nodes.list_all_nodes()[-1].node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        line += ["--reason-message", "test", "--deadline-remaining-seconds", "60"]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        noticed = count_steps(out)
        run.reach(lambda: has_kept(out, 1))
        report("notice of preemption", f"about step {noticed}", report_steps(out))
        run.end(signal.SIGTERM)
