"""What the local executor writes is what Ray writes, and a run that one of them began the other finishes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import raycomp
from raycomp.config import override_all
from raycomp.continual.config import ContinualConfig
from raycomp.curation.config import CurateConfig
from raycomp.evaluation.config import EvaluateConfig
from raycomp.negatives.config import NegativesConfig
from raycomp.run import work
from raycomp.training import loop
from raycomp.training.config import TrainConfig
from tests.continual.drawn_streams import STREAM
from tests.corpus import write_world_shards
from tests.drawn import WORLD, write_test_set

# Of each command its config and function, what repeats byte by byte, and the run of Ray's that it reads.
COMMANDS: dict[str, tuple[type, Callable[..., Any], str, str]] = {
    "curate": (CurateConfig, raycomp.curate, "scores metadata marks subset subset.npy shards", ""),
    "select": (CurateConfig, raycomp.select, "marks subset subset.npy shards", "curate"),
    "negatives": (NegativesConfig, raycomp.negatives, "negatives exports", "curate"),
    "refined": (NegativesConfig, raycomp.negatives, "negatives judges", "curate"),
    "train": (TrainConfig, raycomp.train, "checkpoint trained_images.npy", "negatives"),
    "evaluate": (EvaluateConfig, raycomp.evaluate, "scores table.csv", ""),
    "continual": (ContinualConfig, raycomp.continual, "figures", ""),
}
LOCAL = {"cluster.executor": "local"}
RAY: dict[str, Any] = {}  # with a connected cluster


class Cut(Exception):
    """Stands for a kill."""


@dataclass
class Inputs:
    """What the commands run on, and the runs that others read."""

    folder: Path
    scorer: dict[str, Any]
    written: dict[str, dict[str, str]] = field(default_factory=dict)

    def by_ray(self, command: str) -> dict[str, str]:
        """Return the digests of what Ray writes, which is there for the commands that read it."""
        if command not in self.written:
            if needed := COMMANDS[command][3]:
                self.by_ray(needed)
            self.written[command] = self.run(command, f"{command}-ray", RAY)
        return self.written[command]

    def options(self, command: str) -> dict[str, Any]:
        """Return the options of a command, its input a run of Ray's."""
        curated, written = str(self.folder / "curate-ray"), str(self.folder / "negatives-ray")
        model = {"model.name": self.scorer["scorer.model"], "model.weights": "random:0"}
        return {
            "curate": {"input": str(self.folder / "in"), "waves.shards_per_wave": 1, **self.scorer,
                       "filter.where": "words >= 4", "attribute.pool": 1,
                       "near.rules": "exact,perceptual,semantic,captions", "near.action": "flag"},
            "negatives": {"input": curated, "waves.shards_per_wave": 1, "negatives.calls": 2,
                          "negatives.export": "calls"},
            "refined": {"input": curated, "waves.shards_per_wave": 1, "negatives.judge": "ngrams",
                        "negatives.refine": "balance", "negatives.candidates": 8,
                        "negatives.context": True},
            "train": {"input": curated, "negatives": written, "train.loss": "negclip", "train.steps": 6,
                      "train.batch_size": 8, "train.checkpoint_steps": 2, "train.workers": 1, **model},
            "evaluate": {"benchmarks": WORLD, "own.annotations": str(self.folder / "exam"),
                         "waves.shards_per_wave": 1, **model},
            "continual": {"stream": STREAM, "method": "frozen,compo-realign", "seeds": 1, "tune_seeds": 1,
                          "head.steps": 2, "head.batch_size": 8},
        }[command]  # fmt: skip

    def run(self, command: str, name: str, more: dict[str, Any]) -> dict[str, str]:
        """Run a command into a folder; return the SHA-256 of every file that repeats."""
        out, (config, function, outputs, _) = self.folder / name, COMMANDS[command]
        if command == "select":
            function(str(self.folder / "curate-ray"), {"align.keep": 0.6, **more}, str(out))
        else:
            function(override_all(config(), {**self.options(command), **more}), str(out))
        paths = [path for one in outputs.split() for path in (out / one, *(out / one).rglob("*"))]
        files = [path for path in paths if path.is_file()]
        return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def inputs(tiny_scorer, tmp_path_factory, ray_cluster) -> Inputs:
    folder = tmp_path_factory.mktemp("executors")
    write_world_shards(folder / "in", 60, 20)
    write_test_set(str(folder / "exam"), 8, 0)
    scorer = {"scorer.model": tiny_scorer.model, "scorer.weights": "random:0", "scorer.batch_size": 16}
    return Inputs(folder, scorer)


@pytest.mark.parametrize("command", ["curate", "select", "negatives", "refined", "train", "evaluate"])
def test_the_local_executor_writes_the_same_bytes(command, inputs):
    by_ray = inputs.by_ray(command)
    assert by_ray
    assert inputs.run(command, f"{command}-local", LOCAL) == by_ray
    assert inputs.run(command, f"{command}-one", {**LOCAL, "cluster.num_cpus": 1}) == by_ray


@pytest.mark.parametrize(
    ("command", "first", "then"),
    [
        ("negatives", LOCAL, RAY),
        ("refined", LOCAL, RAY),
        ("evaluate", RAY, LOCAL),
        ("train", LOCAL, RAY),
        pytest.param("curate", RAY, LOCAL, marks=pytest.mark.slow),
    ],
)
def test_what_one_started_the_other_finishes(command, first, then, inputs, monkeypatch):
    """Cut off after the first wave, or a checkpoint, so that the other one has some of it to skip."""
    inputs.by_ray(command)
    kind, name = (loop.Writer, "take") if command == "train" else (work._Attempt, "_commit")
    whole = getattr(kind, name)

    def cut(self: Any, *args: Any) -> None:
        whole(self, *args)
        if command != "train" or args[0].step == 4:
            raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(kind, name, cut)
        inputs.run(command, f"{command}-cut", first)
    assert inputs.run(command, f"{command}-cut", then) == inputs.by_ray(command)


def test_two_calls_of_a_scorer_at_a_time_and_continual_methods_write_the_same_bytes(inputs):
    assert inputs.run("curate", "curate-overlap", {"scorer.overlap": True}) == inputs.by_ray("curate")
    assert inputs.by_ray("continual") == inputs.run("continual", "continual-local", LOCAL) != {}
