"""Texts cut to the batch's longest are embedded as whole ones, with the same gradients."""

import open_clip
import pytest
import torch

from raycomp.models.clip import Clip, encode_text


def encode(model, token_BN, encode):
    model.zero_grad()
    text_BD = encode(token_BN)
    text_BD.square().sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return text_BD.detach(), grads


def test_short_texts_have_the_embeddings_and_gradients_of_whole_ones(tiny_scorer):
    model = Clip(tiny_scorer).model.double()
    token_BN = open_clip.tokenize(["a dog", "", "a small red dog next to a very large blue cat"])
    short, whole = (
        encode(model, token_BN, run) for run in (lambda t: encode_text(model, t), model.encode_text)
    )
    torch.testing.assert_close(short[0], whole[0], rtol=1e-12, atol=1e-12)
    assert short[1].keys() == whole[1].keys()
    for name, grad in whole[1].items():
        torch.testing.assert_close(short[1][name], grad, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(("pool", "seen"), [("argmax", []), ("last", [77])])
def test_nothing_is_cut_where_a_tower_reads_at_the_last_place(tiny_scorer, monkeypatch, pool, seen):
    model, asked = Clip(tiny_scorer).model, []
    model.text_pool_type = pool
    monkeypatch.setattr(model, "encode_text", lambda t: asked.append(t.shape[1]) or torch.zeros(len(t), 32))
    encode_text(model, open_clip.tokenize(["a dog"]))
    assert asked == seen
