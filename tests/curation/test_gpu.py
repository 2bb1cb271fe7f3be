"""Scoring on a GPU: true fp32 unless asked otherwise, and the same bits whatever stands beside a row."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from raycomp.config import ScorerConfig
from raycomp.curation.config import CurateConfig
from raycomp.curation.score.score import align_stages, attribute_stages
from raycomp.curation.score.stages import Align, Attribute
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import SHUFFLED_ALIGNMENT, to_matrix
from raycomp.data.reader import read_shard
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip
from raycomp.words import ALIGNMENT, IMAGE_EMBEDDING, MEAN_PAS, PHRASES, UID
from tests.corpus import by_cpi, write_world_shards

pytestmark = pytest.mark.gpu
NUM = 150
PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])


@pytest.fixture(scope="module")
def prepared(tiny_scorer, tmp_path_factory) -> tuple[CurateConfig, pa.Table]:
    """Rows as they reach the first scorer."""
    world = write_world_shards(tmp_path_factory.mktemp("world"), NUM, NUM)
    config = by_cpi(input=world, scorer=tiny_scorer)
    [shard] = expand_input(world)
    decode, _ = align_stages(config, describe_scorer(tiny_scorer))
    return config, decode.work(pa.concat_tables(read_shard(shard, NUM))).combine_chunks()


def align(
    prepared: tuple[CurateConfig, pa.Table], precision: str, order: np.ndarray, **options: Any
) -> pa.Table:
    config, table = prepared
    scorer = replace(config.scorer, precision=precision, **options)
    score = Align(scorer, describe_scorer(scorer))
    assert score.device.is_gpu
    # What a shuffled pair scores is the one column that depends on the rows beside it.
    return score(table.take(pa.array(order))).drop_columns([SHUFFLED_ALIGNMENT])


def draw_pixels(num: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (num, 32, 32, 3), dtype=np.uint8)


def test_fp32_is_true_fp32_and_tf32_is_not(tiny_scorer):
    """Patches of 768 numbers, each rounded to 10 bits in tf32; in fp32 what is left is the order of sums."""
    pixels = draw_pixels(100)
    on_cpu = Clip(tiny_scorer, device="cpu").embed_pixels(pixels)
    fp32, tf32 = (Clip(replace(tiny_scorer, precision=name)) for name in ("fp32", "tf32"))
    assert (fp32.embed_pixels(pixels) - on_cpu).abs().max() < 2e-6
    if torch.cuda.get_device_capability() >= (8, 0):
        assert 1e-5 < (tf32.embed_pixels(pixels) - on_cpu).abs().max() < 1e-2
    # Another model that was loaded, and computed, in between changes nothing.
    assert (fp32.embed_pixels(pixels) - on_cpu).abs().max() < 2e-6


@PRECISIONS
def test_a_pictures_embedding_has_the_same_bits_in_any_company_and_order(tiny_scorer, precision):
    clip, pixels = Clip(replace(tiny_scorer, precision=precision)), draw_pixels(200)
    together = clip.embed_pixels(pixels)
    order = np.random.default_rng(1).permutation(200)
    assert torch.equal(clip.embed_pixels(pixels[order]), together[order])
    for size in (1, 7, 64, 65):
        parts = [clip.embed_pixels(pixels[start : start + size]) for start in range(0, 200, size)]
        assert torch.equal(torch.cat(parts), together)


@pytest.mark.parametrize("options", [{}, {"pass_size": 256, "overlap": True}])
@PRECISIONS
def test_align_gives_a_row_the_same_bits_in_any_order(prepared, precision, options):
    order = np.random.default_rng(2).permutation(NUM)
    rows = align(prepared, precision, np.arange(NUM), pass_size=options.get("pass_size"))
    permuted = align(prepared, precision, order, **options)
    assert permuted.equals(rows.take(pa.array(order)).combine_chunks())


def in_calls(stage: Align | Attribute, table: pa.Table, num_threads: int) -> pa.Table:
    """Return what a stage makes of the table, 30 rows a call."""
    with ThreadPoolExecutor(num_threads) as pool:
        parts = [table.slice(start, 30) for start in range(0, len(table), 30)]
        return pa.concat_tables(pool.map(stage, parts)).combine_chunks()


def test_two_calls_of_a_stage_at_a_time_give_the_bits_of_one_after_the_other(prepared):
    config, table = prepared
    found = []
    for overlap in (False, True):
        scorer, threads = replace(config.scorer, overlap=overlap), 2 if overlap else 1
        aligned = in_calls(Align(scorer, describe_scorer(scorer)), table, threads)
        parse, _ = attribute_stages(replace(config, scorer=scorer))
        parsed = parse.work(aligned.drop_columns([SHUFFLED_ALIGNMENT])).combine_chunks()
        attributed = in_calls(Attribute(scorer), parsed, threads)
        found.append(attributed.select([UID, ALIGNMENT, IMAGE_EMBEDDING, PHRASES, MEAN_PAS]))
    assert found[0].equals(found[1])


@PRECISIONS
def test_attribute_gives_a_row_the_same_bits_in_any_order(prepared, precision):
    config = replace(prepared[0], scorer=replace(prepared[0].scorer, precision=precision))
    parse, _ = attribute_stages(config)
    parsed = parse.work(align(prepared, precision, np.arange(NUM))).combine_chunks()
    attribute = Attribute(config.scorer)
    order = pa.array(np.random.default_rng(3).permutation(NUM))
    rows, permuted = attribute(parsed), attribute(parsed.take(order))
    columns = [UID, PHRASES, MEAN_PAS]
    assert permuted.select(columns).equals(rows.take(order).select(columns))
    assert rows[MEAN_PAS].drop_null().num_chunks and rows[MEAN_PAS].null_count < NUM


def test_mixed_precision_scores_near_fp32(prepared):
    """Random towers, a world of rendered scenes: what rounding may move a cosine by at most."""
    exact, *others = (align(prepared, name, np.arange(NUM)) for name in ("fp32", "tf32", "bf16"))
    for table, most in zip(others, (5e-3, 5e-2), strict=True):
        for column in (ALIGNMENT, IMAGE_EMBEDDING):
            one, other = (_numbers(a[column]) for a in (exact, table))
            assert np.abs(one - other).max() < most


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return to_matrix(column) if pa.types.is_fixed_size_list(column.type) else column.to_numpy()


def test_a_gpu_and_a_cpu_agree_to_the_order_of_sums(prepared):
    config: ScorerConfig = prepared[0].scorer
    on_gpu = align(prepared, "fp32", np.arange(NUM))
    score = Align(config, describe_scorer(config))
    score.clip = Clip(config, device="cpu")
    on_cpu = score(prepared[1])
    assert np.abs(on_gpu[ALIGNMENT].to_numpy() - on_cpu[ALIGNMENT].to_numpy()).max() < 5e-6
