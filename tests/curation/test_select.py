"""Rules and gates on one table against a plain sort."""

import itertools
import math
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from raycomp import words
from raycomp.config import LeaseLost, UserError, exact_share, override, override_all
from raycomp.core.selection import Threshold, format_uids, parse_uids, random_scores
from raycomp.curation.command import summarise_scores
from raycomp.curation.config import PAS, RULES, CurateConfig, SelectConfig, make_selection
from raycomp.curation.score import score
from raycomp.curation.score.score import mark_duplicates
from raycomp.curation.select.measures import ScoresFile, corpus_columns, read_corpus
from raycomp.curation.select.select import (
    Gates,
    Judged,
    choose_tables,
    commit_once,
    cut_all,
    describe_shortage,
    rank_attributed,
)
from raycomp.curation.summary import choose_shown
from raycomp.data.files import Folder
from raycomp.data.parquet import add_columns, read_columns, write_table
from raycomp.schema import PHRASE_TYPE
from tests.corpus import by_cpi, mean_drop
from tests.report.corpus import make_table as make_scores


def make_table(num: int, seed: int, unscored: float = 0.1) -> pa.Table:
    """Rows with many ties. Scored ones have one to four phrases with a drop, some one without, others only
    phrases without, or none; bad ones have no alignment."""
    rng = np.random.default_rng(seed)
    uids = format_uids(rng.integers(0, 2**64, (num, 2), dtype=np.uint64))
    usable = rng.random(num) < 0.9
    scored = usable & (rng.random(num) >= unscored)
    alignment = rng.integers(-50, 50, num).astype(np.float32) / 64  # many ties
    pas = rng.integers(-20, 20, num).astype(np.float32) / 64
    statuses = np.where(scored, words.OK, np.where(usable, words.NO_PHRASE, "no_image")).tolist()
    lengths, phrases = rng.integers(1, 9, num), []
    for mean, is_scored, is_usable in zip(pas, scored, usable, strict=True):
        drops = [float(mean) - 0.25, float(mean) + 0.25] * int(rng.integers(1, 3)) if is_scored else []
        moved = [{"drop": drop, "displacement": int(rng.integers(0, 9)) / 8} for drop in drops]
        row = [*moved, {}] if rng.random() < 0.3 else moved
        phrases.append([dict.fromkeys(PHRASE_TYPE.names) | one for one in row] if is_usable else None)
    spoken = ["a", "word", "rather longer,", "E,", "4x4!", "\u72d7", "caf\u00e9"]
    captions = [" \t\u00a0".join(f"{spoken[i]} " for i in rng.integers(0, 7, n)) for n in lengths]
    columns = {
        words.UID: uids,
        words.STATUS: statuses,
        words.CAPTION: [caption if u else None for caption, u in zip(captions, usable, strict=True)],
        words.ALIGNMENT: pa.array(alignment, mask=~usable),
        words.MEAN_PAS: pa.array(pas, mask=~scored),
        words.PHRASES: pa.array(phrases, pa.list_(PHRASE_TYPE)),
    }
    return pa.table(columns)


def choose(table: pa.Table, config: CurateConfig) -> tuple[np.ndarray, np.ndarray]:
    """Reasons and scores, from the columns that the rule says it needs."""
    return judge(table, config)[1]


def judge(table: pa.Table, config: CurateConfig) -> tuple[Gates, Judged]:
    selection = make_selection(config)
    names = [*corpus_columns(selection, True), words.MARK, words.MARK_AFTER]
    gates, [judged] = choose_tables([table.select([n for n in names if n in table.column_names])], selection)
    return gates, judged


def test_a_draw_depends_on_seed_and_uid_alone():
    named = {"align.keep": 0.705, "attribute.keep": 0.5, "select.rule": "align70.5_random50"}
    for config in (by_cpi(select=SelectConfig("random")), override_all(by_cpi(), named)):
        table, order = make_table(500, 1), np.random.default_rng(0).permutation(500)
        kept = choose(table, config)[0] == words.KEPT
        assert np.array_equal(choose(table.take(pa.array(order)), config)[0] == words.KEPT, kept[order])
        other = choose(table, override(config, "seed", 1))[0] == words.KEPT
        assert kept.sum() == other.sum() and not np.array_equal(other, kept)


def test_too_few_scored_rows_are_all_kept_and_it_is_said():
    gates, (reason_N, _) = judge(make_table(100, 2, unscored=0.8), by_cpi())
    assert (reason_N == words.KEPT).sum() == gates.num_scored
    assert "all of them were kept" in describe_shortage(make_selection(by_cpi()), gates)[0]
    assert describe_shortage(make_selection(by_cpi()), judge(make_table(100, 2), by_cpi())[0]) == []


RANKING = [name for name, rule in RULES.items() if rule.attribute_by]


