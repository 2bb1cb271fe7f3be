"""Cutting kept rows into output shards, and duplicates over files, against plain loops."""

import numpy as np
import pyarrow as pa
import pytest

from raycomp import words
from raycomp.config import LeaseLost
from raycomp.core.selection import Threshold
from raycomp.curation.command import summarise_scores
from raycomp.curation.config import SelectConfig, make_selection
from raycomp.curation.score import score
from raycomp.curation.score.score import mark_duplicates
from raycomp.curation.select.measures import ScoresFile
from raycomp.curation.select.select import Gates, choose_tables, commit_once
from raycomp.curation.summary import choose_shown
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns, write_table
from tests.corpus import by_cpi
from tests.report.corpus import make_table


def test_committed_gates_are_not_cut_again_nor_committed_without_the_lease(tmp_path):
    work, asked = Folder(str(tmp_path)), []
    gates = Gates(10, Threshold(7, 0xBF00_0001, (2**64 - 1, 1)), None, None).to_dict()

    def refuse() -> None:
        raise LeaseLost("another has it")

    with pytest.raises(LeaseLost):
        commit_once(work, "pool", dict, refuse)
    assert not [*tmp_path.iterdir()]
    for num_corpus in (10, 11):  # what would be cut now does not count
        cut = {"gates": {**gates, "num_corpus": num_corpus}}
        values = commit_once(work, "pool", lambda cut=cut: cut, lambda: asked.append("may I?"))
        assert values["gates"] == gates
    assert asked == ["may I?"]


def test_the_page_of_a_draw_shows_rows_drawn_apart_from_it(tmp_path):
    """Shown by the very hash that chose, all samples would be of the dropped side."""
    captions = [f"A dog number {i % 7} with a ball" for i in range(400)]
    table, config = make_table(captions), by_cpi(select=SelectConfig("align70_random50"))
    uri = str(tmp_path / "0.parquet")
    write_table(table, uri, table.schema)
    gates, _ = choose_tables([table], make_selection(config))
    summary = summarise_scores(ScoresFile(uri), make_selection(config), gates)
    shown = choose_shown(summary)
    assert summary.reasons[words.KEPT] == 195 and not shown.has_threshold
    assert {sample.reason == words.KEPT for sample in shown.around} == {True, False}


def test_the_first_of_every_uid_stays_and_marking_twice_changes_nothing(tmp_path, monkeypatch, local):
    rng = np.random.default_rng(0)
    kinds = {name: pa.string() for name in (words.UID, words.STATUS, words.IMAGE_SHA256, words.CAPTION)}
    kinds |= {words.ALIGNMENT: pa.float32(), words.IMAGE_EMBEDDING: pa.list_(pa.float32(), 2)}
    schema, seen, expected, uris = pa.schema(kinds.items()), {}, [], []
    monkeypatch.setattr(score, "_FILES_PER_STRETCH", 2)
    for shard in range(5):
        rows = []
        for _ in range(200):
            uid, usable = f"{rng.integers(400):032x}", bool(rng.random() < 0.8)
            status = words.OK if usable else "no_image"
            content = (rng.choice([None, "a", "b"]), rng.choice(["a dog", "a cat"]))
            values = (uid, status, *content, 0.5 if usable else None, [1.0, 2.0] if usable else None)
            rows.append(dict(zip(schema.names, values, strict=True)))
            if usable and uid in seen:
                status = words.DUPLICATE_UID if seen[uid] == content else words.UID_CONFLICT
            elif usable:
                seen[uid] = content
            expected.append(status)
        uris.append(str(tmp_path / f"{shard}.parquet"))
        write_table(pa.Table.from_pylist(rows, schema), uris[-1], schema)
    want = {status: expected.count(status) for status in (words.DUPLICATE_UID, words.UID_CONFLICT)}
    work, found = Folder(str(tmp_path / "work")), []
    for _ in range(2):
        assert mark_duplicates(uris, 1000, work, rows_per_bucket=300) == want and min(want.values()) > 30
        found.append([row for uri in uris for row in read_columns(uri).to_pylist()])
    assert found[0] == found[1] and not work.exists("dedupe")
    assert [row[words.STATUS] for row in found[0]] == expected
    for row in found[0]:
        is_bad = row[words.STATUS] != words.OK
        assert (row[words.ALIGNMENT] is None) == (row[words.IMAGE_EMBEDDING] is None) == is_bad
