"""Fixtures that all tests share."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pyarrow import fs

import raycomp
from raycomp.config import ClusterConfig, ScorerConfig, options
from raycomp.curation.config import CurateConfig
from raycomp.models import deferred
from raycomp.run import executor, progress
from raycomp.run.local import Local
from tests.corpus import NUM, PER_SHARD, by_cpi, mean_drop, write_world_shards
from tests.faults.proxy import Proxy, run_proxy

# Ray gives its workers niceness 15: the test processes beside them would leave them hardly any CPU time.
os.environ.setdefault("RAY_worker_niceness", "0")

# A busy machine makes any case late.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Nor is a slow step of a test worth a line, at its start or its end.
options._AFTER_S = progress._SAID_AFTER_S = 600.0

# As a command does; what is not deferred takes seconds in every test process.
deferred.install()

# A test's group is what it needs, by the folder it lies in or the fixture it asks for. `make test` runs those
# without a group; a file test_ray_*.py is in the group ray, and tests/lab is a group of its own.
_BY_FOLDER = {"faults": "faults", "docs": "docs", "deploy": "deploy", "peers": "peers"}
_BY_FIXTURE = {"s3_store": "stores", "shared": "data"}
# Tests with Ray are two groups that take about as long, each with a cluster of its own: these, and the rest.
_FIRST_GROUP = {"run", "negatives"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let processes share tests by file, and those that need Ray in two groups, with a cluster for each."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.partition("::")[0])
            return f"ray {_ray_group(file)}" if _needs_ray(file) else str(file)

    return ByFolder(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by group, before any is chosen, and take first those that need Ray: they take longest."""
    for item in items:
        if (group := _find_group(item)) is not None:
            item.add_marker(group)
    items.sort(key=lambda item: _ray_group(item.path) if _needs_ray(item.path) else 2)


def _find_group(item: pytest.Item) -> str | None:
    if "lab" in item.path.relative_to(Path(__file__).parent).parts or item.get_closest_marker("engine"):
        return None
    if (folder := item.path.parent.name) in _BY_FOLDER:
        return _BY_FOLDER[folder]
    if item.path.name.startswith("test_ray_"):
        return "ray"
    return next(
        (_BY_FIXTURE[name] for name in getattr(item, "fixturenames", ()) if name in _BY_FIXTURE), None
    )


def _needs_ray(file: Path) -> bool:
    return file.parent.name == "faults" or file.name == "test_ray.py" or file.name.startswith("test_ray_")


def _ray_group(file: Path) -> int:
    return 0 if file.parent.name in _FIRST_GROUP else 1


@contextmanager
def without_ray() -> Iterator[None]:
    """Run the block as a process without a cluster: its commands run on the local executor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "is_connected", lambda: False)
        patch.setattr(executor, "MOST_ONE_BY_ONE", 1_000)
        patch.setattr(executor, "_used", [])
        yield


@pytest.fixture(scope="module", autouse=True)
def local_unless_named(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a file that is not named test_ray_*.py know nothing of the cluster that others use before it."""
    with nullcontext() if _needs_ray(request.path) else without_ray():
        yield


@pytest.fixture(scope="session", autouse=True)
def scorer_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of scorers' descriptions for all tests, and for the processes that they start."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYCOMP_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real photos, captions and treebanks; never part of the project."""
    folder = Path(os.environ.get("RAYCOMP_SHARED", Path(__file__).parents[2] / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"no real data: RAYCOMP_SHARED={folder} has no folder 'data'")
    return folder


@pytest.fixture(scope="session")
def tiny_scorer(tmp_path_factory: pytest.TempPathFactory) -> ScorerConfig:
    """A CLIP of one layer with random weights: quick, and exact like any other."""
    path = tmp_path_factory.mktemp("scorer") / "tiny.json"
    vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
    path.write_text(json.dumps({"embed_dim": 32, "vision_cfg": vision, "text_cfg": text}))
    return ScorerConfig(model=str(path), weights="random:0", batch_size=16)


@pytest.fixture(scope="session")
def ray_cluster(s3_store) -> Iterator[str]:
    """The address of a real Ray cluster on this machine, for all tests that need one; workers reach S3."""
    import ray

    from raycomp.run.executor import connect

    # As many as a run with one scorer needs: each may become a process that loads torch.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_metrics_report_interval_ms", "1000")  # not 10 s
        with connect(ClusterConfig(executor="ray", num_cpus=5)):
            yield ray.get_runtime_context().gcs_address


@pytest.fixture
def local() -> Iterator[Local]:
    """The local executor, for what a command calls within its session."""
    with executor.use(Local(2)):
        yield executor.current()


@pytest.fixture(scope="session")
def curated(tiny_scorer, tmp_path_factory) -> tuple[CurateConfig, Path, dict[str, Any]]:
    """The config, folder and record of a curation that many tests read: who changes a file mends it."""
    folder = tmp_path_factory.mktemp("curated")
    world = write_world_shards(folder / "in", NUM, PER_SHARD)
    config = by_cpi(input=world, scorer=tiny_scorer, attribute=mean_drop(pool=0.8))
    with without_ray():
        return config, folder / "out", raycomp.curate(config, str(folder / "out")).record


@pytest.fixture(scope="session")
def s3_store() -> Iterator[fs.S3FileSystem]:
    """A real S3 server on this machine that lives as long as the tests; the environment leads to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing-secret")
        patch.setenv("AWS_REGION", "us-east-1")
        try:
            _wait_for(endpoint, server)
            yield fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True)
        finally:
            server.terminate()
            server.wait(20)


def _wait_for(endpoint: str, server: subprocess.Popen) -> None:
    for _ in range(300):
        assert server.poll() is None, "the S3 server ended"
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the S3 server did not start within 30 s")


@pytest.fixture(scope="module")
def bucket(s3_store: fs.S3FileSystem, request: pytest.FixtureRequest) -> str:
    """A bucket of the module's own."""
    name = request.module.__name__.rpartition(".")[2].replace("_", "-")
    s3_store.create_dir(name)
    return f"s3://{name}"


@pytest.fixture
def proxy(s3_store, monkeypatch) -> Iterator[Proxy]:
    """A proxy before the S3 server; the environment leads to it, the server's own endpoint stays open."""
    with run_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
