"""Pairs called shuffled: never the same image, never the same caption, and in no score."""

import json

import numpy as np
import pyarrow as pa
import pytest

from raycomp import words
from raycomp.config import ScorerConfig
from raycomp.curation.command import check_scorer
from raycomp.curation.score import prepare as prepare_module
from raycomp.curation.score.prepare import prepare
from raycomp.curation.score.scorers import Align, pair_strangers
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import SHUFFLED_ALIGNMENT, add_columns, to_fixed_lists, to_matrix
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.run.executor import Part, Stats, stage_part
from tests.drawn import world_shards


def photos_with_captions(folder, count: int, each: int) -> str:
    """Write photos of which each has several captions, side by side."""
    samples = []
    for _, shard in world_shards(count, 0, 3, per_shard=count):
        for i, (_, members) in enumerate(shard):
            text = members["txt"].decode()
            samples += [(f"{i}-{j}", {**members, "txt": f"{text} {j}".encode()}) for j in range(each)]
    write_tar(str(folder / "00000.tar"), samples)
    return str(folder)


@pytest.fixture
def table(tmp_path, tiny_scorer) -> pa.Table:
    [shard] = expand_input(photos_with_captions(tmp_path, 6, 5))
    return pa.concat_tables(read_shard(shard, 64))


def align(table: pa.Table, scorer: ScorerConfig) -> pa.Table:
    spec = describe_scorer(scorer)
    return Align(scorer, spec)(prepare(table, scorer, spec, 10**8))


def test_an_image_with_several_captions_is_decoded_and_embedded_once(table, tiny_scorer, monkeypatch):
    spec, apart = describe_scorer(tiny_scorer), align(table, tiny_scorer)
    table, stage = table.take(pa.array(np.random.default_rng(0).permutation(30))), Align(tiny_scorer, spec)
    decoded, embedded = [], []
    embed, view = stage.clip.embed_pixels, prepare_module.prepare_viewed
    monkeypatch.setattr(
        stage.clip, "embed_pixels", lambda p, rows: embedded.append(len(rows)) or embed(p, rows)
    )
    monkeypatch.setattr(prepare_module, "prepare_viewed", lambda *a: decoded.append(a[0]) or view(*a))
    together = stage(prepare(table, tiny_scorer, spec, 10**8))
    assert embedded == [6] and len(decoded) == len(set(decoded)) == 6
    names = [name for name in apart.column_names if name != SHUFFLED_ALIGNMENT]
    assert together.sort_by("uid").select(names).equals(apart.sort_by("uid").select(names))


@pytest.mark.parametrize("kept", ["all", "some", "none"])
def test_rows_are_scored_alike_however_a_table_lies_in_memory(table, tiny_scorer, kept):
    spec, names = describe_scorer(tiny_scorer), [words.UID, words.ALIGNMENT, words.IMAGE_EMBEDDING]
    prepared = prepare(table, tiny_scorer, spec, 10**8).combine_chunks()
    stage, num = Align(tiny_scorer, spec), len(prepared)
    expected = pa.concat_tables(stage(prepared.slice(row, 1)) for row in range(num)).select(names)
    valid_N = np.full(num, kept != "none")
    valid_N[::3] &= kept != "some"
    marked = add_columns(prepared, {words.STATUS: pa.array(np.where(valid_N, "ok", "no_image"))})
    middle = pa.concat_tables([prepared.slice(0, 3), marked, prepared.slice(0, 2)]).combine_chunks()
    before = to_matrix(middle[words.PIXELS]).copy()
    for rows in (
        marked,
        middle.slice(3, num),
        pa.concat_tables([marked.slice(0, 7), marked.slice(7, 1), marked.slice(8)]),
        pa.concat_tables([middle.slice(3, 11), middle.slice(14, num - 11)]),
    ):
        found = stage(rows).select(names)
        assert found.filter(pa.array(valid_N)).equals(expected.filter(pa.array(valid_N)))
        assert found.filter(pa.array(~valid_N))[words.IMAGE_EMBEDDING].null_count == (~valid_N).sum()
    assert (to_matrix(middle[words.PIXELS]) == before).all()
    assert not to_matrix(marked[words.PIXELS]).flags.writeable


@pytest.mark.parametrize("stored", [False, True])
def test_a_shuffled_pair_is_of_another_photo(table, tiny_scorer, stored):
    images, scored = table[words.IMAGE].to_pylist(), align(table, tiny_scorer)
    if stored:
        embeddings = to_fixed_lists(to_matrix(scored[words.IMAGE_EMBEDDING]))
        nothing = pa.nulls(len(table), pa.large_binary())
        table = add_columns(table, {words.IMAGE: nothing, words.IMAGE_EMBEDDING: embeddings})
        scored = align(table, tiny_scorer)
    tokens = load_tokenizer(tiny_scorer)(scored[words.CAPTION].to_pylist()).numpy()
    text_BD, _ = Clip(tiny_scorer).text.embed(tokens)
    cosine_BB = to_matrix(scored[words.IMAGE_EMBEDDING]) @ text_BD.numpy().T
    found_BB = np.isclose(cosine_BB, np.array(scored[SHUFFLED_ALIGNMENT].to_pylist())[:, None], atol=1e-6)
    is_same_BB = np.array([[one == other for other in images] for one in images])
    assert (found_BB & ~is_same_BB).any(1).all() and not (found_BB & is_same_BB).any()


def test_strangers_are_as_a_slow_search_finds_them():
    generator = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 10, 40):
        images, captions = generator.integers(0, 4, (2, size)).tolist()
        found = pair_strangers(images, captions).tolist()
        for i in range(size):
            fit = [j for j in range(size) if images[j] != images[i] and captions[j] != captions[i]]
            assert found[i] == min(fit, key=lambda j: (j - i) % size, default=-1)


def test_the_check_counts_only_pairs_that_have_a_shuffled_one(table, tiny_scorer, tmp_path):
    """Where all is one photo, or one caption, there is none."""
    part = Part(pa.schema([(words.UID, pa.string())]), sampled=(words.ALIGNMENT, SHUFFLED_ALIGNMENT))
    bad = add_columns(table.slice(0, 3), {words.STATUS: pa.array(["ok", "no_image", "ok"])})
    same = add_columns(table, {words.CAPTION: pa.array(["a red cube"] * len(table))})
    for blocks, num in (((bad,), None), ((same,), None), ((bad, table), len(table))):
        stats = Stats()
        for rows in blocks:
            staged = stage_part(align(rows, tiny_scorer), str(tmp_path), part)
            stats.add(json.loads(staged["stats"][0].as_py()))
        shuffled = stats.samples.get(SHUFFLED_ALIGNMENT, [])
        assert len(stats.samples.get(words.ALIGNMENT, [])) == len(shuffled) and None not in shuffled
        assert (check_scorer(stats) or {"n": None})["n"] == num
