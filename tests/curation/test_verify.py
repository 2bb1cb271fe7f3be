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


def set_value(table: pa.Table, name: str, row: int, value: float | None) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    column = pa.array(values, table.schema.field(name).type)
    return table.set_column(table.schema.get_field_index(name), name, column)


def forge(run: Path, table: pa.Table) -> None:
    """Write a scores file, and make manifest and record fit it."""
    pq.write_table(table, run / "scores/00000.parquet")
    record = read_record(run)
    record["manifest"] = write_manifest(Folder(str(run)), OUTPUTS, {})
    (run / "run.json").write_text(json.dumps(record))


def test_a_true_corpus_is_verified_before_and_after_an_update(corpus, capsys):
    run = str(corpus / "run")
    assert main(["verify", run, "--rows", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["files", "gates", "count", "scores"]
    assert "10 random rows of 24 scored again, bit for bit" in lines[-1] and "25.89%" in lines[-1]
    (corpus / "list.txt").write_text("\n".join(row[UID] for row in read_rows(corpus / "run")[:3]))
    assert update(corpus, "--remove", str(corpus / "list.txt"), "--set", "attribute.keep=0.4") == 0
    assert main(["verify", run, "--rows", "300"]) == 0
    assert "21 random rows of 21" in capsys.readouterr().out


def test_what_is_false_is_found_by_each_check(corpus, capsys, local):
    run = corpus / "run"

    def said(*arguments: str) -> str:
        assert main(["verify", str(run), *arguments]) == 2
        return capsys.readouterr().err

    assert "rows=0: must be between 1" in said("--rows", "0")
    whole = pq.read_table(run / "scores/00000.parquet")
    record, subset = (run / "run.json").read_text(), np.load(run / "subset/subset.npy")
    shifted = float(np.float32(whole[ALIGNMENT][2].as_py()) + np.float32(1e-7))
    pq.write_table(set_value(whole, ALIGNMENT, 2, shifted), run / "scores/00000.parquet")
    assert any(text in said() for text in ("SHA-256", "than the run wrote it"))
    forge(run, set_value(whole, ALIGNMENT, 2, shifted))
    assert "1 of 24 random rows differ" in said()
    forge(run, set_value(whole, ALIGNMENT, 2, None))
    assert "gates: are not" in said()
    np.save(run / "subset/subset.npy", subset[1:])
    forge(run, whole)
    assert "subset/subset.npy: does not hold the rows that the gates keep" in said()
    np.save(run / "subset/subset.npy", subset)
    (run / "run.json").write_text(record.replace('"kept": 12', '"kept": 11'))
    forge(run, whole)
    assert "funnel: has other counts" in said()
    (run / "run.json").write_text(record)
    forge(run, whole)
    (corpus / "in/a.tar").write_bytes((corpus / "in/a.tar").read_bytes() + bytes(512))
    assert "is not what was scored; restore it" in said()


def test_rows_are_compared_bit_for_bit_or_within_a_bound(corpus):
    """A row outside the pool must have no PAS; on another kind of device alignments may differ a little."""
    config = read_config(read_record(corpus / "run")["config"])
    rescorer = Rescorer(config, describe_scorer(config.scorer))
    uri, (shard, *_) = str(corpus / "run/scores/00000.parquet"), list_shards(config)
    table = pq.read_table(uri)
    outside = np.flatnonzero(table["phrases"].is_null().to_numpy(zero_copy_only=False))
    samples, _ = read_and_count(shard, outside)
    (found,) = rescorer.score(samples, np.zeros(len(outside), bool))
    assert compare_rows(uri, found, None) == []
    row, alignment = int(outside[0]), table[ALIGNMENT][int(outside[0])].as_py()
    for name, value, exact, bounded in [
        ("mean_pas", 9.0, ["mean_pas"], []),
        (ALIGNMENT, alignment + 1e-3, [ALIGNMENT], []),
        (ALIGNMENT, alignment + 3e-2, [ALIGNMENT], [ALIGNMENT]),
        (ALIGNMENT, None, [ALIGNMENT], [ALIGNMENT]),
    ]:
        pq.write_table(set_value(table, name, row, value), uri)
        for bound, expected in ((None, exact), (2e-2, bounded)):
            assert [column for _, column, *_ in compare_rows(uri, found, bound)] == expected, (name, value)
