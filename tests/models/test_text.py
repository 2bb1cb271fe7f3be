"""Shared prefixes against open_clip's own encoding of every text by itself."""

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F

from raycomp.models.text import TextEncoder, TextGroup, find_tower

WORDS = "red dog cat on the a big small house tree photo of with sky umbrella skateboarding".split()


def make_model(custom_text: bool = False, **text_cfg) -> torch.nn.Module:
    torch.manual_seed(0)
    cfg = {
        "embed_dim": 48,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 64,
            "heads": 2,
            "layers": 3,
            **text_cfg,
        },
    }
    kind = open_clip.model.CustomTextCLIP if custom_text else open_clip.model.CLIP
    model = kind(**cfg).eval()
    # Random towers are nearly linear; larger weights make attention matter.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def draw_groups(num: int, seed: int, most: int = 20) -> list[TextGroup]:
    rng = np.random.default_rng(seed)
    groups = []
    for _ in range(num):
        words = list(rng.choice(WORDS, rng.integers(1, most)))
        texts = [" ".join(words)]
        for at in rng.permutation(len(words))[: rng.integers(0, 6)]:
            texts.append(
                " ".join([*words[:at], "vux" if rng.random() < 0.5 else words[at], *words[at + 1 :]])
            )
        tokens = open_clip.tokenize(texts).numpy()
        same = [t for t in tokens[1:] if t.argmax() == tokens[0].argmax()]
        groups.append(TextGroup(tokens[0], tuple(same)))
    return groups


def encode_plain(model: torch.nn.Module, groups: list[TextGroup]) -> torch.Tensor:
    tokens = np.stack([t for g in groups for t in (g.caption_N, *g.counterfactuals_N)])
    with torch.inference_mode():
        return F.normalize(model.encode_text(torch.from_numpy(tokens)), dim=-1)


@pytest.mark.parametrize("custom_text", [False, True])
def test_equals_plain_encoding_at_full_context(custom_text):
    model = make_model(custom_text)
    groups = draw_groups(60, seed=1) + draw_groups(3, seed=2, most=90)  # some past the cut
    shared = torch.cat(TextEncoder(model, torch.device("cpu")).embed(groups))
    plain = encode_plain(model, groups)
    assert len(shared) == len(plain) > 100
    assert (shared - plain).abs().max() < 1e-5


def test_equals_plain_encoding_where_one_row_is_not_enough():
    model = make_model()
    caption = open_clip.tokenize([" ".join(["dog"] * 70)]).numpy()[0]
    others = []
    for at in range(1, 60):
        other = caption.copy()
        other[at] = 4000 + at
        others.append(other)
    group = TextGroup(caption, tuple(others))
    shared = TextEncoder(model, torch.device("cpu")).embed([group])[0]
    assert shared.shape == (60, 48)
    assert (shared - encode_plain(model, [group])).abs().max() < 1e-5


def test_a_group_is_encoded_to_the_same_bits_in_any_company():
    encoder = TextEncoder(make_model(), torch.device("cpu"))
    groups = draw_groups(60, seed=3)
    together = encoder.embed(groups)
    order = np.random.default_rng(0).permutation(60)
    shuffled = encoder.embed([groups[i] for i in order])
    for place, i in enumerate(order):
        assert torch.equal(shuffled[place], together[i])
    for i in (0, 17, 59):
        assert torch.equal(encoder.embed([groups[i]])[0], together[i])


def test_an_end_of_text_inside_the_caption_ends_it():
    model = make_model()
    groups = [TextGroup(open_clip.tokenize(["a dog <end_of_text> and a cat"]).numpy()[0])]
    shared = TextEncoder(model, torch.device("cpu")).embed(groups)[0]
    assert (shared - encode_plain(model, groups)).abs().max() < 1e-5


def test_counterfactuals_of_another_length_are_refused():
    tokens = open_clip.tokenize(["a dog", "a skateboarding dog"]).numpy()
    with pytest.raises(ValueError, match="tokens"):
        TextEncoder(make_model(), torch.device("cpu")).embed([TextGroup(tokens[0], (tokens[1],))])


def test_a_bidirectional_tower_takes_the_plain_path_and_stays_right():
    model = make_model(custom_text=True, no_causal_mask=True)
    assert find_tower(model) is None
    groups = draw_groups(10, seed=4)
    encoder = TextEncoder(model, torch.device("cpu"))
    assert (torch.cat(encoder.embed(groups)) - encode_plain(model, groups)).abs().max() < 1e-5
