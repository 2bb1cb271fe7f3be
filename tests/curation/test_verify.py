"""``raycomp verify``: what is true passes, what is false is named."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycomp.cli import main
from raycomp.curation.config import read_config
from raycomp.curation.select.filters import list_shards
from raycomp.curation.verify import Rescorer, compare_rows, read_and_count
from raycomp.data.files import Folder
from raycomp.data.runs import write_manifest
from raycomp.models.architecture import describe_scorer
from raycomp.words import ALIGNMENT, UID
from tests.curation.test_update_runs import corpus, read_record, read_rows, update

__all__ = ["corpus"]
OUTPUTS = ("scores", "metadata", "marks", "subset", "shards", "state")


def forge(run: Path, change) -> None:
    """Change a scores file, and make manifest and record fit it."""
    path = run / "scores/00000.parquet"
    table = pq.read_table(path)
    pq.write_table(change(table), path)
    record = read_record(run)
    record["manifest"] = write_manifest(Folder(str(run)), OUTPUTS, {})
    (run / "run.json").write_text(json.dumps(record))


def set_alignment(table: pa.Table) -> pa.Table:
    values = table[ALIGNMENT].to_numpy().copy()
    values[2] += np.float32(1e-7)
    return table.set_column(table.schema.get_field_index(ALIGNMENT), ALIGNMENT, pa.array(values))


def drop_row(table: pa.Table) -> pa.Table:
    values = table[ALIGNMENT].to_pylist()
    values[2] = None
    column = pa.array(values, pa.float32())
    return table.set_column(table.schema.get_field_index(ALIGNMENT), ALIGNMENT, column)


def test_a_true_corpus_is_verified(corpus, capsys):
    run = str(corpus / "run")
    assert main(["verify", run, "--rows", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["files", "gates", "count", "scores"]
    assert "10 random rows of 24 scored again, bit for bit" in lines[-1] and "25.89%" in lines[-1]
    assert main(["verify", run, "--rows", "300"]) == 0
    assert "24 random rows of 24" in capsys.readouterr().out


def test_an_updated_corpus_is_verified(corpus, capsys):
    rows = read_rows(corpus / "run")
    (corpus / "list.txt").write_text("\n".join(row[UID] for row in rows[:3]))
    assert update(corpus, "--remove", str(corpus / "list.txt"), "--set", "attribute.keep=0.4") == 0
    assert main(["verify", str(corpus / "run"), "--rows", "30"]) == 0
    assert "21 random rows of 21" in capsys.readouterr().out


def test_another_count_is_found(corpus, capsys):
    record = read_record(corpus / "run")
    record["funnel"]["kept"] -= 1
    (corpus / "run/run.json").write_text(json.dumps(record))
    assert main(["verify", str(corpus / "run")]) == 2
    assert "funnel: has other counts" in capsys.readouterr().err


def test_a_changed_score_is_found_by_each_check(corpus, capsys, local):
    run = corpus / "run"
    whole = pq.read_table(run / "scores/00000.parquet")
    path = run / "scores/00000.parquet"
    pq.write_table(set_alignment(whole), path)
    assert main(["verify", str(run)]) == 2
    said = capsys.readouterr().err
    assert "SHA-256" in said or "than the run wrote it" in said
    forge(run, lambda table: table)
    assert main(["verify", str(run)]) == 2
    assert "1 of 24 random rows differ" in capsys.readouterr().err
    forge(run, drop_row)
    assert main(["verify", str(run)]) == 2
    assert "gates: are not" in capsys.readouterr().err


def test_a_score_of_a_row_that_is_not_attributed_is_compared(corpus):
    """A row outside the pool must have no PAS."""
    config = read_config(read_record(corpus / "run")["config"])
    rescorer = Rescorer(config, describe_scorer(config.scorer))
    uri, (shard, *_) = str(corpus / "run/scores/00000.parquet"), list_shards(config)
    table = pq.read_table(uri)
    outside = np.flatnonzero(table["phrases"].is_null().to_numpy(zero_copy_only=False))
    samples, _ = read_and_count(shard, outside)
    (found,) = rescorer.score(samples, np.zeros(len(outside), bool))
    assert compare_rows(uri, found, None) == []
    values = table["mean_pas"].to_pylist()
    values[outside[0]] = 9.0
    place = table.schema.get_field_index("mean_pas")
    pq.write_table(table.set_column(place, "mean_pas", pa.array(values, pa.float32())), uri)
    assert [one.column for one in compare_rows(uri, found, None)] == ["mean_pas"]
