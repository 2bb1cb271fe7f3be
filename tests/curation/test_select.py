"""Rules and gates on one table against a plain sort."""

import dataclasses
import json
import math

import numpy as np
import pyarrow as pa
import pytest

from raycomp.config import UserError, exact_share, override, override_all
from raycomp.core.selection import format_uids, parse_uids, random_scores
from raycomp.curation.config import PAS, RULES, CurateConfig, SelectConfig, make_selection
from raycomp.curation.select.measures import check_scores, corpus_columns, read_corpus
from raycomp.curation.select.select import (
    EXPLAINING,
    Gates,
    choose_tables,
    describe_shortage,
    rank_attributed,
)
from raycomp.schema import PHRASE_TYPE
from raycomp.words import (
    AGGREGATES,
    ALIGNMENT,
    CAPTION,
    DROPPED_ALIGNMENT,
    DROPPED_ATTRIBUTION,
    DROPPED_CONTROL,
    DROPPED_RANDOM,
    DROPPED_UNSCORED,
    HEAD,
    KEPT,
    MEAN_PAS,
    NO_PHRASE,
    OK,
    PHRASES,
    STATUS,
    UID,
    UNSEEN,
)
from tests.corpus import by_cpi, mean_drop


def make_table(num: int, seed: int, unscored: float = 0.1) -> pa.Table:
    """Rows with many ties. Scored ones have one to four phrases with a drop, some one without, others only
    phrases without, or none; bad ones have no alignment."""
    rng = np.random.default_rng(seed)
    uids = format_uids(rng.integers(0, 2**64, (num, 2), dtype=np.uint64))
    usable = rng.random(num) < 0.9
    scored = usable & (rng.random(num) >= unscored)
    alignment = rng.integers(-50, 50, num).astype(np.float32) / 64  # many ties
    pas = rng.integers(-20, 20, num).astype(np.float32) / 64
    statuses = np.where(scored, OK, np.where(usable, NO_PHRASE, "no_image")).tolist()
    names = [field.name for field in PHRASE_TYPE]
    lengths, phrases = rng.integers(1, 9, num), []
    for mean, is_scored in zip(pas, scored, strict=True):
        drops = [float(mean) - 0.25, float(mean) + 0.25] * int(rng.integers(1, 3)) if is_scored else []
        moved = [{"drop": drop, "displacement": int(rng.integers(0, 9)) / 8} for drop in drops]
        phrases.append([*moved, {}] if rng.random() < 0.3 else moved)
    spoken = ["a", "word", "rather longer,", "E,", "4x4!", "\u72d7", "caf\u00e9"]
    captions = [" \t\u00a0".join(f"{spoken[i]} " for i in rng.integers(0, 7, n)) for n in lengths]
    return pa.table(
        {
            UID: uids,
            STATUS: statuses,
            CAPTION: [caption if u else None for caption, u in zip(captions, usable, strict=True)],
            ALIGNMENT: pa.array(alignment, mask=~usable),
            MEAN_PAS: pa.array(pas, mask=~scored),
            PHRASES: pa.array(
                [
                    [{**dict.fromkeys(names), **p} for p in row] if u else None
                    for row, u in zip(phrases, usable, strict=True)
                ],
                pa.list_(PHRASE_TYPE),
            ),
        }
    )


def choose(table: pa.Table, config: CurateConfig) -> tuple[np.ndarray, np.ndarray]:
    """Reasons and scores, from the columns that the rule says it needs."""
    selection = make_selection(config)
    _, [judged] = choose_tables([table.select(corpus_columns(selection, True))], selection)
    return judged


def cut(table: pa.Table, config: CurateConfig) -> Gates:
    selection = make_selection(config)
    return choose_tables([table.select(corpus_columns(selection, True))], selection)[0]


def best(rows: list[dict], name: str, k: int) -> list[dict]:
    return sorted(rows, key=lambda row: (-row[name], row[UID]))[:k]


