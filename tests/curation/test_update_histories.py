"""What is updated equals a run from scratch, byte for byte, whatever happened before; see bench/histories.py.

A curation, and negatives, which follow it.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from raycomp.cli import main
from raycomp.config import ClusterConfig, override_all
from raycomp.config.commands import from_dict
from raycomp.curation import outputs
from raycomp.curation.update import update
from raycomp.negatives.command import negatives
from raycomp.negatives.config import NegativesConfig
from tests.curation.histories import History, Killed, kill_at
from tests.curation.test_update_runs import find_bytes, read_record

OPTIONS: dict[str, dict[str, Any]] = {
    "rules": {"negatives.rank": False},
    "ranked": {"negatives.calls": 2},
    "balanced": {
        "negatives.rank": False,
        "negatives.judge": ("ngrams",),
        "negatives.refine": "balance",
        "negatives.context": True,
    },
}


def quiet(line: str) -> None:
    """Print nothing."""


def later(*cases: tuple[Any, ...]) -> list[Any]:
    """Return cases of the nightly tests."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


@pytest.mark.parametrize("seed", [0, *later((1,), (2,))])
def test_a_history_ends_where_a_run_from_scratch_does(tmp_path, tiny_scorer, monkeypatch, seed):
    monkeypatch.setattr(outputs, "SPAN", 4)  # written shards of few rows, so that several are touched or not
    history = History(tmp_path, tiny_scorer, seed)
    for kills in (0, 2, 1):
        history.update(kills)
    assert history.read(history.run) == history.read(history.from_scratch())


def read(folder: Path) -> dict[str, bytes]:
    paths = [path for name in ("negatives", "judges", "exports") for path in (folder / name).rglob("*.*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def make_negatives(history: History, options: dict[str, Any]) -> Path:
    cluster = ClusterConfig(executor="local", num_cpus=2)
    config = override_all(NegativesConfig(input=str(history.run), cluster=cluster), options)
    negatives(config, str(history.folder / "negatives"), quiet)
    return history.folder / "negatives"


@pytest.mark.parametrize(
    ("name", "seed", "updates"),
    [
        ("ranked", 0, 1),
        ("balanced", 0, 1),
        *later(("ranked", 0, 2), ("rules", 0, 2), ("rules", 1, 2), ("balanced", 1, 2)),
    ],
)
def test_updated_negatives_are_those_of_a_run_from_scratch(tmp_path, tiny_scorer, name, seed, updates):
    history = History(tmp_path, tiny_scorer, seed)
    run, taken = make_negatives(history, OPTIONS[name]), 0
    for _ in range(updates):
        history.update(kills=0)
        with kill_at(history.random.randrange(1, 40)), suppress(Killed):
            update(str(run), say=quiet)
        update(str(run), say=quiet)
        taken += read_record(run)["taken_over"]
    config = from_dict(NegativesConfig(), read_record(run)["config"])
    negatives(config, str(tmp_path / "whole"), quiet)
    assert read(run) == read(tmp_path / "whole")
    assert taken > 0 or seed or name == "balanced"  # seed 1 replaces all; models of the corpus change


def test_a_removed_caption_is_gone_with_what_was_made_of_it(tmp_path, tiny_scorer, capsys):
    history = History(tmp_path, tiny_scorer, 4)
    options = {"negatives.rank": False, "negatives.judge": ("ngrams",), "negatives.context": True}
    run = make_negatives(history, options)
    assert main(["update", str(run), "--set", "align.keep=0.5"]) == 2
    assert "follow their input" in capsys.readouterr().err
    row = next(row for row in pq.read_table(run / "negatives/00000.parquet").to_pylist() if row["negatives"])
    (tmp_path / "list.txt").write_text(row["uid"])
    assert main(["update", str(history.run), "--remove", str(tmp_path / "list.txt")]) == 0
    assert main(["update", str(run), "--dry-run"]) == 0
    assert "would remove 1 captions" in capsys.readouterr().out
    for count in (5, 20, 45):
        with kill_at(count), suppress(Killed):
            update(str(run), say=quiet)
    assert main(["update", str(run)]) == 0
    assert not find_bytes(history.run, [row["caption"].encode()])
    texts = [row["caption"].encode(), *(one["text"].encode() for one in row["negatives"])]
    assert not find_bytes(run, texts) and row["uid"].encode() not in (run / "report.html").read_bytes()
    assert main(["show", str(run), "--verify"]) == 0


def test_frozen_statistics_need_a_run_that_has_them(tmp_path, tiny_scorer, capsys):
    history = History(tmp_path, tiny_scorer, 5)
    run = make_negatives(history, OPTIONS["rules"])
    options = [f"input={history.run}", "negatives.context=true", "negatives.rank=false"]
    for frozen, said in ((run, "has no context.parquet"), (history.run, "context.parquet")):
        sets = [f"--set={option}" for option in (*options, f"negatives.frozen={frozen}")]
        assert main(["negatives", *sets, "--out", str(tmp_path / "other")]) == 2
        assert said in capsys.readouterr().err
