"""The text tower: shared prefixes and cut texts against plain encoding."""

from dataclasses import dataclass

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raycomp.config import UserError
from raycomp.models.clip import Clip, TextEncoder, encode_text, find_tower
from raycomp.models.device import Device

WORDS = "red dog cat on the a big small house tree photo of with sky umbrella skateboarding".split()

CPU = Device("cpu")
WIDTHS = (16, 32, 64, 160)
BOTH_WIDTHS = pytest.mark.parametrize("widths", [(), WIDTHS])


def make_model(custom_text: bool = False, **more) -> torch.nn.Module:
    torch.manual_seed(0)
    vision = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 3, **more}
    kind = open_clip.model.CustomTextCLIP if custom_text else open_clip.model.CLIP
    model = kind(embed_dim=48, vision_cfg=vision, text_cfg=text).eval()
    # Random towers are nearly linear; larger weights make attention matter.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


@dataclass
class Texts:
    """Captions, their counterfactuals one caption's after the other's, and how many each has."""

    caption_GN: np.ndarray
    other_TN: np.ndarray
    count_G: np.ndarray

    def take(self, chosen: list[int]) -> "Texts":
        end_G = np.cumsum(self.count_G)
        others = [self.other_TN[end_G[i] - self.count_G[i] : end_G[i]] for i in chosen]
        return Texts(self.caption_GN[chosen], np.concatenate(others), self.count_G[chosen])


def draw_texts(num: int, seed: int, most: int = 20) -> Texts:
    rng = np.random.default_rng(seed)
    captions, others, counts = [], [], []
    for _ in range(num):
        words = list(rng.choice(WORDS, rng.integers(1, most)))
        texts = [" ".join(words)]
        for at in rng.permutation(len(words))[: rng.integers(0, 6)]:
            other = "vux" if rng.random() < 0.5 else words[at]
            texts.append(" ".join([*words[:at], other, *words[at + 1 :]]))
        tokens = open_clip.tokenize(texts).numpy()
        same = tokens[1:][tokens[1:].argmax(1) == tokens[0].argmax()]
        captions.append(tokens[0])
        others.append(same)
        counts.append(len(same))
    return Texts(np.stack(captions), np.concatenate(others), np.array(counts))


def embed(encoder: TextEncoder, texts: Texts) -> list[Tensor]:
    """Return per caption its embedding and its counterfactuals'."""
    caption_GD, other_TD = encoder.embed(texts.caption_GN, texts.other_TN, texts.count_G)
    others = other_TD.split(texts.count_G.tolist())
    return [torch.cat([c[None], o]) for c, o in zip(caption_GD, others, strict=True)]


def encode_plain(model: torch.nn.Module, token_KN: np.ndarray) -> Tensor:
    with torch.inference_mode():
        return F.normalize(model.encode_text(torch.from_numpy(token_KN)), dim=-1)


def assert_equals_plain(model: torch.nn.Module, texts: Texts, widths: tuple[int, ...] = ()) -> None:
    encoder = TextEncoder(model, CPU, widths=widths)
    caption_GD, other_TD = encoder.embed(texts.caption_GN, texts.other_TN, texts.count_G)
    for shared, token_KN in ((caption_GD, texts.caption_GN), (other_TD, texts.other_TN)):
        assert shared.shape == (len(token_KN), 48)
        assert (shared - encode_plain(model, token_KN)).abs().max() < 1e-5


@pytest.mark.gpu
@BOTH_WIDTHS
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_gpu_encodes_as_plain_and_to_the_same_bits_in_any_company(precision, widths):
    model = make_model().to("cuda", precision)
    encoder, texts = TextEncoder(model, Device("cuda"), widths=widths), draw_texts(64, seed=9)
    together = embed(encoder, texts)
    with torch.inference_mode():
        token_GN = torch.from_numpy(texts.caption_GN).to("cuda")
        plain_GD = F.normalize(model.encode_text(token_GN).float(), dim=-1).cpu()
    largest = (torch.stack([text_KD[0] for text_KD in together]) - plain_GD).abs().max()
    assert largest < (1e-5 if precision == torch.float32 else 0.05)
    for size in (1, 7):
        for start in range(0, 64, size):
            chosen = list(range(start, min(64, start + size)))
            for i, text_KD in zip(chosen, embed(encoder, texts.take(chosen)), strict=True):
                assert torch.equal(text_KD, together[i])


@BOTH_WIDTHS
def test_equals_plain_encoding(widths):
    """Captions with counterfactuals and alone; some past the cut; where one pass is not enough."""
    caption_1N = open_clip.tokenize([" ".join(["dog"] * 70)]).numpy()
    other_TN = np.repeat(caption_1N, 59, axis=0)
    other_TN[np.arange(59), np.arange(1, 60)] = 4000 + np.arange(59)
    many, few = draw_texts(60, seed=1), draw_texts(5, seed=2, most=90)
    assert len(many.other_TN) > 60
    for custom_text in [False, True]:
        model = make_model(custom_text)
        assert find_tower(model) is not None, custom_text
        for texts in (many, few, Texts(caption_1N, other_TN, np.array([59]))):
            assert_equals_plain(model, texts, widths)
        alone_GD, other_TD = TextEncoder(model, CPU, widths=widths).embed(many.caption_GN)
        assert other_TD.shape == (0, 48)
        assert (alone_GD - encode_plain(model, many.caption_GN)).abs().max() < 1e-5


