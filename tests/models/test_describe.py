"""A scorer's description from the cache equals a built one, loads no torch, and is never of other weights."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from raycomp.config import ScorerConfig
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip, measure_scorer


@pytest.fixture
def scorer(tiny_scorer: ScorerConfig, tmp_path: Path) -> ScorerConfig:
    """A scorer whose weights are a file."""
    save_file(Clip(tiny_scorer).model.state_dict(), tmp_path / "weights.safetensors")
    return replace(tiny_scorer, weights=str(tmp_path / "weights.safetensors"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("RAYCOMP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "scorers"


def count_builds(monkeypatch: pytest.MonkeyPatch) -> list[ScorerConfig]:
    """Return a list that grows with every scorer that is built."""
    built: list[ScorerConfig] = []

    def build(config):
        built.append(config)
        return measure_scorer(config)

    monkeypatch.setattr("raycomp.models.clip.measure_scorer", build)
    return built


def test_a_hit_is_the_built_description_and_loads_no_torch(scorer, cache):
    reported = describe_scorer(scorer)
    assert reported == measure_scorer(scorer)
    code = (
        "import sys\nfrom raycomp.config import ScorerConfig\n"
        "from raycomp.models.architecture import describe_scorer\n"
        f"print(repr(describe_scorer({scorer!r})))\n"
        "assert not {'torch', 'open_clip'} & set(sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == repr(reported), done.stderr


def test_other_weights_config_or_neighbours_miss(scorer, cache, monkeypatch):
    built = count_builds(monkeypatch)
    describe_scorer(scorer)
    describe_scorer(scorer)
    assert len(built) == 1
    weights = Path(scorer.weights)
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    describe_scorer(scorer)
    describe_scorer(replace(scorer, precision="bf16"))
    describe_scorer(replace(scorer, weights="random:7"))
    assert len(built) == 4
    reported = {"model_cfg": json.loads(Path(scorer.model).read_text())}
    reported["model_cfg"]["vision_cfg"]["layers"] += 1
    weights.with_name("open_clip_config.json").write_text(json.dumps(reported))
    with pytest.raises(ValueError, match=r"was trained with vision_cfg\.layers=2"):
        describe_scorer(scorer)


def test_a_damaged_or_foreign_file_is_made_again(scorer, cache, monkeypatch):
    for damage in [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"height": 32', '"height": 64'),
        lambda text: "[]",
        lambda text: '{"spec": null, "sha256": ""}',
        lambda text: "\0" * 9,
    ]:
        reported = describe_scorer(scorer)
        (path,) = cache.iterdir()
        path.write_text(damage(path.read_text()))
        built = count_builds(monkeypatch)
        assert describe_scorer(scorer) == reported == describe_scorer(scorer), damage
        assert len(built) == 1, damage


def test_a_folder_that_cannot_be_written_does_no_harm(scorer, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("RAYCOMP_CACHE", str(tmp_path / "file"))
    assert describe_scorer(scorer) == measure_scorer(scorer)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_refused_is_not_kept(scorer, cache):
    state = {name: torch.zeros_like(value) for name, value in Clip(scorer).model.state_dict().items()}
    save_file(state, scorer.weights)
    for _ in range(2):
        with pytest.raises(ValueError, match="not of length 1"):
            describe_scorer(scorer)
    assert not cache.exists()


def test_a_tag_is_not_kept(cache, monkeypatch):
    """Its files may change on the hub."""
    monkeypatch.setattr("raycomp.models.clip.measure_scorer", lambda config: "built")
    assert describe_scorer(ScorerConfig(model="ViT-B-32", weights="openai")) == "built"
    assert describe_scorer(ScorerConfig(model="hf-hub:some/model", weights="openai")) == "built"
    assert not cache.exists()
