"""Fixtures of the tests of sweeps: a small test set in SugarCrepe's layout."""

import json
from pathlib import Path

import pytest

from raycomp.evaluation.config import BenchmarkConfig, EvaluateConfig
from tests.corpus import scenes


def write_test_set(folder: Path, num: int, seed: int) -> EvaluateConfig:
    """Write ``num`` rows of each split, with pictures of drawn scenes; the negative is another's caption."""
    found = scenes(num + 1, seed)
    folder.mkdir(parents=True, exist_ok=True)
    captions = [members["txt"].decode() for members in found]
    rows = {}
    for i in range(num):
        (folder / f"{i}.jpg").write_bytes(found[i]["jpg"])
        rows[str(i)] = {"filename": f"{i}.jpg", "caption": captions[i], "negative_caption": captions[i + 1]}
    for split in ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj"):
        (folder / f"{split}.json").write_text(json.dumps(rows))
    return EvaluateConfig(benchmarks=("sugarcrepe",), sugarcrepe=BenchmarkConfig(str(folder)))


@pytest.fixture(scope="session")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> EvaluateConfig:
    """A test set, and the options that name it."""
    return write_test_set(tmp_path_factory.mktemp("test_set"), 12, 7)
