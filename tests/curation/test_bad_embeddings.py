"""Embeddings that are NaN or zeros: rows of a status, or the weights' fault, and never a clean figure."""

import re

import numpy as np
import pyarrow as pa
import pytest
import torch

from raycomp import words
from raycomp.config import ModelConfig, ParserConfig, ScorerConfig, UserError
from raycomp.core.alignment import has_unit_length
from raycomp.curation.config import NonceConfig
from raycomp.curation.score.stages import Align, Attribute, parse, prepare
from raycomp.data.inputs import expand_input
from raycomp.data.parquet import (
    COUNTERFACTUALS,
    FAULTS,
    TOKENS,
    add_columns,
    to_fixed_lists,
    to_matrix,
)
from raycomp.data.reader import read_shard
from raycomp.data.samples import write_tar
from raycomp.evaluation.embed import TEXT, TEXT_EMBEDDING, EmbedPictures, EmbedTexts, prepare_pixels, tokenize
from raycomp.models.architecture import ScorerSpec, describe_scorer
from raycomp.models.clip import Clip, WeightsCheck, refuse_bad
from raycomp.negatives.ranking import rank
from raycomp.negatives.write import ADD_SIMILARITY, ADDITIONS
from raycomp.schema import NEGATIVE_TYPE
from raycomp.words import BAD_EMBEDDING, OK
from tests.corpus import mean_drop
from tests.curation.broken import WORD, break_tower, forget_word
from tests.drawn import world_shards
from tests.evaluation.embedded import draw

NUM = 6


def say(option: str, scorer: ScorerConfig, noun: str, num: int) -> str:
    """Return the line that a user reads, as a pattern."""
    bad = f"gives embeddings that are not finite or not of length 1 ({num} of {num} {noun})"
    return f"^{re.escape(f'{option}={scorer.weights!r}: {bad}; name other weights')}$"


def to_model(scorer: ScorerConfig) -> ModelConfig:
    return ModelConfig(scorer.model, scorer.weights)


@pytest.fixture(scope="module")
def spec(tiny_scorer) -> ScorerSpec:
    return describe_scorer(tiny_scorer)


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> pa.Table:
    """Pairs, of which the third names a zebra."""
    folder = tmp_path_factory.mktemp("pairs")
    for _, shard in world_shards(NUM, 0, 3, per_shard=NUM):
        pairs = [(f"{i}", members) for i, (_, members) in enumerate(shard)]
        pairs[2][1]["txt"] += f" and a {WORD}".encode()
        write_tar(str(folder / "00000.tar"), pairs)
    [shard] = expand_input(str(folder))
    return pa.concat_tables(read_shard(shard, 64))


def test_only_a_finite_row_of_length_1_has_a_direction():
    inf, nan = float("inf"), float("nan")
    rows = [[0.6, 0.8], [0.0, 0.0], [nan, 1.0], [inf, 0.0], [1.0011, 0.0], [1.0009, 0.0], [3e38, 3e38]]
    assert has_unit_length(torch.tensor(rows)).tolist() == [True, False, False, False, False, True, False]
    assert has_unit_length(torch.zeros(0, 4)).tolist() == []


def test_the_weights_are_to_blame_where_the_first_rows_are_all_bad_and_one_row_is_not_enough():
    bad, good = torch.zeros(1, 4), torch.tensor([[1.0, 0, 0, 0]])
    check = WeightsCheck("scorer.weights='x.pt'", "texts")
    check.watch(bad[:0])
    check.watch(bad)
    with pytest.raises(UserError, match=r"^scorer\.weights='x\.pt': gives .* \(3 of 3 texts\); name other"):
        check.watch(bad, bad)
    settled = WeightsCheck("scorer.weights='x.pt'", "texts")
    settled.watch(bad, good)
    settled.watch(torch.zeros(64, 4))
    refuse_bad(good, "scorer.weights='x.pt'", "texts")
    with pytest.raises(UserError, match=r"\(1 of 2 texts\); name other weights$"):
        refuse_bad(torch.cat([good, bad]), "scorer.weights='x.pt'", "texts")


