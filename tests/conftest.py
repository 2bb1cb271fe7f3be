"""Fixtures that every floor's tests share."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycomp.cluster.session import connect
from raycomp.config import ClusterConfig, ScorerConfig


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
def ray_cluster() -> Iterator[None]:
    """A real Ray cluster on this machine, for all tests that need one."""
    with connect(ClusterConfig(num_cpus=10)):
        yield
