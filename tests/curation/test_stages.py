"""The stages that score, on tables made by hand: prepare, align, attribute, and the metadata beside them."""

import io
import itertools
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from raycomp import schema, words
from raycomp.config import ParserConfig, ScorerConfig
from raycomp.core.alignment import drop_per_displacement
from raycomp.curation.command import check_scorer
from raycomp.curation.config import PAS, NonceConfig, make_selection
from raycomp.curation.score import stages
from raycomp.curation.score.columns import Kinds, choose_types, count_kinds, type_fields
from raycomp.curation.score.stages import Align, Attribute, pair_strangers, parse, prepare
from raycomp.curation.select.measures import corpus_columns, read_corpus
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import SHUFFLED_ALIGNMENT, add_columns, to_fixed_lists, to_matrix
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from raycomp.models.architecture import describe_scorer
from raycomp.models.clip import Clip, load_tokenizer
from raycomp.run.executor import Part, Stats, stage_part
from tests.corpus import by_cpi, mean_drop
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
    embed, view = stage.clip.embed_pixels, stages.prepare_viewed
    monkeypatch.setattr(
        stage.clip, "embed_pixels", lambda p, rows: embedded.append(len(rows)) or embed(p, rows)
    )
    monkeypatch.setattr(stages, "prepare_viewed", lambda *a: decoded.append(a[0]) or view(*a))
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


def block_of(**columns: list) -> pa.Table:
    """Return rows of SAMPLE_SCHEMA that are ok and hold what is given."""
    count = len(next(iter(columns.values())))
    given = {"caption": ["a dog"] * count, "status": ["ok"] * count, **columns}
    return pa.table(
        {name: given.get(name, [None] * count) for name in schema.SAMPLE_SCHEMA.names},
        schema=schema.SAMPLE_SCHEMA,
    )


def test_whatever_a_json_holds_is_prepared(tiny_scorer):
    texts = [
        '{"similarity": NaN, "original_width": true, "original_height": true}',
        '{"similarity": {"a": [1e400]}, "original_width": Infinity, "original_height": 5}',
        '{"similarity": "\\ud800", "original_width": 1e3, "original_height": 5}',
        '{"similarity": ["\u00e9"], "original_width": 7, "original_height": 5}',
        '{"similarity": ' + "9" * 4300 + "}",
        '{"similarity": ' + "[" * 99 + "]" * 99 + "}",
    ]
    found = prepare(block_of(json=texts), tiny_scorer, describe_scorer(tiny_scorer), 100, ("similarity",))
    assert found["similarity"].to_pylist() == [
        None, '{"a": [null]}', "?", '["\\u00e9"]', "9" * 4300, "[" * 99 + "]" * 99,
    ]  # fmt: skip
    assert found["original_width"].to_pylist() == [None, None, None, 7, None, None]


def test_fast_decoding_changes_pixels_and_nothing_else(tiny_scorer):
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((640, 480)).save(buffer, "JPEG")
    block = block_of(image=[buffer.getvalue()])
    exact, fast = (
        prepare(block, tiny_scorer, describe_scorer(tiny_scorer), 10**8, fast_decode=fast)
        for fast in (False, True)
    )
    approximate = {words.PIXELS, *schema.PICTURE_SCHEMA.names}
    same = [name for name in exact.column_names if name not in approximate]
    assert exact.select(same).equals(fast.select(same))
    assert (fast["original_width"][0].as_py(), fast["original_height"][0].as_py()) == (640, 480)
    assert not np.array_equal(to_matrix(exact[words.PIXELS]), to_matrix(fast[words.PIXELS]))