@pytest.mark.parametrize(("tower", "how"), [("images", "huge"), ("texts", "zero")])
def test_weights_that_embed_nothing_are_named(table, tiny_scorer, spec, tmp_path, tower, how):
    broken = break_tower(tiny_scorer, tmp_path, tower, how)
    rows = prepare(table, tiny_scorer, spec, 10**8)
    with pytest.raises(UserError, match=say("scorer.weights", broken, tower, NUM)):
        Align(broken, spec)(rows)
    if tower == "images":
        with pytest.raises(UserError, match=say("model.weights", broken, tower, NUM)):
            EmbedPictures(to_model(broken), spec)(prepare_pixels(table, spec, 10**8))
        return
    image_ND = draw(np.random.default_rng(0), len(table), spec.embedding_dim)
    stored = add_columns(table, {words.IMAGE_EMBEDDING: to_fixed_lists(image_ND)})
    with pytest.raises(UserError, match=say("scorer.weights", broken, tower, NUM)):
        Align(broken, spec)(prepare(stored, tiny_scorer, spec, 10**8))
    with pytest.raises(UserError, match=r"^scorer\.weights=.*gives embeddings that are not finite"):
        Attribute(broken)(parse_captions(tiny_scorer, spec.embedding_dim))
    texts = tokenize(pa.table({TEXT: CAPTIONS}), to_model(tiny_scorer))
    with pytest.raises(UserError, match=say("model.weights", broken, tower, len(CAPTIONS))):
        EmbedTexts(to_model(broken))(texts)
    for option, scorer in (("scorer.weights", broken), ("model.weights", to_model(broken))):
        with pytest.raises(ValueError, match=say(option, broken, tower, 1)):
            describe_scorer(scorer)


@pytest.mark.parametrize("lost", [2, 4])
def test_a_caption_or_image_without_an_embedding_is_a_bad_row_and_moves_no_other(
    table, tiny_scorer, spec, tmp_path, lost
):
    scorer = forget_word(tiny_scorer, tmp_path) if lost == 2 else tiny_scorer
    rows = prepare(table, scorer, spec, 10**8)
    sound, stage = Align(tiny_scorer, spec)(rows), Align(scorer, spec)
    if lost == 4:
        lose_image(stage.clip, to_matrix(rows[words.PIXELS])[lost].reshape(32, 32, 3))
    found = stage(rows)
    assert found[words.STATUS].to_pylist() == [BAD_EMBEDDING if i == lost else OK for i in range(NUM)]
    others = pa.array([i for i in range(NUM) if i != lost])
    for name in (words.ALIGNMENT, words.IMAGE_EMBEDDING):
        assert [i for i in range(NUM) if not found[name][i].is_valid] == [lost]
        assert found[name].take(others).equals(sound[name].take(others))


def lose_image(clip: Clip, pixels_HWC: np.ndarray) -> None:
    """Let the model give NaN for one picture."""
    with torch.inference_mode():
        lost_CHW = torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1).float().div(255)
        lost_CHW = lost_CHW.sub(clip.mean_3).div(clip.std_3)
    encode = clip.model.encode_image

    def encode_image(image_BCHW: torch.Tensor) -> torch.Tensor:
        is_lost_B = (image_BCHW == lost_CHW).flatten(1).all(1)
        return encode(image_BCHW).masked_fill(is_lost_B[:, None], float("nan"))

    clip.model.encode_image = encode_image


CAPTIONS = ["a dog chases a cat on a red sofa", f"a man on a {WORD}", "a red car"]


def parse_captions(scorer: ScorerConfig, dim: int) -> pa.Table:
    table = pa.table(
        {
            words.UID: [f"{i:032x}" for i in range(len(CAPTIONS))],
            words.CAPTION: CAPTIONS,
            words.ALIGNMENT: pa.array([0.3, 0.2, 0.1], pa.float32()),
            words.IMAGE_EMBEDDING: to_fixed_lists(draw(np.random.default_rng(0), len(CAPTIONS), dim)),
        }
    )
    return parse(table, ParserConfig(), NonceConfig(), mean_drop(nonces=2), scorer)


def test_a_caption_of_bad_counterfactuals_has_no_valid_nonce(tiny_scorer, spec, tmp_path):
    parsed = parse_captions(tiny_scorer, spec.embedding_dim)
    sound, found = (Attribute(one)(parsed) for one in (tiny_scorer, forget_word(tiny_scorer, tmp_path)))
    assert found[words.STATUS].to_pylist() == [OK, words.NO_VALID_NONCE, OK]
    assert found[words.MEAN_PAS][1].as_py() is None
    phrases = found[words.PHRASES][1].as_py()
    assert phrases and all(not p["nonces"] and not p["drops"] and p["drop"] is None for p in phrases)
    assert found[FAULTS][1].as_py() == [BAD_EMBEDDING] * len(phrases)
    others = pa.array([0, 2])
    for name in (words.STATUS, words.PHRASES, words.MEAN_PAS, FAULTS):
        assert found[name].take(others).equals(sound[name].take(others))


