"""Which scorer a command takes: the one that is named, whatever it is, else the one behind its input."""

from pathlib import Path

import pytest

import raycomp
from raycomp.config import ScorerConfig, override, override_all
from raycomp.negatives import command
from raycomp.negatives.config import NegativesConfig
from tests.probe.test_probes import main, write_curation, write_negatives

# They lead to a scorer of the defaults' own, which only who names it wants.
NAMED = [{"scorer.weights": "openai"}, {"scorer.model": "ViT-B-16", "scorer.batch_size": "none"}]


class Taken(Exception):
    """The scorer that would have been loaded."""


def take(scorer: ScorerConfig, *_: object) -> None:
    raise Taken(scorer)


def ranker_of(config: NegativesConfig, out: Path) -> ScorerConfig:
    with pytest.raises(Taken) as taken:
        raycomp.negatives(config, str(out))
    return taken.value.args[0]


def probed_by(out: Path, *options: str) -> ScorerConfig:
    with pytest.raises(Taken) as taken:
        main(["probe", "composition", *(f"--set={option}" for option in options), "--out", str(out)])
    return taken.value.args[0]


@pytest.fixture
def source(tiny_scorer, tmp_path) -> Path:
    return write_curation(tmp_path / "curated", tiny_scorer)


def test_negatives_are_ranked_by_the_scorer_that_is_named(source, tiny_scorer, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "describe_scorer", take)
    (source / "shards").mkdir()
    config = NegativesConfig(input=str(source))
    assert ranker_of(config, tmp_path / "out") == tiny_scorer
    for options in NAMED:
        assert ranker_of(override_all(config, options), tmp_path / "out") == ScorerConfig()
    assert ranker_of(override(config, "scorer.precision", "bf16"), tmp_path / "out").weights == "openai"
    plain = NegativesConfig(input=f"{source}/subset/kept.parquet")
    assert ranker_of(plain, tmp_path / "plain") == ScorerConfig()


def test_the_probe_is_of_the_scorer_that_is_named(source, tiny_scorer, tmp_path, monkeypatch):
    monkeypatch.setattr("raycomp.models.clip.Clip", take)
    place = f"input={write_negatives(tmp_path / 'negatives', tiny_scorer, source)}"
    assert probed_by(tmp_path / "out", place) == tiny_scorer
    for options in NAMED:
        named = [f"{path}={value}" for path, value in options.items()]
        assert probed_by(tmp_path / "named", place, *named) == ScorerConfig()
