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

# Of each command what repeats byte by byte; the rest holds times.
OUTPUTS = {
    "curate": ("scores", "metadata", "marks", "subset", "subset.npy", "shards"),
    "select": ("marks", "subset", "subset.npy", "shards"),
    "negatives": ("negatives", "exports"),
    "refined": ("negatives", "judges"),
    "train": ("checkpoint", "trained_images.npy"),
    "evaluate": ("scores", "table.csv"),
    "continual": ("figures",),
}
LOCAL = {"cluster.executor": "local"}
ONE = {**LOCAL, "cluster.num_cpus": 1}
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
            for needed in NEEDED.get(command, []):
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
        """Run a command into a folder; return the digests of what repeats."""
        out = self.folder / name
        if command == "select":
            raycomp.select(str(self.folder / "curate-ray"), {"align.keep": 0.6, **more}, str(out))
        else:
            config, function = COMMANDS[command]
            function(override_all(config(), {**self.options(command), **more}), str(out))
        return digest(out, OUTPUTS[command])


# The runs of Ray's that a command reads.
NEEDED = {"select": ["curate"], "negatives": ["curate"], "refined": ["curate"], "train": ["negatives"]}
COMMANDS: dict[str, tuple[type, Callable[..., Any]]] = {
    "curate": (CurateConfig, raycomp.curate),
    "negatives": (NegativesConfig, raycomp.negatives),
    "refined": (NegativesConfig, raycomp.negatives),
    "train": (TrainConfig, raycomp.train),
    "evaluate": (EvaluateConfig, raycomp.evaluate),
    "continual": (ContinualConfig, raycomp.continual),
}


def digest(out: Path, outputs: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of every file of the rooms."""
    paths = [
        path
        for output in outputs
        for path in ([out / output] if (out / output).is_file() else (out / output).rglob("*"))
    ]
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
    }


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
    assert inputs.run(command, f"{command}-one", ONE) == by_ray


@pytest.mark.parametrize(
    ("command", "first", "then"),
    [
        ("curate", LOCAL, RAY),
        pytest.param("curate", RAY, LOCAL, marks=pytest.mark.slow),
        ("negatives", LOCAL, RAY),
        pytest.param("negatives", RAY, LOCAL, marks=pytest.mark.slow),
        ("refined", LOCAL, RAY),
        ("evaluate", RAY, LOCAL),
        pytest.param("evaluate", LOCAL, RAY, marks=pytest.mark.slow),
    ],
)
def test_what_one_started_the_other_finishes(command, first, then, inputs, monkeypatch):
    """Cut off after the first wave, so that the other one has one to skip and others to do."""
    inputs.by_ray(command)
    name = f"{command}-{'local' if first else 'ray'}-first"
    commit, done = work._Attempt._commit, []

    def cut(self: Any, *args: Any) -> None:
        commit(self, *args)
        done.append(args)
        raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(work._Attempt, "_commit", cut)
        inputs.run(command, name, first)
    assert len(done) == 1 and list((inputs.folder / name / "work" / "waves").iterdir())
    assert inputs.run(command, name, then) == inputs.by_ray(command)


def test_two_calls_of_a_scorer_at_a_time_write_the_same_bytes(inputs):
    assert inputs.run("curate", "curate-overlap", {"scorer.overlap": True}) == inputs.by_ray("curate")


def test_a_training_started_here_goes_on_on_ray(inputs, monkeypatch):
    inputs.by_ray("train")
    take = loop.Writer.take

    def cut(self: Any, reported: Any) -> None:
        take(self, reported)
        if reported.step == 4:
            raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(loop.Writer, "take", cut)
        inputs.run("train", "train-begun", LOCAL)
    assert inputs.run("train", "train-begun", RAY) == inputs.by_ray("train")


def test_continual_methods_give_the_same_figures(inputs):
    found = inputs.run("continual", "continual-ray", RAY), inputs.run("continual", "continual-local", LOCAL)
    assert found[0] and found[0] == found[1]