def test_a_bad_counterfactual_takes_its_nonce_along_and_no_other(tiny_scorer, spec):
    """One text's embedding is made 0, so its caption and the others of its phrase stay."""
    parsed = parse_captions(tiny_scorer, spec.embedding_dim)
    sound, stage = Attribute(tiny_scorer)(parsed), Attribute(tiny_scorer)
    embed = stage.clip.text.embed

    def embed_but_one(*tokens: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        caption_ND, text_TD = embed(*tokens)
        is_second_T = (torch.arange(len(text_TD)) == 1)[:, None]
        return caption_ND, torch.where(is_second_T, 0.0, text_TD)

    stage.clip.text.embed = embed_but_one
    found = stage(parsed)
    assert found[words.STATUS].equals(sound[words.STATUS]) and found[FAULTS].equals(sound[FAULTS])
    assert found[words.PHRASES].slice(1).equals(sound[words.PHRASES].slice(1))
    (first, *rest), (old, *others) = found[words.PHRASES][0].as_py(), sound[words.PHRASES][0].as_py()
    assert rest == others and len(old["nonces"]) == 2
    assert (first["nonces"], first["drops"]) == (old["nonces"][:1], old["drops"][:1])
    assert first["drop"] == first["drops"][0]


def test_an_evaluation_gives_a_bad_picture_and_a_bad_text_their_status(table, tiny_scorer, spec, tmp_path):
    rows, model = prepare_pixels(table, spec, 10**8), to_model(tiny_scorer)
    rows = add_columns(rows, {words.STATUS: pa.array([OK, "no_image", OK, OK, OK, OK])})
    sound, stage = EmbedPictures(model, spec)(rows), EmbedPictures(model, spec)
    lose_image(stage.clip, to_matrix(rows[words.PIXELS])[3].reshape(32, 32, 3))
    found = stage(rows)
    assert found[words.STATUS].to_pylist() == [OK, "no_image", OK, BAD_EMBEDDING, OK, OK]
    expected_MD = to_matrix(sound[words.IMAGE_EMBEDDING]).copy()
    expected_MD[3] = 0
    assert np.array_equal(to_matrix(found[words.IMAGE_EMBEDDING]), expected_MD)
    model = to_model(forget_word(tiny_scorer, tmp_path))
    texts = EmbedTexts(model)(tokenize(pa.table({TEXT: CAPTIONS}), model))
    assert texts[words.STATUS].to_pylist() == [OK, BAD_EMBEDDING, OK]
    text_ND = torch.from_numpy(to_matrix(texts[TEXT_EMBEDDING]).copy())
    assert has_unit_length(text_ND).tolist() == [True, False, True] and not text_ND[1].any()


def test_a_negative_without_an_embedding_is_not_ranked():
    """Texts by their one token: the caption, a near and a far candidate, and one that is NaN."""
    text_VD = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [np.nan, np.nan]])
    row = [dict.fromkeys(NEGATIVE_TYPE.names) | {"text": text} for text in ("near", "far", "lost")]
    added = [[[[0, 1]], [[0, 2]], [[0, 1], [0, 3]]]]
    table = pa.table(
        {
            words.NEGATIVES: pa.array([row], pa.list_(NEGATIVE_TYPE)),
            TOKENS: to_fixed_lists(np.array([[0]], np.int32)),
            COUNTERFACTUALS: pa.array([[[1], [2], [3]]], pa.list_(pa.list_(pa.int32(), 1))),
            ADDITIONS: pa.array(added, pa.list_(pa.list_(pa.list_(pa.int32())))),
            words.IMAGE_EMBEDDING: to_fixed_lists(np.array([[1.0, 0.0]], np.float32)),
        }
    )
    [found] = rank(table, lambda token_KL: text_VD[torch.from_numpy(token_KL[:, 0]).long()]).to_pylist()
    values = [(one["similarity"], one["image_drop"]) for one in found[words.NEGATIVES]]
    assert values == [(pytest.approx(0.8), pytest.approx(0.2)), (0.0, 1.0), (None, None)]
    assert found[ADD_SIMILARITY] == [pytest.approx(0.8), 0.0, -float("inf")]