def rank_slowly(rule: str, rows: list[dict], seed: int = 0) -> dict[str, float]:
    """What a control ranks the rows by, by uid, one row at a time."""
    found = {}
    for row in rows:
        drops = [p["drop"] for p in row[words.PHRASES] if p["drop"] is not None]
        moved = [p["displacement"] for p in row[words.PHRASES] if p["displacement"] is not None]
        found[row[words.UID]] = {
            "align70_random50": random_scores(parse_uids([row[words.UID]]), seed)[0],
            "cpi": row[words.MEAN_PAS],
            "cpi_reverse": -row[words.MEAN_PAS],
            "length": len(row[words.CAPTION].split()),
            "phrase_count": len(drops),
            "displacement": np.float32(np.mean(moved)),
            "pas_residual": row[words.MEAN_PAS],
            "align_pas": row[words.MEAN_PAS],
        }
    if rule == "pas_residual":
        y = np.array([by["pas_residual"] for by in found.values()])
        names = ("length", "phrase_count", "displacement")
        x = [[1, row[words.ALIGNMENT], *(found[row[words.UID]][name] for name in names)] for row in rows]
        rest = y - np.array(x) @ np.linalg.lstsq(np.array(x), y, rcond=None)[0] if rows else y
        return dict(zip(found, np.round(rest, 7), strict=True))  # equal rows tie
    if rule == "align_pas" and rows:
        a, p = (
            np.array([row[name] for row in rows], np.float64) for name in (words.ALIGNMENT, words.MEAN_PAS)
        )
        ratio = p.std() / a.std() if len(rows) > 1 and p.std() and a.std() else 1.0
        return dict(zip(found, np.round(p - p.mean() + ratio * (a - a.mean()), 7), strict=True))
    return {uid: by[rule] for uid, by in found.items()}


def flatten(table: pa.Table, name: str) -> pa.Table:
    """Return the table with one value in all valid rows of a column."""
    flat = pc.if_else(pc.is_valid(table[name]), pa.scalar(0.25, pa.float32()), None)
    return table.set_column(table.schema.get_field_index(name), name, flat)


def test_every_rule_keeps_what_a_slow_loop_keeps_and_ranks_the_rows_that_cpi_ranks():
    tables = [make_table(num, seed) for num, seed in [(1, 0), (10, 1), (90, 2), (1000, 3)]]
    still = [flatten(tables[2], name) for name in (words.ALIGNMENT, words.MEAN_PAS)]
    for rule, table in [*itertools.product(RANKING, tables), *itertools.product(["align_pas"], still)]:
        config, rows = by_cpi(select=SelectConfig(rule)), table.to_pylist()
        corpus = [row for row in rows if row[words.ALIGNMENT] is not None]
        pool = sorted(corpus, key=lambda row: (-row[words.ALIGNMENT], row[words.UID]))
        pool = pool[: exact_share(0.7, len(corpus))]
        ranked = [row for row in pool if row[words.MEAN_PAS] is not None]
        by = rank_slowly(rule, ranked)
        order = sorted(by, key=lambda uid: (-by[uid], uid))
        below = {
            "align70_random50": words.DROPPED_RANDOM,
            "align_pas": words.DROPPED_ATTRIBUTION,
            "cpi": words.DROPPED_ATTRIBUTION,
        }
        expected = {row[words.UID]: row[words.STATUS] for row in rows}
        expected |= {row[words.UID]: words.DROPPED_ALIGNMENT for row in corpus}
        expected |= {row[words.UID]: words.DROPPED_UNSCORED for row in pool}
        expected |= dict.fromkeys(order, below.get(rule, words.DROPPED_CONTROL))
        expected |= dict.fromkeys(order[: exact_share(0.5, len(corpus))], words.KEPT)
        gates, (reason_N, score_N) = judge(table, config)
        assert dict(zip(table[words.UID].to_pylist(), reason_N, strict=True)) == expected, (rule, len(rows))
        wanted = [by.get(row[words.UID], np.nan) for row in rows]
        assert np.allclose(score_N, wanted, rtol=0, atol=1e-6, equal_nan=True), (rule, len(rows))
        if rule == "pas_residual" and len(ranked) > 10:
            explained = 1 - np.var([*by.values()]) / np.var([row[words.MEAN_PAS] for row in ranked])
            assert gates.fit.explained == pytest.approx(explained, abs=1e-6)