def test_cpi_keeps_what_two_plain_sorts_keep():
    for seed in range(4):
        for num in [1, 10, 90, 1000]:
            table, config = make_table(num, seed), by_cpi()
            table_rows = table.to_pylist()
            corpus = [row for row in table_rows if row[ALIGNMENT] is not None]
            pool = best(corpus, ALIGNMENT, exact_share(0.7, len(corpus)))
            scored = [row for row in pool if row[MEAN_PAS] is not None]
            expected = {row[UID] for row in best(scored, MEAN_PAS, exact_share(0.5, len(corpus)))}
            reason_N, score_N = choose(table, config)
            assert {
                row[UID] for row, reason in zip(table_rows, reason_N, strict=True) if reason == KEPT
            } == expected
            ranked = {row[UID] for row in scored}
            assert [row[UID] in ranked for row in table_rows] == (~np.isnan(score_N)).tolist()
            for row, reason in zip(table_rows, reason_N, strict=True):
                assert (reason == row[STATUS]) == (row[ALIGNMENT] is None)


def test_other_aggregates_read_the_drops():
    for how, shift in [("min", -0.25), ("max", 0.25)]:
        config = by_cpi(attribute=mean_drop(aggregate=how))
        table = make_table(200, 0)
        corpus = read_corpus(table.drop_columns([MEAN_PAS]), make_selection(config))
        mean = read_corpus(table.drop_columns([PHRASES]), make_selection(by_cpi()))
        assert np.array_equal(corpus.measures[PAS], mean.measures[PAS] + np.float32(shift), equal_nan=True)


def draw_classes(num: int, seed: int) -> pa.Table:
    """Rows of up to five phrases of both classes, some without a nonce; mean_pas as scoring writes it."""
    rng, blank = np.random.default_rng(seed), dict.fromkeys(PHRASE_TYPE.names)
    rows = [
        [
            blank
            | {"target_class": UNSEEN if rng.random() < 0.4 else HEAD}
            | {"drop": float(np.float32(rng.normal())) if rng.random() < 0.8 else None}
            for _ in range(rng.integers(0, 6))
        ]
        for _ in range(num)
    ]
    seen = [slow_mean([p for p in row if p["target_class"] != UNSEEN]) for row in rows]
    columns = {MEAN_PAS: pa.array(seen, pa.float32()), PHRASES: pa.array(rows, pa.list_(PHRASE_TYPE))}
    table = make_table(num, seed).drop_columns([MEAN_PAS, PHRASES])
    return table.append_column(MEAN_PAS, columns[MEAN_PAS]).append_column(PHRASES, columns[PHRASES])


def slow_mean(phrases: list[dict]) -> float | None:
    drops = [phrase["drop"] for phrase in phrases if phrase["drop"] is not None]
    return math.fsum(drops) / len(drops) if drops else None


def test_unseen_targets_count_where_all_nouns_do():
    for how in AGGREGATES:
        for targets in ["showable", "nouns"]:
            config = by_cpi(attribute=mean_drop(aggregate=how, targets=targets))
            table = draw_classes(300, 4)
            selection = make_selection(config)
            corpus = read_corpus(table.select(corpus_columns(selection, with_attribute=True)), selection)
            loop = {
                "mean": lambda drops: math.fsum(drops) / len(drops),
                "min": min,
                "max": max,
                "fraction_supported": lambda drops: sum(drop > 0 for drop in drops) / len(drops),
            }[how]
            rows = [row for row in table.to_pylist() if row[ALIGNMENT] is not None]
            taken = [
                [p for p in row[PHRASES] if targets == "nouns" or p["target_class"] == HEAD] for row in rows
            ]
            drops = [[p["drop"] for p in phrases if p["drop"] is not None] for phrases in taken]
            want = [np.float32(loop(row)) if row else np.float32(np.nan) for row in drops]
            assert np.array_equal(corpus.measures[PAS], np.array(want, np.float32), equal_nan=True)
            assert 0 < np.isnan(corpus.measures[PAS]).sum() < len(want)


def test_the_default_mean_is_read_from_its_column_alone():
    assert corpus_columns(make_selection(by_cpi()), with_attribute=True)[-1] == MEAN_PAS
    table = draw_classes(200, 5)
    stored = read_corpus(table.drop_columns([PHRASES]), make_selection(by_cpi()))
    assert np.array_equal(
        stored.measures[PAS],
        read_corpus(table.drop_columns([MEAN_PAS]), make_selection(by_cpi())).measures[PAS],
        equal_nan=True,
    )


def test_a_random_draw_depends_on_seed_and_uid_alone():
    config = by_cpi(select=SelectConfig("random"))
    table = make_table(500, 1)
    kept = choose(table, config)[0] == KEPT
    order = np.random.default_rng(0).permutation(500)
    shuffled = table.take(pa.array(order))
    assert np.array_equal(choose(shuffled, config)[0] == KEPT, kept[order])
    other = dataclasses.replace(config, seed=1)
    assert not np.array_equal(choose(table, other)[0] == KEPT, kept)