@BOTH_WIDTHS
def test_a_caption_is_encoded_to_the_same_bits_in_any_company(widths):
    for precision in [torch.float32, torch.bfloat16]:
        encoder = TextEncoder(make_model().to(precision), CPU, widths=widths)
        texts = draw_texts(32, seed=3)
        together = embed(encoder, texts)
        alone_GD, _ = encoder.embed(texts.caption_GN)
        parts = [encoder.embed(texts.caption_GN[start : start + 7])[0] for start in range(0, 32, 7)]
        assert torch.equal(torch.cat(parts), alone_GD), precision
        order = np.random.default_rng(0).permutation(32).tolist()
        for size in (1, 7, 32):
            for start in range(0, 32, size):
                chosen = order[start : start + size]
                for i, text_KD in zip(chosen, embed(encoder, texts.take(chosen)), strict=True):
                    assert torch.equal(text_KD, together[i]), precision


def test_a_caption_is_encoded_to_the_same_bits_wherever_it_stands_in_a_pass():
    longest, other = (
        open_clip.tokenize([f"a red dog on the {word} tree"]).numpy() for word in ("big", "house")
    )
    for precision in [torch.float32, torch.bfloat16]:
        encoder = TextEncoder(make_model().to(precision), CPU)
        encoder.num_positions = 200
        alone = torch.cat(encoder.embed(longest, other, np.array([1])))
        for before in range(1, 170, 7):  # the largest parts are laid out first
            words = [" ".join(["cat"] * min(60, before - at)) for at in range(0, before, 60)]
            caption_GN = np.concatenate([open_clip.tokenize(words).numpy(), longest])
            caption_GD, other_TD = encoder.embed(caption_GN, other, np.array([0] * len(words) + [1]))
            assert torch.equal(torch.cat([caption_GD[-1:], other_TD]), alone), (precision, before)


def encode(model, token_BN, encode):
    model.zero_grad()
    text_BD = encode(token_BN)
    text_BD.square().sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return text_BD.detach(), grads


def test_short_texts_have_the_embeddings_and_gradients_of_whole_ones(tiny_scorer, monkeypatch):
    """Nothing is cut where a tower reads at the last place."""
    model = Clip(tiny_scorer).model.double()
    token_BN = open_clip.tokenize(["a dog", "", "a small red dog next to a very large blue cat"])
    short, whole = (
        encode(model, token_BN, run) for run in (lambda t: encode_text(model, t), model.encode_text)
    )
    torch.testing.assert_close(short[0], whole[0], rtol=1e-12, atol=1e-12)
    assert short[1].keys() == whole[1].keys()
    for name, grad in whole[1].items():
        torch.testing.assert_close(short[1][name], grad, rtol=1e-9, atol=1e-9, msg=name)
    asked = []
    monkeypatch.setattr(model, "encode_text", lambda t: asked.append(t.shape[1]) or torch.zeros(len(t), 32))
    for pool, seen in (("argmax", []), ("last", [77])):
        model.text_pool_type = pool
        encode_text(model, token_BN[:1])
        assert asked == seen


def test_equals_plain_encoding_where_there_is_little_or_no_prefix():
    """A bidirectional tower; no text; an end of text inside the caption."""
    plain, model = make_model(custom_text=True, no_causal_mask=True), make_model()
    assert find_tower(plain) is None
    assert_equals_plain(plain, draw_texts(10, seed=4))
    for one in (plain, model):
        encoded = TextEncoder(one, CPU).embed(np.zeros((0, 77), np.int64))
        assert [part.shape for part in encoded] == [(0, 48), (0, 48)]
    token_GN = open_clip.tokenize(["a dog <end_of_text> and a cat"]).numpy()
    caption_GD, _ = TextEncoder(model, CPU).embed(token_GN)
    assert (caption_GD - encode_plain(model, token_GN)).abs().max() < 1e-5


def test_what_cannot_be_encoded_is_refused():
    token_KN, model = open_clip.tokenize(["a dog", "a skateboarding dog"]).numpy(), make_model()
    with pytest.raises(ValueError, match="caption 0 has 4 tokens, one of its counterfactuals 5"):
        TextEncoder(model, CPU).embed(token_KN[:1], token_KN[1:], np.array([1]))
    token_KN[1, 0] = 7
    with pytest.raises(ValueError, match="start token"):
        TextEncoder(model, CPU).embed(token_KN)
    for one, widths, said in [
        (model, (32, 152), "32,152: the last must be .* context, 154"),
        (
            make_model(custom_text=True, no_causal_mask=True),
            (32, 160),
            "32,160: this model's .*; leave it out",
        ),
    ]:
        with pytest.raises(UserError, match=rf"^scorer\.text_widths={said}$"):
            TextEncoder(one, CPU, widths=widths)
