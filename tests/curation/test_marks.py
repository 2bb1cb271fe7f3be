"""Marks: rows that are dropped by something other than the rule's gates."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycomp import words
from raycomp.config import UserError
from raycomp.curation.config import CurateConfig, SelectConfig, make_selection
from raycomp.curation.page import make_funnel
from raycomp.curation.select import marks
from raycomp.curation.select.measures import Found, ScoresFile, pair_marks, take_columns
from raycomp.curation.select.select import choose_tables
from raycomp.data.files import Folder
from raycomp.data.parquet import read_columns
from tests.corpus import by_cpi
from tests.curation.test_select import make_table


class MarkByUid:
    """Marks the rows whose uid starts with one of some digits."""

    def __init__(self, digits: str, reason: str, is_after: bool = False):
        self.digits, self.reason, self.is_after = digits, reason, is_after

    def __call__(self, file: ScoresFile) -> Found:
        uids = read_columns(file.uri, [words.UID])[words.UID].to_pylist()
        reason_N = np.array([self.reason if uid[0] in self.digits else None for uid in uids], object)
        return Found(reason_N, self.is_after, {f"by_{self.reason}": pa.array([uid[:2] for uid in uids])})


def with_marks(table: pa.Table, before_N: list, after_N: list) -> pa.Table:
    columns = {words.MARK: before_N, words.MARK_AFTER: after_N}
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values, pa.string()))
    return table


def test_marked_rows_are_as_if_they_were_not_in_the_table():
    for rule in ["cpi", "align_only", "align_pas", "random", "full", "pas_residual"]:
        table, rng = make_table(400, 1), np.random.default_rng(2)
        before_N = [words.FILTERED if draw < 0.3 else None for draw in rng.random(400)]
        after_N = [words.FILTERED_AFTER if draw < 0.2 else None for draw in rng.random(400)]
        selection = make_selection(by_cpi(select=SelectConfig(rule)))
        marked = take_columns(with_marks(table, before_N, after_N), selection, with_attribute=True)
        gates, [(reason_N, score_N)] = choose_tables([marked], selection)
        left_N = np.array([before is None for before in before_N])
        plain = take_columns(table.filter(pa.array(left_N)), selection, with_attribute=True)
        own_gates, [(expected_M, score_M)] = choose_tables([plain], selection)
        assert gates == own_gates
        assert np.array_equal(score_N[left_N], score_M, equal_nan=True)
        after_M = np.array(after_N, object)[left_N]
        lost_M = (expected_M == words.KEPT) & np.array([after is not None for after in after_M])
        assert lost_M.any()
        assert np.array_equal(reason_N[left_N], np.where(lost_M, words.FILTERED_AFTER, expected_M))
        statuses = np.array(table["status"].to_pylist(), object)
        has_alignment = table["alignment"].is_valid().to_numpy()
        expected_marked = np.where(has_alignment, words.FILTERED, statuses)
        assert np.array_equal(reason_N[~left_N], expected_marked[~left_N])


def test_the_funnel_has_a_step_for_every_kind_of_mark():
    reasons = {
        words.KEPT: 5,
        words.FILTERED: 4,
        words.FILTER_NULL: 1,
        words.EXCLUDED: 3,
        words.CONTAMINATED: 2,
        words.FILTERED_AFTER: 6,
    }
    steps = [(row.name, row.rows) for row in make_funnel(reasons)]
    assert steps == [
        ("read", 21),
        ("have an alignment", 21),
        ("pass the filter", 16),
        ("are not excluded", 13),
        ("are not contaminated (the corpus)", 11),
        (words.KEPT, 5),
    ]


def test_the_first_reason_of_a_row_counts_and_evidence_is_kept(tmp_path, monkeypatch, curated, local):
    _, out, _ = curated
    scores = str(sorted((out / "scores").iterdir())[0])
    markers = [MarkByUid("0123", words.EXCLUDED), MarkByUid("2345", words.CONTAMINATED)]
    monkeypatch.setattr(CurateConfig, "has_marks", True)
    monkeypatch.setattr(marks, "list_markers", lambda *args: markers)
    folder = Folder(str(tmp_path))
    marks.mark_rows([scores], by_cpi(), folder, Folder(str(out)), folder)
    [file] = pair_marks([scores], by_cpi(), folder)
    assert file.marks is not None
    for row in pq.read_table(file.marks).to_pylist():
        uid = row[words.UID]
        assert row["by_excluded"] == uid[:2]
        assert row[words.MARK] == (
            words.EXCLUDED if uid[0] in "0123" else words.CONTAMINATED if uid[0] in "45" else None
        )


def test_marks_of_other_rows_are_refused(tmp_path, curated):
    _, out, _ = curated
    scores = str(sorted((out / "scores").iterdir())[0])
    none = pa.nulls(3, pa.string())
    pq.write_table(pa.table({words.MARK: none, words.MARK_AFTER: none}), tmp_path / "m")
    with pytest.raises(UserError, match="has 3 rows"):
        ScoresFile(scores, str(tmp_path / "m")).read([words.UID])