def test_too_few_scored_rows_are_all_kept_and_it_is_said():
    table, config = make_table(100, 2, unscored=0.8), by_cpi()
    gates = cut(table, config)
    assert (choose(table, config)[0] == KEPT).sum() == gates.num_scored
    assert "all of them were kept" in describe_shortage(make_selection(config), gates)[0]
    assert describe_shortage(make_selection(config), cut(make_table(100, 2), config)) == []


CONTROLS = [name for name, rule in RULES.items() if rule.attribute_by and name != "cpi"]


def rank_slowly(rule: str, rows: list[dict], seed: int = 0) -> dict[str, float]:
    """What a control ranks the rows by, by uid, one row at a time."""
    found = {}
    for row in rows:
        drops = [p["drop"] for p in row[PHRASES] if p["drop"] is not None]
        moved = [p["displacement"] for p in row[PHRASES] if p["displacement"] is not None]
        found[row[UID]] = {
            "align70_random50": random_scores(parse_uids([row[UID]]), seed)[0],
            "cpi_reverse": -row[MEAN_PAS],
            "length": len(row[CAPTION].split()),
            "phrase_count": len(drops),
            "displacement": np.float32(np.mean(moved)),
            "pas_residual": row[MEAN_PAS],
            "align_pas": row[MEAN_PAS],
        }
    if rule == "pas_residual":
        y = np.array([by["pas_residual"] for by in found.values()])
        names = ("length", "phrase_count", "displacement")
        x = [[1, row[ALIGNMENT], *(found[row[UID]][name] for name in names)] for row in rows]
        rest = y - np.array(x) @ np.linalg.lstsq(np.array(x), y, rcond=None)[0] if rows else y
        return dict(zip(found, np.round(rest, 7), strict=True))  # equal rows tie
    if rule == "align_pas" and rows:
        a, p = (np.array([row[name] for row in rows], np.float64) for name in (ALIGNMENT, MEAN_PAS))
        ratio = p.std() / a.std() if len(rows) > 1 and p.std() and a.std() else 1.0
        return dict(zip(found, np.round(p - p.mean() + ratio * (a - a.mean()), 7), strict=True))
    return {uid: by[rule] for uid, by in found.items()}


def test_the_large_tables_distinguish_every_rule():
    for rule in ["cpi", *CONTROLS]:
        for num, seed in ((500, 10), (700, 5), (1000, 3)):
            table = make_table(num, seed)
            score_N = choose(table, by_cpi(select=SelectConfig(rule)))[1]
            assert len(set(score_N[~np.isnan(score_N)].tolist())) >= 2
            captions = [caption for caption in table[CAPTION].to_pylist() if caption]
            for count in (lambda c: c.count(","), lambda c: len(set(c)), lambda c: len(c) / len(c.split())):
                assert len(set(map(count, captions))) >= 4


def test_every_control_keeps_what_a_slow_loop_keeps_of_the_rows_that_cpi_ranks():
    for rule in CONTROLS:
        for num, seed in [(1, 0), (10, 1), (90, 2), (1000, 3)]:
            table, config = make_table(num, seed), by_cpi(select=SelectConfig(rule))
            rows = table.to_pylist()
            corpus = [row for row in rows if row[ALIGNMENT] is not None]
            pool = best(corpus, ALIGNMENT, exact_share(0.7, len(corpus)))
            ranked = [row for row in pool if row[MEAN_PAS] is not None]
            by = rank_slowly(rule, ranked)
            kept = exact_share(0.5, len(corpus))
            order = sorted(by, key=lambda uid: (-by[uid], uid))
            reason_N, score_N = choose(table, config)
            expected = {
                row[UID]: row[STATUS] if row[ALIGNMENT] is None else DROPPED_ALIGNMENT for row in rows
            }
            expected |= {row[UID]: DROPPED_UNSCORED for row in pool}
            below = {"align70_random50": DROPPED_RANDOM, "align_pas": DROPPED_ATTRIBUTION}
            expected |= dict.fromkeys(order, below.get(rule, DROPPED_CONTROL))
            expected |= dict.fromkeys(order[:kept], KEPT)
            assert dict(zip(table[UID].to_pylist(), reason_N, strict=True)) == expected
            wanted = [by.get(row[UID], np.nan) for row in rows]
            assert np.allclose(score_N, wanted, rtol=0, atol=1e-6, equal_nan=True)


