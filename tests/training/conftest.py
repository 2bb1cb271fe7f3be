"""What several trainings of the tests start from."""

from pathlib import Path

import pytest

import raycomp
from raycomp.negatives.config import NegativesConfig, WritingConfig
from raycomp.training.command import train
from tests.conftest import without_ray
from tests.training import fitting
from tests.training.little import World, count_heads, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def trained(world, tmp_path_factory) -> tuple[Path, dict]:
    """What one worker makes of it."""
    out = tmp_path_factory.mktemp("trained") / "out"
    options = {"train.workers": 1, "train.checkpoint_steps": 6, "train.evaluate_steps": 8}
    with without_ray():
        return out, train(world.config(**options), str(out), evaluate=count_heads)


@pytest.fixture(scope="session")
def negatives(curated, tmp_path_factory) -> str:
    """Negatives of a curation's captions."""
    out = str(tmp_path_factory.mktemp("negatives") / "out")
    with without_ray():
        raycomp.negatives(NegativesConfig(input=str(curated[1]), negatives=WritingConfig(rank=False)), out)
    return out


@pytest.fixture(scope="session")
def of_ranks(tmp_path_factory) -> list[dict]:
    """What every rank of three measures."""
    folder = tmp_path_factory.mktemp("ranks")
    model, drops = fitting.write_model(folder), fitting.write_dropping_model(folder)
    return fitting.on_ranks(fitting.measure_all, folder, model, drops, str(folder))
