"""Rules and gates on one table against a plain sort."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from raycomp.config import AttributeConfig, CurateConfig, SelectConfig, exact_share
from raycomp.core.selection import count_digit, format_uids
from raycomp.loops.select import (
    Gates,
    describe_shortage,
    enters_second,
    first_scores,
    first_share,
    judge,
    make_search,
    read_corpus,
)
from raycomp.schema import ALIGNMENT, KEPT, MEAN_PAS, NO_PHRASE, OK, PHRASE_TYPE, PHRASES, STATUS, UID


def make_table(num: int, seed: int, unscored: float = 0.1) -> pa.Table:
    rng = np.random.default_rng(seed)
    uids = format_uids(rng.integers(0, 2**64, (num, 2), dtype=np.uint64))
    usable = rng.random(num) < 0.9
    scored = usable & (rng.random(num) >= unscored)
    alignment = rng.integers(-50, 50, num).astype(np.float32) / 64  # many ties
    pas = rng.integers(-20, 20, num).astype(np.float32) / 64
    statuses = np.where(scored, OK, np.where(usable, NO_PHRASE, "no_image")).tolist()
    drops = [
        [{"drop": float(p) + d} for d in (-0.25, 0.25)] if s else [] for p, s in zip(pas, scored, strict=True)
    ]
    names = [field.name for field in PHRASE_TYPE]
    phrases = [[{**dict.fromkeys(names), **d} for d in row] for row in drops]
    return pa.table(
        {
            UID: uids,
            STATUS: statuses,
            ALIGNMENT: pa.array(alignment, mask=~usable),
            MEAN_PAS: pa.array(pas, mask=~scored),
            PHRASES: pa.array(phrases, pa.list_(PHRASE_TYPE)),
        }
    )


def cut(table: pa.Table, config: CurateConfig) -> Gates:
    """The gates over one table, searched as the cluster searches over many."""
    corpus = read_corpus(table, config)
    num = len(corpus.row_M)
    gates = Gates(num)
    search = make_search(config, num, num, first_share(config))
    while not search.done:
        search.advance(count_digit(search, first_scores(corpus, config), corpus.uid_M2))
    gates = dataclasses.replace(gates, align=search.threshold)
    if config.select.rule != "cpi":
        return gates
    scored_M = enters_second(corpus, config, gates)
    search = make_search(config, num, int(scored_M.sum()), config.attribute.keep)
    while not search.done:
        search.advance(count_digit(search, corpus.pas_M[scored_M], corpus.uid_M2[scored_M]))
    return dataclasses.replace(gates, attribute=search.threshold, num_scored=int(scored_M.sum()))


def best(rows: list[dict], name: str, k: int) -> list[dict]:
    return sorted(rows, key=lambda row: (-row[name], row[UID]))[:k]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num", [1, 10, 90, 1000])
def test_cpi_keeps_what_two_plain_sorts_keep(num, seed):
    table, config = make_table(num, seed), CurateConfig()
    table_rows = table.to_pylist()
    corpus = [row for row in table_rows if row[ALIGNMENT] is not None]
    pool = best(corpus, ALIGNMENT, exact_share(0.7, len(corpus)))
    scored = [row for row in pool if row[MEAN_PAS] is not None]
    expected = {row[UID] for row in best(scored, MEAN_PAS, exact_share(0.5, len(corpus)))}
    reason_N, score_N = judge(
        table.drop_columns([PHRASES]), config, cut(table.drop_columns([PHRASES]), config)
    )
    assert {row[UID] for row, reason in zip(table_rows, reason_N, strict=True) if reason == KEPT} == expected
    ranked = {row[UID] for row in scored}
    assert [row[UID] in ranked for row in table_rows] == (~np.isnan(score_N)).tolist()
    for row, reason in zip(table_rows, reason_N, strict=True):
        assert (reason == row[STATUS]) == (row[ALIGNMENT] is None)


@pytest.mark.parametrize(("how", "shift"), [("min", -0.25), ("max", 0.25)])
def test_other_aggregates_read_the_drops(how, shift):
    config = CurateConfig(attribute=AttributeConfig(aggregate=how))
    table = make_table(200, 0)
    corpus = read_corpus(table.drop_columns([MEAN_PAS]), config)
    mean = read_corpus(table.drop_columns([PHRASES]), CurateConfig())
    assert np.array_equal(corpus.pas_M, mean.pas_M + np.float32(shift), equal_nan=True)


def test_a_random_draw_depends_on_seed_and_uid_alone():
    config = CurateConfig(select=SelectConfig("random"))
    table = make_table(500, 1).drop_columns([PHRASES])
    kept = judge(table, config, cut(table, config))[0] == KEPT
    order = np.random.default_rng(0).permutation(500)
    shuffled = table.take(pa.array(order))
    assert np.array_equal(judge(shuffled, config, cut(shuffled, config))[0] == KEPT, kept[order])
    other = dataclasses.replace(config, seed=1)
    assert not np.array_equal(judge(table, other, cut(table, other))[0] == KEPT, kept)


def test_too_few_scored_rows_are_all_kept_and_it_is_said():
    table, config = make_table(100, 2, unscored=0.8).drop_columns([PHRASES]), CurateConfig()
    gates = cut(table, config)
    reason_N, _ = judge(table, config, gates)
    assert (reason_N == KEPT).sum() == gates.num_scored
    assert "all of them were kept" in describe_shortage(config, gates)[0]
    assert describe_shortage(config, cut(make_table(100, 2), config)) == []


def test_gates_survive_json():
    gates = cut(make_table(90, 3), CurateConfig())
    assert Gates.from_dict(gates.to_dict()) == gates