def test_controls_keep_as_many_as_cpi_and_rank_the_same_rows():
    table = make_table(700, 5)
    judged = {rule: choose(table, by_cpi(select=SelectConfig(rule))) for rule in ("cpi", *CONTROLS)}
    ranked = ~np.isnan(judged["cpi"][1])
    kept = {rule: frozenset(np.flatnonzero(reason_N == KEPT)) for rule, (reason_N, _) in judged.items()}
    assert len({len(rows) for rows in kept.values()}) == 1 and len(set(kept.values())) == len(kept)
    for _, score_N in judged.values():
        assert np.array_equal(~np.isnan(score_N), ranked)


def test_datacomps_rule_keeps_one_more_and_all_ties_in_every_rule():
    for rule in CONTROLS:
        table = make_table(500, 10)
        config = override_all(by_cpi(), {"select.rule": rule, "select.datacomp_compat": True})
        num = table[ALIGNMENT].length() - table[ALIGNMENT].null_count
        reason_N, score_N = choose(table, config)
        alignment_N = table[ALIGNMENT].to_numpy()
        cut = -np.sort(-alignment_N[~np.isnan(alignment_N)])[int(num * 0.7)]
        ranked_N = (alignment_N >= cut) & table[MEAN_PAS].is_valid().to_numpy()
        assert np.array_equal(~np.isnan(score_N), ranked_N)
        lowest = -np.sort(-score_N[ranked_N])[int(num * 0.5)]
        assert np.array_equal(reason_N == KEPT, ranked_N & (score_N >= lowest))


def test_datacomps_rule_has_nothing_to_cut_in_an_empty_corpus():
    for rule in ["cpi", "align_only"]:
        table = make_table(20, 10).slice(0, 0)
        config = by_cpi(select=SelectConfig(rule))
        assert len(choose(table, config)[0]) == 0
        with pytest.raises(
            ValueError, match=r"select\.datacomp_compat=True: must be false: no row has an align"
        ):
            choose(table, override(config, "select.datacomp_compat", True))


def test_what_cpi_keeps_least_its_reverse_keeps_first():
    """With enough rows for both they share none, and a random half is neither."""
    config = override(by_cpi(), "attribute.keep", 0.3)
    table = make_table(600, 6, unscored=0)
    first, last = (choose(table, override(config, "select.rule", rule))[0] for rule in ("cpi", "cpi_reverse"))
    assert (first == KEPT).sum() == (last == KEPT).sum() > 0
    assert not ((first == KEPT) & (last == KEPT)).any()
    assert set(first[last == KEPT]) == {DROPPED_ATTRIBUTION}


def test_files_and_their_order_of_rows_change_no_choice():
    for rule in CONTROLS:
        table, config = make_table(300, 7), by_cpi(select=SelectConfig(rule))
        table = table.select(corpus_columns(make_selection(config), True))
        whole = dict(zip(table[UID].to_pylist(), choose(table, config)[0], strict=True))
        mixed = table.take(pa.array(np.random.default_rng(0).permutation(300)))
        pieces = [mixed.slice(0, 7), mixed.slice(7, 0), mixed.slice(7, 200), mixed.slice(207)]
        gates, judged = choose_tables(pieces, make_selection(config))
        reasons = np.concatenate([reason_N for reason_N, _ in judged])
        assert dict(zip(mixed[UID].to_pylist(), reasons, strict=True)) == whole
        assert gates.attribute.count == sum(reason == KEPT for reason in whole.values())


def test_a_draw_in_the_pool_is_named_by_any_shares_and_depends_on_the_seed():
    settings = {"align.keep": 0.705, "attribute.keep": 0.5, "select.rule": "align70.5_random50"}
    config = override_all(by_cpi(), settings)
    table = make_table(400, 8)
    kept = choose(table, config)[0] == KEPT
    other = choose(table, override(config, "seed", 1))[0] == KEPT
    assert kept.sum() == other.sum() and not np.array_equal(kept, other)


