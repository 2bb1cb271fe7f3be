"""``--dry-run``: every check of a command, its cost, and not one file."""

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp import cli
from raycomp.config.commands import RAYCOMP
from raycomp.data.files import Folder
from raycomp.run.lease import hold_lease
from tests.continual.drawn_streams import STREAM
from tests.corpus import write_world_shards


@pytest.fixture
def inputs(tmp_path, tiny_scorer, curated) -> dict[str, list[str]]:
    """The arguments of each command, of those that need no run but a curation."""
    shards = write_world_shards(tmp_path / "in", 8, 4)
    pq.write_table(pa.table({"uid": ["0" * 32], "caption": ["a dog"]}), tmp_path / "captions.parquet")
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "captions.jsonl").write_text('{"image": "a.jpg", "captions": ["a dog"]}')
    (tmp_path / "pairs" / "a.jpg").write_bytes(b"x")
    model = [f"model.name={tiny_scorer.model}", f"model.weights={tiny_scorer.weights}"]
    scorer = [f"scorer.model={tiny_scorer.model}", f"scorer.weights={tiny_scorer.weights}"]
    options = {
        "curate": [f"input={shards}", *scorer],
        "audit": [f"input={shards}"],
        "negatives": [f"input={tmp_path}/captions.parquet", "negatives.rank=false"],
        "train": [f"input={shards}", *model, "train.steps=4", "train.batch_size=4"],
        "evaluate": ["benchmarks=retrieval", f"retrieval.input={tmp_path}/pairs", *model],
        "index-eval": ["benchmarks=retrieval", f"retrieval.input={tmp_path}/pairs"],
        "continual": [f"stream={STREAM}", "seeds=1"],
        "sweep": [
            "space=train.learning_rate=grid(0.1,0.2)",
            f"input={shards}",
            "evaluate.benchmarks=retrieval",
            f"evaluate.retrieval.input={tmp_path}/pairs",
            "metric=retrieval.image_retrieval_recall@1",
            *model,
        ],
    }
    found = {name: [part for one in sets for part in ("--set", one)] for name, sets in options.items()}
    return (
        found
        | {name: [str(curated[1])] for name in ("select", "explore")}
        | {"probe": ["pas", "--set", f"input={curated[1]}"]}
    )


def list_all(folder: Path) -> dict[str, float]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_every_command_is_checked_and_writes_nothing(inputs, tmp_path, curated, capsys):
    """These need runs of other commands: see their own tests."""
    assert {name for name, one in RAYCOMP.commands.items() if "--out" in one.arguments} == {
        *inputs,
        "card",
        "compare",
        "diff",
        "publish",
    }
    before = list_all(tmp_path) | list_all(curated[1])
    for name, arguments in inputs.items():
        assert cli.main([name, *arguments, "--out", str(tmp_path / "out"), "--dry-run"]) == 0, name
        said = capsys.readouterr().out
        assert f"dry run of {name}" in said and "all checks passed, nothing was written" in said, said
        assert list_all(tmp_path) | list_all(curated[1]) == before, name


def test_the_cost_of_a_curation_is_measured(inputs, tmp_path, capsys):
    assert cli.main(["curate", *inputs["curate"], "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert (
        "it would start" in said and "samples   about 8" in said and "worker hours per million pairs" in said
    )


def test_a_dry_run_says_what_the_command_would_do_in_its_folder(curated, tmp_path, inputs, capsys):
    _, out, record = curated
    again = [*shlex.split(record["commands"]["Rerun"])[1:], "--dry-run"]
    assert cli.main(again) == 0
    assert "finished already, the command would do nothing" in capsys.readouterr().out
    other = [*inputs["curate"], "--out", str(out), "--dry-run"]
    assert cli.main(["curate", *other]) == 2 and "holds a run that differs in" in capsys.readouterr().err
    with hold_lease(Folder(str(tmp_path / "held"))):
        assert cli.main(["curate", *inputs["curate"], "--out", str(tmp_path / "held"), "--dry-run"]) == 2
    assert "has been writing it since" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert cli.main(["curate", *inputs["curate"], "--out", str(tmp_path / "file/out"), "--dry-run"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_dry_run_leaves_the_next_command_alone(inputs, tmp_path, capsys):
    """In one process, as in a notebook: what is dry ends with the command."""
    line = ["negatives", *inputs["negatives"], "--out", str(tmp_path / "out")]
    assert cli.main([*line, "--dry-run"]) == 0 and not (tmp_path / "out").exists()
    assert cli.main(line) == 0 and (tmp_path / "out" / "run.json").exists()
