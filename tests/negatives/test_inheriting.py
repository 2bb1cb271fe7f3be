"""Which scorer a command takes: the one that is named, whatever it is, else the one behind its input."""

from pathlib import Path

import pytest

import raycomp
from raycomp.config import ScorerConfig, override, override_all
from raycomp.negatives import command
from raycomp.negatives.config import NegativesConfig
from tests.probe.test_pas import write_curation as write_scored
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


@pytest.mark.parametrize("options", NAMED)
def test_negatives_are_ranked_by_the_scorer_that_is_named(
    source, options, tiny_scorer, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "describe_scorer", take)
    (source / "shards").mkdir()
    config = NegativesConfig(input=str(source))
    assert ranker_of(config, tmp_path / "out") == tiny_scorer
    assert ranker_of(override_all(config, options), tmp_path / "out") == ScorerConfig()
    assert ranker_of(override(config, "scorer.precision", "bf16"), tmp_path / "out").weights == "openai"


def test_captions_without_a_curation_are_ranked_by_the_default_scorer(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "describe_scorer", take)
    write_curation(tmp_path, ScorerConfig(weights="random:0"))
    config = NegativesConfig(input=f"{tmp_path}/subset/kept.parquet")
    assert ranker_of(config, tmp_path / "out") == ScorerConfig()


@pytest.mark.parametrize("options", NAMED)
def test_the_probe_is_of_the_scorer_that_is_named(source, options, tiny_scorer, tmp_path, monkeypatch):
    monkeypatch.setattr("raycomp.models.clip.Clip", take)
    place = f"input={write_negatives(tmp_path / 'negatives', tiny_scorer, source)}"
    assert probed_by(tmp_path / "out", place) == tiny_scorer
    named = [f"{path}={value}" for path, value in options.items()]
    assert probed_by(tmp_path / "named", place, *named) == ScorerConfig()


def test_a_calibration_is_of_the_scorer_that_is_named(tiny_scorer, tmp_path, capsys):
    source = write_scored(tmp_path / "curated", tiny_scorer)
    line = ["probe", "pas", f"--set=input={source}", "--set=scorer.weights=openai", "--out", str(tmp_path)]
    assert main(line) == 2
    assert "scorer='ViT-B-16 openai': must be the scoring model of" in capsys.readouterr().err