def test_what_the_regressors_explain_leaves_nothing_to_rank_by():
    """PAS that is a sum of them: every residual is 0 but for rounding, and R^2 is 1."""
    config = by_cpi(select=SelectConfig("pas_residual"))
    table = make_table(300, 9)
    measures = read_corpus(table, make_selection(config)).measures
    exact = sum(np.float64(1 + i) / 64 * measures[name] for i, name in enumerate(EXPLAINING))
    rows, at = table.to_pylist(), 0
    for row in rows:
        if row[ALIGNMENT] is not None:
            for phrase in row[PHRASES]:
                phrase["drop"] = None if phrase["drop"] is None else float(exact[at])
            at += 1
    table = pa.Table.from_pylist(rows, table.schema)
    gates = cut(table, config)
    assert gates.fit.explained == pytest.approx(1, abs=1e-9)
    score_N = choose(table, config)[1]
    assert gates.num_scored > 100 and np.nanmax(np.abs(score_N)) < 1e-7


def test_where_one_of_alignment_and_pas_does_not_vary_the_other_ranks():
    for what in [ALIGNMENT, "drop"]:
        rows = make_table(300, 9).to_pylist()
        for row in rows:
            if what == ALIGNMENT and row[ALIGNMENT] is not None:
                row[ALIGNMENT] = 0.25
            for phrase in row[PHRASES] or ():
                if what == "drop" and phrase["drop"] is not None:
                    phrase["drop"] = 0.125
            if what == "drop" and row[MEAN_PAS] is not None:
                row[MEAN_PAS] = 0.125
        table = pa.Table.from_pylist(rows, make_table(1, 0).schema)
        summed = choose(table, by_cpi(select=SelectConfig("align_pas")))[1]
        ranked_N = ~np.isnan(summed)
        other = table[MEAN_PAS if what == ALIGNMENT else ALIGNMENT].to_numpy()[ranked_N]
        assert np.allclose(np.diff(summed[ranked_N]), np.diff(other), atol=1e-6) and ranked_N.sum() > 100


def test_the_report_is_of_the_score_that_ranks_and_of_pas_where_none_of_pas_does():
    """Also of rows that no gate ranked."""
    for rule in ["cpi", *CONTROLS, "align_only", "random", "full"]:
        for how in ["mean", "min"]:
            table, config = (
                make_table(300, 4),
                by_cpi(select=SelectConfig(rule), attribute=mean_drop(aggregate=how)),
            )
            selection = make_selection(config)
            found = rank_attributed(table, selection, cut(table, config)).to_numpy(zero_copy_only=False)
            ranked = choose(table, config)[1]
            pas = read_corpus(table, make_selection(by_cpi(attribute=mean_drop(aggregate=how)))).measures[
                "pas"
            ]
            assert len(found[~np.isnan(found)]) == len(pas[~np.isnan(pas)])
            if rule in ("cpi", "align_pas", "cpi_reverse", "pas_residual"):
                in_pool = ~np.isnan(ranked)
                np.testing.assert_array_equal(found[in_pool], ranked[in_pool])
                assert np.isnan(ranked[~np.isnan(found)]).any(), "rows that the first gate dropped"
            else:
                np.testing.assert_array_equal(found[~np.isnan(found)], pas[~np.isnan(pas)])


def test_gates_survive_json():
    for rule in ["cpi", "pas_residual", "align_pas"]:
        gates = cut(make_table(90, 3), by_cpi(select=SelectConfig(rule)))
        assert Gates.from_dict(json.loads(json.dumps(gates.to_dict()))) == gates
        assert (gates.fit is None) == (rule == "cpi")


def test_gates_of_a_run_before_there_was_a_fit_can_be_read():
    gates = cut(make_table(90, 3), by_cpi())
    values = gates.to_dict()
    del values["fit"]
    assert Gates.from_dict(values) == gates


def test_a_score_that_is_not_finite_is_reported_and_one_that_is_null_is_none():
    for value in [math.nan, math.inf, -math.inf]:
        for name in [ALIGNMENT, MEAN_PAS, "phrases.drop", "phrases.displacement"]:
            rows = make_table(20, 0).to_pylist()
            check_scores(pa.Table.from_pylist(rows, make_table(1, 0).schema), "scores/00000.parquet")
            column, _, field = name.partition(".")
            row = next(row for row in rows if row[STATUS] == OK)
            if field:
                row[column][0][field] = value
            else:
                row[column] = value
            table = pa.Table.from_pylist(rows, make_table(1, 0).schema)
            with pytest.raises(
                UserError, match=rf"^scores/00000\.parquet: {name} must be finite numbers, holds NaN"
            ):
                check_scores(table, "scores/00000.parquet")
            check_scores(table.drop_columns([column]), "scores/00000.parquet")