def test_rows_of_one_image_that_differ_in_their_faults(tiny_scorer):
    """A broken image is broken in each of its rows; a row without a caption does not stand for the others."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((40, 40, 3), 7, np.uint8)).save(buffer, "PNG")
    image, broken = buffer.getvalue(), buffer.getvalue()[:-30]
    block = block_of(
        image=[image, broken, image, broken, None, None, image],
        status=["no_caption", "ok", "ok", "ok", "no_image", "no_image", "ok"],
    )
    found = prepare(block, tiny_scorer, describe_scorer(tiny_scorer), 10**8)
    assert found["status"].to_pylist() == [
        "no_caption", "corrupt_image", "ok", "corrupt_image", "no_image", "no_image", "ok",
    ]  # fmt: skip
    assert found["original_width"].to_pylist() == [None, None, 40, None, None, None, 40]
    assert [bool(row.any()) for row in to_matrix(found[words.PIXELS])] == [0, 0, 1, 0, 0, 0, 1]


def test_a_field_has_the_type_of_most_values():
    for values, expected, num_misfits in [
        ([1, 2, None], [1, 2, None], 0),
        ([1, 2.5], [1.0, 2.5], 0),
        ([2**53 + 1, 0.5], [None, 0.5], 1),
        ([2**53 + 1, 5], [2**53 + 1, 5], 0),
        ([1, 2, 4, "3", "x"], [1, 2, 4, 3, None], 1),
        ([1, "x"], ["1", "x"], 0),
        ([0.5, 0.25, "1e400"], [0.5, 0.25, None], 1),
        (["a", [1, None], {"b": 2}, True], ["a", "[1, null]", '{"b": 2}', "true"], 0),
        ([True, False, 1], [True, False, None], 1),
        ([1, 1, True], [1, 1, None], 1),
        ([2**70, 1], [float(2**70), 1.0], 0),
        ([1, 2, 3, "4.5"], [1, 2, 3, None], 1),
        ([math.nan, 1.5], [None, 1.5], 0),
        (["\ud800", "b"], ["?", "b"], 0),
        ([None], None, 0),  # a field that is never there has no column
    ]:
        rows = [{"x": value} for value in values]
        columns, misfits = type_fields(rows, choose_types(count_kinds(rows)))
        assert {name: one.to_pylist() for name, one in columns.items()} == (
            {"x": expected} if expected else {}
        )
        assert misfits["x"] == num_misfits, values


def test_types_do_not_depend_on_shards_or_their_order():
    rng = np.random.default_rng(0)
    pool = [None, 1, 2.5, True, "a", "7", [1]]
    rows = [{name: pool[i] for name, i in zip("abc", rng.integers(0, 7, 3), strict=True)} for _ in range(60)]
    whole = choose_types(count_kinds(rows))
    for cut in (1, 20, 59):
        first, second = count_kinds(rows[:cut]), count_kinds(rows[cut:])
        assert choose_types(first + second) == choose_types(second + first) == whole


def test_of_too_many_fields_the_most_frequent_stay():
    rows = [{f"f{i}": 1} for i in range(400)] + [{"often": 1}] * 2
    types = choose_types(count_kinds(rows))
    assert len(types) == 256 and "often" in types
    assert choose_types(Kinds()) == {}


CAPTIONS = {
    "a picture of a small red square to the left of a large green donut": words.OK,
    "a dog chases a cat on a sunny day": words.OK,
    "a man in a red hat": words.OK,
    "a view of the background": words.NO_SEEN_PHRASE,
    "a sunny day": words.NO_SEEN_PHRASE,
    "it is": words.NO_PHRASE,
}


@pytest.fixture(scope="module")
def aligned() -> pa.Table:
    rng = np.random.default_rng(0)
    image_ND = rng.normal(size=(len(CAPTIONS), 32)).astype(np.float32)
    return pa.table(
        {
            words.UID: [f"{i:032x}" for i in range(len(CAPTIONS))],
            words.CAPTION: list(CAPTIONS),
            words.ALIGNMENT: pa.array(rng.normal(size=len(CAPTIONS)), pa.float32()),
            words.IMAGE_EMBEDDING: to_fixed_lists(image_ND / np.linalg.norm(image_ND, axis=1, keepdims=True)),
        }
    )


def attribute(table: pa.Table, scorer: ScorerConfig, **how: Any) -> pa.Table:
    config = mean_drop(**{"nonces": 2, **how})
    return Attribute(scorer)(parse(table, ParserConfig(), NonceConfig(), config, scorer))


@pytest.fixture(scope="module")
def attributed(aligned, tiny_scorer: ScorerConfig) -> pa.Table:
    return attribute(aligned, tiny_scorer)


@pytest.fixture(scope="module")
def with_content(aligned, tiny_scorer: ScorerConfig) -> pa.Table:
    return attribute(aligned, tiny_scorer, targets="content")


def mean_of(phrases: list[dict]) -> float:
    drops = [phrase["drop"] for phrase in phrases if phrase["nonces"]]
    return math.fsum(drops) / len(drops) if drops else math.nan


def test_unseen_targets_have_drops_and_are_out_of_mean_pas(attributed):
    assert dict(zip(CAPTIONS, attributed[words.STATUS].to_pylist(), strict=True)) == CAPTIONS
    rows = attributed.to_pylist()
    first = rows[0][words.PHRASES]
    assert [(p["target"], p["target_class"]) for p in first] == [
        ("picture", words.UNSEEN),
        ("square", words.HEAD),
        ("donut", words.HEAD),
    ]
    assert first[2]["text"] == "to the left of a large green donut"
    assert all(len(p["drops"]) == 2 for row in rows for p in row[words.PHRASES])
    for row in rows:
        want = mean_of([p for p in row[words.PHRASES] if p["target_class"] == words.HEAD])
        assert (row[words.MEAN_PAS] is None) == math.isnan(want) == (row[words.STATUS] != words.OK)
        assert row[words.MEAN_PAS] is None or row[words.MEAN_PAS] == np.float32(want) != np.float32(
            mean_of(first)
        )


def test_content_words_are_measured_next_to_the_phrases_and_change_nothing_else(attributed, with_content):
    same = [name for name in attributed.column_names if name != words.CONTENT_WORDS]
    assert with_content.select(same).equals(attributed.select(same))
    assert all(not row for row in attributed[words.CONTENT_WORDS].to_pylist())
    first, second, third = with_content[words.CONTENT_WORDS].to_pylist()[:3]
    assert [(p["target"], p["kind"]) for p in first] == [
        ("small", "attribute"),
        ("red", "attribute"),
        ("to the left of", "relation"),
        ("large", "attribute"),
        ("green", "attribute"),
    ]
    assert [p["target"] for p in second] == ["chases", "on", "sunny"] and third[-1]["target"] == "red"
    assert all(p["target_class"] == words.CONTENT and len(p["drops"]) == 2 for p in [*first, *second, *third])


def test_every_reading_is_that_of_a_loop_over_its_targets(with_content):
    """The default, which is a column of its own, is read from that column alone."""
    plain, table = ("showable", "drop", "mean"), with_content.drop_columns([words.MEAN_PAS])
    loops = {"mean": np.mean, "min": min, "max": max}
    loops["fraction_supported"] = lambda drops: np.mean([drop > 0 for drop in drops])
    for targets, unit, how in itertools.product(words.TARGETS, words.UNITS, words.AGGREGATES):
        selection = make_selection(by_cpi(attribute=mean_drop(targets=targets, unit=unit, aggregate=how)))
        columns, want = corpus_columns(selection, with_attribute=True), []
        assert (columns[-1] == words.MEAN_PAS) == ((targets, unit, how) == plain)
        found = read_corpus(table, selection).measures[PAS]
        if (targets, unit, how) == plain:
            own = read_corpus(with_content.select(columns), selection).measures[PAS]
            np.testing.assert_array_equal(own, found)
        for row in table.to_pylist():
            phrases = [*row[words.PHRASES], *(row[words.CONTENT_WORDS] if targets == "content" else [])]
            values = [
                p["drop"] / (math.sqrt(2 * p["displacement"]) if unit == "per_displacement" else 1)
                for p in phrases
                if p["drop"] is not None and (targets != "showable" or p["target_class"] == words.HEAD)
            ]
            want.append(loops[how](values) if values else math.nan)
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_of_one_nonce_a_drop_per_displacement_is_a_cosine_of_the_image_and_what_the_word_changed():
    drawn = np.random.default_rng(1).normal(size=(3, 9, 8))
    image, text, other = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
    drop_P = ((text - other) * image).sum(1)
    found_P = drop_per_displacement(drop_P, 1 - (text * other).sum(1))
    step = (text - other) / np.linalg.norm(text - other, axis=1, keepdims=True)
    np.testing.assert_allclose(found_P, (step * image).sum(1), rtol=1e-6)
    nothing = drop_per_displacement(np.array([0.0, 1e-7, np.nan]), np.array([0.0, 1e-7, 0.5]))
    assert np.isnan(nothing).all(), "nothing was moved, or there is no drop"
