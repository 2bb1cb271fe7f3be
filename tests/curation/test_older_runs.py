"""Finished runs of the format before this one are read; unfinished ones are refused, and so are updates.

``run_of_format_1.tar.gz`` holds a curation of 24 scenes, without its page and its log.
"""

import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from raycomp.cli import main
from raycomp.training.config import TrainConfig
from raycomp.training.pairs import find_pairs
from tests.corpus import scenes
from tests.curation.test_update_runs import write_shard


@pytest.fixture
def older(tmp_path) -> Path:
    """The folder of the older run."""
    with tarfile.open(Path(__file__).with_name("run_of_format_1.tar.gz")) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "run"


def test_a_finished_run_is_shown_selected_from_and_trained_on(older, tmp_path, capsys):
    assert main(["show", str(older), "--verify"]) == 0
    assert "kept 12 of 24 rows" in capsys.readouterr().out
    settings = ["--set", "attribute.keep=0.3", "--set", "materialize=false"]
    assert main(["select", str(older), *settings, "--out", str(tmp_path / "other")]) == 0
    assert len(pq.read_table(tmp_path / "other/subset/kept.parquet")) == 7
    pairs = find_pairs(TrainConfig(input=str(older)))
    assert pairs.num_kept == 12 and sum(pairs.sizes) == 12


def test_it_is_not_updated_and_an_unfinished_one_is_refused(older, tmp_path, capsys):
    assert main(["update", str(older)]) == 2
    assert "was written by an older version; curate it anew in another folder" in capsys.readouterr().err
    record = json.loads((older / "run.json").read_text()) | {"status": "running"}
    for name in ("format", "manifest", "funnel"):
        del record[name]
    (older / "run.json").write_text(json.dumps(record))
    write_shard(tmp_path / "in", "a.tar", scenes(3, seed=5), 0)
    for line in (["show", str(older)], ["curate", "--set", f"input={tmp_path}/in", "--out", str(older)]):
        assert main(line) == 2
        error = capsys.readouterr().err
        assert "was started by an older version; start it anew in another folder" in error
        assert error.count("\n") == 1
