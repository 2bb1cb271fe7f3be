"""The Python interface: a command's input and options as arguments, the finished run as the result."""

import pytest

import raycomp
from tests.corpus import write_world_shards


def test_a_command_takes_its_input_and_options_and_returns_the_finished_run(tiny_scorer, tmp_path):
    shards = write_world_shards(tmp_path / "in", 20, 10)
    options = {"scorer.model": tiny_scorer.model, "scorer.weights": "random:0", "cluster.executor": "local"}
    run = raycomp.curate(
        shards, out=tmp_path / "out", **options, **{"align.keep": 0.6, "attribute.keep": 0.5}
    )
    assert repr(run) == f"<raycomp run: curate in {tmp_path}/out>"
    assert run.table().num_rows == run["funnel"]["kept"] == 10 and run.config.align.keep == 0.6
    half = raycomp.select(tmp_path / "out", out=tmp_path / "half", **{"attribute.keep": 0.3})
    assert half.kind == "select" and half.figures()["rows kept"].value == 6
    config = raycomp.CurateConfig(input=shards)
    again = raycomp.curate(config, tmp_path / "out", **options, **{"align.keep": 0.6, "attribute.keep": 0.5})
    assert again.record == run.record


def test_wrong_types_are_one_line(tiny_scorer, tmp_path):
    for call, said in [
        (lambda: raycomp.curate(3, tmp_path / "x"), "config=3: must be a CurateConfig, or the input: a path"),
        (lambda: raycomp.curate(["a", 3], tmp_path / "x"), "must be a CurateConfig, or the input"),
        (lambda: raycomp.curate("a", tmp_path / "x", input="b"), "the input is named twice"),
        (lambda: raycomp.evaluate("a", tmp_path / "x"), "config='a': must be a EvaluateConfig"),
        (lambda: raycomp.curate("a"), "out=None: must be a path or uri"),
    ]:
        with pytest.raises(TypeError) as caught:
            call()
        assert said in str(caught.value) and "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match="are random, so these scores are noise"):
        raycomp.score([], [], tiny_scorer.model, "random:0")
    with pytest.raises(ValueError, match=r"align\.keep=2\.0: must be between 0 and 1"):
        raycomp.curate("a", tmp_path / "x", **{"align.keep": 2})
    assert not list(tmp_path.iterdir())
