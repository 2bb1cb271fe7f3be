"""``raycomp verify``, ``prove`` and ``check``: what is true passes, what is false is named."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp.cli import main
from raycomp.curation import leaves
from raycomp.curation.config import read_config
from raycomp.curation.removal import list_shards
from raycomp.data.folder import Folder
from raycomp.data.manifest import write_manifest
from raycomp.models.describe import describe_scorer
from raycomp.verify.rescore import Rescorer, compare_rows, read_and_count
from raycomp.words import ALIGNMENT, UID
from tests.update.test_update_runs import corpus, read_record, read_rows, update

__all__ = ["corpus"]
OUTPUTS = ("scores", "metadata", "marks", "subset", "shards", "state", "leaves")


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


def test_a_true_corpus_is_verified(corpus, capsys):
    run = str(corpus / "run")
    assert main(["verify", run, "--rows", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["files", "gates", "root", "count", "scores"]
    assert "10 random rows of 24 scored again, bit for bit" in lines[-1] and "25.89%" in lines[-1]
    assert main(["verify", run, "--rows", "300"]) == 0
    assert "24 random rows of 24" in capsys.readouterr().out


def test_after_updates_all_versions_are_verified(corpus, capsys):
    rows = read_rows(corpus / "run")
    (corpus / "list.txt").write_text("\n".join(row[UID] for row in rows[:3]))
    assert update(corpus, "--remove", str(corpus / "list.txt"), "--set", "attribute.keep=0.4") == 0
    assert main(["verify", str(corpus / "run"), "--rows", "30"]) == 0
    assert "21 random rows of 21" in capsys.readouterr().out
    assert main(["verify", f"{corpus}/run@1", "--rows", "30"]) == 0
    assert "3 rows were removed since" in capsys.readouterr().out


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
    said = capsys.readouterr().err
    assert "not what was committed to" in said or "gates: are not" in said
    record = read_record(run)
    pairs = [(str(one), str(run / "leaves" / one.name)) for one in sorted((run / "scores").glob("*.parquet"))]
    (run / "leaves/00000.parquet").write_bytes(recommit(run, path))
    record["rows_root"] = leaves.bind_leaves(pairs, Folder(str(run)), Folder(str(corpus / "work")))
    (run / "run.json").write_text(json.dumps(record))
    forge(run, lambda table: table)
    assert main(["verify", str(run)]) == 2
    assert "1 of 24 random rows differ" in capsys.readouterr().err


def recommit(run: Path, path: Path) -> bytes:
    """Return the leaves of a forged scores file."""
    known, table = pq.read_table(run / "leaves" / path.name), pq.read_table(path)
    salts = pq.read_table(run / "state" / path.name)["salt"].to_pylist()
    decisions = known["decision"].to_pylist()
    contents = leaves.describe_rows(table, decisions)
    made = [leaves.commit(content, salt) for content, salt in zip(contents, salts, strict=True)]
    target = run / "forged.parquet"
    pq.write_table(pa.table([known["decision"], pa.array(made, pa.binary(32))], schema=known.schema), target)
    data = target.read_bytes()
    target.unlink()
    return data


@pytest.fixture
def proven(corpus, capsys):
    """A run, its root and a function that proves a uid."""
    root = read_record(corpus / "run")["rows_root"]["root"]

    def prove(uid: str) -> dict:
        assert main(["prove", str(corpus / "run"), uid]) == 0
        return json.loads(capsys.readouterr().out)

    def check(proof: dict, other: str | None = None) -> tuple[int, str]:
        (corpus / "proof.json").write_text(json.dumps(proof))
        code = main(["check", str(corpus / "proof.json"), other or root])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return corpus / "run", prove, check


def test_kept_dropped_and_absent_uids_are_proven(proven):
    run, prove, check = proven
    kept = set(pq.read_table(run / "subset/kept.parquet")[UID].to_pylist())
    for row in read_rows(run):
        code, said = check(prove(row[UID]))
        assert code == 0 and f"{row[UID]}: {'in; kept' if row[UID] in kept else 'out; '}" in said
    for uid in ("0" * 31 + "f", "f" * 32, "5" * 32):
        if uid not in {row[UID] for row in read_rows(run)}:
            assert "none of 24 rows has this uid" in check(prove(uid))[1]


def test_every_change_of_a_proof_is_refused(proven):
    run, prove, check = proven
    uid = pq.read_table(run / "subset/kept.parquet")[UID][3].as_py()
    proof = prove(uid)
    assert check(proof)[0] == 0 and check(proof, "0" * 64)[0] == 2

    def hide(one: dict) -> None:
        one["found"] = []

    def lie(one: dict) -> None:
        one["found"][0]["content"]["decision"] = "below_alignment_gate"

    def shorten(one: dict) -> None:
        one["next"] = one["next"][:1]

    def other(one: dict) -> None:
        one[UID] = "5" * 32

    def count(one: dict) -> None:
        one["rows"] += 1

    def empty(one: dict) -> None:
        one["found"], one["next"], one["bucket"]["count"] = [], [], 0

    def broken(one: dict) -> None:
        del one["bucket"]

    for change in (hide, lie, shorten, other, count, empty, broken):
        forged = json.loads(json.dumps(proof))
        change(forged)
        code, said = check(forged)
        assert code == 2 and said.count("\n") == 1, (change, said)


def test_a_removed_row_is_out_and_its_earlier_content_is_not_shown(proven, capsys):
    run, prove, check = proven
    (row, *_) = read_rows(run)
    before = read_record(run)["rows_root"]["root"]
    (run.parent / "list.txt").write_text(row[UID])
    assert update(run.parent, "--remove", str(run.parent / "list.txt")) == 0
    capsys.readouterr()
    after = read_record(run)["rows_root"]["root"]
    assert "out; removed" in check(prove(row[UID]), after)[1]
    assert main(["prove", f"{run}@1", row[UID]]) == 0
    proof = json.loads(capsys.readouterr().out)
    assert proof["found"][0]["content"] is None
    assert "not decided" in check(proof, before)[1]


def test_unchanged_rows_keep_their_commitments(corpus, monkeypatch):
    """Only rows with other scores or decisions are hashed again."""
    run, hashed = corpus / "run", []
    describe = leaves.describe_rows

    def count(table: pa.Table, decisions: list[str]) -> list[dict]:
        hashed.append(len(table))
        return describe(table, decisions)

    monkeypatch.setattr(leaves, "describe_rows", count)
    before = {row[UID]: row for row in read_rows(run)}
    assert update(corpus, "--set", "attribute.keep=0.45") == 0
    assert {row[UID]: row for row in read_rows(run)} == before and 0 < sum(hashed) <= 3


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