def test_datacomps_rule_keeps_one_more_and_all_ties_in_every_rule():
    for rule in RANKING:
        table = make_table(500, 10)
        config = override_all(by_cpi(), {"select.rule": rule, "select.datacomp_compat": True})
        num = table[words.ALIGNMENT].length() - table[words.ALIGNMENT].null_count
        reason_N, score_N = choose(table, config)
        alignment_N = table[words.ALIGNMENT].to_numpy()
        cut = -np.sort(-alignment_N[~np.isnan(alignment_N)])[int(num * 0.7)]
        ranked_N = (alignment_N >= cut) & table[words.MEAN_PAS].is_valid().to_numpy()
        assert np.array_equal(~np.isnan(score_N), ranked_N)
        lowest = -np.sort(-score_N[ranked_N])[int(num * 0.5)]
        assert np.array_equal(reason_N == words.KEPT, ranked_N & (score_N >= lowest))
    for rule in ["cpi", "align_only"]:
        config = by_cpi(select=SelectConfig(rule))
        assert len(choose(table.slice(0, 0), config)[0]) == 0
        with pytest.raises(
            ValueError, match=r"select\.datacomp_compat=True: must be false: no row has an align"
        ):
            choose(table.slice(0, 0), override(config, "select.datacomp_compat", True))


def test_the_report_is_of_the_score_that_ranks_and_of_pas_where_none_of_pas_does():
    """Also of rows that no gate ranked."""
    for rule, how in itertools.product([*RANKING, "align_only", "random", "full"], ["mean", "min"]):
        attribute, table = mean_drop(aggregate=how), make_table(300, 4)
        config = by_cpi(select=SelectConfig(rule), attribute=attribute)
        gates, (_, ranked) = judge(table, config)
        found = rank_attributed(table, make_selection(config), gates).to_numpy(False)
        pas = read_corpus(table, make_selection(by_cpi(attribute=attribute))).measures[PAS]
        has_value, in_pool = ~np.isnan(found), ~np.isnan(ranked)
        assert has_value.sum() == (~np.isnan(pas)).sum()
        if rule in ("cpi", "align_pas", "cpi_reverse", "pas_residual"):
            np.testing.assert_array_equal(found[in_pool], ranked[in_pool], rule)
            assert np.isnan(ranked[has_value]).any(), "rows that the first gate dropped"
        else:
            np.testing.assert_array_equal(found[has_value], pas[~np.isnan(pas)], rule)


def test_a_score_that_is_not_finite_is_refused_where_a_rule_reads_it(tmp_path, local):
    uri, table = str(tmp_path / "00000.parquet"), make_table(20, 0)
    for value, (name, rule, how) in itertools.product(
        [math.nan, -math.inf],
        [
            (words.ALIGNMENT, "cpi", "mean"),
            (words.MEAN_PAS, "cpi", "mean"),
            ("phrases.drop", "cpi", "min"),
            ("phrases.displacement", "displacement", "mean"),
        ],
    ):
        rows, (column, _, field) = table.to_pylist(), name.partition(".")
        row = next(row for row in rows if row[words.STATUS] == words.OK)
        row[column] = [row[column][0] | {field: value}] if field else value
        write_table(pa.Table.from_pylist(rows, table.schema), uri, table.schema)
        config = by_cpi(select=SelectConfig(rule), attribute=mean_drop(aggregate=how))
        with pytest.raises(UserError, match=rf"^{re.escape(uri)}: {name} must be finite numbers, holds"):
            cut_all([ScoresFile(uri)], make_selection(config))


def test_marked_rows_are_as_if_they_were_not_in_the_table(tmp_path):
    for rule in ["cpi", "align_only", "align_pas", "random", "full", "pas_residual"]:
        table, rng, config = make_table(400, 1), np.random.default_rng(2), by_cpi(select=SelectConfig(rule))
        before_N = np.where(rng.random(400) < 0.3, words.FILTERED, None)
        after_N = np.where(rng.random(400) < 0.2, words.FILTERED_AFTER, None)
        columns = {words.MARK: pa.array(before_N), words.MARK_AFTER: pa.array(after_N)}
        gates, (reason_N, score_N) = judge(add_columns(table, columns), config)
        left_N = before_N == None  # noqa: E711, of each row
        own_gates, (expected_M, score_M) = judge(table.filter(pa.array(left_N)), config)
        assert gates == own_gates and np.array_equal(score_N[left_N], score_M, equal_nan=True)
        lost_M = (expected_M == words.KEPT) & (after_N[left_N] == words.FILTERED_AFTER)
        assert lost_M.any()
        assert np.array_equal(reason_N[left_N], np.where(lost_M, words.FILTERED_AFTER, expected_M))
        marked = table.filter(pa.array(~left_N)).to_pylist()
        wanted = [words.FILTERED if r[words.ALIGNMENT] is not None else r[words.STATUS] for r in marked]
        assert reason_N[~left_N].tolist() == wanted
    scores, marks = str(tmp_path / "scores"), str(tmp_path / "marks")
    write_table(table, scores, table.schema)
    none = pa.nulls(3, pa.string())
    pq.write_table(pa.table({words.MARK: none, words.MARK_AFTER: none}), marks)
    with pytest.raises(UserError, match="has 3 rows"):
        ScoresFile(scores, marks).read([words.UID])


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
    table, config = make_scores(captions), by_cpi(select=SelectConfig("align70_random50"))
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
